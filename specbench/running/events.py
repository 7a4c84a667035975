"""The events of a run, and what listens to them: its progress, a process that started it, and trackers (--log)."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import Any, Protocol

from rich.console import Console

from specbench.core.console import say
from specbench.core.environment import DISTRIBUTION
from specbench.core.errors import ConfigError
from specbench.core.registry import LOGGERS
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


Settings = Mapping[str, object]


class RunLogger(Protocol):
    """Receives the numbers of one run. `start` is called first and `finish` last."""

    def start(self, name: str, settings: Settings, folder: str) -> None: ...
    def log(self, values: Mapping[str, float], step: int) -> None: ...
    def finish(self) -> None: ...


def package(name: str, extra: str) -> Any:
    """Imports and returns a package. Raises ConfigError, with the command to install it, if it is missing."""
    try:
        return import_module(name)
    except ImportError as error:
        install = f"pip install '{DISTRIBUTION}[{extra}]'"
        raise ConfigError(f"--log {extra}: its package cannot be imported ({error}): {install}") from error


@LOGGERS.register("wandb")
class WandbLogger:
    """Weights & Biases: a run in the project that WANDB_PROJECT names, else specbench."""

    def __init__(self) -> None:
        self._wandb = package("wandb", "wandb")

    def start(self, name: str, settings: Settings, folder: str) -> None:
        import os

        project = os.environ.get("WANDB_PROJECT", "specbench")
        self._run = self._wandb.init(project=project, name=name, config=dict(settings))

    def log(self, values: Mapping[str, float], step: int) -> None:
        self._run.log(dict(values), step=step)

    def finish(self) -> None:
        self._run.finish()


@LOGGERS.register("mlflow")
class MlflowLogger:
    """MLflow: a run in the experiment and on the server that MLflow's environment variables name."""

    def __init__(self) -> None:
        self._mlflow = package("mlflow", "mlflow")

    def start(self, name: str, settings: Settings, folder: str) -> None:
        self._mlflow.start_run(run_name=name)
        self._mlflow.log_params(dict(settings))

    def log(self, values: Mapping[str, float], step: int) -> None:
        self._mlflow.log_metrics(dict(values), step=step)

    def finish(self) -> None:
        self._mlflow.end_run()


@LOGGERS.register("tensorboard")
class TensorboardLogger:
    """TensorBoard: event files in the subfolder `tensorboard` of the run's folder."""

    def __init__(self) -> None:
        self._tensorboard = package("torch.utils.tensorboard", "tensorboard")

    def start(self, name: str, settings: Settings, folder: str) -> None:
        self._writer = self._tensorboard.SummaryWriter(f"{folder}/tensorboard")
        self._writer.add_text("settings", "  \n".join(f"{key}: {value}" for key, value in settings.items()))

    def log(self, values: Mapping[str, float], step: int) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def finish(self) -> None:
        self._writer.close()


class Trackers(RunListener):
    """The trackers of a run. One that fails, for example because its connection is lost, is stopped with a warning, and
    the others go on."""

    def __init__(self, names: Sequence[str], console: Console) -> None:
        self._loggers: list[RunLogger] = [LOGGERS.get(name)() for name in dict.fromkeys(names)]
        self._console = console
        self._step = 0

    def run_started(self, plan: Plan) -> None:
        folder = plan.folder.path
        self._each(lambda logger: logger.start(folder.name, plan.settings, str(folder)))

    def trial_recorded(self, trial: Trial, record: Record, is_new: bool) -> None:
        """Logs tokens/s and tokens per target pass of each method in a new record."""
        self._step += 1
        values = {}
        for method, generation in record.methods.items() if is_new else ():
            where = f"{record.task}/{record.subset}/{method}"
            num_timed, num_steps = generation.num_new_tokens - 1, len(generation.steps)
            if num_timed > 0 and generation.decode_seconds:
                values[f"{where}/tokens_per_second"] = num_timed / generation.decode_seconds
            if num_steps:
                values[f"{where}/mean_acceptance_length"] = generation.num_emitted / num_steps
        if values:
            self._each(lambda logger: logger.log(values, self._step))

    def run_ended(self, rows: Sequence[Row] | None) -> None:
        values = {
            "/".join(filter(None, ("rows", *row.names, row.level, name.replace("@", "_at_")))): metric.value
            for row in rows or () for name, metric in row.metrics.items() if metric.value is not None
        }  # fmt: skip
        if rows is not None:
            self._each(lambda logger: logger.log(values, self._step + 1))
        self._each(lambda logger: logger.finish())

    def _each(self, call: Callable[[RunLogger], None]) -> None:
        for logger in list(self._loggers):
            try:
                call(logger)
            except Exception as error:  # no failure of a tracker may stop the measurement
                self._loggers.remove(logger)
                problem = f"{type(error).__name__}: {error}".splitlines()[0][:200]
                say(self._console, f"warning: {type(logger).__name__} stopped logging: {problem}")
