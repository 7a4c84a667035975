"""A number that waits for its verdict, which hangs on how many there are."""

from dataclasses import dataclass

from specbench.gate.findings import Compared
from specbench.gate.speed import MIN_PROMPTS, TYPICAL, Measured, judged


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

    def judge(self, by: float, max_regression: float, paired: bool) -> None:
        """Put the finding where it belongs, with the interval widened; what has no interval that can be trusted is a
        problem, or the gate would let anything pass. All prompts together decide where a typical one has none."""
        if self.measured.values[0].value is None:
            self.of.not_compared.append(f"{self.what} of {self.subset}: the baseline has none")
            return
        place, num_prompts = f"{self.what} of {self.subset}", self.measured.num_prompts
        if num_prompts < MIN_PROMPTS:
            self.of.problems.append(f"{place}: {num_prompts} prompts are too few: measure {MIN_PROMPTS} or more")
            return
        ratio = self.measured.ratio(by)
        if ratio.high is not None:
            self.of.findings.append(judged(self.what, self.subset, self.measured.values, ratio, max_regression, paired))
        elif self.what == TYPICAL:
            self.of.not_compared.append(f"{place}: {num_prompts} prompts are too few beside so many comparisons")
        else:
            self.of.problems.append(f"{place}: its ratio has no interval")
