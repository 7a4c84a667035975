"""The folders of built-in tasks, methods and leaderboards, and the name prefixes of models that are neither folders nor
on the hub."""

from functools import cache
from pathlib import Path

from specbench.core.extras import DISTRIBUTION

PACKAGE = Path(__file__).resolve().parents[1]
EMBEDDED = "embedded:"  # name prefix of the models in the package
OBJECT = "object:"  # name prefix of models and components that are Python objects of this process


@cache
def builtin_dir(kind: str) -> Path:
    """Returns the folder of built-in `tasks`, `methods` or `leaderboards`, from the checkout or else from the wheel."""
    checkout = PACKAGE.parent
    pyproject = checkout / "pyproject.toml"
    if pyproject.is_file() and f'name = "{DISTRIBUTION}"' in pyproject.read_text(encoding="utf-8"):
        return checkout / kind
    return PACKAGE / "builtin" / kind
