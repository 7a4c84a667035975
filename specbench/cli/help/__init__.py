"""Help of methods and tasks, as text and as JSON, from their files and their code."""
