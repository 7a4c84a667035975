"""Where the built-in tasks and methods are: the checkout when it is there, else the copies inside the wheel."""

from pathlib import Path

PACKAGE = Path(__file__).resolve().parent


def builtin_dir(kind: str) -> Path:
    """The folder of the built-in `tasks` or `methods`."""
    checkout = PACKAGE.parent
    pyproject = checkout / "pyproject.toml"
    if pyproject.is_file() and 'name = "specbench"' in pyproject.read_text(encoding="utf-8"):
        return checkout / kind
    return PACKAGE / "builtin" / kind
