"""Proposals, verifications and steps, which drafter, verification rule and loop exchange."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, zip_longest
from typing import Literal

import torch

from specbench.core.values import depths
from specbench.decoding.sampling import DenseProbs, DraftProbs, residual
from specbench.models.devices import upload

OUT_OF_VOCABULARY = -1  # a drafted string that is not a token of the target: verified, and always rejected


class PointMass(DraftProbs):
    """One-hot rows at the drafted tokens, for drafts without a distribution (prompt lookup, retokenized text)."""

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
        return upload(torch.tensor(self._token_ids), device)


class Proposal:
    """Draft tokens and the distributions they were drawn from. With an empty proposal, decoding is autoregressive.

    Only the last token may be OUT_OF_VOCABULARY, because no token after it can be accepted. `ended` is true if the
    drafter drew an end token after these tokens; it is not proposed. `pending` [num_scored]: the tokens that the target
    scores if only the device knows them yet; None if the host knows them.
    """

    is_tree = False
    pending: torch.Tensor | None = None

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
        """The number of draft tokens on the longest path."""
        return len(self._token_ids)

    @property
    def parents(self) -> Sequence[int]:
        """The parent of each draft token, −1 for tokens that follow the sequence. In a chain it is the token before."""
        return range(-1, len(self.token_ids) - 1)

    @property
    def ended(self) -> bool:
        return self._ended

    @property
    def scored_ids(self) -> list[int]:
        """The draft tokens that the target scores: all but a final OUT_OF_VOCABULARY."""
        return self._token_ids[:-1] if self._token_ids[-1:] == [OUT_OF_VOCABULARY] else self._token_ids

    def on(self, device: torch.device) -> torch.Tensor:
        """Returns the draft tokens as a tensor on `device`: [num_drafted]."""
        return upload(torch.tensor(self._token_ids, dtype=torch.long), device)

    def child(self, node: int, token: int) -> int | None:
        """Returns the draft token after draft token `node` if it equals `token`, else None. Node −1 is the root."""
        return node + 1 if self.token_ids[node + 1 : node + 2] == [token] else None

    def has_children(self, node: int) -> bool:
        """Returns whether a draft token follows draft token `node`."""
        return node + 1 < len(self.token_ids)

    @property
    def num_nodes(self) -> int | None:
        """The number of draft tokens of a tree; None for a chain."""
        return None

    def siblings(self, path: Sequence[int], num_verified: int) -> tuple[tuple[int, int | None], ...]:
        """Returns `Step.siblings`, given the accepted nodes; empty for a chain."""
        return ()

    def accepted_prefix(self, accepts: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns the number of accepted tokens and whether all are accepted, each [1], from flags [num_drafted]."""
        num_accepted = accepts.long().cumprod(0).sum(0, keepdim=True)
        return num_accepted, num_accepted == len(accepts)

    def read(self, *values: torch.Tensor) -> list[list[int]]:
        """Copies integer tensors, each [n], from the device in one transfer."""
        numbers: list[int] = torch.cat([value.long() for value in values]).tolist()
        ends = list(accumulate(len(value) for value in values))
        return [numbers[end - len(value) : end] for end, value in zip(ends, values, strict=True)]


def at_tokens(probs: torch.Tensor, token_ids: torch.Tensor) -> torch.Tensor:
    """Returns the probability of each row's token, 0 for OUT_OF_VOCABULARY: [n, vocab], [n] → [n]."""
    chosen = probs.gather(1, token_ids.clamp_min(0)[:, None])[:, 0]
    return chosen * (token_ids != OUT_OF_VOCABULARY)


Draws = Literal["fixed", "independent", "without_replacement", "top_and_one"]
Column = torch.Tensor | list[float] | None


@dataclass(frozen=True)
class Verification:
    """The decision of a verification rule, with columns of values per verified position (None if undefined).

    `nodes`: the indices of the accepted draft tokens, along a path from the root; None for the first `num_accepted`.

    `draw_overlap`: for each position at which the drafter drew a token, the probability that a draft token is drawn and
    accepted. Only drafts that withhold their end token have it. If the drafter drew an end token, it has one more entry
    than the other columns.
    """

    num_accepted: int
    next_token: int
    target_prob: Column = None
    draft_prob: Column = None
    overlap: Column = None
    divergence: Column = None
    draw_overlap: Column = None
    nodes: tuple[int, ...] | None = None

    @property
    def path(self) -> Sequence[int]:
        """The indices of the accepted draft tokens, from the root on: [num_accepted]."""
        return range(self.num_accepted) if self.nodes is None else self.nodes


@dataclass(frozen=True)
class Step:
    """The token counts of one target pass after the prefill: accepted ≤ verified ≤ drafted, emitted ≤ accepted + 1.

    In a draft tree, drafted, verified and accepted tokens are levels: `num_drafted` is its depth, `num_nodes` its size.
    `siblings` holds for each verified level the number of siblings and the rank of the accepted sibling (None: none was
    accepted).
    """

    num_drafted: int
    num_verified: int
    num_accepted: int
    num_emitted: int
    num_nodes: int | None = None  # None for a chain, whose size is num_drafted
    siblings: tuple[tuple[int, int | None], ...] = ()


class TreeProposal(Proposal):
    """A tree of draft tokens: several tokens may follow the same token.

    `parents` holds the index of each token's parent, which comes before the token; −1 is the end of the sequence.
    `draws` is the way in which the children of a parent were drawn from the draft distribution after it, in their
    order:

    - fixed: chosen without a draw, such as the most probable tokens;
    - independent: drawn one by one, so that tokens may repeat;
    - without_replacement: drawn one by one, each from the tokens that are left;
    - top_and_one: the most probable tokens, then one drawn from the others.

    `probs` are the draft distributions after the parents in `expanded`, [num_expanded, vocab]; fixed children need
    none. Only the first `num_candidates` tokens can be accepted; the target reads the others for the drafter. Raises
    ValueError for a parent that does not come before its child, and for equal children of a parent that were not drawn
    independently.
    """

    is_tree = True

    def __init__(
        self, token_ids: list[int], parents: Sequence[int], draws: Draws = "fixed", probs: DenseProbs | None = None,
        expanded: Sequence[int] = (), num_candidates: int | None = None,
    ) -> None:  # fmt: skip
        super().__init__(token_ids, probs)
        num_candidates = len(token_ids) if num_candidates is None else num_candidates
        self.draws = draws
        self._parents = tuple(parents)
        self._rows = {node: row for row, node in enumerate(expanded)}
        self._children: dict[int, list[int]] = {}
        for index, (token, parent) in enumerate(zip(token_ids, parents, strict=True)):
            if index >= num_candidates:
                break
            is_repeated = draws != "independent" and self.child(parent, token) is not None
            if not -1 <= parent < index or is_repeated:
                raise ValueError(f"node {index}: token {token} cannot be a child of node {parent}")
            self._children.setdefault(parent, []).append(index)
        self._depth = max(depths(self._parents[:num_candidates]), default=0)

    def children(self, node: int) -> list[int]:
        """Returns the children of a node in the order in which they were drawn."""
        return self._children.get(node, [])

    def draft_probs(self, node: int) -> torch.Tensor:
        """Returns the distribution that the children of a node were drawn from: [vocab]."""
        assert isinstance(self.probs, DenseProbs)
        return self.probs.probs[self._rows[node]]

    @property
    def num_drafted(self) -> int:
        return self._depth

    @property
    def parents(self) -> Sequence[int]:
        return self._parents

    def child(self, node: int, token: int) -> int | None:
        """Returns the child of a node that is this token; None if there is none."""
        return next((index for index in self.children(node) if self._token_ids[index] == token), None)

    def has_children(self, node: int) -> bool:
        return node in self._children

    @property
    def num_nodes(self) -> int | None:
        return len(self._token_ids)

    def siblings(self, path: Sequence[int], num_verified: int) -> tuple[tuple[int, int | None], ...]:
        found = [self.children(node) for node in [-1, *path][:num_verified]]
        ranks = [level.index(node) for level, node in zip(found, path, strict=False)]
        return tuple((len(level), rank) for level, rank in zip_longest(found, ranks))


class OnDeviceProposal(Proposal):
    """A proposal of pending tokens: only the device knows them until they are read together with the step's outcome.

    `tokens` [num_tokens]: target tokens or OUT_OF_VOCABULARY. `is_proposed` [num_tokens]: true for the first tokens,
    which are proposed, and false for tokens after a drafted end token. `source`: the proposal in the drafter's
    vocabulary from which this one was translated, if any; both are read in one transfer.
    """

    def __init__(
        self,
        tokens: torch.Tensor,
        is_proposed: torch.Tensor,
        probs: DraftProbs,
        source: "OnDeviceProposal | None" = None,
    ) -> None:
        super().__init__(probs=probs)
        self.tokens = tokens
        self.is_proposed = is_proposed
        # The target reads an arbitrary token in place of OUT_OF_VOCABULARY, which only a translation makes.
        self.pending = tokens if source is None else tokens.clamp_min(0)
        self._source = source
        self._all_ids: list[int] | None = None  # None until they are read

    @property
    def scored_ids(self) -> list[int]:
        """`pending` as a list, including those after a drafted end token; reads the tokens from the device."""
        return [max(token, 0) for token in self._read_ids()]

    @property
    def token_ids(self) -> list[int]:
        self._read_ids()
        return self._token_ids

    @property
    def num_drafted(self) -> int:
        """The number of proposed tokens; until they are read, tokens after a drafted end token are counted too."""
        return len(self.tokens) if self._all_ids is None else len(self._token_ids)

    @property
    def ended(self) -> bool:
        """True if the source proposes an end token that this proposal leaves out. Valid after the tokens are read."""
        return self._source is not None and self._source.num_drafted > self.num_drafted

    def _read_ids(self) -> list[int]:
        if self._all_ids is None:
            self.read()
        assert self._all_ids is not None
        return self._all_ids

    def on(self, device: torch.device) -> torch.Tensor:
        return self.tokens

    def accepted_prefix(self, accepts: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        num_accepted, _ = super().accepted_prefix(accepts & self.is_proposed)
        return num_accepted, num_accepted == self.is_proposed.sum()

    def read(self, *values: torch.Tensor) -> list[list[int]]:
        transfer = super().read if self._source is None else self._source.read
        ids, (num_drafted,), *read = transfer(self.tokens, self.is_proposed.sum(0, keepdim=True), *values)
        self._all_ids, self._token_ids = ids, ids[:num_drafted]
        return read


def up_to_end(is_end: torch.Tensor) -> torch.Tensor:
    """Returns a mask that is true up to and including the first true value: [n] → [n]."""
    ends = is_end.long()
    return ends.cumsum(0) == ends
