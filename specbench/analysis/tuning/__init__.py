"""`specbench sweep` and `specbench tune`."""
