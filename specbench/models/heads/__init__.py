"""Draft heads: small networks that draft from the hidden states of the target."""
