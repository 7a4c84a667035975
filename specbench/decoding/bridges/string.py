"""The bridge for string-level rejection sampling: it proposes the longest target token that is a prefix of the drafted
text (arXiv:2502.05202, Alg. 3), with ψ(t), the probability that the first target token of a drafted string is t (§3.3).

The first target token of a string is the longest token that is a prefix of it. It is known as soon as the string leaves
the trie of the target's vocabulary. ψ(t) is therefore a finite, exact sum over the draft sequences that write t and
perhaps the beginning of a longer token, but no complete longer token. Different tokenizations of the same text are
different contexts of the drafter, so the sum has few terms only if the drafter's tokens are short.
"""

from collections.abc import Callable, Sequence
from functools import cached_property
from itertools import accumulate
from typing import Annotated

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field

from specbench.core.errors import ConfigError
from specbench.core.registry import BRIDGES
from specbench.decoding.bridges import BridgedDrafter, MakeDrafter
from specbench.decoding.bridges.trie import Crossing, Node
from specbench.decoding.drafters import Drafter, ModelDrafter
from specbench.decoding.proposal import OUT_OF_VOCABULARY, PointMass, Proposal
from specbench.decoding.sampling import Distributions, DraftProbs, Sampling, draw
from specbench.models.causal_lm import CausalLM, ModelPair
from specbench.models.eager import common_prefix

Suffix = tuple[int, ...]  # draft tokens after the context of a tree


class DraftDistribution:
    """One next-token distribution of the draft model; `order` is a permutation of its vocabulary."""

    def __init__(self, distributions: Distributions, index: int, order: NDArray[np.int64]) -> None:
        self._distributions = distributions
        self._index = index
        self._order = order

    def draw(self, generator: torch.Generator) -> int:
        return self._distributions.draw(self._index, generator)

    @cached_property
    def sums(self) -> NDArray[np.float64]:
        """Cumulative probabilities in the given order, from 0 to 1: [vocab + 1]."""
        probs = self._distributions.probs[self._index].cpu().numpy().astype(np.float64)
        sums = np.concatenate([[0.0], np.cumsum(probs[self._order])])
        whole: NDArray[np.float64] = sums / sums[-1]
        return whole


class DraftTree:
    """The continuations of one context that the draft model has read, with their next-token distributions. Each is
    computed once. `spend`: called with a number of contexts before the model reads them."""

    def __init__(
        self, model: CausalLM, sampling: Sampling, order: NDArray[np.int64], context: list[int],
        spend: Callable[[int, bytes], None],
    ) -> None:  # fmt: skip
        self.context = context
        self._model = model
        self._sampling = sampling
        self._order = order
        self._spend = spend
        self.known: dict[Suffix, DraftDistribution] = {}

    def rows(self, suffixes: Sequence[Suffix], written: bytes) -> list[DraftDistribution]:
        """Returns the distributions after suffixes of equal length; computes missing ones in one batch. Raises
        ConfigError, with the token `written`, if the model may read no more."""
        missing = [suffix for suffix in dict.fromkeys(suffixes) if suffix not in self.known]
        if missing:
            self._spend(len(missing), written)
            lists = [list(suffix) for suffix in missing]
            shared = common_prefix(min(lists), max(lists))
            if len(lists) == 1:
                logits = self._model.score(self.context + lists[0], 1).logits
            else:
                logits = self._model.score_batch(self.context + lists[0][:shared], [ids[shared:] for ids in lists])
            self._keep(missing, logits)
        return [self.known[suffix] for suffix in suffixes]

    def read_along(self, suffix: Suffix, shortest: int, written: bytes) -> None:
        """Reads `suffix` in one pass and keeps the distributions after its prefixes of at least `shortest` tokens."""
        beginnings = [suffix[:length] for length in range(shortest, len(suffix) + 1)]
        self._spend(len(beginnings), written)
        self._keep(beginnings, self._model.score(self.context + list(suffix), len(beginnings)).logits)

    def _keep(self, suffixes: list[Suffix], logits: torch.Tensor) -> None:
        distributions = Distributions(logits, self._sampling)
        for index, suffix in enumerate(suffixes):
            self.known[suffix] = DraftDistribution(distributions, index, self._order)


class Psi:
    """The distribution ψ of the next target token after one context of the drafter: `tree.context` and `start`."""

    def __init__(self, crossing: Crossing, tree: DraftTree, start: Suffix) -> None:
        self._crossing = crossing
        self._tree = tree
        self._start = start

    def draw(self, generator: torch.Generator) -> tuple[int, Suffix]:
        """Draws a target token. Returns it with the draft tokens that were drawn for it.

        The token is OUT_OF_VOCABULARY if no target token is a prefix of the drafted text.
        """
        trie = self._crossing.target
        node = trie.root
        drawn = Suffix()
        inside = True
        while inside and trie.has_continuation(node):
            (row,) = self._tree.rows([self._start + drawn], trie.text(node))
            token = row.draw(generator)
            drawn = (*drawn, token)
            written = self._crossing.written.get(token)
            if written is None:
                break
            node, inside = trie.walk(node, written)
        return OUT_OF_VOCABULARY if node.passed == OUT_OF_VOCABULARY else trie.token_ids[node.passed], drawn

    def of(self, token: int) -> float:
        """Returns ψ of one target token; 0 for tokens that are not in the trie."""
        goal = OUT_OF_VOCABULARY if token == OUT_OF_VOCABULARY else self._crossing.position_of.get(token)
        if goal is None or (goal != OUT_OF_VOCABULARY and self._crossing.byte_by_byte and not self._read_ahead(goal)):
            return 0.0
        text = b"" if goal == OUT_OF_VOCABULARY else self._crossing.target.strings[goal]
        # The draft sequences inside the trie that may still result in the token, by length.
        psi = 0.0
        order = self._crossing.order
        level: list[tuple[float, Suffix, Node]] = [(1.0, self._start, self._crossing.target.root)]
        while level:
            further = []
            rows = self._tree.rows([suffix for _, suffix, _ in level], text)
            for (prob, suffix, node), row in zip(level, rows, strict=True):
                moves = self._crossing.moves(node, goal)
                psi += prob * float((row.sums[moves.ends] - row.sums[moves.starts]).sum())
                for position, place in moves.onward:
                    mass = prob * float(row.sums[position + 1] - row.sums[position])
                    if mass > 0:
                        further.append((mass, (*suffix, int(order[position])), place))
            level = further
        return psi

    def _read_ahead(self, goal: int) -> bool:
        """Reads the missing distributions along the only draft sequence that writes `goal`, in one pass.

        Requires that every draft token is one byte. Returns False if the token is known to have probability 0.
        """
        trie, draft = self._crossing.target, self._crossing.draft
        written = trie.strings[goal]
        steps = [draft.child(draft.root, byte) for byte in written]
        if any(step.start == step.end for step in steps):
            return False
        way = self._start + tuple(draft.token_ids[step.start] for step in steps)
        if not trie.has_continuation(trie.walk(trie.root, written)[0]):
            way = way[:-1]
        for length in range(len(self._start), len(way) + 1):
            row = self._tree.known.get(way[:length])
            if row is None:
                self._tree.read_along(way, length, written)
                break
            step = steps[length - len(self._start) :][:1]
            if step and row.sums[step[0].start] == row.sums[step[0].end]:
                return False
        return True


class StringProbs(DraftProbs):
    """q_i = ψ after the i-th context, computed only for requested tokens. Rows may sum to less than 1."""

    residual_is_sampled = True

    def __init__(self, token_ids: list[int], psis: list[Psi]) -> None:
        self._token_ids = token_ids
        self._psis = psis

    def token_probs(self, token_ids: torch.Tensor) -> torch.Tensor:
        values = [psi.of(token) for psi, token in zip(self._psis, token_ids.tolist(), strict=True)]
        return torch.tensor(values, device=token_ids.device)

    def overlap(self, target_probs: torch.Tensor) -> None:
        """Returns None: the overlap would need ψ of the whole vocabulary."""
        return None

    def sample_residual(self, index: int, target_probs: torch.Tensor, generator: torch.Generator) -> int:
        """Draws from norm(max(p − ψ, 0)) by rejection sampling, with weight p for tokens without a computed ψ.

        Such a token is returned with probability max(p − ψ, 0) / p; otherwise its weight is set to its residual, and
        the draw is repeated. The returned token follows the residual distribution, independently of earlier rejections.
        No token is rejected twice, so the loop terminates.
        """
        psi = self._psis[index]
        weights = target_probs.clone()
        met: set[int] = set()
        while bool(weights.any()):
            token = draw(weights, generator)
            if token in met:
                return token
            met.add(token)
            target_prob = float(target_probs[token])
            rest = max(target_prob - psi.of(token), 0.0)
            if float(torch.rand((), generator=generator, device=weights.device)) * target_prob < rest:
                return token
            weights[token] = rest
        return draw(target_probs, generator)  # rounding made the residual zero, as in sampling.residual


class StringBridge(BridgedDrafter):
    """A drafter that drafts text until its first target token is known, proposes this token, and continues after it.

    Drafted text beyond the token is discarded and drawn again. If no target token is a prefix of the text, for example
    because the drafter ended the text, OUT_OF_VOCABULARY is proposed.
    """

    sampling: Sampling

    def __init__(self, drafter: ModelDrafter, models: ModelPair, greedy: bool, max_draft_passes: int) -> None:
        assert models.drafter is not None
        super().__init__(drafter, models)
        self._model = models.drafter
        # Special tokens, added tokens and the drafter's end tokens are in neither trie.
        target, theirs = models.target, models.drafter.text_vocabulary
        self._crossing = Crossing(
            [(written, token) for written, token in target.text_vocabulary.id_of.items() if token < target.vocab_size],
            [
                (written, token)
                for token, written in enumerate(theirs.token_bytes[: models.drafter.vocab_size])
                if written and theirs.plain[token] and token not in models.drafter.eos_token_ids
            ],
            models.drafter.vocab_size,
        )
        self._greedy = greedy
        self._max_draft_passes = max_draft_passes
        self.num_passes = 0  # contexts that the draft model has read in this step; each context of a batch counts

    def propose(self, ids: list[int], num_draft_tokens: int, generator: torch.Generator) -> Proposal:
        token_ids: list[int] = []
        psis: list[Psi] = []
        draft_ids = self._exact(ids) if num_draft_tokens else []
        self.num_passes = 0
        tree = self._tree(draft_ids)
        target, written = self._crossing.target, self._crossing.written
        while len(token_ids) < num_draft_tokens:
            if self._fitting(draft_ids, target.depth) < target.depth:  # ψ may have to read the longest text
                break
            if draft_ids[: len(tree.context)] != tree.context:
                tree = self._tree(draft_ids)
            psi = Psi(self._crossing, tree, tuple(draft_ids[len(tree.context) :]))
            token, drawn = psi.draw(generator)
            token_ids.append(token)
            psis.append(psi)
            if token == OUT_OF_VOCABULARY:
                break
            # The drafter's context goes on behind the token, which may end inside a draft token.
            ends = list(accumulate(len(written.get(draft_token, b"")) for draft_token in drawn))
            length = len(target.strings[self._crossing.position_of[token]])
            if length in ends:
                draft_ids = [*draft_ids, *drawn[: ends.index(length) + 1]]
            else:
                draft_ids = self._exact(ids + token_ids)
        probs: DraftProbs | None = None
        if self.sampling.greedy:
            probs = PointMass(token_ids)
        elif not self._greedy:
            probs = StringProbs(token_ids, psis)
        return Proposal(token_ids, probs) if token_ids else Proposal()

    def _tree(self, draft_ids: list[int]) -> DraftTree:
        return DraftTree(self._model, self.sampling, self._crossing.order, draft_ids, self._spend)

    def _spend(self, num_passes: int, written: bytes) -> None:
        """Counts passes. Raises ConfigError beyond the cap, with the token `written` (b"": unknown)."""
        self.num_passes += num_passes
        if self.num_passes > self._max_draft_passes:
            tokens = f"the token {written.decode(errors='replace')!r}" if written else "the next token"
            raise ConfigError(
                f"bridge 'string' (method slrs): the probability of {tokens} needs more than bridge.max_draft_passes = "
                f"{self._max_draft_passes} draft passes in one step: raise the cap, set generation.top_k, or use a "
                "drafter with shorter tokens (bytes)"
            )


CAP = "Draft contexts that one step may read; where ψ needs more, the run ends with an error."


@BRIDGES.register("string")
def string(
    models: ModelPair,
    sampling: Sampling,
    make: MakeDrafter,
    *,
    max_draft_passes: Annotated[int, Field(ge=1, le=1_000_000, description=CAP)] = 4096,
) -> Drafter:
    """Drafts text and proposes its first target token; its draft probability ψ is the sum over all drafts that begin
    with it (SLRS).

    The draft model reads at most `max_draft_passes` contexts in one step; if ψ needs more, the run ends with an error.
    """
    assert models.drafter is not None
    drafter = make(models.drafter)
    if not isinstance(drafter, ModelDrafter):
        raise ConfigError(
            "bridge = 'string': it needs the distributions of a draft model: use drafter: {type: model}, or the bridge "
            "'retokenize' for another drafter"
        )
    return StringBridge(drafter, models, sampling.greedy, max_draft_passes)
