"""`specbench suite`: a grid of tasks, methods, pairs, temperatures and seeds, measured by one process or by many."""
