"""What comes with specbench: where tasks, methods and boards are, and how its models are named."""

from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1]
EMBEDDED = "embedded:"  # what the names of the models that come with specbench begin with


def builtin_dir(kind: str) -> Path:
    """The folder of built-in `tasks`, `methods` or `leaderboards`: of the checkout if it is there, or in the wheel."""
    checkout = PACKAGE.parent
    pyproject = checkout / "pyproject.toml"
    if pyproject.is_file() and 'name = "specbench"' in pyproject.read_text(encoding="utf-8"):
        return checkout / kind
    return PACKAGE / "builtin" / kind
