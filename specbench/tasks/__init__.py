"""Tasks: rows of data, their prompts, scoring, the judge, and the sandbox for programs."""
