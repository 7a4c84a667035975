"""The theorems of arXiv:2510.02128 on the numbers of one group of positions, and the check that they hold.

They are about one family of numbers, all from the same positions of the same texts: with a rate that was measured in a
run (of processed distributions, on the positions that were drafted) in the place of α_T they need not hold.
"""

import math
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, FiniteFloat

from specbench.errors import ConfigError

TOLERANCE = 1e-9  # sums of float64 numbers


class BoundViolation(ConfigError):
    """Numbers that contradict a theorem: they are not of one family, or a model's output is not what it should be."""


class Chain(BaseModel):
    """Theorem 1, each link at least the next: E[F(α(s))] ≥ F(α_T) ≥ F(max(0, 1 − √(KL_T/2))) ≥ the same with D_T, all
    in emitted tokens per target pass, or all divided by 1 + γc."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    expected: FiniteFloat
    of_acceptance: FiniteFloat
    of_kl: FiniteFloat
    of_cross_entropy: FiniteFloat

    def divided_by(self, cost: float) -> "Chain":
        """Tokens per pass as speed-ups, given the cost 1 + γc of a step in target passes."""
        return Chain(**{name: value / cost for name, value in self.model_dump().items()})


def tokens_per_pass(rate: NDArray[np.float64], num_draft_tokens: int) -> NDArray[np.float64]:
    """F(a) = Σ_{k=0..γ} a^k for acceptance rates of any shape (theorem 1; arXiv:2211.17192, theorem 3.8)."""
    return np.asarray(np.sum([rate**k for k in range(num_draft_tokens + 1)], axis=0))


def chain(expected: float, acceptance: float, kl: float, cross_entropy: float, num_draft_tokens: int) -> Chain:
    """The links of theorem 1 from the means over positions: E[F(α(s))], α_T, KL_T and D_T (nats)."""

    def at(rate: float) -> float:
        return float(tokens_per_pass(np.asarray(rate, dtype=np.float64), num_draft_tokens))

    return Chain(expected=expected, of_acceptance=at(acceptance), of_kl=at(pinsker(kl)),
                 of_cross_entropy=at(pinsker(cross_entropy)))  # fmt: skip


def pinsker(divergence: float) -> float:
    """max(0, 1 − √(d/2)): no acceptance rate with a divergence of d nats is below it."""
    return max(0.0, 1.0 - math.sqrt(divergence / 2))


def check_chain(where: str, links: Chain) -> None:
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
