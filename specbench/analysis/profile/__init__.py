"""`specbench profile`: the acceptance of draft tokens position by position, and its forms for other engines."""
