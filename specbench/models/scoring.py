"""The interface of a model that scores one cached sequence. The decode loop and the drafters use nothing else."""

from collections.abc import Hashable, Sequence
from typing import Literal, NamedTuple, Protocol

import torch

from specbench.models.meters import PassLog

Kind = Literal["chain", "prompt", "tree"]
VERBS: dict[str, str] = {"compiled": "compiled", "graphs": "recorded"}
PACKED = (16, 64)  # lengths of the passes that read several continuations


class Output(NamedTuple):
    """The result of a pass: logits [num_logits, vocab], and for each layer in `ScoringModel.hidden_layers` the hidden
    states of all tokens that the pass read, [num_read, width]."""

    logits: torch.Tensor
    hidden: tuple[torch.Tensor, ...] = ()


class Sampler(Hashable, Protocol):
    """A way of drawing tokens, such as decoding.sampling.Sampling."""

    def draw(self, logits: torch.Tensor, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Draws one token from each row of logits [num_rows, vocab]. Returns tokens [num_rows] and the probabilities
        that they were drawn from, [num_rows, vocab], or None for one-hot distributions."""


class Draft(NamedTuple):
    """Draft tokens on the device: tokens [n], logits [n, vocab], and the probabilities that they were drawn from,
    [n, vocab] (None for one-hot distributions)."""

    tokens: torch.Tensor
    logits: torch.Tensor
    probs: torch.Tensor | None


class Scorable(Protocol):
    """What a model needs to know of a proposal to score it, such as decoding.proposal.Proposal.

    `scored_ids`: the draft tokens that the model reads. `is_tree`: whether several of them may follow the same token,
    so that each follows the one at its index in `parents` (−1: the sequence). `pending` [num_scored]: the tokens if
    only the device knows them yet; None if `scored_ids` can be read without waiting for it.
    """

    @property
    def scored_ids(self) -> list[int]: ...
    @property
    def is_tree(self) -> bool: ...
    @property
    def parents(self) -> Sequence[int]: ...
    @property
    def pending(self) -> torch.Tensor | None: ...


class ScoringModel:
    """Scores a sequence that is cached, so that `score` reads only new tokens.

    `hidden_layers`: the layers whose hidden states `score` returns, numbered as in transformers' `hidden_states` (0:
    the embeddings). `prefers_pending`: whether passes over pending tokens, which only the device knows, are faster than
    passes over tokens that were read from the device. `chooses_width`: whether it decides itself in how many passes it
    reads a text, as a server does.
    """

    passes: PassLog
    eos_token_ids: frozenset[int]
    prefers_pending: bool = False
    chooses_width: bool = False
    hidden_layers: tuple[int, ...] = ()

    @property
    def underlying(self) -> "ScoringModel":
        """The model that makes the passes: itself, unless it shows another model in other tokens."""
        return self

    # Only these two methods distinguish chains from trees, whose passes differ.
    def score_proposal(self, ids: list[int], proposal: Scorable) -> Output:
        """Returns the logits after `ids` and after each draft token that is read: [num_scored + 1, vocab]."""
        if proposal.is_tree:
            return self.score_tree(ids, proposal.scored_ids, proposal.parents, len(proposal.scored_ids) + 1)
        if proposal.pending is not None:
            return self.score(ids, len(proposal.pending) + 1, proposal.pending)
        return self.score(ids + proposal.scored_ids, len(proposal.scored_ids) + 1)

    def keep_accepted(self, proposal: Scorable, path: Sequence[int]) -> None:
        """Tells the model which tokens `path` of the last proposal were accepted. Of a chain of known tokens nothing is
        to be told: the next pass crops the cache to the tokens that it shares with the sequence."""
        if proposal.is_tree:
            self.keep_path(path)
        elif proposal.pending is not None:
            self.resolve_pending(proposal.scored_ids)

    def reset(self) -> None:
        """Drops the cached sequence; the buffers are kept."""
        raise NotImplementedError

    def score(self, ids: list[int], num_logits: int, pending: torch.Tensor | None = None) -> Output:
        """Returns the logits after each of the last `num_logits` tokens of `ids` followed by `pending`, [num_pending].

        `pending` begins with the tokens that an earlier pass read and that are not resolved yet.
        """
        raise NotImplementedError

    def score_tree(self, ids: list[int], tree_ids: list[int], parents: Sequence[int], num_logits: int) -> Output:
        """Returns the logits after the last `num_logits` tokens of `ids` followed by a tree: [num_logits, vocab].

        `parents` holds the index of each token's parent in the tree, −1 for tokens that follow `ids`. If the tree
        begins with the tree read last, only its other tokens are read. `keep_path` ends the tree. Raises ConfigError if
        the model cannot read trees.
        """
        raise NotImplementedError

    def keep_path(self, path: Sequence[int]) -> None:
        """Keeps the tokens `path` of the tree read last, from the root on, in the cached sequence."""
        raise NotImplementedError

    def resolve_pending(self, token_ids: list[int]) -> None:
        """Supplies the ids of the pending tokens of the last pass."""
        raise NotImplementedError

    def reserve_draft(self, num_tokens: int, draw: Sampler) -> tuple[int, float]:
        """Records drafts of `num_tokens` tokens as CUDA graphs, if the engine has any. Returns the number of recorded
        graphs and the seconds spent."""
        return 0, 0.0

    def draft(
        self, ids: list[int], num_tokens: int, draw: Sampler, generator: torch.Generator,
        given: torch.Tensor | None = None,
    ) -> Draft | None:  # fmt: skip
        """Drafts `num_tokens` tokens after `ids` with one recorded graph. Returns None if no matching graph was
        recorded. `resolve_pending` supplies the ids later. `given` [num_tokens]: tokens that replace the drawn ones."""
        return None


class PassShape(NamedTuple):
    """The fixed properties of a pass: the number of tokens that it reads, whether they form a chain, a prompt (a chain
    of which only one token's logits are returned) or a tree, which has its own positions and masks, and the layers
    whose hidden states it returns."""

    length: int
    kind: Kind = "chain"
    hidden_layers: tuple[int, ...] = ()


# Maximum root mean square difference in standard deviations of the logits, far above the rounding of kernels.
MAX_SHIFT = {torch.float32: 1e-3}
MAX_SHIFT_ROUNDED = 0.1


def max_shift(dtype: torch.dtype, *, rounds: bool = False) -> float:
    """Returns the maximum root mean square difference of two tensors of logits that differ by rounding, in standard
    deviations of the logits. `rounds`: whether the passes round more than the dtype."""
    return MAX_SHIFT_ROUNDED if rounds else MAX_SHIFT.get(dtype, MAX_SHIFT_ROUNDED)


def same_logits(first: torch.Tensor, second: torch.Tensor, *, rounds: bool = False) -> bool:
    """Returns whether two tensors of logits agree up to the rounding of their dtype. `rounds`: see `max_shift`."""
    limit = max_shift(first.dtype, rounds=rounds)
    first, second = first.float(), second.float()
    return float((first - second).square().mean().sqrt()) <= limit * float(first.std()) + 1e-6
