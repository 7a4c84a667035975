"""Draft tokens that only the device knows until its step is read."""

import torch

from specbench.decoding.proposal import DraftProbs, Proposal


class DeferredProposal(Proposal):
    """Draft tokens that only the device knows yet: read with the outcome of their step.

    `tokens` [num_tokens] are the target's, or FOREIGN; `stays` [num_tokens] is true for the first of them, which are
    proposed: what was drafted behind an end is no part of the proposal and never stands. `source`: the proposal in the
    tokens of another vocabulary that this one was carried over from; it is read with this one.
    """

    def __init__(
        self, tokens: torch.Tensor, stays: torch.Tensor, probs: DraftProbs, source: "DeferredProposal | None" = None
    ) -> None:
        super().__init__(probs=probs)
        self.tokens = tokens
        self.stays = stays
        self._source = source
        self._all_ids: list[int] | None = None  # until they are read

    @property
    def scored_tokens(self) -> torch.Tensor:
        """What the target reads: [num_tokens], any token in place of FOREIGN."""
        return self.tokens if self._source is None else self.tokens.clamp_min(0)

    @property
    def scored_ids(self) -> list[int]:
        """The same, read: also what was drafted behind the end."""
        return [max(token, 0) for token in self._read_ids()]

    @property
    def token_ids(self) -> list[int]:
        self._read_ids()
        return self._token_ids

    @property
    def num_drafted(self) -> int:
        """Until the tokens are read those behind the end count too."""
        return len(self.tokens) if self._all_ids is None else len(self._token_ids)

    @property
    def ended(self) -> bool:
        """Known when the tokens are read: the source proposes its end token, and this proposal does not."""
        return self._source is not None and self._source.num_drafted > self.num_drafted

    def _read_ids(self) -> list[int]:
        if self._all_ids is None:
            self.read()
        assert self._all_ids is not None
        return self._all_ids

    def on(self, device: torch.device) -> torch.Tensor:
        return self.tokens

    def standing(self, accepts: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        num_accepted, _ = super().standing(accepts & self.stays)
        return num_accepted, num_accepted == self.stays.sum()

    def read(self, *values: torch.Tensor) -> list[list[int]]:
        transfer = super().read if self._source is None else self._source.read
        ids, (num_drafted,), *read = transfer(self.tokens, self.stays.sum(0, keepdim=True), *values)
        self._all_ids, self._token_ids = ids, ids[:num_drafted]
        return read


def up_to_end(is_end: torch.Tensor) -> torch.Tensor:
    """True up to the first that is true, and there: [n] → [n]."""
    ends = is_end.long()
    return ends.cumsum(0) == ends
