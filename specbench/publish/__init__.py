"""Boards, suites and the static site."""
