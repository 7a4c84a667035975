"""Draft heads and drafters trained for a public target: see `__main__`."""
