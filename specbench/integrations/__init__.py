"""External decoders with their own generation loop, and lm-eval in both directions."""
