"""What drafting and verifying passes of a method took, in passes of the baseline."""

from collections.abc import Sequence

from specbench.results.bootstrap import Metric
from specbench.results.cells import short
from specbench.results.row import Row
from specbench.results.speed import expected_speedup

UNEVEN = 1.5  # times c that the mean of draft passes may be before that is said
LITTLE = 0.05  # passes of the baseline that a step may take longer for that, and nothing is said
DEAR = 1.25  # passes of the baseline that a verifying pass may take before that is said


def token_pass(rows: Sequence[Row]) -> float | None:
    """The mean seconds of a pass of the baseline, where it stands among the rows."""
    plain = next((row for row in rows if name_of(row) == "ar" and row.accepted_lengths), None)
    return None if plain is None else number_of(plain, "verify_seconds") / sum(plain.accepted_lengths or ())


def verifying_cost(row: Row, plain: float | None) -> float | None:
    """v: the mean verifying pass in mean passes of the baseline, which take `plain` seconds; None where the steps of a
    method are not known."""
    whole, num_passes = value_of(row, "verify_seconds"), sum(row.accepted_lengths or ())
    return whole / num_passes / plain if whole and num_passes and plain else None


def dear(rows: Sequence[Row]) -> str | None:
    """Where verifying a draft costs more than one pass of the baseline, which the expected speed-up takes it for: a
    line that says what is expected with it."""
    plain = token_pass(rows)
    told = [
        f"{name_of(row)} {_expected(row, cost):.2f}"
        for row in rows
        if (cost := verifying_cost(row, plain)) and cost >= DEAR and value_of(row, "speedup_expected") is not None
    ]
    if not told:
        return None
    return f"the expected speed-up takes a verifying pass for one pass of ar; with v it is {', '.join(told)}"


def _expected(row: Row, cost: float) -> float:
    rate, cost_ratio = number_of(row, "acceptance_rate"), number_of(row, "cost_ratio")
    return expected_speedup(rate, row.num_draft_tokens, cost_ratio, cost)


def uneven(row: Row, plain: float | None) -> str | None:
    """Where c, which is of median passes, is not what drafting took on average: a line that says both. The mean is the
    least that it can be, as if every step had drafted all its tokens; of drafts as text it is not known."""
    cost, whole = value_of(row, "cost_ratio"), value_of(row, "draft_seconds")
    num_passes = row.num_draft_tokens * sum(row.accepted_lengths or ())
    if not (cost and whole and num_passes and plain) or value_of(row, "speedup_expected") is None:
        return None
    mean = whole / num_passes / plain
    if mean < UNEVEN * cost or row.num_draft_tokens * (mean - cost) < LITTLE:
        return None
    return (
        f"{name_of(row)}: c = {cost:.3f} is of medians, but its draft passes took {mean:.3f} of a target pass on "
        "average: a few took far longer than most (a busy machine?), which the expected speed-up leaves out"
    )


def name_of(row: Row) -> str:
    return short(row.method).partition("@")[0]


def value_of(row: Row, name: str) -> float | None:
    return row.metrics.get(name, Metric()).value


def number_of(row: Row, name: str) -> float:
    return value_of(row, name) or 0.0
