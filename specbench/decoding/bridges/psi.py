"""ψ: the probability that what the drafter writes begins with a given target token (arXiv:2502.05202, §3.3).

The first target token of a drafted string is the longest one that begins it (the paper's longest prefix). It is known
as soon as the string has left the trie of the target's vocabulary, so ψ(t) is a finite sum over draft sequences: those
that write t and then perhaps the beginning of a longer token, but no such token whole. The sum is exact. Sequences that
cut the same text differently are different contexts, which is why it is short for drafters with short tokens only.
"""

from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray

from specbench.decoding.bridges.string_tree import DraftTree, Suffix
from specbench.decoding.bridges.trie import Crossing, Moves, Node
from specbench.decoding.proposal import OUT_OF_VOCABULARY
from specbench.decoding.sampling import DraftProbs, draw

Open = tuple[float, Suffix, Node]  # a draft sequence that has not left the trie: its probability, tokens and place


class Psi:
    """The distribution of the next target token behind one context of the drafter: `tree` at `start`."""

    def __init__(self, crossing: Crossing, tree: DraftTree, start: Suffix) -> None:
        self._crossing = crossing
        self._tree = tree
        self._start = start

    def draw(self, generator: torch.Generator) -> tuple[int, Suffix]:
        """Returns a target token and the draft tokens that were drawn for it; OUT_OF_VOCABULARY for a text that begins
        with no target token."""
        trie = self._crossing.target
        node, drawn, inside = trie.root, Suffix(), True
        while inside and trie.goes_on(node):
            token = self._tree.row(self._start + drawn, trie.text(node)).draw(generator)
            drawn = (*drawn, token)
            written = self._crossing.written.get(token)
            if written is None:
                break
            node, inside = trie.walk(node, written)
        return OUT_OF_VOCABULARY if node.passed == OUT_OF_VOCABULARY else trie.token_ids[node.passed], drawn

    def of(self, token: int) -> float:
        """ψ of one target token; 0 for tokens that cross no bridge."""
        goal = OUT_OF_VOCABULARY if token == OUT_OF_VOCABULARY else self._crossing.position_of.get(token)
        if goal is None or (goal != OUT_OF_VOCABULARY and self._crossing.byte_by_byte and not self._read_ahead(goal)):
            return 0.0
        text = b"" if goal == OUT_OF_VOCABULARY else self._crossing.target.strings[goal]
        return sum(float(prob * masses.sum()) for prob, _, masses in self._sequences(goal, text))

    def full(self) -> NDArray[np.float64]:
        """Returns ψ of every token of the target's trie, in its order, and of OUT_OF_VOCABULARY at the end:
        [num_strings + 1], sum 1."""
        whole = np.zeros(len(self._crossing.target.strings) + 1)
        for prob, moves, masses in self._sequences(None, b""):
            np.add.at(whole, moves.outcomes, prob * masses)  # OUT_OF_VOCABULARY = −1 is the last place
        return whole

    def _sequences(self, goal: int | None, text: bytes) -> Iterator[tuple[float, Moves, NDArray[np.float64]]]:
        """The draft sequences inside the trie that may still give `goal` (None: any token), by length: their
        probability, what a further token leads to, and the probabilities of its deciding moves."""
        order = self._crossing.order
        level: list[Open] = [(1.0, self._start, self._crossing.target.root)]
        while level:
            further: list[Open] = []
            rows = self._tree.rows([suffix for _, suffix, _ in level], text)
            for (prob, suffix, node), row in zip(level, rows, strict=True):
                moves = self._crossing.moves(node, goal)
                yield prob, moves, row.sums[moves.ends] - row.sums[moves.starts]
                for position, place in moves.onward:
                    mass = prob * float(row.sums[position + 1] - row.sums[position])
                    if mass > 0:
                        further.append((mass, (*suffix, int(order[position])), place))
            level = further

    def _read_ahead(self, goal: int) -> bool:
        """Where every draft token is one byte there is one way to a token: read in one pass what is missing of it.
        False where what is known already rules the token out."""
        trie, draft = self._crossing.target, self._crossing.draft
        written = trie.strings[goal]
        steps = [draft.child(draft.root, byte) for byte in written]
        if any(step.start == step.end for step in steps):
            return False
        way = self._start + tuple(draft.token_ids[step.start] for step in steps)
        if not trie.goes_on(trie.walk(trie.root, written)[0]):
            way = way[:-1]
        for length in range(len(self._start), len(way) + 1):
            row = self._tree.known(way[:length])
            if row is None:
                self._tree.read_along(way, length, written)
                break
            step = steps[length - len(self._start) :][:1]
            if step and row.sums[step[0].start] == row.sums[step[0].end]:
                return False
        return True


class StringProbs(DraftProbs):
    """q_i = ψ behind the i-th context; computed only for the tokens that are met. Rows may sum to less than 1."""

    residual_is_sampled = True

    def __init__(self, token_ids: list[int], psis: list[Psi]) -> None:
        self._token_ids = token_ids
        self._psis = psis

    def token_probs(self, token_ids: torch.Tensor) -> torch.Tensor:
        values = [psi.of(token) for psi, token in zip(self._psis, token_ids.tolist(), strict=True)]
        return torch.tensor(values, device=token_ids.device)

    def overlap(self, target_probs: torch.Tensor) -> None:
        """Not known: it would need ψ of the whole vocabulary."""
        return None

    def sample_residual(self, index: int, target_probs: torch.Tensor, generator: torch.Generator) -> int:
        """A draw from norm(max(p − ψ, 0)) by rejection: p stands in where ψ is not yet known.

        A token drawn there is kept with probability max(p − ψ, 0) / p; if it is not, its weight is set to its residual.
        Whatever was refused before, the token that is kept follows the residual; no token is refused twice, so that
        this ends.
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
        return draw(target_probs, generator)  # rounding left nothing, as in sampling.residual
