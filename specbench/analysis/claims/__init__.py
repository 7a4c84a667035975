"""Published speed-ups set against measured ones: `specbench explain`."""
