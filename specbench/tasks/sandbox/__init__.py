"""Runs programs that nobody trusts: `run.run_program`, and `permission.allow`, without which no scorer runs any."""
