"""Word problems with worked answers, and the bare sums behind them."""
