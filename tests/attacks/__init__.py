"""Attacks as data, and the tests that run them. `pytest tests/attacks -m ""` prints how many of each group held."""
