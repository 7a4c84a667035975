"""Trees that grow where the draft model is confident (EAGLE-2, arXiv:2406.16858, §4)."""

import torch

from specbench.decoding.drafters import Drafter, padded_lengths
from specbench.decoding.proposal import Draws, Proposal, TreeProposal, Verification
from specbench.models.meters import PassLog
from specbench.models.scoring import Output, ScoringModel


class Candidates:
    """The tokens that may be proposed, level by level, each with the log-probability of its path as its score.

    Candidate i follows candidate `parents[i]`; −1 is the end of the sequence. No candidate has a larger score than its
    parent, so the best candidates form a tree.
    """

    def __init__(self, num_nodes: int, top_k: int, ends: frozenset[int]) -> None:
        self.num_nodes, self.top_k, self.ends = num_nodes, top_k, ends
        self.tokens: list[int] = []
        self.parents: list[int] = []
        self.scores: list[float] = []
        self.num_levels = 0
        self._last_level = range(0)

    def add_level(self, parents: list[int], logits: torch.Tensor) -> None:
        """Adds the `top_k` most probable tokens after each of `parents`, given logits [num_parents, vocab]."""
        best = torch.log_softmax(logits.float(), dim=-1).topk(min(self.top_k, logits.shape[-1]), dim=-1)
        above = [0.0 if parent < 0 else self.scores[parent] for parent in parents]
        scores = best.values + torch.tensor(above, device=logits.device)[:, None]
        first = len(self.tokens)
        for parent, tokens, found in zip(parents, best.indices.tolist(), scores.tolist(), strict=True):
            possible = [(token, score) for token, score in zip(tokens, found, strict=True) if score > -torch.inf]
            self.tokens += [token for token, _ in possible]
            self.scores += [score for _, score in possible]
            self.parents += [parent] * len(possible)
        self._last_level = range(first, len(self.tokens))
        self.num_levels += 1

    def frontier(self) -> list[int]:
        """Returns the candidates to expand next: the `top_k` best of the last level, without end tokens. The list is
        empty if no child of theirs can be among the best candidates."""
        if not self.num_levels:
            return [-1]
        continued = [candidate for candidate in self._last_level if self.tokens[candidate] not in self.ends]
        best = self._best(continued, self.top_k)
        if not best or len(self.scores) < self.num_nodes:
            return best
        last = self.scores[self._best(range(len(self.scores)), self.num_nodes)[-1]]
        return best if self.scores[best[0]] > last else []

    def best_candidates(self) -> list[int]:
        """Returns the `num_nodes` candidates with the largest scores, in the order of their levels."""
        return sorted(self._best(range(len(self.scores)), self.num_nodes))

    def _best(self, among: "range | list[int]", number: int) -> list[int]:
        # The sort is stable: of equal scores, a parent comes before its child.
        return sorted(among, key=self.scores.__getitem__, reverse=True)[:number]


class DynamicTreeDrafter(Drafter):
    """Proposes the `num_nodes` tokens whose paths the draft model finds most probable, at temperature 1.

    One pass per level expands the `top_k` best tokens of the level before, each into its `top_k` most probable
    children. Every proposal is a fixed tree, whatever the temperature: nothing is drawn. A drafted EOS has no children.
    """

    model: ScoringModel
    draws: Draws | None = "fixed"

    def __init__(self, model: ScoringModel, num_nodes: int, top_k: int) -> None:
        self.model = model
        self.num_nodes = num_nodes
        self.top_k = top_k
        self.passes: PassLog | None = model.passes
        self._has_read = False
        self._places: dict[int, int] = {}  # node of the proposal → its place among the nodes that the model has read

    def tree_lengths(self, num_draft_tokens: int) -> tuple[int, ...]:
        return padded_lengths(self.num_nodes)

    def prefill(self, prompt_ids: list[int]) -> None:
        self._has_read = False
        self.model.reset()
        self.model.score(prompt_ids, 1)

    def propose(self, ids: list[int], num_draft_tokens: int, generator: torch.Generator) -> Proposal:
        candidates = Candidates(self.num_nodes, self.top_k, self.model.eos_token_ids)
        read: dict[int, int] = {-1: -1}  # candidate → its place among the candidates that the model has read
        while candidates.num_levels < num_draft_tokens and (frontier := candidates.frontier()):
            candidates.add_level(frontier, self._logits_after(ids, candidates, frontier, read))
        best = candidates.best_candidates()
        nodes = {-1: -1, **{candidate: node for node, candidate in enumerate(best)}}
        self._places = {node: read[candidate] for candidate, node in nodes.items() if candidate in read and node >= 0}
        self._has_read = len(read) > 1
        if not best:
            return Proposal()
        return TreeProposal(
            [candidates.tokens[candidate] for candidate in best],
            [nodes[candidates.parents[candidate]] for candidate in best],
        )

    def _logits_after(
        self, ids: list[int], candidates: Candidates, frontier: list[int], read: dict[int, int]
    ) -> torch.Tensor:
        """Reads the candidates `frontier` and stores their places in `read`. Returns logits [num_frontier, vocab]."""
        if frontier == [-1]:
            return self.model.score(ids, 1).logits
        read.update({candidate: len(read) - 1 + place for place, candidate in enumerate(frontier)})
        seen = [candidate for candidate in read if candidate >= 0]
        tokens = [candidates.tokens[candidate] for candidate in seen]
        parents = [read[candidates.parents[candidate]] for candidate in seen]
        return self.model.score_tree(ids, tokens, parents, len(frontier)).logits

    def observe(self, proposal: Proposal, output: Output, verification: Verification) -> None:
        if self._has_read:
            self.model.keep_path([self._places[node] for node in verification.path if node in self._places])
            self._has_read = False
