"""The target's logits where a greedy output differs from AR's: of which kind the difference is.

*rule*: an emitted token is not the argmax of the row that the method's own pass gave. *state*: that row is not what the
target gives after the same text, or after passes like the method's that were never rolled back. *near-tie*: the two
tokens are about equally probable, and rounding decided. *width*: none of these, so the target itself depends on the
width of a pass. *unknown*: what would decide is not known.
"""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from statistics import median
from typing import TYPE_CHECKING, Literal, Self

from pydantic import NonNegativeInt

from specbench.models.agreement import SAFETY
from specbench.models.batch_width import TRUSTED, BaselineAnswer, Trust
from specbench.statistics.bootstrap import FilePart

if TYPE_CHECKING:
    from specbench.models.own_passes import OwnPasses
    from specbench.models.scoring import ScoringModel

DecodeText = Callable[[Sequence[int]], str]


# Tokens with a smaller gap are about equally probable: neither is more than twice as probable as the other.
NEARLY_TIED = math.log(2)
NUM_TIES_DECODED_AGAIN = 8  # near-ties of a method and subset: most are what they seem

Kind = Literal["near-tie", "width", "state", "rule", "unknown"]
# Decodes the prompt at an index again, with a recorder that keeps the row of a position; None: no own passes are known.
DecodeAgain = Callable[[int, int], "OwnPasses | None"]


class TokenDifference(FilePart):
    """The first token at which a method's greedy output differs from AR's.

    `position`: counts new tokens from 0. A token is None if its output had ended. `gap`: the highest logit of the
    target there − the lower logit of the two tokens; None if one output had ended. `kind`: null in files of earlier
    versions. `state_change`: the largest change of a gap between logits from the target's own row after the same text
    to the row of the method's pass; null if that row is not known. `replay_change`: the same from rows of passes like
    the method's that were not rolled back; null where `state_change` decides, and in files of earlier versions.
    `repeated`: whether a second decoding gave the same tokens; null: there was none.
    """

    prompt: str
    position: int
    ar_token: str | None
    method_token: str | None
    gap: float | None
    near_tie: bool
    kind: Kind | None = None
    state_change: float | None = None
    replay_change: float | None = None
    repeated: bool | None = None

    @property
    def is_explained(self) -> bool:
        """Whether the noise of the target explains it: neither the rule nor the state of a method is at fault."""
        return self.near_tie or self.kind == "width"


class Divergence(FilePart):
    """The number of greedy answers that differ from AR's by more than a near-tie, by kind. `unknown`: the method's own
    passes are not known, and the gap is beyond the noise; or they are of draft trees, their rows differ by more than
    the noise, and nothing shows whether the target reads trees rightly. `not_repeated`: of all differences, those that
    a second decoding did not reproduce."""

    rule: NonNegativeInt = 0
    state: NonNegativeInt = 0
    width: NonNegativeInt = 0
    unknown: NonNegativeInt = 0
    not_repeated: NonNegativeInt = 0

    @classmethod
    def of(cls, differences: Sequence[TokenDifference]) -> Self:
        counts = Counter(each.kind for each in differences)
        return cls(
            rule=counts["rule"], state=counts["state"], width=counts["width"], unknown=counts["unknown"],
            not_repeated=sum(each.repeated is False for each in differences),
        )  # fmt: skip

    @property
    def total(self) -> int:
        return self.rule + self.state + self.width + self.unknown

    @property
    def is_width_only(self) -> bool:
        """Whether neither the rule nor the state of the method is at fault."""
        return self.width > 0 and self.total == self.width

    @property
    def kinds(self) -> dict[str, int]:
        """The kinds that occur, the gravest first."""
        counts = {"rule": self.rule, "state": self.state, "unknown": self.unknown, "width": self.width}
        return {name: number for name, number in counts.items() if number}

    def __add__(self, other: "Divergence") -> "Divergence":
        return Divergence(**{name: getattr(self, name) + getattr(other, name) for name in Divergence.model_fields})

    def __str__(self) -> str:
        """Returns the kinds with their counts, such as "rule 2, width 1"."""
        return ", ".join(f"{name} {number}" for name, number in self.kinds.items())


class Greedy(FilePart):
    """A method's greedy outputs against AR's.

    `num_judged`, `num_accepted`: the verified and accepted draft tokens; null for a decoder that does not count them.
    `example`: the first difference that is not a near-tie; if all are, the first one. `divergence`: the kinds of the
    differences that are not near-ties; null in files of earlier versions.
    """

    num_prompts: int
    num_equal: int
    num_near_ties: int
    num_judged: int | None
    num_accepted: int | None = None
    median_position: float | None  # of the first differences
    example: TokenDifference | None
    divergence: Divergence | None = None

    @property
    def num_diverged(self) -> int:
        return self.num_prompts - self.num_equal - self.num_near_ties


def first_difference(first: Sequence[object], second: Sequence[object]) -> int | None:
    """Returns the first position at which two outputs differ: if one is the start of the other, the position after its
    end. None if they are equal."""
    if list(first) == list(second):
        return None
    pairs = zip(first, second, strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(first), len(second)))


def compare_greedy(
    target: "ScoringModel", answers: Sequence[BaselineAnswer], outputs: Sequence[list[int]], tolerance: float,
    decode_text: DecodeText, num_verified: int | None = None, num_accepted: int | None = None,
    decode_again: DecodeAgain | None = None, trust: Trust = TRUSTED,
    kept_tolerance: float | None = None,
) -> Greedy:  # fmt: skip
    """Compares greedy outputs with AR's answers, one output per answer. Only outputs that differ are scored again.
    `num_verified`, `num_accepted`: the draft tokens verified and accepted while the outputs were made."""
    differences = find_differences(
        target, answers, outputs, tolerance, decode_text, decode_again, trust, kept_tolerance
    )
    serious = [each for each in differences if not each.near_tie]
    return Greedy(
        num_prompts=len(answers), num_equal=len(answers) - len(differences),
        num_near_ties=len(differences) - len(serious),
        num_judged=num_verified, num_accepted=num_accepted,
        median_position=median(each.position for each in differences) if differences else None,
        example=min([*serious, *differences], key=_gravity, default=None),
        divergence=Divergence.of(differences),
    )  # fmt: skip


GRAVITY: Sequence[Kind | None] = ("rule", "state", "unknown", "width", None, "near-tie")


def _gravity(difference: TokenDifference) -> int:
    return GRAVITY.index(difference.kind)


def find_differences(
    target: "ScoringModel", answers: Sequence[BaselineAnswer], outputs: Sequence[list[int]], tolerance: float,
    decode_text: DecodeText = str, decode_again: DecodeAgain | None = None, trust: Trust = TRUSTED,
    kept_tolerance: float | None = None,
) -> list[TokenDifference]:  # fmt: skip
    """Returns the first difference of each output that differs from its answer, with its kind. `tolerance`: the largest
    change that the width of a pass explains (`Noise.tolerance`). `decode_again`: decodes an answer once more and
    records the method's own passes; all but some near-ties are decoded again. `trust`: what is known of the target's
    passes of the method's kind. `kept_tolerance`: what the width explains against readings in passes like the method's
    (`Noise.kept_tolerance`); None: there are none."""
    differences = []
    num_ties = 0
    for index, (answer, output) in enumerate(zip(answers, outputs, strict=True)):
        position = first_difference(answer.token_ids, output)
        if position is None:
            continue
        tokens = [ids[position] if position < len(ids) else None for ids in (answer.token_ids, output)]
        ids = [token for token in tokens if token is not None]
        gap = None
        if len(ids) == 2:
            gap = logit_gap(target, [*answer.prompt_ids, *answer.token_ids[:position]], ids)
        is_tie = gap is not None and gap <= min(tolerance, NEARLY_TIED)
        own = None
        if decode_again is not None and (not is_tie or num_ties < NUM_TIES_DECODED_AGAIN):
            own = decode_again(index, position)
        num_ties += is_tie
        repeated = None if own is None else list(own.token_ids[: position + 1]) == list(output[: position + 1])
        change = None
        if own is not None and repeated:
            change = own.state_change(target, position, trusts_wide=trust.wide)
        is_beyond = change is not None and not change <= tolerance
        # A fault of the state may be smaller than what a pass over a whole text changes: then passes like the method's
        # tell it, which change less.
        replay = None
        if own is not None and change is not None and kept_tolerance is not None and not change <= kept_tolerance:
            replay = None if is_beyond else own.replay(target, position, kept_tolerance)
        if replay is not None and kept_tolerance is not None:
            is_beyond = not replay.change <= max(kept_tolerance, SAFETY * replay.apart)
        # In this order: a wrong rule or state may show at a near-tie too.
        kind: Kind = "unknown"
        if own is not None and own.not_argmax is not None:
            kind = "rule"
        elif is_beyond:
            kind = "unknown" if trust.trees is None else "state"
        elif is_tie:
            kind = "near-tie"
        elif gap is not None and (change is not None or gap <= tolerance):  # no width ends an answer
            kind = "width"
        ar_token, method_token = (None if token is None else decode_text([token]) for token in tokens)
        differences.append(
            TokenDifference(
                prompt=answer.name, position=position, ar_token=ar_token, method_token=method_token, gap=gap,
                near_tie=kind == "near-tie", kind=kind, state_change=change,
                replay_change=None if replay is None else replay.change, repeated=repeated,
            )
        )  # fmt: skip
    return differences


def logit_gap(target: "ScoringModel", ids: list[int], tokens: Sequence[int]) -> float:
    """Returns the highest logit after `ids` − the lowest logit of the tokens. It is computed twice, with all of `ids`
    in one pass and with the last token in a pass of its own; the larger value counts."""
    import torch

    with torch.inference_mode():
        target.reset()
        rows = [target.score(ids, 1).logits[-1].float()]
        if len(ids) > 1:
            target.reset()
            target.score(ids[:-1], 1)
            rows.append(target.score(ids, 1).logits[-1].float())
        return max(float(row.max() - row[token]) for row in rows for token in tokens)
