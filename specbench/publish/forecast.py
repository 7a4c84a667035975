"""The plan of a suite: the work that each run has left, and an estimate of its time from measured examples."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from io import StringIO
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

from rich.console import Console

from specbench.core.console import counted
from specbench.core.environment import EMBEDDED
from specbench.core.errors import ConfigError
from specbench.core.progress import format_duration
from specbench.core.table import Table, text_columns
from specbench.models.gguf.files import is_gguf
from specbench.models.loading import is_local
from specbench.publish.suite_runs import SuiteRun
from specbench.records.generation import Decoder, Record
from specbench.records.records import MAX_LINE, RECORDS
from specbench.results.metric_format import NULL, names_by_text
from specbench.running.plan import load_requested, without_calibration
from specbench.running.request import run_spec
from specbench.specs.catalogue import load_method


def records_in(folder: Path) -> Iterator[Record]:
    """Yields the records of a run's folder, without broken ones, which are reported when the run is resumed."""
    path = folder / RECORDS
    decoder = Decoder(Record)
    if not path.is_file():
        return
    with path.open("rb") as lines:
        while line := lines.readline(MAX_LINE + 1):
            with suppress(ValueError):
                yield decoder.decode(line, MAX_LINE)


Group = tuple[str, str]  # pair and task; an example takes about the same time in all runs of a group


@dataclass
class PlannedRun:
    """A suite run and its work. `methods`: names as in records. `num_trials`: None if the data cannot be read here.
    `problem`: the reason why it cannot be measured, if it is known without loading a model."""

    run: SuiteRun
    methods: tuple[str, ...]
    num_trials: int | None
    is_measured: bool
    num_done: int = 0
    problem: str | None = None

    @property
    def group(self) -> Group:
        return self.run.pair_name, self.run.task.label

    @property
    def num_left(self) -> int:
        return 0 if self.is_measured else max(0, (self.num_trials or 0) - self.num_done)


class TimeEstimate(NamedTuple):
    """An estimate in seconds. `num_unknown`: the number of runs left out, since no similar run was measured."""

    seconds: float
    num_unknown: int


@dataclass
class Forecast:
    """The plan of a suite with the times measured so far. `answers`: of each group and method the seconds of each
    answer. `overhead`: seconds of a run outside of its answers: loading models and data, warm-up."""

    plan: Sequence[PlannedRun]
    answers: dict[Group, dict[str, list[float]]] = field(default_factory=lambda: defaultdict(lambda: defaultdict(list)))
    overhead: dict[Group, float] = field(default_factory=dict)

    def add(self, place: int, record: Record) -> float:
        """Adds a record of a run of the plan. Returns the seconds of its answers."""
        planned = self.plan[place]
        planned.num_done += 1
        seconds = {name: (own.ttft_seconds or 0.0) + own.decode_seconds for name, own in record.methods.items()}
        for name, each in seconds.items():
            self.answers[planned.group][name].append(each)
        return sum(seconds.values())

    def num_records(self, group: Group) -> int:
        return max(map(len, self.answers[group].values()), default=0)

    def time_left(self, planned: PlannedRun) -> float | None:
        """Returns the remaining seconds of a run; None if no similar run was measured. A method that was not measured
        counts as the mean of the others."""
        if planned.is_measured:
            return 0.0
        known = {name: fmean(seconds) for name, seconds in self.answers[planned.group].items()}
        if not known or planned.num_trials is None:
            return None
        per_example = sum(known.get(name, fmean(known.values())) for name in planned.methods)
        return self.overhead.get(planned.group, 0.0) + per_example * planned.num_left

    def total(self, num_workers: int) -> TimeEstimate:
        """Returns the remaining time of all runs, divided by the workers, but at least the time of the longest run."""
        left = [self.time_left(planned) for planned in self.plan if not planned.is_measured]
        known = [seconds for seconds in left if seconds is not None]
        shared = sum(known) / max(1, min(num_workers, len(left)))
        return TimeEstimate(max([shared, *known]), len(left) - len(known))

    def first_runs(self, missing: Iterable[int]) -> list[int]:
        """Returns for every pair and task without measured times the run with the most methods, unless it has only one
        example. The first pair comes last, so that its models stay loaded."""
        groups: dict[Group, list[int]] = {}
        for place in missing:
            groups.setdefault(self.plan[place].group, []).append(place)
        chosen = [
            max(places, key=lambda place: len(self.plan[place].methods))
            for group, places in groups.items()
            if not self.num_records(group) and sum(self.plan[place].num_trials or 0 for place in places) != 1
        ]
        return chosen[::-1]


def make_forecast(runs: Sequence[SuiteRun]) -> Forecast:
    known: dict[object, tuple[int | None, str | None]] = {}
    plan = []
    for run in runs:
        key = (run.task.label, run.limit, run.pair_name, run.methods)  # runs that differ otherwise have the same data
        if key not in known:
            try:
                known[key] = num_trials(run), None
            except ConfigError as error:
                known[key] = None, str(error)
        number, problem = known[key]
        methods = tuple(dict.fromkeys(["ar", *run.methods]))
        if not run.suite.is_served:
            methods = tuple(load_method(name).name for name in methods)
        plan.append(PlannedRun(run, methods, number, run.is_measured(run.rows()), problem=problem))
    forecast = Forecast(plan)
    for place, run in enumerate(runs):
        for record in records_in(run.folder):
            forecast.add(place, record)
    return forecast


def num_trials(run: SuiteRun) -> int:
    """Returns the number of trials of a run. Raises ConfigError if it cannot be known here."""
    spec = run_spec(run.request)
    if spec.drafter is not None and not spec.drafter.startswith(EMBEDDED) and not is_gguf(spec.drafter):
        is_local(spec.drafter)
    embedded = spec.target.startswith(EMBEDDED)
    loaded = without_calibration(load_requested(spec, embedded, Console(file=StringIO())), spec.methods)
    return spec.repeats * sum(len(example.turns) for _, _, data in loaded for example in data.examples)


def forecast_table(forecast: Forecast) -> Table:
    rows = []
    for planned in forecast.plan:
        run = planned.run
        total = planned.num_trials
        seconds = forecast.time_left(planned)
        done = NULL if total is None else f"{min(planned.num_done, total)}/{total}"
        methods = ", ".join(planned.methods[1:] or planned.methods)
        time = "unknown" if seconds is None else format_duration(seconds)
        time = "measured already" if planned.is_measured else time
        rows.append([run.pair_name, run.task.label, run.setting, methods, done, time])
    headings = text_columns("pair", "task", "setting", "methods", "examples", "estimated time")
    return Table(f"{forecast.plan[0].run.suite.name} · {counted(len(rows), 'run')}", headings, rows)


def problem_lines(forecast: Forecast) -> list[str]:
    """Returns a line for each reason why runs cannot be measured, with the first run and the number of others."""
    left = [planned for planned in forecast.plan if not planned.is_measured]
    names = names_by_text((planned.run.name, planned.problem) for planned in left)
    return [f"{first}{f' and {len(more)} more' if more else ''}: {why}" for why, (first, *more) in names.items()]


def estimate_line(forecast: Forecast, num_workers: int) -> str:
    """Returns the estimate in words, and the number of examples behind it."""
    estimate = forecast.total(num_workers)
    if estimate.num_unknown == sum(not planned.is_measured for planned in forecast.plan):
        return "estimated time: unknown, since no similar run is measured"
    num_records = sum(map(forecast.num_records, forecast.answers))
    unknown = counted(estimate.num_unknown, "run")
    without = f"; without {unknown}, as no similar one is measured" if estimate.num_unknown else ""
    about = format_duration(estimate.seconds)
    return f"estimated time: about {about}, at the speeds of {counted(num_records, 'measured example')}{without}"
