"""The rows of one pair of a suite, and published figures next to our numbers."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from specbench.core.errors import ConfigError
from specbench.publish.suite_runs import RUNS, SuiteRun, load_suite, runs_of, suite_path
from specbench.publish.suite_spec import (
    FAIRNESS,
    QUALITY,
    Figure,
    FigureGroup,
    FigureReference,
    FigureRow,
    PublishedTable,
    SuiteSpec,
    file_name,
)
from specbench.results.leaderboard import load
from specbench.results.metric_format import without_digest
from specbench.results.row import ALL, Row
from specbench.statistics.bootstrap import Estimate

MACHINE_OPTIONS = {"device", "threads", "warm_up", "allow_code_execution"}
MeasuredRun = tuple[SuiteRun, Sequence[Row]]


@dataclass(frozen=True)
class PairRows:
    """The rows of one pair of a suite, by run."""

    suite: SuiteSpec
    pair_name: str
    runs: Sequence[MeasuredRun]

    @property
    def measured(self) -> list[MeasuredRun]:
        return [(run, rows) for run, rows in self.runs if rows]

    def our_value(self, reference: FigureReference) -> float | None:
        """Returns our number for a figure, in the figure's unit; None if it is not measured, or the figure belongs to
        another pair. The numbers of the embedded models are compared with the figures of every pair."""
        pair = self.suite.pairs[self.pair_name]
        is_own = reference.pair == self.pair_name
        is_own |= reference.pair is None and reference.target in (None, pair.target)
        value = self._value(reference, reference.method) if is_own or pair.is_embedded else None
        other = reference.minus or reference.change_from
        base = None if other is None else self._value(reference, other)
        if value is None or (other is not None and base is None):
            return None
        if reference.change_from:
            return 100 * (value / base - 1) if base else None
        return (value - (base or 0.0)) * (reference.scale or 1)

    def _value(self, reference: FigureReference, method: str | None) -> float | None:
        """Returns the metric of a method on a subset; without a subset, over all subsets or on the only one."""
        rows = [row for run, found in self.runs if run.task.label == reference.task for row in found]
        method_rows = [row for row in rows if method is not None and self.method_name(row) == method]
        method_rows = [row for row in method_rows if row.level == (reference.load or "")]
        subset = reference.subset or (ALL if len(method_rows) > 1 else None)
        row = next((row for row in method_rows if subset in (None, row.subset)), None)
        return None if row is None or reference.metric is None else value_of(row, reference.metric)

    def method_name(self, row: Row) -> str:
        """Returns the suite's name of the method of a row; the pair may have replaced the method."""
        for name, replacement in self.suite.pairs[self.pair_name].methods.items():
            if replacement is not None and row.method_name in (replacement, file_name(replacement)):
                return name
        return row.method_name


def value_of(row: Row, metric: str) -> float | None:
    """Returns the value of a metric, of the main score (`quality`), or of a number of `specbench fairness`, given by
    its path of fields and keys. None if there is none."""
    if not metric.startswith(FAIRNESS):
        return row.metrics.get(str(row.quality) if metric == QUALITY else metric, Estimate()).value
    value: Any = row.fairness
    for name in metric.removeprefix(FAIRNESS).split("."):
        value = value.get(name) if isinstance(value, dict) else getattr(value, name, None)
    if isinstance(value, Estimate):
        return value.value
    return None if value is None or isinstance(value, BaseModel | dict | str) else float(value)


def measured_pairs(name: str, pair: str | None, runs: Path | None) -> list[PairRows]:
    """Returns the rows of a pair, or of every pair for None. The rows of a run are those of its folder in `runs`; if
    it has none, those in the leaderboard next to the suite's file."""
    suite = load_suite(name)
    if runs is not None and not runs.is_dir():
        raise ConfigError(f"--runs {runs}: no such folder: give the one that `specbench board run` measured into")
    committed = suite_path(name).with_suffix(".json")
    committed_rows = load(committed) if committed.is_file() else []
    folder = runs or RUNS
    return [
        PairRows(
            suite,
            each,
            [(run, run.rows() or rows_of_run(committed_rows, run)) for run in runs_of(suite, None, folder, each)],
        )
        for each in ([pair] if pair is not None else suite.pairs)
    ]


def rows_of_run(rows: Sequence[Row], run: SuiteRun) -> list[Row]:
    """Returns the rows of a leaderboard that belong to a run, whatever machine and amount of data they were measured
    with."""
    rows_of_request = [row for row in rows if measurement_key(row.request) == measurement_key(run.request.settings())]
    if run.suite.is_served:
        return rows_of_request
    return [row for row in rows_of_request if (row.task, row.method) in run.row_names()] if rows_of_request else []


def measurement_key(settings: Mapping[str, object]) -> dict[str, object]:
    """Returns the settings of a request that do not depend on the machine, the amount of data, or other methods."""
    ignored = {*MACHINE_OPTIONS, "data", "limit", "method"}
    return {name: value for name, value in settings.items() if name not in ignored}


def outdated_line(run: SuiteRun, rows: Sequence[Row]) -> str | None:
    """Returns a line on rows measured with other options or versions than the run has now; None without any."""

    def option(name: str, value: object) -> str:
        text = "–" if value is None else " ".join(map(str, value)) if isinstance(value, list) else value
        return f"--{name.replace('_', '-')} {text}"

    now = run.request.settings()
    rows_of_task = [
        row for row in rows if all(row.request.get(key) == now.get(key) for key in ("task", "method", "target"))
    ]
    for row in rows_of_task:
        then = row.request
        options = [name for name in {**then, **now} if name not in MACHINE_OPTIONS]
        differ = [name for name in options if then.get(name) != now.get(name)]
        if differ:
            first, second = (", ".join(option(name, each.get(name)) for name in differ) for each in (then, now))
            return f"{run.task.label}: measured with {first}; the suite now asks for {second}"
    if rows_of_task and (missing := run.row_names() - {(row.task, row.method) for row in rows}):
        names = ", ".join(sorted({f"{without_digest(task)} {without_digest(method)}" for task, method in missing}))
        return f"{run.task.label}: measured with other versions; the suite now asks for {names}"
    return None


@dataclass(frozen=True)
class FigureComparison:
    """A published figure and our number in the same unit; None if it is not measured."""

    published: Figure
    ours: float | None

    @property
    def ratio(self) -> float | None:
        """Ours ÷ published; None if ours is not measured, the published figure is 0, or the signs differ."""
        published = self.published.value
        if self.ours is None or published == 0 or self.ours * published < 0:
            return None
        return self.ours / published


# A row of a published table with its group, and its figures with our numbers by column; None where the paper has none.
ComparedRow = tuple[FigureGroup, FigureRow, list[FigureComparison | None]]


def compared_rows(rows: PairRows, table: PublishedTable) -> list[ComparedRow]:
    return [
        (group, row, [
            None if figure is None else FigureComparison(figure, rows.our_value(table.reference(group, row, column)))
            for column, figure in zip(table.columns, row.figures, strict=True)
        ])
        for group, row in table.rows()
    ]  # fmt: skip


def as_records(rows: PairRows) -> Iterator[dict[str, object]]:
    """Yields every published figure of a suite with our number, as a mapping for JSON."""
    for table in rows.suite.published:
        for group, row, line in compared_rows(rows, table):
            for column, figure in zip(table.columns, line, strict=True):
                if figure is not None:
                    yield {
                        "board": rows.suite.name, "table": table.number, "heading": group.heading,
                        "hardware": group.hardware or table.hardware, "row": row.label,
                        "column": " ".join(filter(None, (column.heading, column.label))),
                        "place": table.reference(group, row, column).model_dump(exclude_none=True),
                        "published": figure.published.value, "published_spread": figure.published.spread,
                        "pair": rows.pair_name, "ours": figure.ours, "ratio": figure.ratio,
                    }  # fmt: skip
