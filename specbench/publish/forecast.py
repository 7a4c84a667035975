"""The time that a suite will take, from the remaining work and the measured speeds."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from io import StringIO
from pathlib import Path
from statistics import fmean
from typing import Any

from rich.console import Console

from specbench.core.console import counted
from specbench.core.environment import EMBEDDED
from specbench.core.errors import ConfigError
from specbench.core.table import Table, text_columns
from specbench.models.loading import is_local
from specbench.publish.suite_runs import SuiteRun
from specbench.records.generation import Decoder, Record
from specbench.records.records import MAX_LINE
from specbench.results.metric_format import NULL, names_by_text
from specbench.running.plan import load_requested, without_calibration
from specbench.running.request import run_spec
from specbench.specs.catalogue import load_method


@dataclass
class MeasuredTimes:
    """The times of the methods on one task and pair. `answers`: for each answer of a method the seconds until its first
    token and after it, and the number of tokens after it."""

    answers: dict[str, list[tuple[float, float, int]]] = field(default_factory=lambda: defaultdict(list))

    def add(self, record: Record) -> None:
        """Counts one record."""
        for method, generation in record.methods.items():
            first = generation.ttft_seconds or 0.0
            self.answers[method].append((first, generation.decode_seconds, generation.num_new_tokens - 1))

    @property
    def num_records(self) -> int:
        return max(map(len, self.answers.values()), default=0)

    def seconds(self, methods: Iterable[str], max_new_tokens: int | None = None) -> float | None:
        """Returns the time of one example with these methods, at the mean length or with `max_new_tokens`; None if no
        time is known. A method that was not measured counts as the mean of the others."""
        known = {}
        for name, answers in self.answers.items():
            first, decoding, tokens = (fmean(values) for values in zip(*answers, strict=True))
            if max_new_tokens is not None:
                decoding = decoding / tokens * max(0, max_new_tokens - 1) if tokens else 0.0
            known[name] = first + decoding
        return sum(known.get(name, fmean(known.values())) for name in methods) if known else None


def generation_seconds(record: Record) -> float:
    """Returns the total time of the answers of a record."""
    return sum((each.ttft_seconds or 0.0) + each.decode_seconds for each in record.methods.values())


def records_in(folder: Path) -> Iterator[Record]:
    """Yields the records of a run's folder, without broken ones, which are reported when the run is resumed."""
    path, decoder = folder / "records.jsonl", Decoder(Record)
    if not path.is_file():
        return
    with path.open("rb") as lines:
        while line := lines.readline(MAX_LINE + 1):
            with suppress(ValueError):
                yield decoder.decode(line, MAX_LINE)


Group = tuple[str, str]  # pair and task; an example takes about the same time in all cells of a group


@dataclass
class PlannedCell:
    """A cell and its work. `methods`: names as in records. `subsets`: for each the number of blocks (one example,
    repeat and turn) and the largest number of tokens of an answer; None if the data cannot be read here. `problem`: the
    reason why the cell cannot be measured, if it is known without loading a model."""

    cell: SuiteRun
    methods: tuple[str, ...]
    subsets: tuple[tuple[int, int], ...] | None
    is_measured: bool
    num_done: int = 0
    problem: str | None = None

    @property
    def group(self) -> Group:
        return self.cell.pair_name, self.cell.task.label

    @property
    def num_blocks(self) -> int:
        return sum(number for number, _ in self.subsets or ())

    @property
    def num_left(self) -> int:
        return 0 if self.is_measured else max(0, self.num_blocks - self.num_done)


@dataclass(frozen=True)
class TimeEstimate:
    """An estimate in seconds. `most`: if all answers have the greatest length, at the same speeds. `unknown`: the
    number of cells that are left out, since no cell like them was measured."""

    seconds: float
    most: float
    unknown: int = 0


@dataclass
class Forecast:
    """The plan of a suite with the times measured so far. `loading`: seconds to load the models of a pair. `other`:
    seconds of a cell outside its answers (data, warm-up)."""

    plan: Sequence[PlannedCell]
    measured: dict[Group, MeasuredTimes] = field(default_factory=lambda: defaultdict(MeasuredTimes))
    loading: dict[str, float] = field(default_factory=dict)
    other: dict[Group, float] = field(default_factory=dict)

    def add(self, number: int, record: Record) -> None:
        """Adds a record of a cell."""
        planned = self.plan[number]
        self.measured[planned.group].add(record)
        planned.num_done += 1

    def learn(self, number: int, load_seconds: float, other_seconds: float) -> None:
        """Adds the time of a cell outside its answers."""
        planned = self.plan[number]
        pair = planned.cell.pair_name
        self.loading[pair] = max(load_seconds, self.loading.get(pair, 0.0))
        self.other[planned.group] = other_seconds

    def time_left(self, planned: PlannedCell) -> TimeEstimate | None:
        """Returns the remaining time of a cell without loading its models; None if no cell like it was measured."""
        known = self.measured[planned.group]
        if planned.is_measured:
            return TimeEstimate(0, 0)
        seconds = known.seconds(planned.methods)
        if seconds is None or planned.subsets is None:
            return None
        other = self.other.get(planned.group, 0.0)
        share = planned.num_left / planned.num_blocks if planned.num_blocks else 0.0
        most = sum(number * (known.seconds(planned.methods, tokens) or 0.0) for number, tokens in planned.subsets)
        about = seconds * planned.num_left
        return TimeEstimate(other + about, other + max(about, most * share))

    def total(self, num_workers: int) -> TimeEstimate:
        """Returns the remaining time of all cells, divided by the workers, but at least the time of the longest cell.
        Each worker loads the models of each pair that it measures."""
        left = [planned for planned in self.plan if not planned.is_measured]
        found = [estimate for planned in left if (estimate := self.time_left(planned)) is not None]
        pairs = [planned.cell.pair_name for planned in left]
        loading = sum(
            self.loading.get(pair, 0.0) * min(num_workers, pairs.count(pair)) for pair in dict.fromkeys(pairs)
        )
        num_workers = max(1, min(num_workers, len(left)))

        def shared(seconds: Sequence[float]) -> float:
            return max((sum(seconds) + loading) / num_workers, max(seconds, default=0.0))

        about, most = ([getattr(each, name) for each in found] for name in ("seconds", "most"))
        return TimeEstimate(shared(about), shared(most), len(left) - len(found))


def format_duration(seconds: float) -> str:
    """Returns a time in words: 45 s, 12 min, 3 h 20 min."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60} h {minutes % 60} min"


Subsets = tuple[tuple[int, int], ...]


def make_forecast(cells: Sequence[SuiteRun]) -> Forecast:
    """Returns the plan of all cells with their existing records."""
    known: dict[Any, Subsets | ConfigError] = {}
    plan = []
    for cell in cells:
        key = (cell.task.label, cell.limit, cell.pair_name, cell.methods)
        if key not in known:
            known[key] = subsets_of(cell)
        rows = cell.rows()
        methods = tuple(dict.fromkeys(["ar", *cell.methods]))
        if not cell.suite.is_served:
            methods = tuple(load_method(name).name for name in methods)
        subsets, problem = (None, str(found)) if isinstance(found := known[key], ConfigError) else (found, None)
        plan.append(PlannedCell(cell, methods, subsets, cell.is_measured(rows), problem=problem))
    forecast = Forecast(plan)
    for number, cell in enumerate(cells):
        for record in records_in(cell.folder):
            forecast.add(number, record)
    return forecast


def subsets_of(cell: SuiteRun) -> Subsets | ConfigError:
    """Returns for each subset the number of its blocks and the largest number of tokens of an answer, or the error that
    keeps them unknown."""
    try:
        spec = run_spec(cell.request)
        if spec.drafter is not None and not spec.drafter.startswith(EMBEDDED):
            is_local(spec.drafter)
        embedded = spec.target.startswith(EMBEDDED)
        loaded = without_calibration(load_requested(spec, embedded, Console(file=StringIO())), spec.methods)
    except ConfigError as error:
        return error
    return tuple(
        (
            spec.repeats * sum(len(example.turns) for example in data.examples),
            task.subset(subset).generation.max_new_tokens,
        )
        for task, subset, data in loaded
    )


def cells_table(forecast: Forecast) -> Table:
    """Returns a table of the cells with their methods, measured examples and remaining time."""
    rows = []
    for planned in forecast.plan:
        cell, estimate = planned.cell, forecast.time_left(planned)
        times = [format_duration(each) for each in (estimate.seconds, estimate.most)] if estimate else ["unknown"] * 2
        times = ["measured already", ""] if planned.is_measured else times
        done = f"{min(planned.num_done, planned.num_blocks)}/{planned.num_blocks}" if planned.subsets else NULL
        methods = ", ".join(planned.methods[1:] or planned.methods)
        rows.append([cell.pair_name, cell.task.label, cell.setting, methods, done, *times])
    headings = text_columns("pair", "task", "setting", "methods", "examples", "estimated time", "at most")
    return Table(f"{forecast.plan[0].cell.suite.name} · {counted(len(rows), 'cell')}", headings, rows)


def problem_lines(forecast: Forecast) -> list[str]:
    """Returns a line for each reason why cells cannot be measured, with the first cell and the number of others."""
    left = [planned for planned in forecast.plan if not planned.is_measured]
    names = names_by_text((planned.cell.name, planned.problem) for planned in left)
    return [f"{first}{f' and {len(more)} more' if more else ''}: {why}" for why, (first, *more) in names.items()]
