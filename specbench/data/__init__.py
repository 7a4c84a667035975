"""Rows from the hub, local files or the bundled sample, and the examples made of them."""
