"""Leaderboard files as static pages: `specbench site`."""
