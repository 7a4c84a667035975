"""`specbench vocab`."""
