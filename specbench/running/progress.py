"""What the user sees of a run: on a terminal a table that fills above a bar, elsewhere plain lines."""

import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean

import torch
from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.progress import MofNCompleteColumn

from specbench.core.console import counted, say, speed_text
from specbench.core.errors import INTERRUPTED, ConfigError
from specbench.core.progress import ProgressBar
from specbench.core.table import RULE, Table, number_columns, text_columns
from specbench.decoding.build import sampling_of
from specbench.decoding.decoder import Decoder
from specbench.models.devices import is_out_of_memory, memory_message
from specbench.records.folder import unused_ends_of
from specbench.records.generation import Record
from specbench.results.answers import Answer, acceptance_rates, end_passed_by, length_columns, speed_columns
from specbench.results.metric_format import number
from specbench.results.row import ALL
from specbench.results.warnings import end_remedy
from specbench.running.events import RunListener
from specbench.running.models import has_other_vocabulary
from specbench.running.plan import Plan, SubsetRun, Trial

OTHER_LINES = 10  # lines of the terminal besides rows: title, headings, caption, progress bar, and a printed line
CAPTION = "so far, without intervals; the final table follows"
Place = tuple[str, str]  # task and subset, or ALL subsets
EVERYWHERE = ("", "")


@dataclass
class Answers:
    """The answers of a method so far: their prompts, and the sums of tokens and seconds of the method, then of AR, of
    emitted tokens and target passes, and of acceptance rates and their number."""

    prompts: set[tuple[str, int]] = field(default_factory=set)
    sums: list[float] = field(default_factory=lambda: [0.0] * 8)

    def add(self, record: Record, columns: Sequence[float]) -> None:
        self.prompts.add((record.subset, record.example))
        self.sums = [total + value for total, value in zip(self.sums, columns, strict=True)]

    @property
    def figures(self) -> tuple[float | None, ...]:
        """The tokens/s of the method and of AR, τ, and α (the mean over answers)."""
        pairs = zip(self.sums[::2], self.sums[1::2], strict=True)
        return tuple(total / number if number else None for total, number in pairs)


def columns_of(record: Record, name: str, decodes_with: str) -> list[float]:
    """Returns the values that `Answers` sums for a method in a record."""
    own = Answer.of(record.methods[name], decodes_with)
    columns = [*speed_columns([[own], [record.methods["ar"]]]), *length_columns([[own]])]
    (rate,) = acceptance_rates([own])
    return [*(value for (value,) in columns), rate or 0.0, float(rate is not None)]


class RunProgress(RunListener):
    """Counts trials. A terminal shows a row per subset and method of the task that is measured, and below them the
    tokens/s and acceptance rate of every method over all and the time left, warm-ups included; elsewhere the latter as
    plain lines. In a short terminal, it shows the subsets that were measured last."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self._bar: ProgressBar | None = None

    def trials_started(self, trials: Sequence[Trial]) -> None:
        self._runs = {(trial.run.task.name, trial.run.subset): trial.run for trial in trials}
        self._answers: dict[tuple[str, Place], Answers] = defaultdict(Answers)  # by method and place
        self._latest: list[Place] = []  # the one measured last comes last
        self.num_trials = len(trials)
        self.num_done = 0
        self.num_measured = 0
        self._measuring = 0.0  # seconds of the measured trials
        self._warm_ups: dict[str, float] = {}  # seconds before the first measured trial of each subset
        self._reported = time.monotonic()
        self._bar = ProgressBar(self.console, "warming up", len(trials), MofNCompleteColumn(), above=self.tables)
        self._bar.__enter__()

    def trials_ended(self) -> None:
        if self._bar is not None:
            self._bar.__exit__(None, None, None)

    def trial_recorded(self, trial: Trial, record: Record, is_new: bool) -> None:
        assert self._bar is not None
        place = trial.run.task.name, trial.run.subset
        where = "/".join(place)
        self.num_done += 1
        self.num_measured += is_new
        alone = {decoder.method.name: decoder.method.decodes_with for decoder in trial.run.decoders}
        for name in record.methods:
            columns = columns_of(record, name, alone.get(name, "target"))
            for each in (EVERYWHERE, (place[0], ALL), place):
                self._answers[name, each].add(record, columns)
        self._latest = [*(each for each in self._latest if each != place), place]
        # The time before the first trial of a subset is that of its warm-up; of reading old records, it is none.
        now = time.monotonic()
        seconds = 0.0
        if is_new:
            seconds = sum((g.ttft_seconds or 0.0) + g.decode_seconds for g in record.methods.values())
            if where in self._warm_ups:  # servers in rotation report all trials of a part at once
                seconds = max(seconds, now - self._reported)
            else:
                self._warm_ups[where] = max(0.0, now - self._reported - seconds)
        self._measuring += seconds
        self._reported = now
        start, end, width = f"{self.num_done}/{self.num_trials} {where}", self._time_left(), self.console.width
        line = fitted(where, self.summary(), end, width)
        is_due = (is_new and self.num_measured == 1) or self.num_done == self.num_trials
        self._bar.update(line, self.num_done, fitted(start, self.summary(), end, width), is_due)

    def summary(self) -> list[str]:
        """Returns tokens/s of every method, and α if draft tokens were verified."""
        parts = []
        for name in (name for name, place in self._answers if place == EVERYWHERE):
            speed, _, _, alpha = self._answers[name, EVERYWHERE].figures
            parts.append(f"{name} {speed_text(speed or 0.0)} tok/s" + ("" if alpha is None else f" α {alpha:.2f}"))
        return parts

    def _time_left(self) -> str:
        if not self.num_measured:
            return ""
        seconds = self._measuring / self.num_measured * (self.num_trials - self.num_done)
        later = list(self._warm_ups.values())[1:] or list(self._warm_ups.values())  # the first is the longest
        seconds += fmean(later) * max(0, len(self._runs) - len(self._warm_ups))
        return f"{seconds:.0f} s left" if seconds >= 1 else ""

    def tables(self) -> Iterator[Table]:
        """Yields the table of the task that was measured last; none before the first trial and without a terminal."""
        if not self._latest or not self.console.is_terminal:
            return
        task = self._latest[-1][0]
        runs = {place: run for place, run in self._runs.items() if place[0] == task}
        first = next(iter(runs.values()))
        places = [place for place in self._latest if place[0] == task]
        room = max(1, (self.console.height - OTHER_LINES) // len(_shown(first)) - 1)  # leaves room for "all"
        rows = [row for place in runs if place in places[-room:] for row in self._rows(place, runs[place])]
        if len(runs) > 1 and len({sampling_of(run.task.generation) for run in runs.values()}) == 1:
            rows += [list(RULE), *self._rows((task, ALL), first)]
        left_out = [f"{len(places[:-room])} more subsets"] if places[:-room] else []
        figures = number_columns("n", "α", "τ", "tok/s\nar", "tok/s\nmethod", "speed-up")
        title = f"{task} · {self.num_done} of {self.num_trials}"
        columns = (*text_columns("subset", "method"), *figures)
        yield Table(title, columns, rows, [CAPTION, *left_out], num_keys=2)

    def _rows(self, place: Place, run: SubsetRun) -> list[list[str]]:
        rows: list[list[str]] = []
        for method in (decoder.method for decoder in _shown(run)):
            answers = self._answers[method.name, place]
            own, plain, length, alpha = answers.figures
            is_comparable = method.name != "ar" and not has_other_vocabulary(method, run.models)
            speedup = own / plain if is_comparable and own is not None and plain else None
            figures = [number(alpha, 3), number(length, 2), number(plain, 1), number(own, 1), number(speedup, 2)]
            rows.append(["" if rows else place[1], method.name, str(len(answers.prompts)), *figures])
        return rows


def fitted(start: str, parts: Sequence[str], end: str, width: int) -> str:
    """Returns the parts between start and end as one line, the last ones replaced by their number if it is too wide."""
    for num_kept in range(len(parts), -1, -1):
        more = f"{len(parts) - num_kept} more" if num_kept < len(parts) else ""
        line = " · ".join(filter(None, [start, *parts[:num_kept], more, end]))
        if cell_len(line) <= width:
            break
    return line if cell_len(line) <= width else f"{set_cell_size(line, width - 1).rstrip()}…"


class Details(RunListener):
    """What --verbose tells of a run: versions, engine and methods before it, and each answer that is measured."""

    def __init__(self, console: Console) -> None:
        self.console = console

    def run_started(self, plan: Plan) -> None:
        where = plan.folder.identity["environment"]
        versions = ", ".join(f"{name} {number or 'unknown'}" for name, number in where["versions"].items())
        say(self.console, f"versions: {versions}")
        say(self.console, f"commit: {where.get('commit') or 'unknown'}")
        say(self.console, f"machine: {where['device']}, {where['dtype']}, {where['attention']}")
        say(self.console, f"engine: {where['engine']} ({why_engine(plan)})")
        for method in plan.spec.methods:
            name = None if method.decoder is not None or not method.needs_drafter else plan.spec.drafter_of(method)
            drafter = "" if method.decoder is not None else f", drafter {name or method.drafter.type}"
            rule = "" if method.decoder is not None else f", rule {method.verification.rule}"
            say(self.console, f"method {method.name}: {counted(method.num_draft_tokens, 'draft token')}{drafter}{rule}")

    def trial_recorded(self, trial: Trial, record: Record, is_new: bool) -> None:
        if not is_new:
            return
        repeat = f", repeat {record.repeat}" if record.repeat else ""
        turn = f", turn {record.turn}" if record.turn else ""
        say(self.console, f"{record.task}/{record.subset} example {record.id}{repeat}{turn}:")
        alone = {decoder.method.name: decoder.method.decodes_with for decoder in trial.run.decoders}
        for name, generation in record.methods.items():
            own = Answer.of(generation, alone.get(name, "target"))
            seconds = (own.ttft_seconds or 0.0) + own.decode_seconds
            parts = [counted(own.num_new_tokens, "token"), f"{seconds:.2f} s"]
            if own.num_timed_tokens > 0 and own.decode_seconds:
                parts.append(f"{speed_text(own.num_timed_tokens / own.decode_seconds)} tok/s")
            if own.num_steps and name != "ar":
                parts.append(f"τ {own.num_emitted / own.num_steps:.2f}")
            if own.num_verified:
                parts.append(f"α {own.num_accepted / own.num_verified:.2f}")
            if generation.score is not None:
                parts.append(f"score {generation.score:g}")
            say(self.console, fitted(f"  {name}", parts, generation.finish, self.console.width))


class EndWatch(RunListener):
    """Says once, as soon as AR's answers show it, that they go on behind a token that marks the end of a text: whoever
    waits for the warnings of the rows has lost the run."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self._ends: dict[int, str] = {}

    def run_started(self, plan: Plan) -> None:
        self._ends = unused_ends_of(plan.folder.identity)

    def trial_recorded(self, trial: Trial, record: Record, is_new: bool) -> None:
        if not is_new or (passed := end_passed_by(record.methods["ar"], self._ends)) is None:
            return
        token, number = passed
        say(
            self.console,
            f"warning: {record.task}/{record.subset} example {record.id}: ar wrote {counted(number, 'token')} behind "
            f"{token} {self._ends[token]}, which marks the end of a text and is no end token of this run: "
            f"{end_remedy([self._ends[token]])}",
        )
        self._ends = {}


def why_engine(plan: Plan) -> str:
    """Returns why the target's passes have their engine."""
    spec, target = plan.spec, plan.models.target
    if spec.servers is not None:
        return "the passes are the servers'"
    if target.why_eager is not None:
        return f"not {spec.engine}: {target.why_eager}"
    if spec.engine != "auto":
        return f"--engine {spec.engine}"
    if target.engine == "llama.cpp":
        return "--engine auto: the target is a GGUF file"
    if any(part.decoder is not None for method in spec.methods for part in method.parts):
        return "--engine auto: code of a method runs its own passes"
    return f"--engine auto: graphs on CUDA, else eager; the target is on {target.device.type}"


def _shown(run: SubsetRun) -> tuple[Decoder, ...]:
    """The methods of a subset; AR only where it is the only one."""
    return run.decoders[1:] or run.decoders


def announce(console: Console, num_trials: int, num_done: int, folder: Path, noun: str = "examples") -> None:
    """Prints the run's folder, and how many of its trials are done. `noun`: the word for them."""
    noun = noun.removesuffix("s") if num_trials == 1 else noun
    if num_done == num_trials:
        subject = f"the {noun} is" if num_trials == 1 else f"all {num_trials} {noun} are"
        text = f"{subject} measured already in {folder}: use another --output to rerun"
    elif num_done:
        text = f"resuming {folder}: {num_done} of {num_trials} {noun} done"
    else:
        text = f"measuring {num_trials} {noun} into {folder}"
    say(console, text)


@contextmanager
def report_kept_results(console: Console, folder: Path) -> Iterator[None]:
    """Ends an interrupted run, or one without enough memory, with one line: everything measured is kept."""
    try:
        yield
    except KeyboardInterrupt:
        say(console, f"interrupted: everything measured is kept in {folder}; the same command resumes it")
        sys.exit(INTERRUPTED)
    except (torch.OutOfMemoryError, MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        raise ConfigError(
            f"{memory_message(error)}; everything measured is kept in {folder}; use a smaller model, dtype or "
            "generation.max_new_tokens, or free memory and repeat the command to resume"
        ) from error
