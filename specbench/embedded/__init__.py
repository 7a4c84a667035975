"""The embedded models: a small synthetic world, tiny models trained on it, and the command that builds them."""
