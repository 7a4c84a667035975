"""The time that a suite will take, from the remaining work and the measured speeds; and its progress."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from io import StringIO
from pathlib import Path
from statistics import fmean
from typing import Any

from rich.console import Console
from rich.progress import MofNCompleteColumn

from specbench.core import bounded
from specbench.core.console import counted, say
from specbench.core.errors import ConfigError
from specbench.core.progress import ProgressBar
from specbench.core.resources import EMBEDDED
from specbench.core.table import Table, words
from specbench.models.loading import is_local
from specbench.publish.cells import SuiteCell
from specbench.publish.workers import (
    BlockRecorded,
    Event,
    JobFinished,
    JobStarted,
    LogLine,
    WorkerLost,
    WorkerReady,
)
from specbench.results.units import NULL, names_by_text
from specbench.running.plan import load_requested, without_calibration
from specbench.running.records import MAX_LINE, Generation, Record
from specbench.running.request import run_spec
from specbench.specs.catalogue import load_method


@dataclass
class AnswerTimes:
    """Sums over the answers of one method. `first_seconds`: until the first token. `tokens`: after the first token."""

    answers: int = 0
    first_seconds: float = 0.0
    decode_seconds: float = 0.0
    tokens: int = 0

    def add(self, generation: Generation) -> None:
        """Counts one answer."""
        self.answers += 1
        self.first_seconds += generation["ttft_seconds"] or 0.0
        self.decode_seconds += generation["decode_seconds"]
        self.tokens += len(generation["token_ids"]) - 1

    def seconds(self, max_new_tokens: int | None = None) -> float:
        """Returns the mean time of an answer, or the time of an answer with `max_new_tokens` at the mean speed."""
        if max_new_tokens is None:
            return (self.first_seconds + self.decode_seconds) / self.answers
        per_token = self.decode_seconds / self.tokens if self.tokens else 0.0
        return self.first_seconds / self.answers + per_token * max(0, max_new_tokens - 1)


@dataclass
class MeasuredTimes:
    """The times of the methods on one task and pair."""

    times: dict[str, AnswerTimes] = field(default_factory=lambda: defaultdict(AnswerTimes))

    def add(self, record: Record) -> None:
        """Counts one record."""
        for method, generation in record["methods"].items():
            self.times[method].add(generation)

    @property
    def num_records(self) -> int:
        return max((times.answers for times in self.times.values()), default=0)

    def seconds(self, methods: Iterable[str], max_new_tokens: int | None = None) -> float | None:
        """Returns the time of one example with these methods, at the mean length or with `max_new_tokens`; None if no
        time is known. A method that was not measured counts as the mean of the others."""
        known = {name: times.seconds(max_new_tokens) for name, times in self.times.items()}
        return sum(known.get(name, fmean(known.values())) for name in methods) if known else None


def generation_seconds(record: Record) -> float:
    """Returns the total time of the answers of a record."""
    return float(sum((g["ttft_seconds"] or 0.0) + g["decode_seconds"] for g in record["methods"].values()))


def records_in(folder: Path) -> Iterator[Record]:
    """Yields the records of a run's folder, without half-written ones. They are checked when the run is resumed."""
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


Group = tuple[str, str]  # pair and task; an example takes about the same time in all cells of a group


@dataclass
class PlannedCell:
    """A cell and its work. `methods`: names as in records. `subsets`: for each the number of blocks (one example,
    repeat and turn) and the largest number of tokens of an answer; None if the data cannot be read here. `problem`: the
    reason why the cell cannot be measured, if it is known without loading a model."""

    cell: SuiteCell
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


def count_cells(forecast: Forecast) -> str:
    """Returns the number of cells in words: 1 cell, 12 cells."""
    return counted(len(forecast.plan), "cell")


Subsets = tuple[tuple[int, int], ...]


def make_forecast(cells: Sequence[SuiteCell]) -> Forecast:
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


def subsets_of(cell: SuiteCell) -> Subsets | ConfigError:
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
        times = (
            [format_duration(estimate.seconds), format_duration(estimate.most)] if estimate else ["unknown", "unknown"]
        )
        times = ["measured already", ""] if planned.is_measured else times
        done = f"{min(planned.num_done, planned.num_blocks)}/{planned.num_blocks}" if planned.subsets else NULL
        methods = ", ".join(planned.methods[1:] or planned.methods)
        rows.append([cell.pair_name, cell.task.label, cell.setting, methods, done, *times])
    headings = words("pair", "task", "setting", "methods", "examples", "estimated time", "at most")
    return Table(f"{forecast.plan[0].cell.suite.name} · {count_cells(forecast)}", headings, rows)


def problem_lines(forecast: Forecast) -> list[str]:
    """Returns a line for each reason why cells cannot be measured, with the first cell and the number of others."""
    left = [planned for planned in forecast.plan if not planned.is_measured]
    names = names_by_text((planned.cell.name, planned.problem) for planned in left)
    return [f"{first}{f' and {len(more)} more' if more else ''}: {why}" for why, (first, *more) in names.items()]


class SuiteProgress:
    """Receives every event of the workers, reports it and updates the forecast. `losses`: a line for each worker that
    was lost during a job. `bar`: the progress bar, shown inside its `with` block."""

    def __init__(self, console: Console, forecast: Forecast, num_workers: int) -> None:
        self._console, self._forecast, self._num_workers = console, forecast, num_workers
        self.losses: list[str] = []
        self._cells: Sequence[int] = ()  # the cell of each job
        self._first_only = False
        self._max_losses = 1
        self._num_lost: Counter[int] = Counter()  # lost workers by cell
        self._generating: dict[int, float] = {}  # seconds by cell
        self._num_ended = 0
        self.bar = ProgressBar(console, "starting", None, MofNCompleteColumn(), redirect=False)

    def start(self, cells: Sequence[int], first_only: bool, max_losses: int) -> None:
        """Starts jobs for these cells. `first_only`: only for the first example of each."""
        self._cells, self._first_only, self._max_losses, self._num_ended = cells, first_only, max_losses, 0
        self._num_lost.clear()

    def report(self, worker: str, job: int | None, event: Event) -> None:
        """Handles one event, and prints a line if it matters to the user."""
        if job is None:
            self._handle_worker(worker, event)
            return
        cell = self._cells[job]
        name = self._forecast.plan[cell].cell.name
        if isinstance(event, LogLine):
            say(self._console, f"{name}: {event.line}" if self._num_workers > 1 else event.line)
        elif isinstance(event, JobStarted):
            self._generating[cell] = 0.0
        elif isinstance(event, BlockRecorded) and event.measured:
            self._forecast.add(cell, event.record)
            self._generating[cell] = self._generating.get(cell, 0.0) + generation_seconds(event.record)
            self._show_progress(name)
        elif isinstance(event, WorkerLost):
            self._num_lost[cell] += 1
            again = self._num_lost[cell] < self._max_losses
            then = "it goes back into the queue with its records" if again else "it is given up"
            self.losses.append(f"{name}: {worker} was lost: {event.reason}: {then}")
            say(self._console, self.losses[-1])
        elif isinstance(event, JobFinished) and event.failure is None:
            self._learn_times(cell, event)

    def _handle_worker(self, worker: str, event: Event) -> None:
        if self._num_workers > 1 and isinstance(event, WorkerReady):
            say(self._console, f"{worker} is ready: {event.device}, on {event.host}")
        elif isinstance(event, WorkerLost):
            say(self._console, f"{worker} cannot be started: {event.reason}")

    def _learn_times(self, cell: int, event: JobFinished) -> None:
        """Adds the time of a cell outside its answers to the forecast."""
        planned = self._forecast.plan[cell]
        pair = planned.cell.pair_name
        self._forecast.loading[pair] = max(event.load_seconds, self._forecast.loading.get(pair, 0.0))
        rest = event.seconds - event.load_seconds - self._generating.pop(cell, 0.0)
        self._forecast.other[planned.group] = max(0.0, rest)

    def finish(self, cell: int, event: JobFinished) -> None:
        """Reports that a cell is measured or has failed."""
        planned, self._num_ended = self._forecast.plan[cell], self._num_ended + 1
        planned.is_measured = True
        state = f"measured in {format_duration(event.seconds)}" if event.failure is None else f"FAILED: {event.failure}"
        say(self._console, f"[{self._num_ended}/{len(self._cells)}] {planned.cell.name}: {state}{self._left()}")

    def _show_progress(self, name: str) -> None:
        plan = [self._forecast.plan[number] for number in self._cells]
        done, total = sum(each.num_done for each in plan), sum(each.num_blocks for each in plan)
        line = "measuring first examples" if self._first_only else f"{name}{self._left()}"
        self.bar.update(line, done, f"{done}/{total} examples · {line}", total=total)

    def _left(self) -> str:
        seconds = self._forecast.total(self._num_workers).seconds
        return f" · about {format_duration(seconds)} left" if seconds >= 1 else ""
