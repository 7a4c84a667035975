"""The table of all rows: the text of each cell and its sort key."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from specbench.publish.site.entries import Entries, Entry
from specbench.results.bootstrap import Metric
from specbench.results.captions import verdict_word
from specbench.results.row import Row
from specbench.results.units import NULL, number, speed, unit_of


@dataclass(frozen=True)
class IndexColumn:
    """A column. `key`: its name in the fragment of the address. `help`: its meaning, where the heading lacks it."""

    key: str
    heading: str
    is_number: bool = False
    help: str = ""


@dataclass(frozen=True)
class IndexCell:
    """A cell. `key`: the sort key, the text when None; empty: no value. `more`: small text behind it."""

    text: str
    key: str | None = None
    more: str = ""


COLUMNS = (
    IndexColumn("method", "method"),
    IndexColumn("task", "task"),
    IndexColumn("subset", "subset"),
    IndexColumn("speedup", "speed-up", True, "speed-up over autoregressive decoding, with its paired 95 % interval"),
    IndexColumn(
        "rank", "rank", True, "rank by speed-up among the rows that compare; 2–3 is not separable from its neighbours"
    ),
    IndexColumn("tau", "τ", True, "mean acceptance length: tokens per target pass"),
    IndexColumn("alpha", "α", True, "acceptance rate: accepted ÷ judged draft tokens"),
    IndexColumn("speed", "tok/s", True, "generated tokens per second of decoding"),
    IndexColumn("quality", "quality (Δ to ar)", True, "main score; Δ is its difference to the baseline"),
    IndexColumn("verdict", "verdict"),
    IndexColumn("warnings", "warnings", help="reasons why the numbers are weak"),
    IndexColumn("n", "n", True, "examples"),
    IndexColumn("gamma", "γ", True, "draft tokens per step"),
    IndexColumn("temperature", "temp.", True, "temperature; 0 is greedy"),
    IndexColumn("seed", "seed", True),
    IndexColumn("language", "language"),
    IndexColumn("target", "target ← drafter"),
    IndexColumn("device", "device"),
    IndexColumn("engine", "engine", help="engine of the forward passes; rows of different engines do not compare"),
)
FILTERS = ("task", "method", "subset", "verdict")


@dataclass(frozen=True)
class IndexLine:
    """A row of the table. `cells`: by the column's key. `values`: those of the filters, in their order."""

    entry: Entry
    cells: Mapping[str, IndexCell]
    values: tuple[str, ...]


def lines(entries: Entries) -> list[IndexLine]:
    return [_line(entry) for entry in entries.all]


def columns_of(found: Sequence[IndexLine]) -> list[IndexColumn]:
    """Returns the columns, without the language where no row has one, and without the engine where all are eager."""
    rows = [line.entry.row for line in found]
    told = {"language": any(row.language for row in rows), "engine": any(row.engine != "eager" for row in rows)}
    return [column for column in COLUMNS if told.get(column.key, True)]


def with_more(found: Sequence[IndexLine]) -> set[str]:
    """Returns the columns in which some cell has small text, for which all cells leave room so that numbers align."""
    return {key for key in ("speedup", "quality") if any(line.cells[key].more for line in found)}


def choices(found: Sequence[IndexLine]) -> list[tuple[str, list[str]]]:
    """Returns the values of each filter."""
    return [(name, sorted({line.values[number] for line in found})) for number, name in enumerate(FILTERS)]


def _line(entry: Entry) -> IndexLine:
    row, metrics = entry.row, entry.row.metrics
    verdict = verdict_word(row)
    cells = {
        "method": IndexCell(entry.label),
        "task": IndexCell(row.task_name),
        "subset": IndexCell(row.subset),
        "language": IndexCell(row.language or NULL, row.language or ""),
        "rank": IndexCell(entry.rank.text or NULL, _key(entry.rank.best), f"of {entry.group.size}"),
        "speedup": _with_interval(metrics.get("speedup")),
        "speed": IndexCell(speed(metrics.get("tokens_per_second")), _value(metrics.get("tokens_per_second"))),
        "tau": _metric(metrics.get("mean_acceptance_length"), 2),
        "alpha": _metric(metrics.get("acceptance_rate"), 3),
        "quality": _quality(row),
        "verdict": IndexCell(verdict),
        "warnings": IndexCell(", ".join(each.code.replace("_", " ") for each in row.warnings) or NULL),
        "n": IndexCell(str(row.n), str(row.n), f"× {row.repeats}" if row.repeats > 1 else ""),
        "gamma": IndexCell(str(row.num_draft_tokens)),
        "temperature": IndexCell(f"{row.sampling.temperature:g}", str(row.sampling.temperature), _limits(row)),
        "seed": IndexCell(str(row.seed)),
        "target": IndexCell(row.target, more=f"← {row.drafter}" if row.drafter else ""),
        "device": IndexCell(row.device),
        "engine": IndexCell(row.engine),
    }
    return IndexLine(entry, cells, (row.task_name, row.method_name, row.subset, verdict))


def _limits(row: Row) -> str:
    limits = (("top-k", row.sampling.top_k), ("top-p", row.sampling.top_p))
    return ", ".join(f"{name} {value:g}" for name, value in limits if value is not None)


def _quality(row: Row) -> IndexCell:
    """Returns the main score and its difference to the baseline, in the unit of the score."""
    if row.quality is None:
        return IndexCell(NULL, "")
    unit, metric = unit_of(row.quality), row.metrics.get(row.quality)
    change = row.metrics.get(f"{row.quality}_difference", Metric()).value
    told = "" if change is None else f"Δ {signed(change * unit.factor, unit.digits)} "
    return IndexCell(number(metric, unit.digits, unit.factor), _value(metric), f"{told}{unit.label}")


def signed(value: float, digits: int) -> str:
    """Returns a number with its sign; a number that rounds to zero has none."""
    text = f"{abs(value):.{digits}f}"
    return text if not float(text) else f"{'−' if value < 0 else '+'}{text}"


def _with_interval(metric: Metric | None) -> IndexCell:
    has_interval = metric is not None and metric.low is not None and metric.high is not None
    return IndexCell(
        number(metric, 2), _value(metric), f"[{metric.low:.2f}, {metric.high:.2f}]" if metric and has_interval else ""
    )


def _metric(metric: Metric | None, digits: int) -> IndexCell:
    return IndexCell(number(metric, digits), _value(metric))


def _value(metric: Metric | None) -> str:
    return _key(None if metric is None else metric.value)


def _key(value: float | None) -> str:
    return "" if value is None else f"{value:.12g}"
