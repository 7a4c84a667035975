"""External decoders with their own generation loop, servers, and lm-eval in both directions."""
