"""What a training says while it goes on: a bar on a terminal, plain lines elsewhere; always the loss per language."""

import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from specbench.core.console import INTERRUPTED, say
from specbench.core.errors import ConfigError
from specbench.models.devices import is_out_of_memory
from specbench.running.progress import PLAIN_LINE_SECONDS
from specbench.training.checkpoint import StepCurve
from specbench.training.output import OutputFolder, TrainingRecord

MAX_SHOWN = 6  # languages: the worst of them


class TrainingProgress:
    """Counts steps of one learning rate; `quiet` where another process of the same training speaks."""

    def __init__(
        self, console: Console, num_steps: int, num_done: int, quiet: bool, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.console, self.num_steps, self.quiet = console, num_steps, quiet
        self._first = num_done
        self._clock = clock
        self._started = self._said = clock()
        self._losses: dict[str, float] = {}  # a step may have some of the languages only
        self._bar = Progress(
            TextColumn("{task.description}", markup=False), BarColumn(bar_width=20), MofNCompleteColumn(),
            TimeRemainingColumn(), console=console, transient=True, disable=quiet or not console.is_terminal,
        )  # fmt: skip

    def __enter__(self) -> "TrainingProgress":
        if 0 < self._first < self.num_steps and not self.quiet:
            say(self.console, f"going on at step {self._first + 1} of {self.num_steps}")
        self._bar.start()
        self._task = self._bar.add_task("first step", total=self.num_steps, completed=self._first)
        return self

    def __exit__(self, *error: object) -> None:
        self._bar.stop()

    def report(self, point: StepCurve) -> None:
        """One step is made."""
        self._losses |= point.loss
        num_done = point.step
        line = f"loss {losses_text(self._losses)} · rate {point.learning_rate:.2g}"
        self._bar.update(self._task, description=line, completed=num_done)
        is_due = self._clock() - self._said >= PLAIN_LINE_SECONDS or num_done == self.num_steps
        if is_due and not self.quiet and not self.console.is_terminal:
            self._said = self._clock()
            seconds = (self._clock() - self._started) / (num_done - self._first) * (self.num_steps - num_done)
            say(self.console, f"step {num_done}/{self.num_steps} {line} · {seconds:.0f} s left")


def losses_text(by_language: dict[str, float]) -> str:
    """The highest losses by language, the worst first."""
    worst = sorted(by_language.items(), key=lambda pair: -pair[1])
    more = f" and {len(worst) - MAX_SHOWN} more" if len(worst) > MAX_SHOWN else ""
    return " ".join(f"{language} {loss:.3f}" for language, loss in worst[:MAX_SHOWN]) + more


@contextmanager
def reporting_what_is_kept(console: Console, folder: OutputFolder) -> Iterator[None]:
    """An interrupt, or running out of memory, ends a training with one line that says what is kept."""
    try:
        yield
    except KeyboardInterrupt:
        say(console, f"interrupted: {folder.kept()}")
        sys.exit(INTERRUPTED)
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        raise ConfigError(
            f"out of memory; {folder.kept()}: free memory and repeat the command, or train into "
            "another --output with smaller batches, --set gradient_checkpointing=true or --set lora.rank=16"
        ) from error


def draw_curves(record: TrainingRecord, path: Path) -> bool:
    """Loss per language and learning rate of the chosen curve, and the held-back loss; False without matplotlib."""
    if find_spec("matplotlib") is None:
        return False
    from matplotlib.figure import Figure

    curve = record.curves[record.chosen]
    figure = Figure(figsize=(8, 4.5), layout="constrained")
    panel: Any = figure.subplots()
    lines: dict[str, tuple[list[int], list[float]]] = defaultdict(lambda: ([], []))
    for point in curve["steps"]:
        for language, loss in point["loss"].items():
            lines[language][0].append(point["step"])
            lines[language][1].append(loss)
    for language, (steps, losses) in lines.items():
        panel.plot(steps, losses, label=language, linewidth=1, marker="." if len(steps) < 30 else "")
    if curve["validation"]:
        held_back = {int(num_done): loss for num_done, loss in curve["validation"].items()}
        panel.plot(*zip(*held_back.items(), strict=True), "ko--", label="held back")
    panel.set_xlabel("step (update)")
    panel.set_ylabel("loss (nats per token)")
    panel.set_title(f"{record.settings['kind']} · learning rate {curve['learning_rate']:g}", loc="left")
    panel.legend(ncols=2, frameon=False)
    figure.savefig(path, dpi=150)
    return True
