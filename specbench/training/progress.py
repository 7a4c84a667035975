"""The progress of a training on the console: a bar on a terminal, plain lines elsewhere."""

import time
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, TextColumn, TimeRemainingColumn

from specbench.core.console import PlainLines, say
from specbench.training.loop import StepCurve

MAX_SHOWN = 6  # languages


class ProgressLine:
    """A bar with a description on a terminal; plain lines elsewhere; nothing if `quiet`."""

    def __init__(
        self, console: Console, description: str, total: float, *columns: ProgressColumn, completed: int = 0,
        quiet: bool = False,
    ) -> None:  # fmt: skip
        self._lines = PlainLines(None if quiet or console.is_terminal else console)
        self._bar = Progress(
            TextColumn("{task.description}", markup=False), BarColumn(bar_width=20), *columns, console=console,
            transient=True, disable=quiet or not console.is_terminal,
        )  # fmt: skip
        self._task = self._bar.add_task(description, total=total, completed=completed)

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._bar.stop()

    def update(self, description: str, completed: float, ending: str = "", is_last: bool = False) -> None:
        """Shows the description. `ending`: the text that a plain line adds after it."""
        self._bar.update(self._task, description=description, completed=completed)
        self._lines.say(description + ending, is_last)


class TrainingProgress(ProgressLine):
    """Counts the steps of one learning rate; `quiet` in all but the main process of a training."""

    def __init__(self, console: Console, num_steps: int, num_done: int, quiet: bool) -> None:
        columns = MofNCompleteColumn(), TimeRemainingColumn()
        super().__init__(console, "first step", num_steps, *columns, completed=num_done, quiet=quiet)
        self.console, self.num_steps = console, num_steps
        self._num_done_before, self._started = num_done, time.monotonic()
        self._losses: dict[str, float] = {}  # a step may hold only some of the languages
        if 0 < num_done < num_steps and not quiet:
            say(console, f"resuming at step {num_done + 1} of {num_steps}")

    def report(self, point: StepCurve) -> None:
        """Reports one finished step."""
        self._losses |= point.loss
        description = f"loss {losses_text(self._losses)} · rate {point.learning_rate:.2g}"
        if not self.console.is_terminal:
            description = f"step {point.step}/{self.num_steps} {description}"
        seconds_per_step = (time.monotonic() - self._started) / (point.step - self._num_done_before)
        ending = f" · {seconds_per_step * (self.num_steps - point.step):.0f} s left"
        self.update(description, point.step, ending, point.step == self.num_steps)


def losses_text(by_language: dict[str, float]) -> str:
    """Returns the highest losses with their languages, the highest first."""
    worst = sorted(by_language.items(), key=lambda pair: -pair[1])
    more = f" and {len(worst) - MAX_SHOWN} more" if len(worst) > MAX_SHOWN else ""
    return " ".join(f"{language} {loss:.3f}" for language, loss in worst[:MAX_SHOWN]) + more
