"""A baseline that is a leaderboard file: what rows alone can tell."""

from collections.abc import Sequence

from specbench.results.bootstrap import Metric
from specbench.results.differences import unpaired_ratio
from specbench.results.gate.counts import IN_ROWS, LENGTH, cells, compare_counts, counts_of_row
from specbench.results.gate.findings import Compared, verdict_finding
from specbench.results.gate.pairing import BASELINE, Control, Pair, rounding
from specbench.results.gate.speed import SPEEDUP, Pending, joined
from specbench.results.row import Row

NOT_HELD = "outputs and draft passes, and prompts in pairs: a leaderboard file does not hold them"
NOT_DRAWN_AGAIN = "counts are those of draws: compared with their intervals"


class ByRows:
    """Compares rows with rows."""

    def __init__(self, control: Control) -> None:
        self.control = control

    def compare(self, compared: Compared, pairs: Sequence[Pair]) -> list[Pending]:
        """Put findings into `compared`; gives the ratios that wait for their verdict."""
        whole = [pair for pair in pairs if pair.candidate.subset == "all"]
        parts = [pair for pair in pairs if pair.candidate.subset != "all"] or whole
        shown = (whole or parts)[0]
        if compared.method == BASELINE:
            speeds = (_metric(row, "tokens_per_second") for row in (shown.baseline, shown.candidate))
            self.control.add(compared.task, Metric(value=unpaired_ratio(*speeds).value))
            return []
        compared.not_compared.append(NOT_HELD)
        greedy = all(pair.candidate.sampling.temperature == 0 for pair in parts)
        strict = greedy and not any(map(rounding, parts))
        for pair in parts:
            compared.findings += verdict_finding(pair)
            if strict:
                before, now = map(counts_of_row, (pair.baseline, pair.candidate))
                compared.findings += compare_counts(pair.candidate.subset, before, now)
        compared.cells |= cells(*map(counts_of_row, (shown.baseline, shown.candidate)))
        if not greedy:
            compared.notes.append(NOT_DRAWN_AGAIN)
        names = {SPEEDUP: "speedup"} if strict else {SPEEDUP: "speedup", LENGTH: IN_ROWS[LENGTH]}
        return [
            pending for pair in whole or parts for what, name in names.items()
            for pending in _pending(compared, what, name, pair)
        ]  # fmt: skip


def _pending(compared: Compared, what: str, name: str, pair: Pair) -> list[Pending]:
    values = _metric(pair.baseline, name), _metric(pair.candidate, name)
    if values[0].value is None or values[1].value is None:
        where = compared.not_compared if values[0].value is None else compared.problems
        where.append(f"{what} of {pair.candidate.subset}: {pair.candidate.method_name} has none")
        return []
    num_prompts = min(_num_prompts(row, what) for row in (pair.baseline, pair.candidate))
    return [Pending(compared, what, pair.candidate.subset, joined(values, unpaired_ratio(*values), num_prompts))]


def _num_prompts(row: Row, what: str) -> int:
    """How many have a value; of a speed-up only those that were timed."""
    timed = _metric(row, "num_prompts_timed").value
    return row.n if timed is None or what != SPEEDUP else int(timed)


def _metric(row: Row, name: str) -> Metric:
    return row.metrics.get(name, Metric())
