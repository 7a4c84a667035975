"""The findings of a check, its report and its exit code."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from specbench.results.bootstrap import Metric
from specbench.results.gate.pairing import Pair
from specbench.results.verdict import TokenDifference

Verdict = Literal["identical", "fine", "regressed", "cannot compare"]
EXIT_CODES: dict[Verdict, int] = {"identical": 0, "fine": 0, "regressed": 1, "cannot compare": 2}


@dataclass(frozen=True)
class Finding:
    """One comparison: `what` of `subset`, then and now.

    `ratio`: of numbers with noise, the candidate's value ÷ the baseline's, with the interval that decides.
    """

    what: str
    subset: str
    baseline: str
    candidate: str
    regressed: bool
    detail: str = ""
    ratio: Metric | None = None

    def __str__(self) -> str:
        same = self.baseline == self.candidate
        values = self.baseline if same else f"{self.baseline} → {self.candidate}"
        return f"{self.subset}: {self.what} {values}" + (f" ({self.detail})" if self.detail else "")


@dataclass
class MethodFindings:
    """A method on a task. `problems`: why a required comparison was not possible. `not_compared`: values that one
    side lacks. `cells`: the numbers over all subsets, for the table."""

    task: str
    method: str
    findings: list[Finding] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    not_compared: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    cells: dict[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return f"{self.task} {self.method}"

    @property
    def regressions(self) -> list[Finding]:
        return [finding for finding in self.findings if finding.regressed]

    @property
    def verdict(self) -> Verdict:
        if self.regressions:
            return "regressed"
        return "cannot compare" if self.problems else "fine"


@dataclass(frozen=True)
class CheckReport:
    """The whole check. `widening`: the factor of the intervals of ratios, for `num_tolerant` of them at once.
    `identical`: both sides hold the same rows and the same records."""

    baseline: str
    candidate: str
    max_regression: float
    num_tolerant: int
    widening: float
    compared: tuple[MethodFindings, ...]
    problems: tuple[str, ...]
    notes: tuple[str, ...]
    identical: bool = False

    @property
    def verdict(self) -> Verdict:
        """A regression outweighs problems."""
        if self.identical:
            return "identical"
        verdicts = {each.verdict for each in self.compared}
        if "regressed" in verdicts:
            return "regressed"
        return "cannot compare" if self.problems or "cannot compare" in verdicts else "fine"

    @property
    def exit_code(self) -> int:
        return EXIT_CODES[self.verdict]


DIVERGED = "diverged"
OUTPUTS = "outputs"


def verdict_finding(pair: Pair) -> list[Finding]:
    """Returns a finding where a method has lost its losslessness, by its rule or beside its own AR."""
    before, now = pair.baseline.verdict, pair.candidate.verdict
    made_lossy = pair.baseline.lossless and not pair.candidate.lossless
    if not made_lossy and (now != DIVERGED or before == DIVERGED):
        return []
    return [Finding("verdict", pair.candidate.subset, before, now, regressed=True)]


def output_finding(subset: str, num_equal: int, num_different: int, found: Sequence[TokenDifference] | None) -> Finding:
    """Returns the finding on outputs. `found`: the differences of a lossless method in a greedy run; None where
    outputs may differ."""
    before = f"of {num_equal + num_different}"
    if found is None:
        detail = "which a lossy or sampling method may do" if num_different else ""
        now = f"{num_equal} equal" + f", {num_different} other" * bool(num_different)
        return Finding(OUTPUTS, subset, before, now, regressed=False, detail=detail)
    serious = [each for each in found if not each.near_tie]
    counts = {"equal": num_equal, "near-ties": len(found) - len(serious), "other": len(serious)}
    now = ", ".join(f"{number} {name}" for name, number in counts.items() if number or name == "equal")
    return Finding(OUTPUTS, subset, before, now, bool(serious), _first(serious))


def changed_finding(subset: str, what: str, num_changed: int, num_equal: int, first: str) -> Finding:
    """Returns the finding on a text, finish or score that changed although the token ids are equal; `first`: the
    first such prompt."""
    before, now = f"of {num_equal} with equal tokens", f"{num_changed} changed"
    return Finding(what, subset, before, now, regressed=True, detail=first)


def _first(serious: Sequence[TokenDifference]) -> str:
    """Returns the first difference that is no near-tie."""
    if not serious:
        return ""
    each = serious[0]
    before, now = (token or "the end" for token in (each.ar_token, each.method_token))
    return f"prompt {each.prompt}, token {each.position}: {before} before, {now} now"
