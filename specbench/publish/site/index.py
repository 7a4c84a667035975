"""The table of all rows: what each cell says, and by what it is sorted."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from specbench.publish.site.entries import Entries, Entry
from specbench.results.bootstrap import Metric
from specbench.results.captions import verdict_word
from specbench.results.row import Row
from specbench.results.units import NULL, number, speed, unit_of


@dataclass(frozen=True)
class Weakness:
    """`title`: in two words; `text`: a sentence with the figure and what to do."""

    title: str
    text: str


def weaknesses(row: Row) -> list[Weakness]:
    """Returns the row's warnings."""
    return [Weakness(each.code.replace("_", " "), each.text) for each in row.warnings]


@dataclass(frozen=True)
class Column:
    """`key`: its name in the fragment of the address; `help`: what it means, where the heading does not say it."""

    key: str
    heading: str
    is_number: bool = False
    help: str = ""


@dataclass(frozen=True)
class Cell:
    """`key`: what it is sorted by, where that is not the text; empty: no value. `more`: said after it, in small."""

    text: str
    key: str | None = None
    more: str = ""


COLUMNS = (
    Column("method", "method"),
    Column("task", "task"),
    Column("subset", "subset"),
    Column("speedup", "speed-up", True, "over autoregressive decoding, with its paired 95 % interval"),
    Column("rank", "rank", True, "place by speed-up among the rows that compare; 2–3 is not separable from neighbours"),
    Column("tau", "τ", True, "mean acceptance length: tokens per target pass"),
    Column("alpha", "α", True, "acceptance rate: accepted ÷ judged draft tokens"),
    Column("speed", "tok/s", True, "generated tokens per second of decoding"),
    Column("quality", "quality (Δ to ar)", True, "main score; Δ is its difference to the baseline"),
    Column("verdict", "verdict"),
    Column("warnings", "warnings", help="what makes the numbers weak"),
    Column("n", "n", True, "examples"),
    Column("gamma", "γ", True, "draft tokens per step"),
    Column("temperature", "temp.", True, "temperature; 0 is greedy"),
    Column("seed", "seed", True),
    Column("language", "language"),
    Column("target", "target ← drafter"),
    Column("device", "device"),
    Column("engine", "engine", help="how forward passes are run; rows of different engines do not compare"),
)
FILTERS = ("task", "method", "subset", "verdict")


@dataclass(frozen=True)
class Line:
    """A row of the table. `cells`: by the column's key; `values`: of the filters, in their order."""

    entry: Entry
    cells: Mapping[str, Cell]
    values: tuple[str, ...]


def lines(entries: Entries) -> list[Line]:
    return [_line(entry) for entry in entries.all]


def columns_of(found: Sequence[Line]) -> list[Column]:
    """Without the language where no row has one, as rows over whole tasks do not; without the engine where all are
    eager."""
    rows = [line.entry.row for line in found]
    told = {"language": any(row.language for row in rows), "engine": any(row.engine != "eager" for row in rows)}
    return [column for column in COLUMNS if told.get(column.key, True)]


def with_more(found: Sequence[Line]) -> set[str]:
    """Columns in which a number has something in small after it, for which all leave room so that numbers align."""
    return {key for key in ("speedup", "quality") if any(line.cells[key].more for line in found)}


def choices(found: Sequence[Line]) -> list[tuple[str, list[str]]]:
    """Of each filter the values that rows have."""
    return [(name, sorted({line.values[number] for line in found})) for number, name in enumerate(FILTERS)]


def _line(entry: Entry) -> Line:
    row, metrics, found = entry.row, entry.row.metrics, weaknesses(entry.row)
    verdict = verdict_word(row)
    cells = {
        "method": Cell(entry.label),
        "task": Cell(row.task_name),
        "subset": Cell(row.subset),
        "language": Cell(row.language or NULL, row.language or ""),
        "rank": Cell(entry.rank.text or NULL, _key(entry.rank.best), f"of {entry.group.size}"),
        "speedup": _with_interval(metrics.get("speedup")),
        "speed": Cell(speed(metrics.get("tokens_per_second")), _value(metrics.get("tokens_per_second"))),
        "tau": _metric(metrics.get("mean_acceptance_length"), 2),
        "alpha": _metric(metrics.get("acceptance_rate"), 3),
        "quality": _quality(row),
        "verdict": Cell(verdict),
        "warnings": Cell(", ".join(each.title for each in found) or NULL),
        "n": Cell(str(row.n), str(row.n), f"× {row.repeats}" if row.repeats > 1 else ""),
        "gamma": Cell(str(row.num_draft_tokens)),
        "temperature": Cell(f"{row.sampling.temperature:g}", str(row.sampling.temperature), _limits(row)),
        "seed": Cell(str(row.seed)),
        "target": Cell(row.target, more=f"← {row.drafter}" if row.drafter else ""),
        "device": Cell(row.device),
        "engine": Cell(row.engine),
    }
    return Line(entry, cells, (row.task_name, row.method_name, row.subset, verdict))


def _limits(row: Row) -> str:
    limits = (("top-k", row.sampling.top_k), ("top-p", row.sampling.top_p))
    return ", ".join(f"{name} {value:g}" for name, value in limits if value is not None)


def _quality(row: Row) -> Cell:
    """The main score and its difference to the baseline, in the unit that it is shown in."""
    if row.quality is None:
        return Cell(NULL, "")
    unit, metric = unit_of(row.quality), row.metrics.get(row.quality)
    change = row.metrics.get(f"{row.quality}_difference", Metric()).value
    told = "" if change is None else f"Δ {signed(change * unit.factor, unit.digits)} "
    return Cell(number(metric, unit.digits, unit.factor), _value(metric), f"{told}{unit.label}")


def signed(value: float, digits: int) -> str:
    """With its sign, which what rounds to nothing has none of."""
    text = f"{abs(value):.{digits}f}"
    return text if not float(text) else f"{'−' if value < 0 else '+'}{text}"


def _with_interval(metric: Metric | None) -> Cell:
    has_interval = metric is not None and metric.low is not None and metric.high is not None
    return Cell(
        number(metric, 2), _value(metric), f"[{metric.low:.2f}, {metric.high:.2f}]" if metric and has_interval else ""
    )


def _metric(metric: Metric | None, digits: int) -> Cell:
    return Cell(number(metric, digits), _value(metric))


def _value(metric: Metric | None) -> str:
    return _key(None if metric is None else metric.value)


def _key(value: float | None) -> str:
    return "" if value is None else f"{value:.12g}"
