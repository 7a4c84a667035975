"""Executes untrusted programs: `run.run_program`. No scorer does so before `run.allow`."""
