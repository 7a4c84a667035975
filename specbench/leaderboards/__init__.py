"""Leaderboard files as people keep and publish them: rows added, checked, merged, ranked and compared."""
