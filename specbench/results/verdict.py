"""The verdict on a method from a run's own outputs."""

from collections.abc import Sequence
from typing import Literal

from specbench.models.near_ties import Divergence
from specbench.results.answers import Answer
from specbench.specs.method import MethodSpec

RecordVerdict = Literal["greedy equal", "near-tie only", "width only", "diverged", "lossy by design", "not audited"]
FALSE_ALARM = 1e-3  # an upper limit of the probability that the distribution test fails for a correct method
NUM_TOKENS = 5  # tokens of a drawn answer: one from the prefill, three draft tokens and a bonus token
NUM_LONG_TOKENS = 16  # tokens of a drawn answer for methods that draft nothing in short ones
FAILS_BELOW = FALSE_ALARM / 2  # leaves room, since the p-value is an approximation


def declares_lossless(method: MethodSpec) -> bool | None:
    """Returns whether a method declares itself lossless; None for external code that makes no claim."""
    return method.lossless or (False if method.decoder is None else None)


def verdict_of_records(
    method: MethodSpec, *, greedy: bool, num_records: int, num_different: int, num_near_ties: int,
    divergence: Divergence | None = None,
) -> RecordVerdict:  # fmt: skip
    """Returns the verdict that the answers of a run allow. Equal answers give "greedy equal": only the draws of an
    audit can show that a method is lossless at a temperature. Single sampled answers prove nothing, so a sampled run is
    "not audited", like a run without records. `divergence`: the kinds of the differences that are not near-ties, if
    they are known."""
    if declares_lossless(method) is False:
        return "lossy by design"
    if not greedy or not num_records:
        return "not audited"
    if not num_different:
        return "greedy equal"
    if num_near_ties == num_different:
        return "near-tie only"
    return "width only" if divergence is not None and divergence.is_width_only else "diverged"


BEYOND_CONTROL = 0.01  # below this p-value, answers differ more often than repeated answers of `ar`


def control_outcomes(baseline: Sequence[Answer]) -> list[bool]:
    """Returns for each answer that the server `ar` gave twice whether it was the same both times."""
    found = [answer.reported.same_again for answer in baseline]
    return [same for same in found if same is not None]


def served_verdict(again: Sequence[bool], num_answers: int, num_different: int, *, knows_ties: bool) -> RecordVerdict:
    """Returns the verdict on a server with answers that differ from those of `ar` by more than near-ties. The verdict
    is diverged if near-ties are known (`knows_ties`) and `ar` never changes an answer, or if the answers differ more
    often than repeated answers of `ar` do (Fisher's exact test, one-sided). Fewer differences prove nothing. `again`:
    for each repeated answer of `ar`, whether it was the same."""
    if knows_ties and False not in again:
        return "diverged"
    if not again:
        return "not audited"
    counts = [[num_different, num_answers - num_different], [again.count(False), again.count(True)]]
    from scipy import stats  # slow to import, and needed for servers only

    return "diverged" if stats.fisher_exact(counts, alternative="greater").pvalue < BEYOND_CONTROL else "not audited"
