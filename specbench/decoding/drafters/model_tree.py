"""Drafters that propose trees of a draft model's tokens, one pass per level: trees of a given shape, and trees that
grow where the model is confident."""

from collections.abc import Iterable
from typing import Annotated, Any, Literal, cast

import torch
from pydantic import Field

from specbench.core.errors import ConfigError
from specbench.core.registry import DRAFTERS
from specbench.decoding.drafters import BeyondContext, Checkpoint, Drafter
from specbench.decoding.proposal import Draws, Proposal, TreeProposal, Verification
from specbench.decoding.sampling import Distributions, Sampling
from specbench.decoding.tree_shape import (
    DEPTH,
    NumNodes,
    RankChances,
    TreeShape,
    best_shape,
    check_chances,
    regular_shape,
)
from specbench.models.causal_lm import ModelPair
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
        super().__init__(model, sampling)
        self.draws = ("fixed" if sampling.greedy else "without_replacement") if draws == "auto" else draws
        self.shape = shape
        self._num_read = 0  # nodes of the last proposal that the draft model has read

    def tree_lengths(self, num_draft_tokens: int) -> tuple[int, ...]:
        return (1 + sum(self._level_sizes(num_draft_tokens)),)

    def level_lengths(self, num_draft_tokens: int) -> tuple[int, ...]:
        return tuple(self._level_sizes(num_draft_tokens)[:-1])

    def _level_sizes(self, num_draft_tokens: int) -> list[int]:
        return [sum(len(children) for _, children in level) for level in self.shape.levels[:num_draft_tokens]]

    def prefill(self, prompt_ids: list[int]) -> None:
        self._num_read = 0
        super().prefill(prompt_ids)

    def propose(self, ids: list[int], num_draft_tokens: int, generator: torch.Generator) -> Proposal:
        tokens: list[int] = []
        parents: list[int] = []
        expanded: list[int] = []
        rows: list[Distributions] = []
        self._num_read = 0
        placed = {-1: -1}  # node of the shape → node of the tree
        ends = self.model.eos_token_ids
        mark = self.model.passes.clock.mark
        for level in self.shape.levels[:num_draft_tokens]:
            present = [(placed[node], children) for node, children in level if node in placed]
            frontier = [(node, children) for node, children in present if node < 0 or tokens[node] not in ends]
            if not frontier:
                break
            rows.append(self._read(ids, tokens, parents, [node for node, _ in frontier]))
            start = mark()
            families = [
                draw_siblings(rows[-1], row, len(children), self.draws, generator)
                for row, (_, children) in enumerate(frontier)
            ]
            self.model.passes.add_choice(start, mark())
            for (node, children), drawn in zip(frontier, families, strict=True):
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
        rows = torch.tensor([node - self._num_read for node in frontier], device=logits.device)
        self._num_read = len(tokens)
        return Distributions(logits.index_select(0, rows), self.sampling)

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


class DynamicTreeDrafter(Drafter):
    """Proposes the `num_nodes` tokens whose paths the draft model finds most probable, at temperature 1 (EAGLE-2,
    arXiv:2406.16858, §4).

    One pass per level expands the `top_k` best tokens of the level before, each into its `top_k` most probable
    children. Every proposal is a fixed tree, whatever the temperature: nothing is drawn. A drafted EOS has no children.
    """

    model: ScoringModel
    draws: Draws | None = "fixed"

    def __init__(self, model: ScoringModel, num_nodes: int, top_k: int) -> None:
        super().__init__(model)
        self.max_nodes = self.num_nodes = num_nodes
        self.top_k = top_k
        self._has_read = False
        self._places: dict[int, int] = {}  # node of the proposal → its place among the nodes that the model has read

    def prefill(self, prompt_ids: list[int]) -> None:
        self._has_read = False
        super().prefill(prompt_ids)

    def propose(self, ids: list[int], num_draft_tokens: int, generator: torch.Generator) -> Proposal:
        # Candidate i follows candidate parents[i]; its score is the log-probability of its path. No score is above the
        # parent's, and sorting keeps the order of equal ones, so that the best candidates form a tree.
        tokens: list[int] = []
        parents: list[int] = []
        scores: list[float] = []
        read = {-1: -1}  # candidate → its place among the candidates that the model has read
        frontier = [-1]

        def best(among: Iterable[int], number: int) -> list[int]:
            return sorted(among, key=scores.__getitem__, reverse=True)[:number]

        for level in range(num_draft_tokens):
            # 1. One pass reads the frontier, and the most probable tokens after each of its candidates join them.
            if level:
                read.update({candidate: len(read) - 1 + place for place, candidate in enumerate(frontier)})
                seen = [candidate for candidate in read if candidate >= 0]
                tree = [tokens[candidate] for candidate in seen], [read[parents[candidate]] for candidate in seen]
                logits = self.model.score_tree(ids, *tree, len(frontier)).logits
            else:
                logits = self.model.score(ids, 1).logits
            best_children = torch.log_softmax(logits.float(), dim=-1).topk(min(self.top_k, logits.shape[-1]), dim=-1)
            above = torch.tensor([0.0 if parent < 0 else scores[parent] for parent in frontier], device=logits.device)
            num_before = len(tokens)
            paths = (best_children.values + above[:, None]).tolist()
            for parent, children, values in zip(frontier, best_children.indices.tolist(), paths, strict=True):
                for token, score in zip(children, values, strict=True):
                    if score > -torch.inf:
                        tokens.append(token)
                        parents.append(parent)
                        scores.append(score)
            # 2. The next frontier, unless no child of it can be among the best.
            ends = self.model.eos_token_ids
            frontier = best((new for new in range(num_before, len(tokens)) if tokens[new] not in ends), self.top_k)
            if not frontier or (
                len(scores) >= self.num_nodes
                and scores[frontier[0]] <= scores[best(range(len(scores)), self.num_nodes)[-1]]
            ):
                break
        # 3. The best candidates, in the order of their levels.
        chosen = sorted(best(range(len(scores)), self.num_nodes))
        nodes = {-1: -1, **{candidate: node for node, candidate in enumerate(chosen)}}
        self._places = {node: read[candidate] for candidate, node in nodes.items() if candidate in read and node >= 0}
        self._has_read = len(read) > 1
        if not chosen:
            return Proposal()
        return TreeProposal([tokens[new] for new in chosen], [nodes[parents[new]] for new in chosen])

    def observe(self, proposal: Proposal, output: Output, verification: Verification) -> None:
        if self._has_read:
            self.model.keep_path([self._places[node] for node in verification.path if node in self._places])
            self._has_read = False


Width = Annotated[int, Field(ge=1, le=64)]
WIDTHS = "The number of children of each node, by depth: [4, 2, 1] is a tree of 4 + 8 + 8 nodes."
DRAWS = (
    "How children are drawn: independent (tokens may repeat), without_replacement, top_and_one (the most probable "
    "tokens and one drawn from the others), fixed (the most probable tokens); auto: fixed if the drafter is greedy, "
    "else without_replacement."
)


Widths = Annotated[list[Width], Field(min_length=1, max_length=16, description=WIDTHS)] | None
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


@DRAFTERS.register("model_tree", tree_shape=shape_from_options, draws=possible_draws)
def model_tree_drafter(
    models: ModelPair,
    sampling: Sampling,
    *,
    widths: Widths = None,
    num_nodes: NumNodes | None = None,
    rank_chances: RankChances | None = None,
    depth: Depth = None,
    draws: DrawsOption = "auto",
    temperature: DraftTemperature = None,
    checkpoint: Checkpoint = None,
    beyond_context: BeyondContext = None,
) -> ModelTreeDrafter:
    """A small language model drafts a tree, one pass per level, with the run's sampling parameters or its own
    temperature (arXiv:2305.09781)."""
    del checkpoint, beyond_context  # already loaded as models.drafter; `build_decoder` sets pauses_at
    assert models.drafter is not None
    shape = shape_from_options(widths=widths, num_nodes=num_nodes, rank_chances=rank_chances, depth=depth)
    return ModelTreeDrafter(models.drafter, sampling.at(temperature), shape, draws)
