"""The drafter that is a small language model and proposes trees of its tokens, one pass per level."""

from typing import Annotated, Literal, cast

import torch
from pydantic import Field

from specbench.decoding.drafters import Drafter, drafter
from specbench.decoding.drafters.model import CHECKPOINT
from specbench.decoding.proposal import Draws, Proposal, TreeProposal, Verification
from specbench.decoding.sampling import Distributions, Sampling
from specbench.models.causal_lm import ModelPair
from specbench.models.scoring import Output, ScoringModel
from specbench.models.timing import PassLog
from specbench.specs.components import DraftTemperature


class ModelTreeDrafter(Drafter):
    """A model that drafts trees whose nodes at depth d have `widths[d]` children; a drafted EOS has none.

    Fixed children are the most probable tokens. A proposal has fewer levels than `widths` if fewer may be drafted.
    """

    model: ScoringModel
    sampling: Sampling
    draws: Draws

    def __init__(self, model: ScoringModel, sampling: Sampling, widths: list[int], draws: Draws) -> None:
        self.model = model
        self.sampling = sampling
        self.draws = draws
        self.widths = widths
        self.passes: PassLog | None = model.passes
        self._num_read = 0  # nodes of the last proposal that the draft model has read

    def prefill(self, prompt_ids: list[int]) -> None:
        self._num_read = 0
        self.model.reset()
        self.model.score(prompt_ids, 1)

    def propose(self, ids: list[int], num_draft_tokens: int, generator: torch.Generator) -> Proposal:
        tokens: list[int] = []
        parents: list[int] = []
        expanded: list[int] = []
        rows: list[Distributions] = []
        self._num_read = 0
        frontier = [-1]
        for width in self.widths[:num_draft_tokens]:
            rows.append(self._read(ids, tokens, parents, frontier))
            num_before = len(tokens)
            for node, drawn in zip(frontier, self._children(rows[-1], width, generator), strict=True):
                expanded.append(node)
                tokens += drawn
                parents += [node] * len(drawn)
            frontier = [node for node in range(num_before, len(tokens)) if tokens[node] not in self.model.eos_token_ids]
            if not frontier:
                break
        if not tokens:
            return Proposal()
        return TreeProposal(tokens, parents, self.draws, Distributions.concat(rows), expanded)

    def _read(self, ids: list[int], tokens: list[int], parents: list[int], frontier: list[int]) -> Distributions:
        """Returns the distributions after the nodes `frontier`, which are among those that are not read yet."""
        if not tokens:
            return Distributions(self.model.score(ids, 1).logits, self.sampling)
        num_new = len(tokens) - self._num_read
        logits = self.model.score_tree(ids, tokens, parents, num_new).logits
        kept = torch.tensor([node - self._num_read for node in frontier], device=logits.device)
        self._num_read = len(tokens)
        return Distributions(logits.index_select(0, kept), self.sampling)

    def _children(self, rows: Distributions, width: int, generator: torch.Generator) -> list[list[int]]:
        """Returns the children after each row, in the order in which they were drawn."""
        assert self.passes is not None
        start = self.passes.clock.mark()
        found = [self._drawn(rows, row, width, generator) for row in range(len(rows.logits))]
        self.passes.add_choice(start, self.passes.clock.mark())
        return found

    def _drawn(self, rows: Distributions, row: int, width: int, generator: torch.Generator) -> list[int]:
        if self.draws == "fixed":
            return cast(list[int], rows.logits[row].topk(min(width, rows.logits.shape[-1])).indices.tolist())
        probs = rows.probs[row]
        if self.draws == "independent":
            return cast(list[int], torch.multinomial(probs, width, replacement=True, generator=generator).tolist())
        top: list[int] = []
        if self.draws == "top_and_one":
            top = probs.topk(min(width - 1, int((probs > 0).sum()))).indices.tolist()
            probs = probs.index_fill(0, torch.tensor(top, dtype=torch.long, device=probs.device), 0.0)
            width = 1
        num_drawn = min(width, int((probs > 0).sum()))
        if num_drawn == 0:
            return top
        return top + cast(list[int], torch.multinomial(probs, num_drawn, generator=generator).tolist())

    def observe(self, proposal: Proposal, output: Output, verification: Verification) -> None:
        if self._num_read:
            self.model.keep_path([node for node in verification.path if node < self._num_read])
            self._num_read = 0


WIDTHS = "The number of children of each node, by depth: [4, 2, 1] is a tree of 4 + 8 + 8 nodes."
DRAWS = (
    "How children are drawn: independent (tokens may repeat), without_replacement, top_and_one (the most probable "
    "tokens and one drawn from the others), fixed (the most probable tokens); auto: fixed if the drafter is greedy, "
    "else without_replacement."
)


@drafter("model_tree", provides=frozenset(), needs_model=True, proposes_trees=True)
def model_tree_drafter(
    models: ModelPair,
    sampling: Sampling,
    *,
    widths: Annotated[list[Annotated[int, Field(ge=1, le=64)]], Field(min_length=1, max_length=16, description=WIDTHS)],
    draws: Annotated[
        Literal["auto", "fixed", "independent", "without_replacement", "top_and_one"], Field(description=DRAWS)
    ] = "auto",
    temperature: DraftTemperature = None,
    checkpoint: Annotated[str | None, Field(min_length=1, description=CHECKPOINT)] = None,
) -> ModelTreeDrafter:
    """A small language model drafts a tree, one pass per level, with the run's sampling parameters or its own
    temperature (arXiv:2305.09781)."""
    del checkpoint  # already loaded as models.drafter
    if temperature is not None:
        sampling = Sampling(temperature, sampling.top_k, sampling.top_p)
    assert models.drafter is not None
    resolved: Draws = ("fixed" if sampling.greedy else "without_replacement") if draws == "auto" else draws
    return ModelTreeDrafter(models.drafter, sampling, widths, resolved)
