"""`specbench schema`."""

import json

from specbench.console import stdout


def schema() -> None:
    """Print the JSON Schema of leaderboard files, with the number of their format."""
    from specbench.leaderboards.schema import schema as made

    stdout.out(json.dumps(made(), indent=2, ensure_ascii=False))
