"""`specbench roofline` and `specbench predict`."""
