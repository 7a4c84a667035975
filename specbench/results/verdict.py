"""A method's greedy outputs against AR's: how many differ, and the verdict from a run's own outputs."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from specbench.core.values import Record
from specbench.results.bootstrap import FilePart
from specbench.specs.method import MethodSpec

RecordVerdict = Literal["greedy equal", "near-tie only", "diverged", "lossy by design", "not audited"]
FALSE_ALARM = 1e-3  # an upper limit of the probability that the distribution test fails for a correct method
NUM_TOKENS = 5  # tokens of a drawn answer: one from the prefill, three draft tokens and a bonus token
NUM_LONG_TOKENS = 16  # tokens of a drawn answer for methods that draft nothing in short ones
FAILS_BELOW = FALSE_ALARM / 2  # leaves room, since the p-value is an approximation


class TokenDifference(FilePart):
    """The first token at which a method's greedy output differs from AR's.

    `position`: counts new tokens from 0. A token is None if its output had ended. `gap`: the highest logit of the
    target there − the lower logit of the two tokens; None if one output had ended.
    """

    prompt: str
    position: int
    ar_token: str | None
    method_token: str | None
    gap: float | None
    near_tie: bool


class Greedy(FilePart):
    """A method's greedy outputs against AR's.

    `num_judged`, `num_accepted`: the draft tokens that the target judged and accepted; null for a decoder that does not
    count them. `example`: the first difference that is not a near-tie; if all are, the first one.
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
    """The change of the target's logits with the number of tokens that one pass scores.

    `num_changed`: prompts for which AR picks another token at some position if computed with other query lengths.
    `max_gap_change`: the largest change of a gap between the highest logit and one of the next nine. `tolerance`: the
    largest gap of a near-tie (see `greedy.measure_noise`). `mean_square_change`: E_p[(Δ ln p)²] per position, the noise
    in the probabilities of a correct method.
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
    """Returns the first position at which two outputs differ: if one is the start of the other, the position after its
    end. None if they are equal."""
    if list(first) == list(second):
        return None
    pairs = zip(first, second, strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(first), len(second)))


def differing_records(records: Sequence[Record], method: str) -> list[Record]:
    """Returns the records in which a method's answer differs from AR's."""
    pairs = ((record, (record["methods"][name]["token_ids"] for name in ("ar", method))) for record in records)
    return [record for record, (own, other) in pairs if first_difference(own, other) is not None]


def declares_lossless(method: MethodSpec) -> bool | None:
    """Returns whether a method declares itself lossless; None for external code that makes no claim."""
    return method.lossless or (False if method.decoder is None else None)


def verdict_of_records(
    method: MethodSpec, *, greedy: bool, num_records: int, num_different: int, num_near_ties: int
) -> RecordVerdict:
    """Returns the verdict that the answers of a run allow.

    Equal answers give "greedy equal": only the draws of an audit can show that a method is lossless at a temperature.
    Single sampled answers prove nothing, so a sampled run is "not audited", like a run without records.
    """
    if declares_lossless(method) is False:
        return "lossy by design"
    if not greedy or not num_records:
        return "not audited"
    if not num_different:
        return "greedy equal"
    return "near-tie only" if num_near_ties == num_different else "diverged"
