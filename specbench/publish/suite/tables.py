"""A suite as tables: its cells before it starts, its rows afterwards."""

import time
from collections import Counter
from collections.abc import Sequence
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table
from rich.text import Text

from specbench.core.console import say
from specbench.publish.boards.tables import add, over_all, plain_table
from specbench.publish.suite.cells import Cell
from specbench.publish.suite.forecast import Forecast, Planned, cells_in, generation_seconds, shown
from specbench.publish.suite.workers import Begun, Event, Finished, Lost, Ready, Recorded, Said
from specbench.results.captions import FEW, rests_on_few
from specbench.results.row import Row
from specbench.results.tables import speedup_cell, warning_lines
from specbench.results.units import NULL, number, short, speed, unit_of
from specbench.running.progress import PLAIN_LINE_SECONDS


def cells_table(forecast: Forecast) -> Table:
    """Every cell with its methods, what it has already, and how long it takes."""
    suite = forecast.plan[0].cell.suite
    title = f"{suite.name} · {cells_in(forecast)}"
    table = plain_table(title, "pair", "task", "setting", "methods", "examples", "estimated time", "at most")
    for planned in forecast.plan:
        cell, estimate = planned.cell, forecast.of(planned)
        times = (shown(estimate.seconds), shown(estimate.most)) if estimate else ("unknown", "unknown")
        done = f"{min(planned.num_done, planned.num_blocks)}/{planned.num_blocks}" if planned.subsets else NULL
        times = ("measured already", "") if planned.is_measured else times
        methods = ", ".join(planned.methods[1:] or planned.methods)
        add(table, cell.pair_name, cell.task.called, cell.setting, methods, done, *times)
    return table


def problems(forecast: Forecast) -> list[str]:
    """A line for each reason why cells cannot be measured, with the first of them and how many more have it."""
    names: dict[str, list[str]] = {}
    for planned in forecast.plan:
        if planned.problem is not None and not planned.is_measured:
            names.setdefault(planned.problem, []).append(planned.cell.name)
    return [f"{first}{f' and {len(more)} more' if more else ''}: {why}" for why, (first, *more) in names.items()]


def rows_table(measured: Sequence[tuple[Cell, Sequence[Row]]], plan: Sequence[Planned]) -> Table:
    """A line per cell and method, each over all subsets; what all cells have in common is said once, below."""
    order = {planned.cell.name: number for number, planned in enumerate(plan)}
    measured = sorted(measured, key=lambda each: order[each[0].name])
    cells = [cell for cell, _ in measured]
    axes = {
        "pair": [cell.pair_name for cell in cells],
        "task": [cell.task.called for cell in cells],
        "T": [NULL if cell.temperature is None else f"{cell.temperature:g}" for cell in cells],
        "seed": [str(cell.seed) for cell in cells],
    }
    varying = [name for name, values in axes.items() if len(set(values)) > 1]
    table = plain_table(f"{cells[0].suite.name} · all subsets", *varying)
    table.add_column("n", justify="right")
    table.add_column("method", overflow="fold")
    for header in ("α", "τ", "tok/s", "speed-up\n95 % interval", "score"):
        table.add_column(header, justify="right", no_wrap=True)
    table.add_column("of", overflow="fold")
    for place, (_, rows) in enumerate(measured):
        first = [axes[name][place] for name in varying]
        for line, row in enumerate(over_all(rows)):
            add(table, *(first if line == 0 else [""] * len(first)), *_cells(row))
        table.add_section()
    same = [f"{name} {values[0]}" for name, values in axes.items() if name not in varying and values[0] != NULL]
    table.caption, table.caption_justify = Text("\n".join([", ".join(same), *_doubts(measured)])), "left"
    return table


def _doubts(measured: Sequence[tuple[Cell, Sequence[Row]]]) -> list[str]:
    """Below the table: cells with few prompts, and what the marks of speed-ups stand for."""
    rows = [(cell, row) for cell, found in measured for row in over_all(found)]
    names = [f"{cell.name} {short(row.method).partition('@')[0]}" for cell, row in rows]
    few = sum(any(map(rests_on_few, over_all(found))) for _, found in measured)
    line = f"{FEW} in {few} of {len(measured)} cells"
    return [*([line] if few else []), *warning_lines([row for _, row in rows], names)]


def _cells(row: Row) -> list[str]:
    metrics, unit = row.metrics, unit_of(row.quality)
    return [
        str(row.n),
        row.method_name,
        number(metrics.get("acceptance_rate"), 3),
        number(metrics.get("mean_acceptance_length"), 2),
        speed(metrics.get("tokens_per_second")),
        speedup_cell(row),
        number(metrics.get(row.quality or ""), unit.digits, unit.factor),
        unit.label if row.quality in metrics else "",
    ]


class Watch:
    """Hears every event of the crew. `losses`: a line for each worker that was lost at work."""

    def __init__(self, console: Console, forecast: Forecast, num_workers: int) -> None:
        self._console, self._forecast, self._num_workers = console, forecast, num_workers
        self.losses: list[str] = []
        self._cells: Sequence[int] = ()  # of the jobs
        self._first_only = False
        self._max_losses = 1
        self._lost: Counter[int] = Counter()  # workers, by cell
        self._generating: dict[int, float] = {}  # seconds, by cell
        self._ended = 0
        self._said = time.monotonic()
        self._bar: Progress | None = None

    def __enter__(self) -> "Watch":
        if self._console.is_terminal:
            self._bar = Progress(
                TextColumn("{task.description}", markup=False), BarColumn(bar_width=20), MofNCompleteColumn(),
                console=self._console, transient=True, redirect_stdout=False, redirect_stderr=False,
            )  # fmt: skip
            self._bar.start()
            self._task = self._bar.add_task("starting", total=None)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def start(self, cells: Sequence[int], first_only: bool, max_losses: int) -> None:
        """The jobs from here on are of these cells; `first_only`: of the first example of each."""
        self._cells, self._first_only, self._max_losses, self._ended = cells, first_only, max_losses, 0
        self._lost.clear()

    def tell(self, worker: str, job: int | None, event: Event) -> None:
        """Take one event in, and say what there is to be said of it."""
        if job is None:
            if self._num_workers > 1 and isinstance(event, Ready):
                say(self._console, f"{worker} is ready: {event.device}, on {event.host}")
            elif isinstance(event, Lost):
                say(self._console, f"{worker} cannot be started: {event.reason}")
            return
        cell = self._cells[job]
        name = self._forecast.plan[cell].cell.name
        if isinstance(event, Said):
            say(self._console, f"{name}: {event.line}" if self._num_workers > 1 else event.line)
        elif isinstance(event, Begun):
            self._generating[cell] = 0.0
        elif isinstance(event, Recorded) and event.measured:
            self._forecast.add(cell, event.record)
            self._generating[cell] = self._generating.get(cell, 0.0) + generation_seconds(event.record)
            self._progress(name)
        elif isinstance(event, Lost):
            self._lost[cell] += 1
            again = self._lost[cell] < self._max_losses
            then = "it goes back into the queue, with what is recorded of it" if again else "it is given up"
            self.losses.append(f"{name}: {worker} was lost: {event.reason}: {then}")
            say(self._console, self.losses[-1])
        elif isinstance(event, Finished) and event.failure is None:
            self._learn(cell, event)

    def _learn(self, cell: int, event: Finished) -> None:
        """What a cell took beside its answers."""
        planned = self._forecast.plan[cell]
        pair = planned.cell.pair_name
        self._forecast.loading[pair] = max(event.load_seconds, self._forecast.loading.get(pair, 0.0))
        rest = event.seconds - event.load_seconds - self._generating.pop(cell, 0.0)
        self._forecast.other[planned.group] = max(0.0, rest)

    def ended(self, cell: int, event: Finished) -> None:
        """A cell is measured, or it has failed for good."""
        planned, self._ended = self._forecast.plan[cell], self._ended + 1
        planned.is_measured = True
        state = f"measured in {shown(event.seconds)}" if event.failure is None else f"FAILED: {event.failure}"
        say(self._console, f"[{self._ended}/{len(self._cells)}] {planned.cell.name}: {state}{self._left()}")

    def _progress(self, name: str) -> None:
        chosen = [self._forecast.plan[number] for number in self._cells]
        done, total = (sum(getattr(each, key) for each in chosen) for key in ("num_done", "num_blocks"))
        line = "measuring first examples" if self._first_only else f"{name}{self._left()}"
        if self._bar is not None:
            self._bar.update(self._task, description=line, completed=done, total=total)
        elif time.monotonic() - self._said >= PLAIN_LINE_SECONDS and not self._first_only:
            self._said = time.monotonic()
            say(self._console, f"{done}/{total} examples · {line}")

    def _left(self) -> str:
        seconds = self._forecast.total(self._num_workers).seconds
        return f" · about {shown(seconds)} left" if seconds >= 1 else ""
