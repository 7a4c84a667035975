"""What is behind `specbench check`: two runs, or a run and a leaderboard file → what has become worse."""
