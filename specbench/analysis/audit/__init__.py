"""`specbench audit`."""
