"""Records → metrics with intervals → leaderboard rows → tables."""
