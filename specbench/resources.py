"""What comes with specbench: where the tasks and methods are, and how its models are named."""

from pathlib import Path

PACKAGE = Path(__file__).resolve().parent
EMBEDDED = "embedded:"  # what the names of the models that come with specbench begin with


def builtin_dir(kind: str) -> Path:
    """The folder of the built-in `tasks` or `methods`: of the checkout when it is there, else inside the wheel."""
    checkout = PACKAGE.parent
    pyproject = checkout / "pyproject.toml"
    if pyproject.is_file() and 'name = "specbench"' in pyproject.read_text(encoding="utf-8"):
        return checkout / kind
    return PACKAGE / "builtin" / kind
