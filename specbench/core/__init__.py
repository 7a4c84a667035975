"""What every other package uses: errors, files, bounded reading, the registry, the console, a client of servers."""
