"""The table that a terminal shows while a run measures: a row per subset and method of the task that is measured."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from rich.console import Console

from specbench.core.table import RULE, Column, Table, numbers, words
from specbench.decoding.decoder import Decoder
from specbench.results.bootstrap import Prompts
from specbench.results.metrics import acceptance_rates, length_columns, speed_columns, with_own_passes
from specbench.results.row import ALL
from specbench.results.units import NULL, number, speed, with_interval
from specbench.running.compose import sampling_of
from specbench.running.models import has_other_vocabulary
from specbench.running.plan import Block, Cell
from specbench.running.progress import RunProgress
from specbench.running.records import Record

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
    """Shows the table above the progress bar on a terminal; plain lines elsewhere.

    It computes the numbers of the rows over the answers so far, with the intervals of `log_ratios.quick_interval`. If
    the terminal is too low for all subsets, it shows those that were measured last.
    """

    def __init__(self, console: Console, plan: Sequence[Block]) -> None:
        self._cells = {(block.cell.task.name, block.cell.subset): block.cell for block in plan}
        # For each task and subset a list of blocks, each with the figures of every method.
        self._answers: dict[tuple[str, str], list[list[AnswerFigures]]] = defaultdict(list)
        self._latest: list[tuple[str, str]] = []  # tasks and subsets; the one measured last comes last
        super().__init__(console, len(plan), above=self.tables)

    def report(self, where: str, record: Record, measured: bool) -> None:
        """Adds one recorded block to the table."""
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
        figures = (*numbers("n", "α", "τ", "tok/s\nar", "tok/s\nmethod"), SPEEDUP)
        yield Table(
            f"{task} · {self.num_done} of {self.num_blocks}", (*words("subset", "method"), *figures), rows,
            [CAPTION, *left_out], num_keys=2,
        )  # fmt: skip

    def _rows(self, name: str, cell: Cell, places: Sequence[tuple[str, str]]) -> list[list[str]]:
        """Returns a row for each method over the answers of these places, named `name`."""
        answers = zip(*(blocks for place in places for blocks in self._answers[place]), strict=True)
        rows: list[list[str]] = []
        for decoder, own in zip(_shown(cell), answers, strict=True):
            has_speedup = decoder is not cell.decoders[0] and not has_other_vocabulary(decoder.method, cell.models)
            rows.append(["" if rows else name, decoder.method.name, *_figures(own, has_speedup=has_speedup)])
        return rows


def _shown(cell: Cell) -> tuple[Decoder, ...]:
    """Returns the methods of a cell; AR only where it is the only one."""
    return cell.decoders[1:] or cell.decoders


def _answer(record: Record, decoder: Decoder) -> AnswerFigures:
    own = with_own_passes(record["methods"][decoder.method.name], decoder.method.decodes_with)
    lengths, speeds = length_columns([[own]]), speed_columns([[own], [record["methods"]["ar"]]])
    (rate,) = acceptance_rates([own])
    return AnswerFigures(record, rate, [value for (value,) in lengths], [value for (value,) in speeds])


def _figures(answers: Sequence[AnswerFigures], *, has_speedup: bool) -> list[str]:
    """Returns the cells of a method: n, α, τ, tok/s of AR and of the method, and the speed-up."""
    prompts = Prompts.of([answer.record for answer in answers], seed=0, is_quick=True)
    speeds = list(zip(*(answer.speeds for answer in answers), strict=True))
    return [
        str(len(set(prompts.cluster.tolist()))),
        number(prompts.mean([answer.rate for answer in answers]), 3),
        number(prompts.ratio(*zip(*(answer.lengths for answer in answers), strict=True)), 2),
        speed(prompts.ratio(*speeds[2:])),
        speed(prompts.ratio(*speeds[:2])),
        with_interval(prompts.ratio(*speeds)) if has_speedup else NULL,
    ]
