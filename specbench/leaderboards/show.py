"""Board files → what `specbench leaderboard show` prints."""

from collections.abc import Sequence
from pathlib import Path

from rich.table import Table

from specbench.errors import ConfigError, nearest
from specbench.leaderboards.choosing import filtered, of_subsets
from specbench.leaderboards.formats import FORMATS
from specbench.leaderboards.runs import Runs
from specbench.leaderboards.tables import Numbered, check_metric, tables
from specbench.results.leaderboard import load
from specbench.results.row import Row


def show(
    files: Sequence[Path], metric: str, filters: Sequence[str], subsets: Sequence[str], format_: str = "text"
) -> list[Table | str]:
    """Ranked tables of the rows that are asked for; of several files a line for each with its number; why records that
    are there could not be read.

    Raises ConfigError for files, keys, values, subsets, metrics and formats that there are not, and where there are no
    rows.
    """
    if format_ not in FORMATS:
        raise ConfigError(f"--format {format_}: {nearest(format_, FORMATS)}")
    places: dict[tuple[str, str], tuple[Row, Path, str]] = {}  # of each row, once: its file and its name
    for number, file in enumerate(files):
        for place, row in enumerate(load(file)):
            name = f"{number + 1}:{place}" if len(files) > 1 else str(place)
            places.setdefault((row.key, row.created), (row, file, name))
    rows = [row for row, _, _ in places.values()]
    if not rows:
        raise ConfigError(
            f"{', '.join(map(str, files))}: no rows: add some with `specbench leaderboard add RUN --to FILE`"
        )
    chosen = of_subsets(filtered(rows, filters), subsets)
    check_metric(chosen, metric)
    runs, keys = Runs(), {(row.key, row.created) for row in chosen}
    shown = [Numbered(name, runs.side(row, file))
             for key, (row, file, name) in places.items() if key in keys]  # fmt: skip
    legend = [f"{number + 1}: {file}" for number, file in enumerate(files)] if len(files) > 1 else []
    comment = "% " if format_ == "latex" else ""
    return [*map(FORMATS[format_], tables(shown, metric)), *(f"{comment}{line}" for line in [*legend, *runs.told()])]
