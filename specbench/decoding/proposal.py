"""Proposals, verifications and steps: the values that drafter, verification rule and loop exchange."""

from dataclasses import dataclass
from itertools import accumulate

import torch

from specbench.decoding.sampling import DraftProbs, residual
from specbench.models.devices import uploaded

OUT_OF_VOCABULARY = -1  # stands for a drafted string that is no token of the target: judged, and always rejected


class PointMass(DraftProbs):
    """Drafts without a distribution: all mass is on the drafted token (prompt lookup, text that was tokenized anew)."""

    is_one_hot = True

    def __init__(self, token_ids: list[int]) -> None:
        self._token_ids = token_ids

    def token_probs(self, token_ids: torch.Tensor) -> torch.Tensor:
        return (token_ids == self._on(token_ids.device)).float()

    def overlap(self, target_probs: torch.Tensor) -> torch.Tensor:
        return at_tokens(target_probs, self._on(target_probs.device))

    def residual(self, index: torch.Tensor, target_probs: torch.Tensor) -> torch.Tensor:
        token_id = self._on(target_probs.device).index_select(0, index)
        mass = (token_id != OUT_OF_VOCABULARY).to(target_probs.dtype)
        return residual(target_probs, torch.zeros_like(target_probs).index_put_((token_id.clamp_min(0),), mass))

    def _on(self, device: torch.device) -> torch.Tensor:
        return uploaded(torch.tensor(self._token_ids), device)


class Proposal:
    """Draft tokens and what they were drawn from. An empty proposal is plain autoregressive decoding.

    Only the last token may be OUT_OF_VOCABULARY, because nothing behind it is judged. `ended`: whether the drafter drew
    the end of a text behind these tokens, which is not proposed.
    """

    def __init__(
        self, token_ids: list[int] | None = None, probs: DraftProbs | None = None, ended: bool = False
    ) -> None:
        self._token_ids = token_ids or []
        self.probs = probs
        self._ended = ended

    @property
    def token_ids(self) -> list[int]:
        return self._token_ids

    @property
    def num_drafted(self) -> int:
        return len(self._token_ids)

    @property
    def ended(self) -> bool:
        return self._ended

    @property
    def scored_ids(self) -> list[int]:
        """The draft tokens that the target reads."""
        return self._token_ids[:-1] if self._token_ids[-1:] == [OUT_OF_VOCABULARY] else self._token_ids

    def on(self, device: torch.device) -> torch.Tensor:
        """The draft tokens as a tensor: [num_drafted]."""
        return uploaded(torch.tensor(self._token_ids), device)

    def accepted_prefix(self, accepts: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """How many tokens are accepted before the first that is not, and whether these are all: [num_drafted] → [1]."""
        num_accepted = accepts.long().cumprod(0).sum(0, keepdim=True)
        return num_accepted, num_accepted == len(accepts)

    def read(self, *values: torch.Tensor) -> list[list[int]]:
        """Whole numbers that the device has computed, each [n], in one transfer."""
        numbers: list[int] = torch.cat([value.long() for value in values]).tolist()
        ends = list(accumulate(len(value) for value in values))
        return [numbers[end - len(value) : end] for end, value in zip(ends, values, strict=True)]


def at_tokens(probs: torch.Tensor, token_ids: torch.Tensor) -> torch.Tensor:
    """The probability of each row's token, 0 for OUT_OF_VOCABULARY: [n, vocab], [n] → [n]."""
    found = probs.gather(1, token_ids.clamp_min(0)[:, None])[:, 0]
    return found * (token_ids != OUT_OF_VOCABULARY)


Column = torch.Tensor | list[float] | None


@dataclass(frozen=True)
class Verification:
    """What a rule decided, with its evidence per draft token (None where a quantity does not exist).

    `attempted`: the probability that a draft token is drawn and accepted, per position at which one was to be drawn;
    only of drafts whose end is not proposed, and one longer than the others where the drafter drew it.
    """

    num_accepted: int
    next_token: int
    target_prob: Column = None
    draft_prob: Column = None
    overlap: Column = None
    divergence: Column = None
    attempted: Column = None


@dataclass(frozen=True)
class Step:
    """One target pass after the prefill, in counts: accepted ≤ judged ≤ drafted, emitted ≤ accepted + 1."""

    num_drafted: int
    num_judged: int
    num_accepted: int
    num_emitted: int


class OnDeviceProposal(Proposal):
    """Draft tokens that only the device knows yet: read with the outcome of their step.

    `tokens` [num_tokens] are the target's, or OUT_OF_VOCABULARY. `stays` [num_tokens] is true for the leading tokens,
    which are proposed; tokens behind a drafted end are no part of the proposal. `source` is the proposal in the tokens
    of another vocabulary from which this one was translated; both are read together.
    """

    def __init__(
        self, tokens: torch.Tensor, stays: torch.Tensor, probs: DraftProbs, source: "OnDeviceProposal | None" = None
    ) -> None:
        super().__init__(probs=probs)
        self.tokens = tokens
        self.stays = stays
        self._source = source
        self._all_ids: list[int] | None = None  # until they are read

    @property
    def scored_tokens(self) -> torch.Tensor:
        """What the target reads: [num_tokens], any token in place of OUT_OF_VOCABULARY."""
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

    def accepted_prefix(self, accepts: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        num_accepted, _ = super().accepted_prefix(accepts & self.stays)
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
