"""EAGLE: a head that continues the target's hidden states drafts a chain, a fixed tree or a tree that grows."""

from collections.abc import Callable
from typing import Annotated, Any, Literal

import torch
from pydantic import Field

from specbench.core.errors import ConfigError
from specbench.core.registry import DRAFTERS
from specbench.decoding.drafters import Drafter
from specbench.decoding.drafters.dynamic_tree import DynamicTreeDrafter
from specbench.decoding.drafters.model import ModelDrafter
from specbench.decoding.drafters.model_tree import (
    Depth,
    DrawsOption,
    ModelTreeDrafter,
    RankChances,
    Widths,
    possible_draws,
    shape_from_options,
)
from specbench.decoding.proposal import Proposal, Verification
from specbench.decoding.sampling import Sampling
from specbench.decoding.tree_shape import NUM_NODES, TreeShape
from specbench.models.causal_lm import ModelPair
from specbench.models.heads.checkpoints import HeadRevision, published_head, read_checkpoint
from specbench.models.heads.eagle import EagleModel, load_mtp
from specbench.models.heads.eagle_checkpoint import load_eagle
from specbench.models.scoring import Output
from specbench.specs.components import DraftTemperature


class EagleDrafter(Drafter):
    """A drafter with an EAGLE head as its model. The head reads the tokens that the target has read."""

    def __init__(self, model: EagleModel, inner: Drafter) -> None:
        self.model: EagleModel = model
        self.inner = inner
        self.hidden_layers = model.head.hidden_layers
        self.passes = model.passes
        self.sampling = inner.sampling
        self.draws = inner.draws
        self._prompt_ids: list[int] | None = None  # the prompt, until the target has read it

    def tree_lengths(self, num_draft_tokens: int) -> tuple[int, ...]:
        return self.inner.tree_lengths(num_draft_tokens)

    def prefill(self, prompt_ids: list[int]) -> None:
        self._prompt_ids = prompt_ids
        self.model.reset()

    def propose(self, ids: list[int], num_draft_tokens: int, generator: torch.Generator) -> Proposal:
        return self.inner.propose(ids, num_draft_tokens, generator)

    def observe(self, proposal: Proposal, output: Output, verification: Verification) -> None:
        num_states = len(output.hidden[0])
        if self._prompt_ids is not None:
            self.model.read_target(output.hidden, range(num_states))
            self.model.score([*self._prompt_ids, verification.next_token], 1)
            self._prompt_ids = None
            return
        root = num_states - 1 - len(proposal.scored_ids)
        self.model.read_target(output.hidden, [root, *(root + 1 + node for node in verification.path)])
        self.inner.observe(proposal, output, verification)


PATH = "Folder or hub id of the head; null: the one published for the target."
HEAD = "The kind of the head: eagle (EAGLE-1 and EAGLE-2) or eagle3."
NEEDS = "an {head} head of the target (a published one is found by the target's name; `specbench train {head}`)"
TOP_K = "The number of nodes that are expanded at each level, and of children of each; the tree grows as it is drafted."
Head = Annotated[Literal["eagle", "eagle3"], Field(description=HEAD)]
HeadPath = Annotated[str | None, Field(min_length=1, description=PATH)]


def eagle_drafter(
    models: ModelPair, head: Literal["eagle", "eagle3"], path: str | None, revision: str | None,
    make: Callable[[EagleModel], Drafter],
) -> EagleDrafter:  # fmt: skip
    """Returns the drafter of a head. Raises ConfigError for a missing head and one that does not fit the target."""
    target = models.target
    checkpoint = read_checkpoint(path or published_head(head, target.name), revision)
    checkpoint.expect(head)
    model = EagleModel(load_eagle(checkpoint, target), target.vocab_size, target.eos_token_ids)
    made = EagleDrafter(model, make(model))
    made.name, made.revision = checkpoint.name, checkpoint.revision
    return made


@DRAFTERS.register("eagle", provides={"probs", "raw_probs"}, needs=NEEDS)
def eagle_chain_drafter(
    models: ModelPair, sampling: Sampling, *, head: Head = "eagle3", path: HeadPath = None,
    revision: HeadRevision = None, temperature: DraftTemperature = None,
) -> EagleDrafter:  # fmt: skip
    """An EAGLE head drafts a chain, with the run's sampling parameters or its own temperature."""
    return eagle_drafter(models, head, path, revision, lambda model: ModelDrafter(model, sampling.at(temperature)))


MTP_NEEDS = "a layer for multi-token prediction in the target's checkpoint (one that transformers loads)"


@DRAFTERS.register("mtp", provides={"probs", "raw_probs"}, needs=MTP_NEEDS, embedded=False)
def mtp_drafter(models: ModelPair, sampling: Sampling, *, temperature: DraftTemperature = None) -> EagleDrafter:
    """The target's own layer for multi-token prediction drafts a chain, with the run's sampling parameters or its own
    temperature. It drafts every token after the first from its own output."""
    target = models.target
    model = EagleModel(load_mtp(target), target.vocab_size, target.eos_token_ids)
    made = EagleDrafter(model, ModelDrafter(model, sampling.at(temperature)))
    made.name, made.revision = target.name, target.revision
    return made


def eagle_shape(*, top_k: int | None = None, num_nodes: int | None = None, **options: Any) -> TreeShape | int:
    """Returns the tree shape that the options give, or the size of a tree that grows as it is drafted, whose depth has
    no other limit. Raises ConfigError for options that do not fit."""
    if top_k is None:
        return shape_from_options(num_nodes=num_nodes, **options)
    fixed = ("widths", "rank_chances", "depth", "draws", "temperature")
    others = [name for name in fixed if options.get(name) not in (None, "auto")]
    if num_nodes is None or others:
        raise ConfigError(
            "drafter.top_k: a growing tree, in which nothing is drawn, has the options top_k and num_nodes: "
            f"{'leave out ' + ', '.join(others) if others else 'give num_nodes'}"
        )
    return num_nodes


def tree_draws(*, top_k: int | None = None, **options: Any) -> set[str]:
    """Returns the possible ways of drawing children under these options; a growing tree has fixed children."""
    return {"fixed"} if top_k is not None else possible_draws(**options)


@DRAFTERS.register("eagle_tree", needs=NEEDS, tree_shape=eagle_shape, draws=tree_draws)
def eagle_tree_drafter(
    models: ModelPair,
    sampling: Sampling,
    *,
    head: Head = "eagle3",
    path: HeadPath = None,
    revision: HeadRevision = None,
    top_k: Annotated[int, Field(ge=1, le=64, description=TOP_K)] | None = None,
    num_nodes: Annotated[int, Field(ge=1, le=1024, description=NUM_NODES)] | None = None,
    widths: Widths = None,
    rank_chances: RankChances = None,
    depth: Depth = None,
    draws: DrawsOption = "auto",
    temperature: DraftTemperature = None,
) -> EagleDrafter:
    """An EAGLE head drafts a tree. The tree has a fixed shape, as in EAGLE-1, or grows where the head is confident, as
    in EAGLE-2 and EAGLE-3 (`top_k`)."""
    shape = eagle_shape(
        top_k=top_k, num_nodes=num_nodes, widths=widths, rank_chances=rank_chances, depth=depth, draws=draws,
        temperature=temperature,
    )  # fmt: skip
    own_sampling = sampling.at(temperature)

    def inner(model: EagleModel) -> Drafter:
        if isinstance(shape, TreeShape):
            return ModelTreeDrafter(model, own_sampling, shape, draws)
        assert top_k is not None
        return DynamicTreeDrafter(model, shape, top_k)

    return eagle_drafter(models, head, path, revision, inner)
