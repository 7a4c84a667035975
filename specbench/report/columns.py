"""The columns of tables with a line per row: each heading and cell is declared once, for every table that has it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from specbench.core.table import Column
from specbench.report.captions import drafter_kind, marked, score_heading, verdict_word
from specbench.results.metric_format import metric_of, number, score_pair, speed, with_interval
from specbench.results.row import Row


@dataclass(frozen=True)
class RowColumn(Column):
    """A column whose cells are made from rows. `metric`: the metric that it shows, if it shows one."""

    cell: Callable[[Row], str] = str
    metric: str | None = None


def metric_column(name: str, heading: str = "", digits: int = 3, factor: float = 1.0) -> RowColumn:
    """Returns the column of a metric. `heading`: by default the label that the metric declares. `factor`: printed value
    ÷ metric."""
    heading = heading or metric_of(name).label
    return RowColumn(heading, True, cell=lambda row: number(row.metrics.get(name), digits, factor), metric=name)


def speed_column(name: str, heading: str) -> RowColumn:
    return RowColumn(heading, True, cell=lambda row: speed(row.metric(name)), metric=name)


def marked_ratio(name: str, heading: str) -> RowColumn:
    """Returns the column of a speed-up or ratio with its interval, and with a mark if a line below the table warns."""
    return RowColumn(heading, True, cell=lambda row: marked(with_interval(row.metric(name)), row), metric=name)


def acceptance_column(rows: Sequence[Row]) -> RowColumn:
    """Returns the column of α, which is defined for chains only."""
    has_trees = any(row.value("tree_nodes") is not None for row in rows)
    return metric_column("acceptance_rate", "α\n(chains)" if has_trees else "α")


def score_column(rows: Sequence[Row], heading: str = "") -> RowColumn:
    """Returns the column of the main score; `heading`: by default its name and unit."""

    def score(row: Row) -> str:
        unit = metric_of(row.quality)
        return number(row.metric(row.quality), unit.digits, unit.factor)

    metric = rows[0].quality if rows else None
    return RowColumn(heading or score_heading(rows).replace(" ", "\n"), True, cell=score, metric=metric)


def score_pair_column(rows: Sequence[Row]) -> RowColumn:
    heading = f"{score_heading(rows)}\nar → method"
    return RowColumn(heading, True, cell=lambda row: score_pair(row.metrics, row.quality))


def declared_columns(metric: str) -> list[RowColumn]:
    """Returns the columns of a metric of any name; for `quality`, the main score, its value and its name."""
    if metric == "quality":
        return [score_column([], "score"), SCORE_NAME]
    shared = {each.metric: each for each in (LENGTH, COST, SPEED, SPEED_OF_AR, SPEEDUP, EXPECTED_SPEEDUP)}
    label = metric_of(metric).label.replace("_", " ")
    return [shared[metric] if metric in shared else metric_column(metric, label)]


def _drafter_name(row: Row) -> str:
    if "routes" in row.options:
        return "by language"
    return (row.drafter or drafter_kind(row)).rpartition("/")[2].rpartition(":")[2]


SUBSET = RowColumn("subset", cell=lambda row: row.subset)
TASK = RowColumn("task", cell=lambda row: row.task_name)
METHOD = RowColumn("method", cell=lambda row: row.shown_method)
UNBROKEN_METHOD = RowColumn("method", folds=False, cell=lambda row: row.shown_method)
SERVER = RowColumn("server", folds=False, cell=lambda row: row.shown_method)
SCORE_NAME = RowColumn("of", cell=lambda row: metric_of(row.quality).label if row.quality in row.metrics else "")
VERDICT = RowColumn("verdict", cell=verdict_word)
DRAFTER = RowColumn("drafter", width=13, cell=_drafter_name)
N = RowColumn("n", True, cell=lambda row: str(row.n))
NUM_DRAFT_TOKENS = RowColumn("γ", True, cell=lambda row: str(row.num_draft_tokens))
LENGTH = metric_column("mean_acceptance_length", digits=2)
COST = RowColumn(
    metric_of("cost_ratio").label, True, metric="cost_ratio",
    cell=lambda row: marked(number(row.metric("cost_ratio"), 3), row, {"uneven_drafts"}),
)  # fmt: skip
SPEED = speed_column("tokens_per_second", "tok/s")
SPEED_OF_AR = speed_column("tokens_per_second_ar", "tok/s\nar")
SPEEDUP = marked_ratio("speedup", "speed-up\n95 % interval")
EXPECTED_SPEEDUP = metric_column("speedup_expected", "expected\nspeed-up", digits=2)


def cells_of(rows: Sequence[Row], columns: Sequence[RowColumn]) -> list[list[str]]:
    return [[column.cell(row) for column in columns] for row in rows]
