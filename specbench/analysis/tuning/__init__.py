"""Sweeps and tuning: one run's records re-walked at other thresholds and draft lengths, and settings chosen by them."""
