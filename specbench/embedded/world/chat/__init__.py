"""Conversations of two turns, and questions of one."""
