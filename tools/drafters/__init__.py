"""Trained drafters of the embedded world, measured beside the plain one: see `__main__`."""
