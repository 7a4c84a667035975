"""`specbench check`: whether a run is worse than a run or a leaderboard file."""
