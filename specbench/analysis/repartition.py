"""A recorded generation divided into the steps of a shorter draft length.

The verdict on a draft token belongs to its place in the text: the drafter's token there depends on the text before it
alone, and so does the verdict. A shorter draft length moves the ends of steps and nothing else, so the recorded
verdicts give its steps. One kind of place has no verdict: the one after a draft that was accepted whole, where the
target's own token followed and nothing was drafted.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from specbench.running.records import ACCEPTED, DRAFTED, EMITTED, JUDGED, Generation

RULES = ("rejection", "exact_match")  # those that keep the law of the text, whatever the draft length


class PlacedStep(NamedTuple):
    """The counts of a step."""

    num_drafted: int
    num_judged: int
    num_accepted: int


@dataclass(frozen=True)
class RecordedVerdicts:
    """The verdicts of one generation by the place of a new token: whether the draft token there was accepted; None
    where nothing was drafted.

    `drafted`: draft tokens by the place at which a recorded step began. `ends`: places before which the drafter itself
    ended a draft, each with whether the draft token before it was rejected: a draft that was accepted up to there has
    another text and may go on. `most_tokens`: new tokens that the limits allow.
    """

    accepted: Sequence[bool | None]
    drafted: Mapping[int, int]
    ends: frozenset[tuple[int, bool]]
    most_tokens: int

    @classmethod
    def of(cls, generation: Generation, num_draft_tokens: int, max_new_tokens: int) -> "RecordedVerdicts":
        """Reads the steps of a record; `num_draft_tokens`: the draft length that it was recorded with."""
        num_tokens = len(generation["token_ids"])
        most = num_tokens if generation["finish"] in ("length", "context") else max_new_tokens
        accepted: list[bool | None] = [None] * num_tokens
        drafted, ends = {}, set()
        start = 1  # the token of the prefill
        for step in generation["steps"]:
            place = start + step[ACCEPTED]
            accepted[start:place] = [True] * step[ACCEPTED]
            is_ended = step[JUDGED] == step[DRAFTED] < min(num_draft_tokens, most - start - 1)
            is_rejected = step[JUDGED] > step[ACCEPTED]
            if place < num_tokens and is_rejected:
                accepted[place] = False
            if is_ended:
                ends.add((start + step[DRAFTED], is_rejected))
            drafted[start] = step[DRAFTED]
            start += step[EMITTED]
        return cls(accepted, drafted, frozenset(ends), most)

    def steps(self, num_draft_tokens: int, unknown: bool) -> tuple[list[PlacedStep], int]:
        """Returns the steps with drafts of at most so many tokens, and the number of verdicts that were missing, for
        which `unknown` stands. With True there are the fewest possible steps, with False the most."""
        made, num_missing, start = [], 0, 1
        while start < len(self.accepted):
            length = max(0, min(num_draft_tokens, self.most_tokens - start - 1))
            end, place = start + min(length, self.drafted.get(start, length)), start
            while place < min(end, len(self.accepted)):
                verdict = self.accepted[place]
                num_missing += verdict is None
                is_accepted = unknown if verdict is None else verdict
                end = place + 1 if (place + 1, not is_accepted) in self.ends else end
                if not is_accepted:
                    break
                place += 1
            is_rejected = place < min(end, len(self.accepted))
            made.append(PlacedStep(end - start, place - start + is_rejected, place - start))
            start = place + 1
        return made, num_missing


def query_lengths(steps: Sequence[PlacedStep]) -> tuple[list[int], list[int]]:
    """Returns the lengths of the passes of target and draft model. A draft begins with a pass over two tokens where the
    one before was accepted whole: its last token was not read."""
    target, draft, first = [], [], 1
    for step in steps:
        target.append(step.num_drafted + 1)
        if step.num_drafted:
            draft += [first, *[1] * (step.num_drafted - 1)]
            first = 2 if step.num_accepted == step.num_drafted else 1
    return target, draft


def chance_after_whole(generations: Sequence[Generation], num_draft_tokens: int) -> float:
    """Returns the share of accepted tokens at the last place of a draft, which stands for the place after it."""
    judged = [step for generation in generations for step in generation["steps"] if step[JUDGED] == num_draft_tokens]
    return sum(step[ACCEPTED] == num_draft_tokens for step in judged) / len(judged) if judged else 0.5
