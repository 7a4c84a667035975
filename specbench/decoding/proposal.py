"""What passes between drafter, rule and ledger within one step."""

from dataclasses import dataclass, field
from typing import Protocol

import torch


class DraftProbs(Protocol):
    """The draft distributions of a proposal, row i for draft token i. Rows may sum to less than 1."""

    def token_probs(self, token_ids: torch.Tensor) -> torch.Tensor:
        """q_i(x_i) for the draft tokens: [num_drafted] → [num_drafted]."""

    def row(self, index: int) -> torch.Tensor:
        """q_i as a dense row [vocab]; asked for only where a residual is drawn."""

    def overlap(self, target_probs: torch.Tensor) -> torch.Tensor:
        """Σ_x min(p_i(x), q_i(x)) per row: [num_drafted, vocab] → [num_drafted]."""


@dataclass(frozen=True)
class Proposal:
    """Draft tokens and what they were drawn from. An empty proposal is plain autoregressive decoding."""

    token_ids: list[int] = field(default_factory=list)
    probs: DraftProbs | None = None

    @property
    def num_drafted(self) -> int:
        return len(self.token_ids)


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
