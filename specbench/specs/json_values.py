"""Values that a task file may hold: those that JSON can hold too."""

import json
from collections.abc import Mapping
from typing import Any

from specbench.errors import ConfigError


def like_json(values: Any, place: str) -> None:
    """Raise ConfigError naming the key (`place` + key) of a value that JSON cannot hold, such as a date."""
    for name, value in values.items() if isinstance(values, Mapping) else ():
        try:
            json.dumps(value, allow_nan=False, ensure_ascii=False).encode()
        except (TypeError, ValueError, RecursionError) as error:
            kind = type(value).__name__
            raise ConfigError(f"{place}{name}: a {kind} that JSON cannot hold: write a text in quotes") from error
