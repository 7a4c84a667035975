"""The drafter that is a small language model and proposes trees of its tokens, one pass per level."""

from typing import Annotated, Any, Literal, cast

import torch
from pydantic import Field

from specbench.core.errors import ConfigError
from specbench.core.registry import DRAFTERS
from specbench.decoding.drafters import Drafter
from specbench.decoding.drafters.model import CHECKPOINT
from specbench.decoding.proposal import Draws, Proposal, TreeProposal, Verification
from specbench.decoding.sampling import Distributions, Sampling
from specbench.decoding.tree_shape import (
    DEPTH,
    NUM_NODES,
    RANK_CHANCES,
    Chance,
    TreeShape,
    best_shape,
    check_chances,
    regular_shape,
)
from specbench.models.causal_lm import ModelPair
from specbench.models.meters import PassLog
from specbench.models.scoring import Output, ScoringModel
from specbench.specs.components import DraftTemperature


class ModelTreeDrafter(Drafter):
    """A model that drafts trees of a shape; a drafted EOS has no children.

    Fixed children are the most probable tokens. A proposal has fewer levels than the shape if fewer may be drafted.
    """

    model: ScoringModel
    sampling: Sampling
    draws: Draws

    def __init__(
        self, model: ScoringModel, sampling: Sampling, shape: TreeShape, draws: Draws | Literal["auto"]
    ) -> None:
        self.model = model
        self.sampling = sampling
        self.draws = ("fixed" if sampling.greedy else "without_replacement") if draws == "auto" else draws
        self.shape = shape
        self.passes: PassLog = model.passes
        self._num_read = 0  # nodes of the last proposal that the draft model has read

    def tree_lengths(self, num_draft_tokens: int) -> tuple[int, ...]:
        return (1 + sum(self._level_sizes(num_draft_tokens)),)

    def level_lengths(self, num_draft_tokens: int) -> tuple[int, ...]:
        return tuple(sorted(set(self._level_sizes(num_draft_tokens)[:-1])))

    def _level_sizes(self, num_draft_tokens: int) -> list[int]:
        """Returns the number of nodes of each level that is drafted."""
        return [sum(len(children) for _, children in level) for level in self.shape.levels[:num_draft_tokens]]

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
        placed = {-1: -1}  # node of the shape → node of the tree
        ends = self.model.eos_token_ids
        for level in self.shape.levels[:num_draft_tokens]:
            present = [(placed[node], children) for node, children in level if node in placed]
            frontier = [(node, children) for node, children in present if node < 0 or tokens[node] not in ends]
            if not frontier:
                break
            rows.append(self._read(ids, tokens, parents, [node for node, _ in frontier]))
            for (node, children), drawn in zip(
                frontier, self._draw_children(rows[-1], frontier, generator), strict=True
            ):
                expanded.append(node)
                for child, token in zip(children, drawn, strict=False):
                    placed[child] = len(tokens)
                    tokens.append(token)
                    parents.append(node)
        if not tokens:
            return Proposal()
        return TreeProposal(tokens, parents, self.draws, Distributions.concat(rows), expanded)

    def _read(self, ids: list[int], tokens: list[int], parents: list[int], frontier: list[int]) -> Distributions:
        """Returns the distributions after the nodes `frontier`, which the draft model has not read yet."""
        if not tokens:
            return Distributions(self.model.score(ids, 1).logits, self.sampling)
        num_new = len(tokens) - self._num_read
        logits = self.model.score_tree(ids, tokens, parents, num_new).logits
        kept = torch.tensor([node - self._num_read for node in frontier], device=logits.device)
        self._num_read = len(tokens)
        return Distributions(logits.index_select(0, kept), self.sampling)

    def _draw_children(
        self, rows: Distributions, frontier: list[tuple[int, list[int]]], generator: torch.Generator
    ) -> list[list[int]]:
        """Returns the children's tokens after each row, in the order in which they were drawn."""
        start = self.passes.clock.mark()
        found = [
            draw_siblings(rows, row, len(children), self.draws, generator) for row, (_, children) in enumerate(frontier)
        ]
        self.passes.add_choice(start, self.passes.clock.mark())
        return found

    def observe(self, proposal: Proposal, output: Output, verification: Verification) -> None:
        if self._num_read:
            self.model.keep_path([node for node in verification.path if node < self._num_read])
            self._num_read = 0


def draw_siblings(
    rows: Distributions, row: int, num_children: int, draws: Draws, generator: torch.Generator
) -> list[int]:
    """Returns up to `num_children` tokens from one row, drawn in the way `draws`; fewer if fewer have a probability."""
    if draws == "fixed":
        logits = rows.logits[row]
        return cast(list[int], logits.topk(min(num_children, len(logits))).indices.tolist())
    probs = rows.probs[row]
    if draws == "independent":
        return cast(list[int], torch.multinomial(probs, num_children, replacement=True, generator=generator).tolist())
    top: list[int] = []
    if draws == "top_and_one":
        top = probs.topk(min(num_children - 1, int((probs > 0).sum()))).indices.tolist()
        probs = probs.index_fill(0, torch.tensor(top, dtype=torch.long, device=probs.device), 0.0)
        num_children = 1
    num_drawn = min(num_children, int((probs > 0).sum()))
    drawn: list[int] = torch.multinomial(probs, num_drawn, generator=generator).tolist() if num_drawn else []
    return top + drawn


Width = Annotated[int, Field(ge=1, le=64)]
WIDTHS = "The number of children of each node, by depth: [4, 2, 1] is a tree of 4 + 8 + 8 nodes."
DRAWS = (
    "How children are drawn: independent (tokens may repeat), without_replacement, top_and_one (the most probable "
    "tokens and one drawn from the others), fixed (the most probable tokens); auto: fixed if the drafter is greedy, "
    "else without_replacement."
)


Widths = Annotated[list[Width], Field(min_length=1, max_length=16, description=WIDTHS)] | None
RankChances = Annotated[list[Chance], Field(min_length=1, max_length=64, description=RANK_CHANCES)] | None
Depth = Annotated[int, Field(ge=1, le=64, description=DEPTH)] | None
DrawsOption = Annotated[
    Literal["auto", "fixed", "independent", "without_replacement", "top_and_one"], Field(description=DRAWS)
]


def shape_from_options(
    *, widths: list[int] | None = None, num_nodes: int | None = None, rank_chances: list[float] | None = None,
    depth: int | None = None, **others: Any,
) -> TreeShape:  # fmt: skip
    """Returns the tree shape that the options of a drafter give. Raises ConfigError if they give none or two."""
    best = {"num_nodes": num_nodes, "rank_chances": rank_chances, "depth": depth}
    given = [name for name, value in best.items() if value is not None]
    if widths is not None and not given:
        return regular_shape(widths)
    if widths is not None or len(given) < len(best):
        named = ", ".join([*(["widths"] if widths is not None else []), *given]) or "none of them"
        raise ConfigError(
            f"drafter.widths: give either widths, or all three of num_nodes, rank_chances and depth; given: {named}"
        )
    assert num_nodes is not None and rank_chances is not None and depth is not None
    return best_shape(check_chances(rank_chances), num_nodes, depth)


def possible_draws(*, draws: str = "auto", temperature: float | None = None, **others: Any) -> set[str]:
    """Returns the possible ways of drawing children under these options; two if the run's temperature decides."""
    if draws != "auto":
        return {draws}
    by_temperature = {None: {"fixed", "without_replacement"}, 0.0: {"fixed"}}
    return by_temperature.get(temperature, {"without_replacement"})


@DRAFTERS.register("model_tree", needs_model=True, tree_shape=shape_from_options, draws=possible_draws)
def model_tree_drafter(
    models: ModelPair,
    sampling: Sampling,
    *,
    widths: Widths = None,
    num_nodes: Annotated[int, Field(ge=1, le=1024, description=NUM_NODES)] | None = None,
    rank_chances: RankChances = None,
    depth: Depth = None,
    draws: DrawsOption = "auto",
    temperature: DraftTemperature = None,
    checkpoint: Annotated[str | None, Field(min_length=1, description=CHECKPOINT)] = None,
) -> ModelTreeDrafter:
    """A small language model drafts a tree, one pass per level, with the run's sampling parameters or its own
    temperature (arXiv:2305.09781)."""
    del checkpoint  # already loaded as models.drafter
    assert models.drafter is not None
    shape = shape_from_options(widths=widths, num_nodes=num_nodes, rank_chances=rank_chances, depth=depth)
    return ModelTreeDrafter(models.drafter, sampling.at(temperature), shape, draws)
