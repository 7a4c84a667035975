"""The table that a terminal shows while a run measures: a row per subset and method of the task that is measured."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from typing import Any, NamedTuple, Protocol

from rich.console import Console

from specbench.core.console import say
from specbench.core.environment import DISTRIBUTION
from specbench.core.errors import ConfigError, nearest
from specbench.core.registry import LOGGERS
from specbench.core.table import RULE, Column, Table, number_columns, text_columns
from specbench.decoding.build import sampling_of
from specbench.decoding.decoder import Decoder
from specbench.records.records import Record
from specbench.results.answers import acceptance_rates, length_columns, speed_columns, with_own_passes
from specbench.results.metric_format import NULL, number, speed, with_interval
from specbench.results.row import ALL, Row
from specbench.running.models import has_other_vocabulary
from specbench.running.plan import SubsetRun, Trial
from specbench.running.progress import RunProgress
from specbench.statistics.bootstrap import Resampler

OTHER_LINES = 10  # lines of the terminal besides rows: title, headings, caption, progress bar, and a printed line
CAPTION = "so far, with quick intervals; the final table follows"
SPEEDUP = Column("speed-up\n95 % interval", is_number=True, min_width=17)


class AnswerFigures(NamedTuple):
    """The numbers of one answer. `rate`: its acceptance rate. `lengths`: emitted tokens and target passes. `speeds`:
    tokens and seconds of the method, then of AR."""

    record: Record
    rate: float | None
    lengths: list[float]
    speeds: list[float]


class LiveTable(RunProgress):
    """Shows the table above the progress bar on a terminal; plain lines elsewhere. It computes the numbers of the rows
    over the answers so far, with the intervals of `bootstrap.quick_interval`. If the terminal is too low for all
    subsets, it shows those that were measured last."""

    def __init__(self, console: Console, plan: Sequence[Trial]) -> None:
        self._cells = {(block.cell.task.name, block.cell.subset): block.cell for block in plan}
        # For each task and subset a list of blocks, each with the figures of every method.
        self._answers: dict[tuple[str, str], list[list[AnswerFigures]]] = defaultdict(list)
        self._latest: list[tuple[str, str]] = []  # tasks and subsets; the one measured last comes last
        super().__init__(console, len(plan), above=self.tables, num_subsets=len(self._cells))

    def report(self, where: str, record: Record, measured: bool) -> None:
        if self.console.is_terminal:
            place = (record["task"], record["subset"])
            self._answers[place].append([_answer(record, decoder) for decoder in _shown(self._cells[place])])
            self._latest = [*(each for each in self._latest if each != place), place]
        super().report(where, record, measured)

    def tables(self) -> Iterator[Table]:
        """Yields the table of the task that was measured last; none before the first block."""
        if not self._latest:
            return
        task = self._latest[-1][0]
        cells = {place: cell for place, cell in self._cells.items() if place[0] == task}
        methods = _shown(next(iter(cells.values())))
        places = [place for place in self._latest if place[0] == task]
        room = max(1, (self.console.height - OTHER_LINES) // len(methods) - 1)  # leaves room for "all"
        rows = [
            row for place in cells if place in places[-room:] for row in self._rows(place[1], cells[place], [place])
        ]
        if len(cells) > 1 and len({sampling_of(cell.task.generation) for cell in cells.values()}) == 1:
            rows += [list(RULE), *self._rows(ALL, next(iter(cells.values())), places)]
        left_out = [f"{len(places[:-room])} more subsets"] if places[:-room] else []
        figures = (*number_columns("n", "α", "τ", "tok/s\nar", "tok/s\nmethod"), SPEEDUP)
        yield Table(
            f"{task} · {self.num_done} of {self.num_blocks}", (*text_columns("subset", "method"), *figures), rows,
            [CAPTION, *left_out], num_keys=2,
        )  # fmt: skip

    def _rows(self, name: str, cell: SubsetRun, places: Sequence[tuple[str, str]]) -> list[list[str]]:
        answers = zip(*(blocks for place in places for blocks in self._answers[place]), strict=True)
        rows: list[list[str]] = []
        for decoder, own in zip(_shown(cell), answers, strict=True):
            has_speedup = decoder is not cell.decoders[0] and not has_other_vocabulary(decoder.method, cell.models)
            rows.append(["" if rows else name, decoder.method.name, *_figures(own, has_speedup=has_speedup)])
        return rows


def _shown(cell: SubsetRun) -> tuple[Decoder, ...]:
    """Returns the methods of a cell; AR only where it is the only one."""
    return cell.decoders[1:] or cell.decoders


def _answer(record: Record, decoder: Decoder) -> AnswerFigures:
    own = with_own_passes(record["methods"][decoder.method.name], decoder.method.decodes_with)
    lengths, speeds = length_columns([[own]]), speed_columns([[own], [record["methods"]["ar"]]])
    (rate,) = acceptance_rates([own])
    return AnswerFigures(record, rate, [value for (value,) in lengths], [value for (value,) in speeds])


def _figures(answers: Sequence[AnswerFigures], *, has_speedup: bool) -> list[str]:
    prompts = Resampler.of([answer.record for answer in answers], seed=0, is_quick=True)
    speeds = list(zip(*(answer.speeds for answer in answers), strict=True))
    return [
        str(len(set(prompts.cluster.tolist()))),
        number(prompts.mean([answer.rate for answer in answers]), 3),
        number(prompts.ratio(*zip(*(answer.lengths for answer in answers), strict=True)), 2),
        speed(prompts.ratio(*speeds[2:])),
        speed(prompts.ratio(*speeds[:2])),
        with_interval(prompts.ratio(*speeds)) if has_speedup else NULL,
    ]


class RunLogger(Protocol):
    """Receives the numbers of one run. `start` is called first and `finish` last."""

    def start(self, name: str, settings: Mapping[str, Any], folder: str) -> None: ...
    def log(self, values: Mapping[str, float], step: int) -> None: ...
    def finish(self) -> None: ...


def make_loggers(names: Sequence[str]) -> list[RunLogger]:
    """Returns the loggers of these names. Raises ConfigError for unknown names and missing packages."""
    for name in names:
        if name not in LOGGERS.names():
            raise ConfigError(f"--log {name}: {nearest(name, LOGGERS.names())}")
    return [LOGGERS.get(name)() for name in dict.fromkeys(names)]


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

    def start(self, name: str, settings: Mapping[str, Any], folder: str) -> None:
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

    def start(self, name: str, settings: Mapping[str, Any], folder: str) -> None:
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

    def start(self, name: str, settings: Mapping[str, Any], folder: str) -> None:
        self._writer = self._tensorboard.SummaryWriter(f"{folder}/tensorboard")
        self._writer.add_text("settings", "  \n".join(f"{key}: {value}" for key, value in settings.items()))

    def log(self, values: Mapping[str, float], step: int) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def finish(self) -> None:
        self._writer.close()


class Loggers:
    """All loggers of a run. If one fails, for example by a lost connection, it is stopped with a warning, and the
    others go on."""

    def __init__(self, loggers: Sequence[RunLogger], console: Console) -> None:
        self._loggers, self._console = list(loggers), console
        self._step = 0

    def start(self, name: str, settings: Mapping[str, Any], folder: str) -> None:
        self._each(lambda logger: logger.start(name, settings, folder))

    def block(self, where: str, record: Record, measured: bool) -> None:
        """Logs tokens/s and tokens per target pass of each method in a measured block."""
        self._step += 1
        values = {}
        for method, generation in record["methods"].items() if measured else ():
            num_timed, steps = len(generation["token_ids"]) - 1, generation["steps"]
            if num_timed > 0 and generation["decode_seconds"]:
                values[f"{where}/{method}/tokens_per_second"] = num_timed / generation["decode_seconds"]
            if steps:
                values[f"{where}/{method}/mean_acceptance_length"] = sum(step[3] for step in steps) / len(steps)
        if values:
            self._each(lambda logger: logger.log(values, self._step))

    def rows(self, rows: Sequence[Row]) -> None:
        values = {
            "/".join(filter(None, ("rows", *row.names, row.level, name.replace("@", "_at_")))): metric.value
            for row in rows for name, metric in row.metrics.items() if metric.value is not None
        }  # fmt: skip
        self._each(lambda logger: logger.log(values, self._step + 1))

    def finish(self) -> None:
        self._each(lambda logger: logger.finish())

    def _each(self, call: Callable[[RunLogger], None]) -> None:
        for logger in list(self._loggers):
            try:
                call(logger)
            except Exception as error:  # no failure of a tracker may stop the measurement
                self._loggers.remove(logger)
                problem = f"{type(error).__name__}: {error}".splitlines()[0][:200]
                say(self._console, f"warning: {type(logger).__name__} stopped logging: {problem}")
