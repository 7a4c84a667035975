"""Boards: what belongs on one leaderboard, how it is measured, and the published figures that it stands beside."""
