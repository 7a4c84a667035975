"""Decoders with their own loop, and lm-eval in both directions."""
