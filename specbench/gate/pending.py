"""A number that waits for its verdict, which hangs on how many there are."""

from dataclasses import dataclass

from specbench.gate.findings import Compared
from specbench.gate.speed import Measured, judged


@dataclass(frozen=True)
class Pending:
    """What was measured of a method in one subset or in all."""

    of: Compared
    what: str
    subset: str
    measured: Measured

    @property
    def has_interval(self) -> bool:
        return self.measured.ratio(1.0).high is not None

    def judge(self, by: float, max_regression: float, paired: bool) -> None:
        """Put the finding where it belongs, with the interval widened; without an interval it is not compared."""
        if not self.has_interval:
            self.of.not_compared.append(f"{self.what} of {self.subset}: too few prompts for an interval")
            return
        ratio = self.measured.ratio(by)
        self.of.findings.append(judged(self.what, self.subset, self.measured.values, ratio, max_regression, paired))
