"""Real model pairs, measured cell by cell: see `__main__`."""
