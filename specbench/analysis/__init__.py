"""Analyses of methods and models: audit, fairness, limit, sweep and tune, vocab, languages."""
