"""The events of a run, to which its progress, its trackers and a process that started it listen."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console

from specbench.core.console import say
from specbench.records.records import Record
from specbench.results.row import Row
from specbench.running.plan import Plan, Trial


class RunListener:
    """Hears the events of a run in the order of the methods below. A subclass overrides those that it needs."""

    def run_started(self, plan: Plan) -> None:
        """The plan is made; nothing is measured yet."""

    def trials_started(self, trials: Sequence[Trial]) -> None:
        """The trials are about to be measured, or read where the folder has their records."""

    def wait(self, number: int) -> None:
        """Called before each warm-up and each generation of the trial `number`, and after the last trial. It may delay
        them, as where two processes take turns; no measured time includes the delay."""

    def trial_recorded(self, trial: Trial, record: Record, is_new: bool) -> None:
        """The record of a trial is on disk. `is_new`: False if an earlier command measured it."""

    def trials_ended(self) -> None:
        """No trial is measured any more, whether all are recorded or an error stopped them."""

    def run_ended(self, rows: Sequence[Row] | None) -> None:
        """The rows are written. None: an error stopped the run."""


class Events(RunListener):
    """Passes the events of a run on to its listeners. `console`: where lines for the user go."""

    def __init__(self, console: Console, listeners: Sequence[RunListener] = ()) -> None:
        self.console, self.listeners = console, tuple(listeners)

    def say(self, line: str) -> None:
        say(self.console, line)

    def wait(self, number: int) -> None:
        for listener in self.listeners:
            listener.wait(number)

    def trial_recorded(self, trial: Trial, record: Record, is_new: bool) -> None:
        for listener in self.listeners:
            listener.trial_recorded(trial, record, is_new)

    def run_ended(self, rows: Sequence[Row] | None) -> None:
        for listener in self.listeners:
            listener.run_ended(rows)

    @contextmanager
    def run(self, plan: Plan) -> Iterator[None]:
        """A run that ends without rows if the block raises; otherwise the block tells of its rows."""
        for listener in self.listeners:
            listener.run_started(plan)
        try:
            yield
        except BaseException:
            self.run_ended(None)
            raise

    @contextmanager
    def trials(self, trials: Sequence[Trial]) -> Iterator[None]:
        for listener in self.listeners:
            listener.trials_started(trials)
        try:
            yield
        finally:
            for listener in self.listeners:
                listener.trials_ended()
