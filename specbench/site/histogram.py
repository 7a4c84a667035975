"""How many draft tokens a target pass accepted: the histogram of a row."""

from dataclasses import dataclass

from specbench.leaderboards.side import Side
from specbench.results.drafters import decodes_alone
from specbench.results.metrics import accepted_lengths_of
from specbench.results.row import Row


@dataclass(frozen=True)
class Histogram:
    """`counts`: element k, the target passes that accepted k draft tokens; empty where they are not known, and then
    `why`."""

    counts: tuple[int, ...]
    why: str = ""

    @property
    def shares(self) -> list[float]:
        return [count / max(1, sum(self.counts)) for count in self.counts]


def histogram_of(side: Side) -> Histogram:
    """The row's own, else of its records, where they are at hand."""
    counts = side.row.accepted_lengths
    if counts is None and side.method is not None and side.records:
        counts = accepted_lengths_of(side.records, side.method)
    if counts and sum(counts) and not decodes_alone(side.row):
        return Histogram(counts)
    return Histogram((), _why(side.row, bool(side.records)))


def _why(row: Row, has_records: bool) -> str:
    if decodes_alone(row):
        return "Nothing is drafted here: one model decodes alone, a token per pass."
    if "decoder" in row.options:
        return "Not known: external code decodes, and it does not tell its steps."
    if has_records or row.accepted_lengths is not None:
        return "Not known: its answers have no target pass after the first token."
    return "Not known: the row does not hold it, and the records of its run are not at hand."
