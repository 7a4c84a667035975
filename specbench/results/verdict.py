"""A method's greedy outputs against AR's: how many differ, and the verdict that a run's own outputs give."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from specbench.results.bootstrap import FilePart
from specbench.specs.method import MethodSpec

RecordVerdict = Literal["greedy equal", "near-tie only", "diverged", "lossy by design", "not audited"]
FALSE_ALARM = 1e-3  # the distribution test of a correct method fails with a smaller probability
NUM_TOKENS = 5  # of a drawn answer: one from the prefill, three draft tokens and a bonus token
NUM_LONG_TOKENS = 16  # of a drawn answer of a method that drafts nothing in the short ones
FAILS_BELOW = FALSE_ALARM / 2  # its p-value is an approximation: this leaves room


class TokenDifference(FilePart):
    """The first token at which a method's greedy output is not AR's.

    `position`: counts new tokens from 0. A token is None where the output had ended. `gap`: how far the lower of the
    two tokens' logits is below the highest logit of the target there; None where one output had ended.
    """

    prompt: str
    position: int
    ar_token: str | None
    method_token: str | None
    gap: float | None
    near_tie: bool


class Greedy(FilePart):
    """A method's greedy outputs against AR's. `example` is the first difference that is not a near-tie, else the first.

    `num_judged` and `num_accepted` count the draft tokens that the target judged and accepted on the way; null for a
    decoder that does not count.
    """

    num_prompts: int
    num_equal: int
    num_near_ties: int
    num_judged: int | None
    num_accepted: int | None = None
    median_position: float | None  # of the first differences
    example: TokenDifference | None

    @property
    def num_diverged(self) -> int:
        return self.num_prompts - self.num_equal - self.num_near_ties


class Noise(FilePart):
    """The degree to which the target's own logits depend on the number of tokens that one pass scores.

    `num_changed`: prompts at which AR, computed with other query lengths, picks another token. `max_gap_change`: the
    largest change of a gap between the highest logit and one of the next nine. `tolerance`: the gap of a near-tie,
    twice that. `mean_square_change`: E_p[(Δ ln p)²] per position, the noise of a correct method's probabilities.
    """

    num_prompts: int
    num_positions: int
    num_changed: int
    max_gap_change: float
    tolerance: float
    mean_square_change: float


@dataclass(frozen=True)
class BaselineAnswer:
    """A prompt of the audit and AR's greedy output for it."""

    name: str
    prompt_ids: list[int]
    token_ids: list[int]


def first_difference(first: Sequence[int], second: Sequence[int]) -> int | None:
    """Returns the first position at which two outputs differ; an output that ends earlier differs where it ends."""
    if list(first) == list(second):
        return None
    pairs = zip(first, second, strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(first), len(second)))


def different(records: Sequence[Mapping[str, Any]], method: str) -> list[Mapping[str, Any]]:
    """Returns the records in which a method's answer is not AR's."""
    pairs = ((record, (record["methods"][name]["token_ids"] for name in ("ar", method))) for record in records)
    return [record for record, (own, other) in pairs if first_difference(own, other) is not None]


def declaration(method: MethodSpec) -> bool | None:
    """Returns whether a method is declared lossless; None for external code that claims nothing."""
    return method.lossless or (False if method.decoder is None else None)


def verdict_of_records(
    method: MethodSpec, *, greedy: bool, num_records: int, num_different: int, num_near_ties: int
) -> RecordVerdict:
    """Returns what the answers of a run say of a method.

    Equal answers are "greedy equal": that a method is lossless at a temperature, only the audit's draws can say. Draws
    in records prove nothing one by one, so a sampled run is "not audited", and so is one without records.
    """
    if declaration(method) is False:
        return "lossy by design"
    if not greedy or not num_records:
        return "not audited"
    if not num_different:
        return "greedy equal"
    return "near-tie only" if num_near_ties == num_different else "diverged"
