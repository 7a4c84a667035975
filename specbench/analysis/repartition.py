"""Divides a recorded generation into the steps of a shorter draft length.

Whether a draft token is accepted depends only on its position in the text: the drafter's token there depends on nothing
but the text before it. A shorter draft length changes only where steps end, so the recorded verdicts give its steps.
One kind of position has no verdict: after a fully accepted draft the target's own token follows, and nothing was
drafted there.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from specbench.running.records import ACCEPTED, DRAFTED, EMITTED, JUDGED, Generation

RULES = ("rejection", "exact_match")  # the text has the same distribution with any draft length


class PlacedStep(NamedTuple):
    """The counts of a step."""

    num_drafted: int
    num_judged: int
    num_accepted: int


@dataclass(frozen=True)
class RecordedVerdicts:
    """The verdicts of one generation. `accepted`: whether the draft token at each new position was accepted; None if
    nothing was drafted there.

    drafted: the number of draft tokens, by the position where a recorded step began. ends: the positions before which
    the drafter itself ended a draft, each with whether the draft token before it was rejected; a draft in which that
    token is accepted has another text and may go on. most_tokens: the new tokens that the limits allow.
    """

    accepted: Sequence[bool | None]
    drafted: Mapping[int, int]
    ends: frozenset[tuple[int, bool]]
    most_tokens: int

    @classmethod
    def of(cls, generation: Generation, num_draft_tokens: int, max_new_tokens: int) -> "RecordedVerdicts":
        """Reads the steps of a record. `num_draft_tokens`: the recorded draft length."""
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
        """Returns the steps with drafts of at most `num_draft_tokens`, and the number of missing verdicts. `unknown`
        takes the place of a missing verdict: True gives the fewest possible steps, False the most."""
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
    """Returns the query lengths of the target's and the draft model's passes. After a fully accepted draft, the next
    draft begins with a pass over two tokens, because the draft model has not read the last draft token."""
    target, draft, first = [], [], 1
    for step in steps:
        target.append(step.num_drafted + 1)
        if step.num_drafted:
            draft += [first, *[1] * (step.num_drafted - 1)]
            first = 2 if step.num_accepted == step.num_drafted else 1
    return target, draft


def last_token_acceptance(generations: Sequence[Generation], num_draft_tokens: int) -> float:
    """Returns the acceptance rate of the last token of full-length drafts, an estimate for the token after it."""
    judged = [step for generation in generations for step in generation["steps"] if step[JUDGED] == num_draft_tokens]
    return sum(step[ACCEPTED] == num_draft_tokens for step in judged) / len(judged) if judged else 0.5
