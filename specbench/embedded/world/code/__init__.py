"""Short Python functions with checks."""
