"""Audit, vocabularies, hardware limits, tuning, fairness."""
