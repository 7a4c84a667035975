"""`specbench fairness`."""
