"""Results as Python objects that notebooks show as tables and pictures."""

import csv
import io
import json
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from specbench.core.console import PlainConsole
from specbench.core.environment import require
from specbench.core.errors import ConfigError
from specbench.core.files import check_output, write_output, writing
from specbench.core.table import Table
from specbench.records.records import Record
from specbench.report.compare import Comparison, comparison_tables
from specbench.report.tables import RunRows
from specbench.results.concurrency import break_even, load_of, rows_by_server
from specbench.results.level import Levels, level_of
from specbench.results.metric_format import without_digest
from specbench.results.row import Row
from specbench.statistics.bootstrap import Estimate


class DisplayedResult:
    """A result that notebooks show as tables, and `print` as text."""

    def tables(self) -> Iterable[Table | str]:
        """Returns the tables, and lines of text between them."""
        raise NotImplementedError

    def _repr_html_(self) -> str:
        parts = self.tables()
        return "".join(part.html() if isinstance(part, Table) else f"<p>{escape(part)}</p>\n" for part in parts)

    def __str__(self) -> str:
        console = PlainConsole()
        with console.capture() as captured:
            for part in self.tables():
                console.print(part, soft_wrap=isinstance(part, str))
        return captured.get()

    def __repr__(self) -> str:
        return str(self)


@dataclass(frozen=True, repr=False)
class Results(DisplayedResult):
    """The rows and the records of a run or of all points of a sweep, or the rows of a leaderboard file. `path`: its
    folder or its file."""

    outcome: RunRows
    path: Path

    @property
    def rows(self) -> Sequence[Row]:
        """The rows: one per method and subset, and one over all subsets; of a sweep, those of each point."""
        return self.outcome.rows

    @cached_property
    def records(self) -> list[Record]:
        """The records: for every example the tokens, steps and times of each method. Raises ConfigError if there are
        none."""
        from specbench.results.runs import RecordedRun, points_in
        from specbench.results.sweeps import is_sweep

        if not self.path.is_dir():
            raise ConfigError(f"{self.path}: a leaderboard file has no records: load the folder of a run")
        folders = points_in(self.path) if is_sweep(self.path) else [self.path]
        return [record for folder in folders for record in RecordedRun(folder).records.values()]

    def tables(self) -> Iterable[Table]:
        return self.outcome.tables()

    def columns(self) -> list[dict[str, object]]:
        """Returns the rows as flat mappings, as `leaderboard export` writes them."""
        return columns(self.rows)

    def to_pandas(self) -> Any:
        """Returns a DataFrame with a line per row and the columns of `columns`."""
        try:
            import pandas
        except ImportError as error:
            raise ConfigError("to_pandas needs pandas: pip install pandas") from error
        return pandas.DataFrame(self.columns())

    def to_parquet(self, path: str | Path) -> Path:
        """Writes a Parquet file with a line per row and the columns of `columns`. Returns its path."""
        write_output("to_parquet", Path(path), parquet_bytes(self.columns()))
        return Path(path)

    def plot(self, path: str | Path | None = None) -> "Picture":
        """Returns a picture of speed-up and acceptance by subset, and writes it into a file if `path` is given. Raises
        ConfigError for a sweep."""
        from specbench.results.sweeps import is_sweep

        if is_sweep(self.path):
            raise ConfigError(f"{self.path}: is a sweep: draw it with `specbench plot sweep {self.path}`")
        figure = picture_of(self.outcome.by_method())
        if path is not None:
            check_plot(Path(path))
            _write(figure, Path(path))
        return Picture(figure)


@dataclass(frozen=True)
class Picture:
    """A matplotlib figure that notebooks show."""

    figure: Any

    def _repr_png_(self) -> bytes:
        content = io.BytesIO()
        self.figure.savefig(content, format="png", dpi=100)
        return content.getvalue()


class ComparedRuns(DisplayedResult, Comparison):
    """A comparison of two runs or methods."""

    def tables(self) -> Iterable[Table]:
        return comparison_tables(self)


FORMATS = (".csv", ".parquet")
NUMBER = re.compile(r"[-+]?[0-9]+(\.[0-9]*)?([eE][-+]?[0-9]+)?")


def columns(rows: Iterable[Row], levels: Levels | None = None) -> list[dict[str, object]]:
    """Returns the rows as flat mappings with the same keys. Tasks and methods have their bare names, and their
    versioned names as task_id and method_id. Each metric has its interval as NAME_low and NAME_high. Other values that
    have parts are JSON text. `levels`: of rows that bundles have; all others are stated."""
    flat = []
    for row in rows:
        cells: dict[str, object] = {"task": row.task_name, "subset": row.subset, "method": row.method_name}
        for name, value in row.model_dump(mode="json", exclude={"metrics", *cells}).items():
            cells[name] = json.dumps(value, ensure_ascii=False) if isinstance(value, dict | list) else value
        cells |= {"task_id": row.task, "method_id": row.method}
        cells |= level_of(row, levels or {}).columns()
        for name, metric in row.metrics.items():
            cells |= {name: metric.value, f"{name}_low": metric.low, f"{name}_high": metric.high}
        flat.append(cells)
    names = list(dict.fromkeys(name for cells in flat for name in cells))
    return [{name: cells.get(name) for name in names} for cells in flat]


def export(rows: Sequence[Row], to: Path, levels: Levels | None = None) -> None:
    """Writes rows to a file in the format of its suffix. Raises ConfigError for another suffix, and if the file cannot
    be written."""
    if to.suffix not in FORMATS:
        raise ConfigError(
            f"--output {to}: the suffix must give the format: name a file that ends in {' or '.join(FORMATS)}"
        )
    check_output("--output", to)
    flat = columns(rows, levels)
    write_output("--output", to, parquet_bytes(flat) if to.suffix == ".parquet" else csv_text(flat))


def csv_text(flat: Sequence[dict[str, object]]) -> str:
    """Returns mappings with the same keys as CSV. Null is an empty cell."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")

    def without_formula(cell: object) -> object:
        """Puts a ' before a text that a spreadsheet would run as a formula, by which spreadsheets mark texts. Numbers
        stay as they are, also negative ones. Line ends are \\n: the csv module does not quote the others."""
        if not isinstance(cell, str) or NUMBER.fullmatch(cell):
            return cell
        text = cell.replace("\r\n", "\n").replace("\r", "\n")
        return f"'{text}" if text.startswith(("=", "+", "-", "@", "\t", "\n")) else text

    for cells in [list(flat[0]), *(cells.values() for cells in flat)] if flat else []:
        writer.writerow(map(without_formula, cells))
    return text.getvalue()


def parquet_bytes(flat: Sequence[dict[str, object]]) -> bytes:
    import pyarrow
    from pyarrow import parquet

    written = pyarrow.BufferOutputStream()
    parquet.write_table(pyarrow.Table.from_pylist(list(flat)), written)
    return bytes(written.getvalue())


Panel = Callable[[Any], None]  # draws into the axes of a picture


def check_plot(path: Path) -> None:
    """Raises ConfigError if no picture can be written to a file of this name. Called before anything is measured."""
    kinds = new_figure().canvas.get_supported_filetypes()
    if path.suffix.lstrip(".") not in kinds:
        raise ConfigError(f"--plot {path}: unknown picture format: end the name in one of .{', .'.join(sorted(kinds))}")


def draw(groups: Sequence[Sequence[Row]], path: Path, loads: Sequence[Sequence[Row]] = ()) -> None:
    _write(picture_of(groups, loads), path, "; the rows are kept")


def picture_of(groups: Sequence[Sequence[Row]], loads: Sequence[Sequence[Row]] = ()) -> Any:
    """Returns a figure of matplotlib. `groups`: the rows of one task and one method each, a row per subset. `loads`:
    the rows of one task, subset and kind of load each, a row per level and server."""
    panels: list[list[Panel]] = [[partial(draw_rows, rows=rows)] for rows in groups]
    panels += [[partial(_draw_loads, rows=rows)] for rows in loads]
    return _picture(panels, (9, 3.2 * len(groups) + 5 * len(loads)))


def save_picture(
    grid: Sequence[Sequence[Panel]], path: Path, *, size: tuple[float, float], title: str = "", kept: str = ""
) -> None:
    """Draws panels and writes the picture into a file. `grid`: rows of equally many panels, each a function that draws
    into axes; a panel that occurs several times covers all its places. `size`: in inches. Raises ConfigError if the
    file cannot be written; `kept` ends the message."""
    _write(_picture(grid, size, title), path, kept)


def _picture(grid: Sequence[Sequence[Panel]], size: tuple[float, float], title: str = "") -> Any:
    figure = new_figure(figsize=size, layout="constrained")
    axes = figure.subplot_mosaic([[id(panel) for panel in row] for row in grid])
    for panel in dict.fromkeys(panel for row in grid for panel in row):
        panel(axes[id(panel)])
    if title:
        figure.suptitle(title)
    return figure


def _write(figure: Any, path: Path, kept: str = "") -> None:
    with writing(f"--plot {path}", kept=kept):
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=150)


def reach(metrics: Sequence[Estimate]) -> list[list[float]]:
    """Returns the distances of the interval ends from the values, below and above: [2, num_metrics]; 0 without an
    interval."""
    below = [0.0 if m.low is None else max(0.0, (m.value or 0.0) - m.low) for m in metrics]
    return [below, [0.0 if m.high is None else max(0.0, m.high - (m.value or 0.0)) for m in metrics]]


def draw_rows(panel: Any, rows: Sequence[Row]) -> None:
    places = range(len(rows))
    speedups = [row.metric("speedup") for row in rows]
    bars: dict[str, object] = {"label": "speed-up, no interval"}
    if any(metric.low is not None for metric in speedups):
        bars = {"yerr": reach(speedups), "label": "speed-up, 95 %"}
    heights = [metric.value or 0.0 for metric in speedups]
    handles = [panel.bar(places, heights, capsize=3, color="#7aa6c2", **bars)]
    panel.axhline(1.0, color="black", linewidth=0.8, linestyle=":")
    panel.set_xticks(places, [row.subset for row in rows])
    panel.set_ylabel("speed-up over AR")
    panel.set_title(f"{without_digest(rows[0].task)} · {without_digest(rows[0].method)}", loc="left")
    rates = [row.value("acceptance_rate") for row in rows]
    if any(rate is not None for rate in rates):
        right = panel.twinx()
        known = [np.nan if rate is None else rate for rate in rates]
        handles += right.plot(places, known, "o", color="#b5493a", label="acceptance rate α")
        right.set_ylim(0, 1)
        right.set_ylabel("acceptance rate α")
    panel.legend(handles=handles, loc="lower right", bbox_to_anchor=(1, 1), ncols=2, frameon=False)


def _draw_loads(panel: Any, rows: Sequence[Row]) -> None:
    """Draws total tokens/s over tokens/s per user: a curve for each server with a point for each level of load. A
    cross marks the level at which a method is as fast as the baseline."""
    for own in rows_by_server(rows):
        points = [(row.value("tokens_per_second_user"), row.value("tokens_per_second"), row) for row in own]
        places = [(user, whole, load_of(row).level) for user, whole, row in points if user and whole]
        if not places:
            continue
        (line,) = panel.plot(*zip(*[place[:2] for place in places], strict=True), "o-", label=own[0].method_name)
        for user, whole, level in places:
            panel.annotate(f"{level:g}", (user, whole), xytext=(5, 4), textcoords="offset points", fontsize=8)
        if even := break_even(own).value:
            users, wholes, levels = (np.log(values) for values in zip(*places, strict=True))
            user, whole = (np.exp(np.interp(np.log(even), levels, values)) for values in (users, wholes))
            label = f"{own[0].method_name}: as fast as ar at {even:.1f}"
            panel.plot([user], [whole], "x", color=line.get_color(), markersize=11, markeredgewidth=2, label=label)
    first, load = rows[0], load_of(rows[0])
    unit = "requests in flight" if load.kind == "concurrency" else "requests per second"
    context = "" if load.context is None else f", {load.context} tokens"
    panel.set_title(f"{first.task_name} · {first.subset}{context} · {unit} next to the points", loc="left")
    panel.set_xlabel("tokens/s per user")
    panel.set_ylabel("total tokens/s")
    panel.set_xlim(left=0)
    panel.set_ylim(bottom=0)
    panel.legend(frameon=False)


def new_figure(**options: Any) -> Any:
    """Returns an empty figure outside pyplot, so that a notebook's own figures do not change. Raises ConfigError if
    matplotlib is not installed."""
    require("matplotlib", "--plot")
    from matplotlib.figure import Figure

    return Figure(**options)
