"""`specbench drift`."""
