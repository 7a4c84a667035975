"""A number that waits for its verdict, which hangs on how many there are, and on AR."""

from collections.abc import Sequence
from dataclasses import dataclass

from specbench.gate.control import REMEDY, Control
from specbench.gate.findings import Compared
from specbench.gate.speed import LENGTH, MIN_PROMPTS, TYPICAL, Measured, judged, widening


@dataclass(frozen=True)
class Pending:
    """What was measured of a method in one subset or in all."""

    of: Compared
    what: str
    subset: str
    measured: Measured

    @property
    def has_interval(self) -> bool:
        return self.measured.num_prompts >= MIN_PROMPTS and self.measured.ratio(1.0).high is not None

    def judge(self, by: float, max_regression: float, paired: bool, load: float = 1.0) -> None:
        """Put the finding where it belongs, with the interval widened; what has no interval that can be trusted is a
        problem, or the gate would let anything pass. All prompts together decide where a typical one has none. `load`:
        by how many times a speed-up may have fallen with AR's speed; one that has fallen by less has no verdict.
        """
        if self.measured.values[0].value is None:
            self.of.not_compared.append(f"{self.what} of {self.subset}: the baseline has none")
            return
        place, num_prompts = f"{self.what} of {self.subset}", self.measured.num_prompts
        if num_prompts < MIN_PROMPTS:
            self.of.problems.append(f"{place}: {num_prompts} prompts are too few: measure {MIN_PROMPTS} or more")
            return
        ratio = self.measured.ratio(by)
        if ratio.high is not None:
            load = 1.0 if self.what == LENGTH else load
            found = judged(self.what, self.subset, self.measured.values, ratio, max_regression, paired, load)
            if found.regressed and ratio.high * load >= 1 - max_regression:
                self.of.problems.append(f"{found}: no more than other work on the machine may take: {REMEDY}")
            else:
                self.of.findings.append(found)
        elif self.what == TYPICAL:
            self.of.not_compared.append(f"{place}: {num_prompts} prompts are too few beside so many comparisons")
        else:
            self.of.problems.append(f"{place}: its ratio has no interval")


def judge_all(
    pending: Sequence[Pending], control: Control, max_regression: float, paired: bool = True
) -> tuple[int, float]:
    """All of a check; gives how many have an interval, and how much longer these are than of 95 %. Of tasks whose AR
    has drifted no speed-up is judged, which is a problem of their methods."""
    kept = []
    for waiting in pending:
        drifted = control.drifted.get(waiting.of.task)
        if drifted is None or waiting.what == LENGTH:
            kept.append(waiting)
        elif drifted not in waiting.of.problems:
            waiting.of.problems.append(drifted)
    num_tolerant = sum(waiting.has_interval for waiting in kept)
    factor = widening(num_tolerant)
    for waiting in kept:
        waiting.judge(factor, max_regression, paired, load=control.loads.get(waiting.of.task, 1.0))
    return num_tolerant, factor
