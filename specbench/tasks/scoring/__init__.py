"""Scorers: they judge an answer."""
