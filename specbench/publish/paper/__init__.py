"""Figures and tables for papers, from runs and leaderboard files."""
