"""ψ(t): the probability that the first target token of a drafted string is t (arXiv:2502.05202, §3.3).

The first target token of a string is the longest token that is a prefix of it. It is known as soon as the string leaves
the trie of the target's vocabulary. ψ(t) is therefore a finite, exact sum over the draft sequences that write t and
perhaps the beginning of a longer token, but no complete longer token. Different tokenizations of the same text are
different contexts of the drafter, so the sum has few terms only if the drafter's tokens are short.
"""

from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray

from specbench.decoding.bridges.string_tree import DraftTree, Suffix
from specbench.decoding.bridges.trie import Crossing, Moves, Node
from specbench.decoding.proposal import OUT_OF_VOCABULARY
from specbench.decoding.sampling import DraftProbs, draw

Open = tuple[float, Suffix, Node]  # a draft sequence inside the trie: its probability, tokens and node


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
        node, drawn, inside = trie.root, Suffix(), True
        while inside and trie.has_continuation(node):
            token = self._tree.row(self._start + drawn, trie.text(node)).draw(generator)
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
        return sum(float(prob * masses.sum()) for prob, _, masses in self._sequences(goal, text))

    def full(self) -> NDArray[np.float64]:
        """Returns ψ of every token of the target's trie, in its order, followed by ψ of OUT_OF_VOCABULARY.

        The shape is [num_strings + 1], the sum is 1.
        """
        whole = np.zeros(len(self._crossing.target.strings) + 1)
        for prob, moves, masses in self._sequences(None, b""):
            np.add.at(whole, moves.outcomes, prob * masses)  # OUT_OF_VOCABULARY = −1 is the last entry
        return whole

    def _sequences(self, goal: int | None, text: bytes) -> Iterator[tuple[float, Moves, NDArray[np.float64]]]:
        """Yields, by length, the draft sequences inside the trie that may still result in `goal` (None: any token).

        Each item holds the probability of the sequence, the moves of the next draft token, and the probabilities of the
        moves that determine the target token. `text`: the token that an error about the budget names (b"": all).
        """
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
            row = self._tree.known(way[:length])
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
