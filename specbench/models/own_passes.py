"""The rows of logits that a method's own passes give, recorded in a second decoding of the prompts whose greedy output
differs from AR's. The measured decoding has no recorder, so that recording costs it nothing."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from specbench.models.batch_width import gap_change
from specbench.models.scoring import Output, Scorable, ScoringModel


@dataclass(frozen=True)
class OwnRow:
    """The row from which a method chose a token, [vocab]. `num_before`: the tokens of the sequence before the pass that
    gave it; `width`: the tokens that the pass read after all but the last of them."""

    logits: torch.Tensor
    num_before: int
    width: int


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
        return min(max(gap_change(row, own), gap_change(own, row)) for row in rows)


@torch.inference_mode()
def independent_rows(model: ScoringModel, ids: list[int], num_before: int, width: int) -> list[torch.Tensor]:
    """Returns the rows after `ids` of three readings that share nothing with each other. The wide one is of a chain,
    also if the method's pass was of a tree, so that the mask of the tree is judged too; what follows `ids` in it
    changes nothing before it."""
    model.hidden_layers = ()
    first = num_before - 1
    limit = getattr(model, "context_limit", None) or first + width
    readings = {(0, len(ids)), (len(ids) - 1, 1), (first, max(len(ids) - first, min(width, limit - first)))}
    rows = []
    for begin, length in sorted(readings):  # tokens that are cached first, and tokens of the pass
        model.reset()
        if begin:
            model.score(ids[:begin], 1)
        padded = [*ids, *ids[-1:] * (begin + length - len(ids))]
        num_after = len(padded) - len(ids)
        rows.append(model.score(padded, num_after + 1).logits[0].clone())
    model.reset()
    return rows


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

    @property
    def underlying(self) -> ScoringModel:
        return self.model.underlying

    def reset(self) -> None:
        self.best, self.row = [], None
        self.model.reset()

    def score(self, ids: list[int], num_logits: int, pending: torch.Tensor | None = None) -> Output:
        """Reads the prompt: all later passes are of proposals."""
        self.model.hidden_layers = self.hidden_layers
        output = self.model.score(ids, num_logits, pending)
        self._num_before, self._logits = len(ids), output.logits[-1:]
        self._note([0])
        return output

    def score_proposal(self, ids: list[int], proposal: Scorable) -> Output:
        self.model.hidden_layers = self.hidden_layers
        output = self.model.score_proposal(ids, proposal)
        self._num_before, self._logits = len(ids), output.logits
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
                self.row = OwnRow(row.clone(), self._num_before, len(self._logits))

    def own_passes(self, prompt_ids: Sequence[int], token_ids: Sequence[int]) -> OwnPasses:
        """Returns what was noted, given the tokens that were emitted."""
        wrong = (at for at, (token, best) in enumerate(zip(token_ids, self.best, strict=False)) if token not in best)
        return OwnPasses(prompt_ids, token_ids, next(wrong, None), self.row)
