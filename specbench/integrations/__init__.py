"""Decoders with a loop of their own, and lm-eval in both directions."""
