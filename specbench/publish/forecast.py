"""The time that a suite takes: the work left in its cells, at the speeds that were measured."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from io import StringIO
from pathlib import Path
from typing import Any

from rich.console import Console

from specbench.core import bounded
from specbench.core.errors import ConfigError
from specbench.core.resources import EMBEDDED
from specbench.models.loading import is_local
from specbench.publish.cells import SuiteCell
from specbench.running.calibration import without_calibration
from specbench.running.checked import run_spec
from specbench.running.compose import unique
from specbench.running.plan import load_asked
from specbench.running.records import MAX_LINE, Generation, Record
from specbench.specs.catalogue import load_method


@dataclass
class AnswerTimes:
    """Sums over the answers of one method. `first_seconds`: until the first token. `tokens`: those after it."""

    answers: int = 0
    first_seconds: float = 0.0
    decode_seconds: float = 0.0
    tokens: int = 0

    def add(self, generation: Generation) -> None:
        """Count one answer."""
        self.answers += 1
        self.first_seconds += generation["ttft_seconds"] or 0.0
        self.decode_seconds += generation["decode_seconds"]
        self.tokens += len(generation["token_ids"]) - 1

    @property
    def seconds(self) -> float:
        """Returns the mean time of an answer."""
        return (self.first_seconds + self.decode_seconds) / self.answers

    def most(self, max_new_tokens: int) -> float:
        """Returns the time of an answer of the greatest length, at the mean speed."""
        per_token = self.decode_seconds / self.tokens if self.tokens else 0.0
        return self.first_seconds / self.answers + per_token * max(0, max_new_tokens - 1)


@dataclass
class MeasuredTimes:
    """The times of the methods on one task and pair."""

    times: dict[str, AnswerTimes] = field(default_factory=lambda: defaultdict(AnswerTimes))

    def add(self, record: Record) -> None:
        """Count one record."""
        for method, generation in record["methods"].items():
            self.times[method].add(generation)

    @property
    def num_records(self) -> int:
        return max((times.answers for times in self.times.values()), default=0)

    def seconds(self, methods: Iterable[str]) -> float | None:
        """Returns the time of one example with these methods; None where nothing is known. A method that was not
        measured counts as the mean of the others."""
        return self._sum({name: times.seconds for name, times in self.times.items()}, methods)

    def most(self, methods: Iterable[str], max_new_tokens: int) -> float | None:
        """Returns the same for answers of the greatest length."""
        return self._sum({name: times.most(max_new_tokens) for name, times in self.times.items()}, methods)

    @staticmethod
    def _sum(known: Mapping[str, float], methods: Iterable[str]) -> float | None:
        if not known:
            return None
        mean = sum(known.values()) / len(known)
        return sum(known.get(name, mean) for name in methods)


def generation_seconds(record: Record) -> float:
    """Returns the time of all answers of a record."""
    return float(sum((g["ttft_seconds"] or 0.0) + g["decode_seconds"] for g in record["methods"].values()))


def records_in(folder: Path) -> Iterator[Record]:
    """Returns the records of a run's folder without half-written ones. They are not checked: measuring does that."""
    path = folder / "records.jsonl"
    if not path.is_file():
        return
    with path.open(encoding="utf-8", errors="surrogateescape") as lines:
        while line := lines.readline(MAX_LINE + 1):
            try:
                record = bounded.json_value(line, strict=False, max_characters=MAX_LINE)
                generation_seconds(record)
            except (ValueError, KeyError, TypeError, AttributeError):
                continue
            yield record


Group = tuple[str, str]  # pair and task: their cells take about the same time for an example


@dataclass
class PlannedCell:
    """A cell and its work. `subsets`: for each the number of blocks (one example, repeat and turn) and the most
    tokens of an answer; None where the data cannot be read here. `methods`: names as records have them.
    `problem`: the reason why the cell cannot be measured, as far as it can be known without a model."""

    cell: SuiteCell
    methods: tuple[str, ...]
    subsets: tuple[tuple[int, int], ...] | None
    is_measured: bool
    num_done: int = 0
    problem: str | None = None

    @property
    def group(self) -> Group:
        return self.cell.pair_name, self.cell.task.called

    @property
    def num_blocks(self) -> int:
        return sum(number for number, _ in self.subsets or ())

    @property
    def num_left(self) -> int:
        return 0 if self.is_measured else max(0, self.num_blocks - self.num_done)


@dataclass(frozen=True)
class TimeEstimate:
    """Seconds. `most`: for answers of the greatest length, at the same speeds. `unknown`: the number of cells that are
    not in it, since nothing like them was measured."""

    seconds: float
    most: float
    unknown: int = 0


@dataclass
class Forecast:
    """The plan of a suite with the times measured so far. `loading`: seconds to load a pair's models. `other`: seconds
    of a cell beside its answers (data, warm-up)."""

    plan: Sequence[PlannedCell]
    measured: dict[Group, MeasuredTimes] = field(default_factory=lambda: defaultdict(MeasuredTimes))
    loading: dict[str, float] = field(default_factory=dict)
    other: dict[Group, float] = field(default_factory=dict)

    def add(self, number: int, record: Record, counts: bool = True) -> None:
        """Add a record of a cell. `counts`: whether it is part of the cell's own work."""
        planned = self.plan[number]
        self.measured[planned.group].add(record)
        planned.num_done += counts

    def of(self, planned: PlannedCell) -> TimeEstimate | None:
        """Returns the time left of a cell, without loading its models; None where nothing like it was measured."""
        known = self.measured[planned.group]
        if planned.is_measured:
            return TimeEstimate(0, 0)
        seconds = known.seconds(planned.methods)
        if seconds is None or planned.subsets is None:
            return None
        other = self.other.get(planned.group, 0.0)
        share = planned.num_left / planned.num_blocks if planned.num_blocks else 0.0
        most = sum(number * (known.most(planned.methods, tokens) or 0.0) for number, tokens in planned.subsets)
        about = seconds * planned.num_left
        return TimeEstimate(other + about, other + max(about, most * share))

    def total(self, num_workers: int) -> TimeEstimate:
        """Returns the time left of all cells, shared by the workers: at least that of the longest cell. Each worker
        loads the models of each pair that it measures."""
        left = [planned for planned in self.plan if not planned.is_measured]
        found = [estimate for planned in left if (estimate := self.of(planned)) is not None]
        pairs = [planned.cell.pair_name for planned in left]
        loading = sum(
            self.loading.get(pair, 0.0) * min(num_workers, pairs.count(pair)) for pair in dict.fromkeys(pairs)
        )
        num_workers = max(1, min(num_workers, len(left)))

        def shared(seconds: Sequence[float]) -> float:
            return max((sum(seconds) + loading) / num_workers, max(seconds, default=0.0))

        about, most = ([getattr(each, name) for each in found] for name in ("seconds", "most"))
        return TimeEstimate(shared(about), shared(most), len(left) - len(found))


def duration(seconds: float) -> str:
    """Returns a time such as 45 s, 12 min, 3 h 20 min."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60} h {minutes % 60} min"


def cells_in(forecast: Forecast) -> str:
    """Returns a number such as 1 cell, 12 cells."""
    return f"{len(forecast.plan)} cell{'' if len(forecast.plan) == 1 else 's'}"


Subsets = tuple[tuple[int, int], ...]


def make_forecast(cells: Sequence[SuiteCell]) -> Forecast:
    """Returns the plan of all cells, with the records that they have already."""
    counted: dict[Any, Subsets | ConfigError] = {}
    plan, recorded = [], []
    for cell in cells:
        key = (cell.task.called, cell.limit, cell.pair_name, cell.methods)
        if key not in counted:
            counted[key] = subsets_of(cell)
        rows = cell.rows()
        methods = tuple(load_method(name).name for name in unique(["ar", *cell.methods]))
        subsets, problem = (None, str(found)) if isinstance(found := counted[key], ConfigError) else (found, None)
        plan.append(PlannedCell(cell, methods, subsets, cell.is_measured(rows), problem=problem))
        recorded.append(list(records_in(cell.folder)))
    forecast = Forecast(plan)
    for number, records in enumerate(recorded):
        for record in records:
            forecast.add(number, record)
    return forecast


def subsets_of(cell: SuiteCell) -> Subsets | ConfigError:
    """Returns for each subset the number of its blocks and the most tokens of an answer, or the reason why they are
    unknown."""
    try:
        spec = run_spec(cell.request)
        if spec.drafter is not None and not spec.drafter.startswith(EMBEDDED):
            is_local(spec.drafter)
        embedded = spec.target.startswith(EMBEDDED)
        loaded = without_calibration(load_asked(spec, embedded, Console(file=StringIO())), spec.methods)
    except ConfigError as error:
        return error
    return tuple(
        (
            spec.repeats * sum(len(example.turns) for example in data.examples),
            task.subset(subset).generation.max_new_tokens,
        )
        for task, subset, data in loaded
    )
