"""What passes between drafter, rule and ledger within one step."""

from dataclasses import dataclass, field
from typing import Protocol

import torch

from specbench.decoding.sampling import draw, residual

FOREIGN = -1  # stands for a drafted string that is no token of the target: judged, and always rejected


class DraftProbs(Protocol):
    """The draft distributions of a proposal, row i for draft token i. Rows may sum to less than 1."""

    def token_probs(self, token_ids: torch.Tensor) -> torch.Tensor:
        """q_i(x_i) for the draft tokens: [num_drafted] → [num_drafted]."""

    def overlap(self, target_probs: torch.Tensor) -> torch.Tensor | None:
        """Σ_x min(p_i(x), q_i(x)) per row: [num_drafted, vocab] → [num_drafted]; None where it is not known."""

    def recover(self, index: int, target_probs: torch.Tensor, generator: torch.Generator) -> int:
        """A token drawn from norm(max(p − q_i, 0)), given p as [vocab]: what comes after a rejection at `index`."""


class DenseProbs(DraftProbs, Protocol):
    """Draft distributions that are known in full, as rules that compare them need."""

    @property
    def probs(self) -> torch.Tensor:
        """What the draft tokens were drawn from: [num_drafted, vocab]."""

    @property
    def raw_probs(self) -> torch.Tensor:
        """The same at temperature 1, untruncated."""


class PointMass:
    """The distribution of drafts that are certain: of prompt lookup, and of text that was tokenized anew."""

    certain = True

    def __init__(self, token_ids: list[int]) -> None:
        self._token_ids = token_ids

    def token_probs(self, token_ids: torch.Tensor) -> torch.Tensor:
        return (token_ids == torch.tensor(self._token_ids, device=token_ids.device)).float()

    def overlap(self, target_probs: torch.Tensor) -> torch.Tensor:
        return at_tokens(target_probs, torch.tensor(self._token_ids, device=target_probs.device))

    def recover(self, index: int, target_probs: torch.Tensor, generator: torch.Generator) -> int:
        mass = torch.zeros_like(target_probs)
        if self._token_ids[index] != FOREIGN:
            mass[self._token_ids[index]] = 1.0
        return draw(residual(target_probs, mass), generator)


@dataclass(frozen=True)
class Proposal:
    """Draft tokens and what they were drawn from. An empty proposal is plain autoregressive decoding.

    Only the last token may be FOREIGN: what would follow it is never judged.
    """

    token_ids: list[int] = field(default_factory=list)
    probs: DraftProbs | None = None

    @property
    def num_drafted(self) -> int:
        return len(self.token_ids)

    @property
    def scored_ids(self) -> list[int]:
        """The draft tokens that the target reads."""
        return self.token_ids[:-1] if self.token_ids and self.token_ids[-1] == FOREIGN else self.token_ids


def is_certain(draft: DraftProbs) -> bool:
    """Whether every row is a point mass at the token that was drafted."""
    return bool(getattr(draft, "certain", False))


def at_tokens(probs: torch.Tensor, token_ids: torch.Tensor) -> torch.Tensor:
    """The probability of each row's token, 0 for FOREIGN: [n, vocab], [n] → [n]."""
    found = probs.gather(1, token_ids.clamp_min(0)[:, None])[:, 0]
    return found * (token_ids != FOREIGN)


Column = torch.Tensor | list[float] | None


@dataclass(frozen=True)
class Verdict:
    """What a rule decided, with its evidence per draft token (None where a quantity does not exist)."""

    num_accepted: int
    next_token: int
    target_prob: Column = None
    draft_prob: Column = None
    overlap: Column = None
    divergence: Column = None


@dataclass(frozen=True)
class Step:
    """One target pass after the prefill, in counts: accepted ≤ judged ≤ drafted, emitted ≤ accepted + 1."""

    num_drafted: int
    num_judged: int
    num_accepted: int
    num_emitted: int
