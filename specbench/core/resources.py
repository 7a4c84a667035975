"""Resources in the specbench package: the folders of tasks, methods and leaderboards, and the prefixes of models that
are neither folders nor on the hub."""

from functools import cache
from pathlib import Path

from specbench.core.extras import DISTRIBUTION

PACKAGE = Path(__file__).resolve().parents[1]
EMBEDDED = "embedded:"  # prefix of the names of the models in the package
OBJECT = "object:"  # prefix of the names of models and components that are Python objects of this process


@cache
def builtin_dir(kind: str) -> Path:
    """Returns the folder of built-in `tasks`, `methods` or `leaderboards`: in the checkout if there is one, else in the
    wheel."""
    checkout = PACKAGE.parent
    pyproject = checkout / "pyproject.toml"
    if pyproject.is_file() and f'name = "{DISTRIBUTION}"' in pyproject.read_text(encoding="utf-8"):
        return checkout / kind
    return PACKAGE / "builtin" / kind
