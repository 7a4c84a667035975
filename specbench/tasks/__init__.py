"""Tasks: rows of data, prompts made of them, scoring, the judge, and the sandbox for programs."""
