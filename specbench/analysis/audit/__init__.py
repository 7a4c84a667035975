"""Whether a method's output is the target's own: its greedy output against AR's, and its draws against exact
probabilities."""
