"""A number that waits for its verdict, which hangs on how many there are."""

from dataclasses import dataclass

from specbench.gate.control import REMEDY
from specbench.gate.findings import Compared
from specbench.gate.sides import BASELINE
from specbench.gate.speed import LENGTH, MIN_PROMPTS, TYPICAL, Measured, judged


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
        how many times faster or slower AR may have been: a speed-up that has fallen by less may have lost it to that.
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
            found = judged(self.what, self.subset, self.measured.values, ratio, max_regression, paired)
            if found.regressed and self.what != LENGTH and ratio.high * load >= 1 - max_regression:
                self.of.problems.append(f"{found}: not more than {BASELINE} itself may have changed: {REMEDY}")
            else:
                self.of.findings.append(found)
        elif self.what == TYPICAL:
            self.of.not_compared.append(f"{place}: {num_prompts} prompts are too few beside so many comparisons")
        else:
            self.of.problems.append(f"{place}: its ratio has no interval")
