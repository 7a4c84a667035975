"""Shared basics: errors, files, bounded reading, the registry, the console, and a client of completion servers."""
