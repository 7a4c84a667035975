"""The parts of a fairness report, and theorems 1 and 2. Rates are shares, divergences are nats.

Intervals are 95 %, over prompts drawn anew: expanded percentiles, moved back by their bias (`spread.estimate`). Only
those of acceptance rate, acceptance length and speed-up as measured in one group are made as in a row of a
leaderboard (`results.bootstrap`).
"""

import math
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from specbench.core.errors import ConfigError
from specbench.results.bootstrap import FilePart, Metric
from specbench.results.row import Chain, Family, GroupNumbers

TOLERANCE = 1e-9  # sums of float64 numbers


class BoundViolation(ConfigError):
    """Numbers that contradict a theorem: they are not of one family, or a model's output is not what it should be."""


def tokens_per_pass(rate: NDArray[np.float64], num_draft_tokens: int) -> NDArray[np.float64]:
    """F(a) = Σ_{k=0..γ} a^k for acceptance rates of any shape (theorem 1; arXiv:2211.17192, theorem 3.8)."""
    return np.asarray(np.sum([rate**k for k in range(num_draft_tokens + 1)], axis=0))


def bound_chain(expected: float, acceptance: float, kl: float, cross_entropy: float, num_draft_tokens: int) -> Chain:
    """The links of theorem 1 from the means over positions: E[F(α(s))], α_T, KL_T and D_T (nats)."""

    def at(rate: float) -> float:
        return float(tokens_per_pass(np.asarray(rate, dtype=np.float64), num_draft_tokens))

    return Chain(expected=expected, of_acceptance=at(acceptance), of_kl=at(pinsker(kl)),
                 of_cross_entropy=at(pinsker(cross_entropy)))  # fmt: skip


def pinsker(divergence: float) -> float:
    """max(0, 1 − √(d/2)): no acceptance rate with a divergence of d nats is below it."""
    return max(0.0, 1.0 - math.sqrt(divergence / 2))


def check_bounds(where: str, links: Chain) -> None:
    """Raise BoundViolation, with the numbers, where theorem 1 does not hold."""
    values = list(links.model_dump().items())
    for (upper, high), (lower, low) in pairwise(values):
        if high < low - TOLERANCE * max(1.0, abs(low)):
            shown = ", ".join(f"{name} = {value:.6f}" for name, value in values)
            raise BoundViolation(
                f"{where}: theorem 1 is violated: {upper} < {lower} in tokens per target pass ({shown}): the numbers "
                "are not of the same positions and distributions"
            )


def check_fitness(where: str, acceptance: float, target_misfit: float, draft_misfit: float) -> None:
    """Raise BoundViolation, with the numbers, where |α_T − (1 − r_q)| ≤ r_p (theorem 2) does not hold.

    Its assumption r_p ≤ r_q is not needed: the triangle inequality holds without it.
    """
    gap = abs(acceptance - (1.0 - draft_misfit))
    if gap > target_misfit + TOLERANCE:
        raise BoundViolation(
            f"{where}: theorem 2 is violated: |α_T − (1 − r_q)| = {gap:.6f} > r_p = {target_misfit:.6f} "
            f"(α_T = {acceptance:.6f}, r_q = {draft_misfit:.6f}): the numbers are not of the same positions and "
            "distributions"
        )


class DrafterReport(FilePart):
    """One drafter. `draft_length`: in the words of a run's caption, None where none measured it; `cost_ratio`: c over
    all groups of its run; `problem`: why nothing is teacher-forced."""

    label: str
    drafter: str | None
    revision: str | None
    run: str | None
    method: str | None
    num_draft_tokens: int
    draft_length: str | None = None
    cost_ratio: float | None
    problem: str | None
    num_texts_represented: int | None = None
    prompt_represented: str | None = None  # what these texts go on from, as representation.Representation
    groups: dict[str, GroupNumbers]
    family: Family


class NumberChange(FilePart):
    """A number before and after; `difference`: paired, after − before; `percent`: of the number before. All four are of
    the same resamples."""

    before: Metric
    after: Metric
    difference: Metric
    percent: Metric


class DrafterComparison(FilePart):
    """Two drafters on the same prompts. `groups`: by group, `family`: over all; the changes by the number's name.
    `excluded_before`, `excluded_after`: by group, as in `Forced`."""

    before: str
    after: str
    excluded_before: dict[str, float]
    excluded_after: dict[str, float]
    groups: dict[str, dict[str, NumberChange]]
    family: dict[str, NumberChange]


class FairnessReport(FilePart):
    """Everything that `specbench fairness` says. `num_left_out`: records that not all runs hold."""

    target: str
    target_revision: str | None
    reference: str
    seed: int
    num_samples: int
    num_prompts: int
    num_left_out: int
    runs: tuple[str, ...]
    drafters: tuple[DrafterReport, ...]
    comparison: DrafterComparison | None = None
