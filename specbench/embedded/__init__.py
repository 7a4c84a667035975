"""The embedded pair: a small synthetic world, two tiny models trained on it, and the command that makes them."""
