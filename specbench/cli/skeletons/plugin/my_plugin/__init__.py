"""Components, methods and a task for specbench."""

from pathlib import Path

METHODS = Path(__file__).parent / "methods"
TASKS = Path(__file__).parent / "tasks"
