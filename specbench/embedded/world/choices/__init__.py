"""Multiple-choice questions about a small closed world."""
