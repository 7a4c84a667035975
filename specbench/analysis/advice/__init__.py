"""`specbench advise`."""
