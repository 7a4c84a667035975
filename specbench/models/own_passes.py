"""The rows of logits that a method's own passes give, recorded in a second decoding of the prompts whose greedy output
differs from AR's. The measured decoding has no recorder, so that recording costs it nothing."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch

from specbench.models.batch_width import gap_change
from specbench.models.scoring import Output, Scorable, ScoringModel


@dataclass(frozen=True)
class OwnRow:
    """The row from which a method chose a token, [vocab]. `num_before`: the tokens of the sequence before the pass that
    gave it; `width`: the tokens that the pass read after all but the last of them. `widest`: the tokens of the widest
    pass after the prompt, up to this one; None if the prompt was not read at once, or a pass did not read exactly the
    last token and the proposal (recurrent layers replay tokens), so that no other passes are like these."""

    logits: torch.Tensor
    num_before: int
    width: int
    widest: int | None = None


class Replay(NamedTuple):
    """How far a row is from the nearest replay of its text, and how far the replays are from each other: the largest
    changes of a gap between logits."""

    change: float
    apart: float


@dataclass(frozen=True)
class OwnPasses:
    """A second decoding of one prompt. `not_argmax`: the first position whose token does not have the highest logit of
    the row that the method's own pass gave for it; None: each has. `row`: that of the position in question."""

    prompt_ids: Sequence[int]
    token_ids: Sequence[int]
    not_argmax: int | None
    row: OwnRow | None

    def state_change(self, target: ScoringModel, position: int, *, trusts_wide: bool = True) -> float | None:
        """Returns how far the row of a position is from what `target` gives after the same text: the largest change
        of a gap between logits. The text is read anew three times: in one pass, with its last token in a pass of its
        own, and by a pass that begins where the method's did and is as wide; the nearest of them counts, as the width
        of a pass is not a fault of the state. The third is left out unless `trusts_wide`: a fault of all wide passes is
        its own, too. None if the position has no row."""
        if self.row is None:
            return None
        ids = [*self.prompt_ids, *self.token_ids[:position]]
        width = self.row.width if trusts_wide else 1
        rows = independent_rows(target, ids, self.row.num_before if trusts_wide else len(ids), width)
        own = self.row.logits
        return min(_distance(row, own) for row in rows)

    @torch.inference_mode()
    def replay(self, target: ScoringModel, position: int, tolerance: float) -> Replay | None:
        """Returns how far the row of a position is from what `target` gives after passes like the method's, of which
        none is rolled back: over the prompt, then over as many tokens as the method's widest, and last one that begins
        and ends where the method's did. Unless their row is within `tolerance`, the answer is read once more, in passes
        over one token: at this place the width may matter, though where the noise was measured it did not. None if no
        passes are like the method's, or the row is of the prompt's own pass."""
        row, start = self.row, len(self.prompt_ids)
        if row is None or row.widest is None or row.num_before <= start:
            return None
        ids, last = [*self.prompt_ids, *self.token_ids[:position]], row.num_before - 1
        wide = _row_after(target, ids, [*range(start, last, row.widest), last], row.width)
        change = _distance(wide, row.logits)
        if change <= tolerance:
            return Replay(change, 0.0)
        single = _row_after(target, ids, range(start, len(ids)), 1)
        return Replay(min(change, _distance(single, row.logits)), _distance(wide, single))


def _distance(first: torch.Tensor, second: torch.Tensor) -> float:
    return max(gap_change(first, second), gap_change(second, first))


@torch.inference_mode()
def independent_rows(model: ScoringModel, ids: list[int], num_before: int, width: int) -> list[torch.Tensor]:
    """Returns the rows after `ids` of three readings that share nothing with each other. The wide one is of a chain,
    also if the method's pass was of a tree, so that the mask of the tree is judged too; what follows `ids` in it
    changes nothing before it."""
    readings = {(0, len(ids)), (len(ids) - 1, 1), (num_before - 1, width)}
    return [_row_after(model, ids, [begin] if begin else [], length) for begin, length in sorted(readings)]


def _row_after(model: ScoringModel, ids: list[int], ends: Sequence[int], width: int) -> torch.Tensor:
    """Returns the row after `ids`, which are read anew: in passes that end at `ends`, and in a last one over `width`
    tokens that goes on behind `ids` with any token if it is wider, as far as the context reaches."""
    begin = ends[-1] if ends else 0
    limit = getattr(model, "context_limit", None) or begin + width
    length = max(len(ids) - begin, min(width, limit - begin))
    model.hidden_layers = ()
    model.reset()
    for end in ends:
        model.score(ids[:end], 1)
    # As many rows as a method wants of its pass: kernels of the last layers see only these.
    num_rows = length if ends else length - len(ids) + 1
    rows = model.score([*ids, *ids[-1:] * (begin + length - len(ids))], num_rows).logits
    row = rows[num_rows - (begin + length - len(ids)) - 1].clone()
    model.reset()
    return row


@dataclass(eq=False)
class PassRecorder(ScoringModel):
    """Shows a target to the decode loop, and notes the row that gave each emitted token. It keeps the row of one new
    token, `position`, and the best tokens of all."""

    model: ScoringModel
    num_prompt: int
    position: int
    best: list[set[int]] = field(default_factory=list)
    row: OwnRow | None = None

    def __post_init__(self) -> None:
        self.passes, self.eos_token_ids = self.model.passes, self.model.eos_token_ids
        self.prefers_pending = self.model.prefers_pending
        self._num_before = 0
        self._logits = torch.empty(0)
        self._widest: int | None = None

    @property
    def underlying(self) -> ScoringModel:
        return self.model.underlying

    def reset(self) -> None:
        self.best, self.row, self._widest = [], None, 0
        self.model.reset()

    def score(self, ids: list[int], num_logits: int, pending: torch.Tensor | None = None) -> Output:
        """Reads the prompt: all later passes are of proposals."""
        self.model.hidden_layers = self.hidden_layers
        output = self.model.score(ids, num_logits, pending)
        self._num_before, self._logits = len(ids), output.logits[-1:]
        self._widest = 1 if self._widest == 0 else None
        self._note([0])
        return output

    def score_proposal(self, ids: list[int], proposal: Scorable) -> Output:
        self.model.hidden_layers = self.hidden_layers
        num_passes = self.passes.num_passes
        output = self.model.score_proposal(ids, proposal)
        self._num_before, self._logits = len(ids), output.logits
        if self._widest and self.passes.lengths[num_passes:] == [len(output.logits)]:
            self._widest = max(self._widest, len(output.logits))
        else:
            self._widest = None
        return output

    def keep_accepted(self, proposal: Scorable, path: Sequence[int]) -> None:
        """Notes the rows of the emitted tokens: the accepted ones and the target's own."""
        self._note([0, *(node + 1 for node in path)])
        self.model.keep_accepted(proposal, path)

    def _note(self, places: Sequence[int]) -> None:
        first = self._num_before - self.num_prompt
        del self.best[first:]
        for number, place in enumerate(places):
            row = self._logits[place]
            self.best.append(set((row == row.max()).nonzero()[:, 0].tolist()))
            if first + number == self.position:
                self.row = OwnRow(row.clone(), self._num_before, len(self._logits), self._widest)

    def own_passes(self, prompt_ids: Sequence[int], token_ids: Sequence[int]) -> OwnPasses:
        """Returns what was noted, given the tokens that were emitted."""
        wrong = (at for at, (token, best) in enumerate(zip(token_ids, self.best, strict=False)) if token not in best)
        return OwnPasses(prompt_ids, token_ids, next(wrong, None), self.row)
