"""Measures a suite: estimates the time from the remaining work and the measured speeds, measures the missing runs, and
puts all rows into a leaderboard."""

import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from io import StringIO
from pathlib import Path
from statistics import fmean

from rich.console import Console
from rich.progress import MofNCompleteColumn

from specbench.core.console import PlainConsole, counted, say
from specbench.core.environment import EMBEDDED
from specbench.core.errors import ConfigError
from specbench.core.files import ResumableFolder
from specbench.core.progress import ProgressBar
from specbench.core.table import Table, text_columns
from specbench.models.loading import choose_device, is_local
from specbench.publish.suite_runs import FOLDER, SuiteRun
from specbench.publish.tables import measured_table
from specbench.publish.workers import (
    Event,
    JobFinished,
    JobStarted,
    LogLine,
    MachineCheck,
    MeasuringProcess,
    RunJob,
    TrialRecorded,
    WorkerLost,
    WorkerPool,
    WorkerProcess,
    WorkerReady,
    WorkerSettings,
)
from specbench.records.generation import Decoder, Record
from specbench.records.records import MAX_LINE
from specbench.results.conditions import check_accepts_rows, check_together
from specbench.results.leaderboard import check_writable, load
from specbench.results.leaderboard_files import add_rows
from specbench.results.metric_format import NULL, names_by_text
from specbench.results.row import Row
from specbench.running.plan import load_requested, without_calibration
from specbench.running.progress import report_kept_results
from specbench.running.request import run_spec
from specbench.specs.catalogue import load_method
from specbench.specs.run import read_servers
from specbench.specs.run_options import RunOptions

MAX_LOSSES = 3  # a run fails after it has lost so many workers


@dataclass
class MeasuredTimes:
    """The times of the methods on one task and pair. `answers`: for each answer of a method the seconds until its first
    token and after it, and the number of tokens after it."""

    answers: dict[str, list[tuple[float, float, int]]] = field(default_factory=lambda: defaultdict(list))

    def add(self, record: Record) -> None:
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


def records_in(folder: Path) -> Iterator[Record]:
    """Yields the records of a run's folder, without broken ones, which are reported when the run is resumed."""
    path, decoder = folder / "records.jsonl", Decoder(Record)
    if not path.is_file():
        return
    with path.open("rb") as lines:
        while line := lines.readline(MAX_LINE + 1):
            with suppress(ValueError):
                yield decoder.decode(line, MAX_LINE)


Group = tuple[str, str]  # pair and task; an example takes about the same time in all runs of a group
Subsets = tuple[tuple[int, int], ...]  # of each subset the number of trials and the largest number of tokens


@dataclass
class PlannedRun:
    """A suite run and its work. `methods`: names as in records. `subsets`: None if the data cannot be read here.
    `problem`: the reason why it cannot be measured, if it is known without loading a model."""

    run: SuiteRun
    methods: tuple[str, ...]
    subsets: Subsets | None
    is_measured: bool
    num_done: int = 0
    problem: str | None = None

    @property
    def group(self) -> Group:
        return self.run.pair_name, self.run.task.label

    @property
    def num_trials(self) -> int:
        return sum(number for number, _ in self.subsets or ())

    @property
    def num_left(self) -> int:
        return 0 if self.is_measured else max(0, self.num_trials - self.num_done)


@dataclass(frozen=True)
class TimeEstimate:
    """An estimate in seconds. `most`: if all answers have the greatest length, at the same speeds. `unknown`: the
    number of runs that are left out, since no similar run was measured."""

    seconds: float
    most: float
    unknown: int = 0


@dataclass
class Forecast:
    """The plan of a suite with the times measured so far. `loading`: seconds to load the models of a pair. `other`:
    seconds of a run outside its answers (data, warm-up)."""

    plan: Sequence[PlannedRun]
    measured: dict[Group, MeasuredTimes] = field(default_factory=lambda: defaultdict(MeasuredTimes))
    loading: dict[str, float] = field(default_factory=dict)
    other: dict[Group, float] = field(default_factory=dict)

    def add(self, number: int, record: Record) -> None:
        planned = self.plan[number]
        self.measured[planned.group].add(record)
        planned.num_done += 1

    def learn(self, number: int, load_seconds: float, other_seconds: float) -> None:
        planned = self.plan[number]
        pair = planned.run.pair_name
        self.loading[pair] = max(load_seconds, self.loading.get(pair, 0.0))
        self.other[planned.group] = other_seconds

    def time_left(self, planned: PlannedRun) -> TimeEstimate | None:
        """Returns the remaining time of a run without loading its models; None if no similar run was measured."""
        known = self.measured[planned.group]
        if planned.is_measured:
            return TimeEstimate(0, 0)
        seconds = known.seconds(planned.methods)
        if seconds is None or planned.subsets is None:
            return None
        other = self.other.get(planned.group, 0.0)
        share = planned.num_left / planned.num_trials if planned.num_trials else 0.0
        most = sum(number * (known.seconds(planned.methods, tokens) or 0.0) for number, tokens in planned.subsets)
        about = seconds * planned.num_left
        return TimeEstimate(other + about, other + max(about, most * share))

    def total(self, num_workers: int) -> TimeEstimate:
        """Returns the remaining time of all runs, divided by the workers, but at least the time of the longest run.
        Each worker loads the models of each pair that it measures."""
        left = [planned for planned in self.plan if not planned.is_measured]
        estimates = [estimate for planned in left if (estimate := self.time_left(planned)) is not None]
        pairs = [planned.run.pair_name for planned in left]
        loading = sum(
            self.loading.get(pair, 0.0) * min(num_workers, pairs.count(pair)) for pair in dict.fromkeys(pairs)
        )
        num_workers = max(1, min(num_workers, len(left)))

        def shared(seconds: Sequence[float]) -> float:
            return max((sum(seconds) + loading) / num_workers, max(seconds, default=0.0))

        about, most = ([getattr(each, name) for each in estimates] for name in ("seconds", "most"))
        return TimeEstimate(shared(about), shared(most), len(left) - len(estimates))


def format_duration(seconds: float) -> str:
    """Returns a time in words: 45 s, 12 min, 3 h 20 min."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60} h {minutes % 60} min"


def make_forecast(runs: Sequence[SuiteRun]) -> Forecast:
    known: dict[object, tuple[Subsets | None, str | None]] = {}
    plan = []
    for run in runs:
        key = (run.task.label, run.limit, run.pair_name, run.methods)  # runs that differ otherwise have the same data
        if key not in known:
            try:
                known[key] = subsets_of(run), None
            except ConfigError as error:
                known[key] = None, str(error)
        subsets, problem = known[key]
        methods = tuple(dict.fromkeys(["ar", *run.methods]))
        if not run.suite.is_served:
            methods = tuple(load_method(name).name for name in methods)
        plan.append(PlannedRun(run, methods, subsets, run.is_measured(run.rows()), problem=problem))
    forecast = Forecast(plan)
    for number, run in enumerate(runs):
        for record in records_in(run.folder):
            forecast.add(number, record)
    return forecast


def subsets_of(run: SuiteRun) -> Subsets:
    """Returns the work on each subset. Raises ConfigError if it cannot be known here."""
    spec = run_spec(run.request)
    if spec.drafter is not None and not spec.drafter.startswith(EMBEDDED):
        is_local(spec.drafter)
    embedded = spec.target.startswith(EMBEDDED)
    loaded = without_calibration(load_requested(spec, embedded, Console(file=StringIO())), spec.methods)
    return tuple(
        (
            spec.repeats * sum(len(example.turns) for example in data.examples),
            task.subset(subset).generation.max_new_tokens,
        )
        for task, subset, data in loaded
    )


def forecast_table(forecast: Forecast) -> Table:
    rows = []
    for planned in forecast.plan:
        run, estimate = planned.run, forecast.time_left(planned)
        times = [format_duration(each) for each in (estimate.seconds, estimate.most)] if estimate else ["unknown"] * 2
        times = ["measured already", ""] if planned.is_measured else times
        done = f"{min(planned.num_done, planned.num_trials)}/{planned.num_trials}" if planned.subsets else NULL
        methods = ", ".join(planned.methods[1:] or planned.methods)
        rows.append([run.pair_name, run.task.label, run.setting, methods, done, *times])
    headings = text_columns("pair", "task", "setting", "methods", "examples", "estimated time", "at most")
    return Table(f"{forecast.plan[0].run.suite.name} · {counted(len(rows), 'run')}", headings, rows)


def problem_lines(forecast: Forecast) -> list[str]:
    """Returns a line for each reason why runs cannot be measured, with the first run and the number of others."""
    left = [planned for planned in forecast.plan if not planned.is_measured]
    names = names_by_text((planned.run.name, planned.problem) for planned in left)
    return [f"{first}{f' and {len(more)} more' if more else ''}: {why}" for why, (first, *more) in names.items()]


class SuiteMeasurement:
    """Measures the missing runs, and reports every event of the workers. `rows`: of the measured runs; they are also
    added to the leaderboard. `failures`: the failed runs with their reasons. `losses`: a line for each worker that was
    lost during a job."""

    def __init__(self, forecast: Forecast, num_workers: int, leaderboard: Path, console: Console) -> None:
        self.forecast, self.leaderboard, self._console, self._num_workers = forecast, leaderboard, console, num_workers
        self.rows: list[tuple[SuiteRun, Sequence[Row]]] = []
        self.failures: list[tuple[SuiteRun, str]] = []
        self.losses: list[str] = []
        self.first_only = False  # whether only the first example of each run is measured
        self._places: Sequence[int] = ()  # in the plan, of each job
        self._generating: dict[int, float] = {}  # seconds by place
        self._num_ended = 0
        self.bar = ProgressBar(console, "starting", None, MofNCompleteColumn(), redirect=False)

    def add(self, run: SuiteRun, failure: str | None = None) -> str | None:
        """Adds the rows of a run. Returns the reason why it failed; None if it did not."""
        try:
            if failure is None:
                rows = run.rows()
                add_rows(self.leaderboard, rows, run.folder)
                self.rows.append((run, rows))
        except ConfigError as error:
            failure = str(error)
        if failure is not None:
            self.failures.append((run, failure))
        return failure

    def measure(self, pool: WorkerPool, missing: Sequence[int], num_sharing: int) -> None:
        """Measures one example of every task and pair without measured times, then all missing runs. The records of
        the examples belong to the runs."""
        if first := runs_to_try(self.forecast, missing):
            line = f"measuring one example of each task on each pair ({len(first)}) to estimate the time of the rest"
            say(self._console, line)
            self._run(pool, first, num_sharing, lambda job, event: None, first_only=True)
        estimate, started = self.forecast.total(pool.num_workers), time.monotonic()
        say(self._console, estimate_line(estimate, self.forecast, len(missing), bool(first)))
        self._run(pool, missing, num_sharing, self._finish)
        estimated = f"; the estimate was {format_duration(estimate.seconds)}, at most {format_duration(estimate.most)}"
        took = f"it took {format_duration(time.monotonic() - started)}"
        say(self._console, took if estimate.unknown else f"{took}{estimated}")

    def _run(
        self, pool: WorkerPool, places: Sequence[int], num_sharing: int, finish: Callable[[int, JobFinished], None],
        first_only: bool = False,
    ) -> None:  # fmt: skip
        self._places, self.first_only = places, first_only
        jobs = [job_of(self.forecast.plan[place].run, num_sharing, first_only) for place in places]
        pool.run(jobs, 1 if first_only else MAX_LOSSES, finish)

    def report(self, worker: str, job: int | None, event: Event) -> None:
        """Handles one event, and prints a line if it matters to the user."""
        if job is None:
            if self._num_workers > 1 and isinstance(event, WorkerReady):
                say(self._console, f"{worker} is ready: {event.device}, on {event.host}")
            elif isinstance(event, WorkerLost):
                say(self._console, f"{worker} cannot be started: {event.reason}")
            return
        place = self._places[job]
        name = self.forecast.plan[place].run.name
        if isinstance(event, LogLine):
            say(self._console, f"{name}: {event.line}" if self._num_workers > 1 else event.line)
        elif isinstance(event, JobStarted):
            self._generating[place] = 0.0
        elif isinstance(event, TrialRecorded) and event.measured:
            self.forecast.add(place, event.record)
            answers = event.record.methods.values()
            seconds = sum((each.ttft_seconds or 0.0) + each.decode_seconds for each in answers)
            self._generating[place] = self._generating.get(place, 0.0) + seconds
            plan = [self.forecast.plan[number] for number in self._places]
            done, total = sum(each.num_done for each in plan), sum(each.num_trials for each in plan)
            line = "measuring first examples" if self.first_only else f"{name}{self._left()}"
            self.bar.update(line, done, f"{done}/{total} examples · {line}", total=total)
        elif isinstance(event, WorkerLost):
            then = "it is given up" if event.is_last else "it goes back into the queue with its records"
            self.losses.append(f"{name}: {worker} was lost: {event.reason}: {then}")
            say(self._console, self.losses[-1])
        elif isinstance(event, JobFinished) and event.failure is None:
            rest = event.seconds - event.load_seconds - self._generating.pop(place, 0.0)
            self.forecast.learn(place, event.load_seconds, max(0.0, rest))

    def _finish(self, job: int, event: JobFinished) -> None:
        planned, self._num_ended = self.forecast.plan[self._places[job]], self._num_ended + 1
        failure = self.add(planned.run, event.failure)
        planned.is_measured = True
        state = f"measured in {format_duration(event.seconds)}" if failure is None else f"FAILED: {failure}"
        say(self._console, f"[{self._num_ended}/{len(self._places)}] {planned.run.name}: {state}{self._left()}")

    def _left(self) -> str:
        seconds = self.forecast.total(self._num_workers).seconds
        return f" · about {format_duration(seconds)} left" if seconds >= 1 else ""


def run_suite(
    forecast: Forecast, processes: Sequence[WorkerProcess], leaderboard: Path, console: Console
) -> SuiteMeasurement:  # fmt: skip
    """Measures the missing runs. Raises ConfigError before any measurement for a leaderboard that cannot be written, is
    broken, or cannot take the rows, and if the workers differ."""
    # 1. Refuse a leaderboard whose rows may not share a file with those to come or those measured already.
    missing = [place for place, planned in enumerate(forecast.plan) if not planned.is_measured]
    measured = [planned.run for planned in forecast.plan if planned.is_measured]
    for file in dict.fromkeys(forecast.plan[place].run.request.servers for place in missing):
        if file is not None:
            check_accepts_rows(leaderboard, read_servers(file).device)
    check_writable(leaderboard)
    if leaderboard.exists() and (present := load(leaderboard)):
        rows = [(str(run.folder), row) for run in measured for row in run.rows()]
        check_together([*((f"{leaderboard}: rows.{number}", row) for number, row in enumerate(present)), *rows])
    # 2. Add the rows of measured runs, so that they are kept whatever follows.
    suite = SuiteMeasurement(forecast, len(processes), leaderboard, console)
    say(console, f"{counted(len(forecast.plan), 'run')}, {len(measured)} measured already")
    for run in measured:
        suite.add(run)
    # 3. Measure the rest.
    if missing:
        machines = MachineCheck(leaderboard)
        with suite.bar, WorkerPool(processes, machines.accept, suite.report) as pool:
            if not forecast.plan[0].run.suite.is_served:  # else the servers' machine counts, not the worker's
                machines.check_leaderboard()
            if line := machines.sharing_warning():
                say(console, line)
            suite.measure(pool, missing, machines.num_sharing())
    return suite


def runs_to_try(forecast: Forecast, missing: Sequence[int]) -> list[int]:
    """Returns for every pair and task without measured times the run with the most methods, unless it has only one
    example. The first pair comes last, so that its models stay loaded."""
    chosen: dict[Group, int] = {}
    for place in missing:
        planned = forecast.plan[place]
        work = sum(forecast.plan[other].num_trials for other in missing if forecast.plan[other].group == planned.group)
        if forecast.measured[planned.group].num_records or work == 1:
            continue
        best = chosen.setdefault(planned.group, place)
        if len(planned.methods) > len(forecast.plan[best].methods):
            chosen[planned.group] = place
    return list(chosen.values())[::-1]


def job_of(run: SuiteRun, num_sharing: int, first_only: bool = False) -> RunJob:
    """Returns the job of a run. `first_only`: only the first example of its first subset."""
    if not first_only:
        return RunJob(run.request, Path.cwd(), run.task.fairness, num_sharing)
    options = replace(run.request.options, limit=1, subsets_per_task=1)
    return RunJob(replace(run.request, options=options), Path.cwd(), num_sharing=num_sharing)


def estimate_line(estimate: TimeEstimate, forecast: Forecast, num_missing: int, has_tried: bool) -> str:
    """Returns the estimate in words, and the number of examples behind it. `has_tried`: whether examples were measured
    for it."""
    if estimate.unknown == num_missing:
        why = "no similar run could be measured" if has_tried else "each task and pair has only one example"
        return f"estimated time: unknown, since {why}"
    num_records = sum(each.num_records for each in forecast.measured.values())
    without = f"; without {counted(estimate.unknown, 'run')}, as no similar one is measured" if estimate.unknown else ""
    return (
        f"estimated time: about {format_duration(estimate.seconds)}, at most {format_duration(estimate.most)} if every "
        f"answer has the greatest length; at the speeds of {counted(num_records, 'measured example')}{without}"
    )


def measure_suite(
    forecast: Forecast, ray: str | None, num_workers: int | None, leaderboard: Path | None
) -> SuiteMeasurement:
    """Measures the missing runs of a suite in one process of this machine, or with the workers of a ray cluster."""
    run = forecast.plan[0].run
    folder = run.runs / FOLDER / run.suite.name
    console = PlainConsole(stderr=True)
    console.file = sys.stderr  # keeps this stream when ray replaces sys.stderr
    if ray is None and num_workers is not None:
        raise ConfigError(f"--workers {num_workers}: needs --ray: add --ray local, or leave it out")
    if ray is not None and run.suite.is_served:
        raise ConfigError(f"--ray {ray}: workers would disturb each other at the servers: leave it out")
    settings = worker_settings(forecast, run.options, ray is not None)
    missing = sum(not planned.is_measured for planned in forecast.plan)
    workers: AbstractContextManager[Sequence[WorkerProcess]] = nullcontext([MeasuringProcess(settings)])
    if ray is not None and missing:
        from specbench.publish.ray_workers import ray_workers

        say(console, f"--ray {ray}: starting the workers")
        workers = ray_workers(ray, num_workers, missing, settings, folder / "ray.log")
    with ResumableFolder(folder, "--runs").held(), report_kept_results(console, folder), workers as processes:
        return run_suite(forecast, processes, leaderboard or folder / "leaderboard.json", console)


def worker_settings(forecast: Forecast, options: RunOptions, on_cluster: bool) -> WorkerSettings:
    """Returns the settings of all workers. Raises ConfigError if runs would have different numbers of CPU threads,
    since such rows do not compare."""
    runs = [planned.run for planned in forecast.plan if not planned.run.suite.is_served]
    embedded = [(run.pair.target or EMBEDDED).startswith(EMBEDDED) for run in runs]
    if options.threads is not None or all(embedded):
        return WorkerSettings(options.device, options.threads or 1)
    if not on_cluster and any(embedded) and choose_device(options.device).type == "cpu":
        raise ConfigError(
            "the embedded pair uses 1 CPU thread and other pairs use all, and such rows do not compare: give the same "
            "number to all pairs: --threads 1, or another number"
        )
    return WorkerSettings(options.device, options.threads)


def show(result: SuiteMeasurement, console: Console) -> None:
    """Prints the rows, the lost workers, and the failed runs with the commands that repeat them."""
    if result.rows:
        order = {planned.run.name: place for place, planned in enumerate(result.forecast.plan)}
        measured = sorted(result.rows, key=lambda each: order[each[0].name])
        console.print(measured_table(f"{measured[0][0].suite.name} · all subsets", measured))
    for line in result.losses:
        console.print(f"lost: {line}", soft_wrap=True)
    if result.failures:
        runs = counted(len(result.forecast.plan), "run")
        console.print(f"\n{len(result.failures)} of {runs} FAILED:", soft_wrap=True)
    for run, failure in result.failures:
        console.print(f"{run.name}: {failure}\n  {run.request.command}", soft_wrap=True)
    if result.rows:
        console.print(f"rows: {result.leaderboard}", soft_wrap=True)
