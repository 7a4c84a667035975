"""Drafters with heads that continue the target's hidden states: EAGLE drafts a chain, a fixed tree or a growing tree;
Medusa drafts a tree without a draft pass."""

import warnings
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Literal, get_args
from weakref import WeakKeyDictionary

import torch
from pydantic import Field

from specbench.core.errors import ConfigError
from specbench.core.registry import DRAFTERS
from specbench.decoding.draft_length import DraftLength
from specbench.decoding.drafters import Drafter, ModelDrafter
from specbench.decoding.drafters.model_tree import (
    Depth,
    DrawsOption,
    DynamicTreeDrafter,
    ModelTreeDrafter,
    Widths,
    possible_draws,
    shape_from_options,
)
from specbench.decoding.loop import StopRules, decode
from specbench.decoding.proposal import Draws, Proposal, TreeProposal, Verification
from specbench.decoding.sampling import Sampling
from specbench.decoding.tree_shape import (
    Chance,
    NumNodes,
    RankChances,
    TreeShape,
    best_shape_by_level,
    check_chances,
    fill_shape,
)
from specbench.decoding.verification import Rejection
from specbench.models.causal_lm import CausalLM, ModelPair
from specbench.models.heads import HEADS, published_head
from specbench.models.heads.checkpoints import HeadCheckpoint, HeadRevision, medusa_heads_of_target, read_checkpoint
from specbench.models.heads.eagle import EagleModel, MtpHead, load_mtp
from specbench.models.heads.eagle_checkpoint import (
    NORM_OUTPUT,
    NormOutput,
    decoder_settings,
    load_eagle,
    norm_readings,
)
from specbench.models.heads.medusa import load_medusa
from specbench.models.heads.mtp import MtpLayerHead, load_mtp_layer
from specbench.models.meters import Clock, PassLog
from specbench.models.scoring import Output
from specbench.specs.components import DraftTemperature


class EagleDrafter(Drafter):
    """A drafter with an EAGLE head as its model. The head reads the tokens that the target has read."""

    model: EagleModel

    def __init__(self, model: EagleModel, inner: Drafter) -> None:
        super().__init__(model, inner.sampling)
        self.inner = inner
        self.hidden_layers = model.head.hidden_layers
        self.draws = inner.draws
        self._prompt_ids: list[int] | None = None  # the prompt, until the target has read it

    def use_length(self, length: DraftLength) -> None:
        super().use_length(length)
        self.inner.use_length(length)

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
BEYOND = "pause: the head drafts nothing beyond the max_position_embeddings of its config.json; null: it goes on."
BeyondHead = Annotated[Literal["pause"] | None, Field(description=BEYOND)]
Head = Annotated[Literal["eagle", "eagle3"], Field(description=HEAD)]
HeadPath = Annotated[str | None, Field(min_length=1, description=PATH)]


NORM_OUTPUT_MEANING = (
    "What norm_output in the config.json of a SpecForge head refers to. logits (heads until September 2026): the norm "
    "before the output layer; feedback (since then): the norm of the state that the next draft token reads; null: the "
    "acceptance of both readings on a few short texts decides."
)
NormOutputOption = Annotated[NormOutput | None, Field(description=NORM_OUTPUT_MEANING)]


def eagle_drafter(
    models: ModelPair, head: Literal["eagle", "eagle3"], path: str | None, revision: str | None,
    norm_output: NormOutput | None, make: Callable[[EagleModel], Drafter], beyond_context: str | None,
) -> EagleDrafter:  # fmt: skip
    """Returns the drafter of a head. Raises ConfigError for a missing head and one that does not fit the target."""
    target = models.target
    checkpoint = read_checkpoint(path or published_head(head, target.name), revision)
    checkpoint.expect(head)
    reading = norm_output_reading(checkpoint, target, norm_output)
    model = EagleModel(load_eagle(checkpoint, target, reading), target.vocab_size, target.eos_token_ids)
    drafter = EagleDrafter(model, make(model))
    drafter.name, drafter.revision = checkpoint.name, checkpoint.revision
    if reading == "feedback":  # a condition of the row and of a resume; what earlier versions measured is the other one
        drafter.revision = f"{checkpoint.revision}, norm_output=feedback"
    drafter.trained_length = decoder_settings(checkpoint, "eagle3").get("max_position_embeddings")
    if beyond_context == "pause":
        drafter.pauses_at = drafter.trained_length
        if drafter.pauses_at is None:
            raise checkpoint.problem("config.json has no max_position_embeddings: leave drafter.beyond_context out")
    return drafter


NORM_READINGS: tuple[NormOutput, ...] = get_args(NormOutput)
TRIAL_TEXTS = (
    "The quick brown fox jumps over",
    "Question: What is the capital of France?\nAnswer:",
    "Once upon a time, in a small village by the sea, there lived",
    "def add(a, b):\n    return",
)
TRIAL_TOKENS, TRIAL_DRAFTS = 24, 5
_READINGS: WeakKeyDictionary[CausalLM, dict[tuple[str, str | None], NormOutput]] = WeakKeyDictionary()


def norm_output_reading(checkpoint: HeadCheckpoint, target: CausalLM, given: NormOutput | None) -> NormOutput:
    """Returns the meaning of `norm_output` in a head's configuration: the given one, or, for a head with two readings,
    the one with which the target accepts more, which a warning tells. Raises ConfigError if one is given for a head
    with a single reading."""
    if len(norm_readings(checkpoint)) == 1:
        if given is not None:
            raise ConfigError(
                f"drafter.norm_output = '{given}': has no effect on '{checkpoint.name}', which is not a SpecForge head "
                "with norm_output in its config.json: leave it out"
            )
        return "logits"
    if given is not None:
        return given
    known = _READINGS.setdefault(target, {})
    key = checkpoint.name, checkpoint.revision
    if key not in known:
        # The mean number of accepted draft tokens in a step, over greedy answers to the trial texts. The target is read
        # eagerly, and its own sequence is left alone.
        own = CausalLM(target.model, target.tokenizer, target.name, target.revision)
        greedy = Sampling(0.0)
        stop = StopRules(TRIAL_TOKENS, target.eos_token_ids, context_limit=target.context_limit)
        accepted = {}
        for reading in NORM_READINGS:
            model = EagleModel(load_eagle(checkpoint, target, reading), target.vocab_size, target.eos_token_ids)
            drafter = EagleDrafter(model, ModelDrafter(model, greedy))
            generator = torch.Generator(target.device)
            steps = [
                step
                for prompt in (own.encode_prompt(text, chat=False) for text in TRIAL_TEXTS)
                for step in decode(
                    own, drafter, Rejection(), prompt, num_draft_tokens=TRIAL_DRAFTS, sampling=greedy, stop=stop,
                    generator=generator,
                ).steps
            ]  # fmt: skip
            accepted[reading] = sum(step.num_accepted for step in steps) / max(1, len(steps))
        known[key] = max(NORM_READINGS, key=accepted.__getitem__)  # the first of two equal ones
        (other,) = set(NORM_READINGS) - {known[key]}
        value = str(bool(checkpoint.config[NORM_OUTPUT])).lower()
        warnings.warn(
            f"drafter.path = '{checkpoint.name}': norm_output = {value} has two meanings: read as '{known[key]}', "
            f"since {accepted[known[key]]:.2f} draft tokens per step are accepted on {len(TRIAL_TEXTS)} short texts, "
            f"and {accepted[other]:.2f} as '{other}': --set drafter.norm_output={known[key]} skips this trial",
            UserWarning,
            stacklevel=1,
        )
    return known[key]


Drawing = tuple[tuple[str, ...], str]
EAGLE_STATES = {
    "eagle": "the target's last hidden state", "eagle3": "joined of three of the target's hidden states",
}  # fmt: skip


def chain_drawing(network: str, first: str, passes: str = "a draft pass for each") -> Drawing:
    """Returns the drawing of a head's chain, or of a path of its tree. `first`: what the target's states are before the
    head reads them."""
    return (
        "text    The cat sat  on         the target has read these tokens, but not the last one",
        "state            h(sat)  s(1)  s(2)     h: the target's, s: the head's own",
        "token               on   the   mat",
        f"draft              the   mat    .       {passes}",
    ), (
        f"A pass of {network} reads the state before a token and the token, and drafts the next one. h is {first}; "
        "s(i) is the output of pass i. The first pass of a step also reads the states of all tokens that the target "
        "has read since the last step, whose keys and values stay; those of s(1), s(2), … are dropped then."
    )


def eagle_drawing(*, head: str = "eagle3", **_: object) -> Drawing:
    return chain_drawing("the head", EAGLE_STATES[head])


def eagle_tree_drawing(*, head: str = "eagle3", **_: object) -> Drawing:
    return chain_drawing("the head", EAGLE_STATES[head], "a path of the tree; a draft pass for each level")


@DRAFTERS.register("eagle", needs=NEEDS, drawing=eagle_drawing)
def eagle_chain_drafter(
    models: ModelPair, sampling: Sampling, *, head: Head = "eagle3", path: HeadPath = None,
    revision: HeadRevision = None, norm_output: NormOutputOption = None, temperature: DraftTemperature = None,
    beyond_context: BeyondHead = None,
) -> EagleDrafter:  # fmt: skip
    """An EAGLE head drafts a chain, with the run's sampling parameters or its own temperature."""

    return eagle_drafter(
        models, head, path, revision, norm_output, lambda model: ModelDrafter(model, sampling.at(temperature)),
        beyond_context,
    )  # fmt: skip


MTP_NEEDS = (
    "a layer for multi-token prediction in the target's checkpoint (one that transformers loads), or a file of one "
    "(`specbench train mtp`, and drafter.path)"
)
MTP_PATH = "Folder or hub id of the layer in the layout of speculators; null: the one in the target's own checkpoint."


def mtp_drawing(**_: object) -> Drawing:
    return chain_drawing("the layer", "the target's last hidden state, behind its norm")


@DRAFTERS.register("mtp", needs=MTP_NEEDS, embedded=False, drawing=mtp_drawing)
def mtp_drafter(
    models: ModelPair, sampling: Sampling, *,
    path: Annotated[str | None, Field(min_length=1, description=MTP_PATH)] = None, revision: HeadRevision = None,
    temperature: DraftTemperature = None, beyond_context: BeyondHead = None,
) -> EagleDrafter:  # fmt: skip
    """A layer for multi-token prediction drafts a chain, with the run's sampling parameters or its own temperature. It
    drafts every token after the first from its own output."""
    target = models.target
    if path is None:
        for key, value in (("revision", revision), ("beyond_context", beyond_context)):
            if value is not None:
                raise ConfigError(
                    f"drafter.{key} = '{value}': is of a file, and no drafter.path is given: leave it out"
                )
        head: MtpHead | MtpLayerHead = load_mtp(target)
        name, its_revision, trained_length = target.name, target.revision, None
    else:
        checkpoint = read_checkpoint(path, revision)
        checkpoint.expect("mtp")
        head, name, its_revision = load_mtp_layer(checkpoint, target), checkpoint.name, checkpoint.revision
        trained_length = decoder_settings(checkpoint, "mtp").get("max_position_embeddings")
        if beyond_context == "pause" and trained_length is None:
            raise checkpoint.problem("config.json has no max_position_embeddings: leave drafter.beyond_context out")
    model = EagleModel(head, target.vocab_size, target.eos_token_ids)
    drafter = EagleDrafter(model, ModelDrafter(model, sampling.at(temperature)))
    drafter.name, drafter.revision, drafter.trained_length = name, its_revision, trained_length
    if beyond_context == "pause":
        drafter.pauses_at = trained_length
    return drafter


def eagle_shape(*, top_k: int | None = None, num_nodes: int | None = None, **options: Any) -> TreeShape | int:
    """Returns the tree shape that the options give, or the size of a tree that grows as it is drafted, whose depth has
    no other limit. Raises ConfigError for options that do not fit."""
    if top_k is None:
        return shape_from_options(num_nodes=num_nodes, **options)
    fixed = ("widths", "rank_chances", "depth", "draws", "temperature")
    others = [name for name in fixed if options.get(name) not in (None, "auto")]
    if num_nodes is None or others:
        raise ConfigError(
            "drafter.top_k: a growing tree draws no samples and takes only the options top_k and num_nodes: "
            f"{'leave out ' + ', '.join(others) if others else 'give num_nodes'}"
        )
    return num_nodes


@DRAFTERS.register(
    "eagle_tree",
    needs=NEEDS,
    drawing=eagle_tree_drawing,
    tree_shape=eagle_shape,
    draws=lambda top_k=None, **options: {"fixed"} if top_k is not None else possible_draws(**options),
)
def eagle_tree_drafter(
    models: ModelPair,
    sampling: Sampling,
    *,
    head: Head = "eagle3",
    path: HeadPath = None,
    revision: HeadRevision = None,
    norm_output: NormOutputOption = None,
    top_k: Annotated[int, Field(ge=1, le=64, description=TOP_K)] | None = None,
    num_nodes: NumNodes | None = None,
    widths: Widths = None,
    rank_chances: RankChances | None = None,
    depth: Depth = None,
    draws: DrawsOption = "auto",
    temperature: DraftTemperature = None,
    beyond_context: BeyondHead = None,
) -> EagleDrafter:
    """An EAGLE head drafts a tree. The tree has a fixed shape, as in EAGLE-1, or grows where the head is confident, as
    in EAGLE-2 and EAGLE-3 (`top_k`)."""
    shape = eagle_shape(
        top_k=top_k, num_nodes=num_nodes, widths=widths, rank_chances=rank_chances, depth=depth, draws=draws,
        temperature=temperature,
    )  # fmt: skip

    def inner(model: EagleModel) -> Drafter:
        if isinstance(shape, TreeShape):
            return ModelTreeDrafter(model, sampling.at(temperature), shape, draws)
        assert top_k is not None
        return DynamicTreeDrafter(model, shape, top_k)

    return eagle_drafter(models, head, path, revision, norm_output, inner, beyond_context)


MEDUSA_PATH = (
    "Folder or hub id of the heads; null: those in the target's own checkpoint (Medusa-1.0), or those published for it."
)
MEDUSA_NEEDS = "Medusa heads of the target (published ones are found by the target's name; `specbench train medusa`)"
HEAD_CHANCES = (
    "The chance that the token of each rank is accepted, one list for each head; the tree takes the nodes with the "
    "largest product of chances. null: chances that give as many nodes per level as the published tree has."
)
# Chosen, not measured: with 63 nodes they give 10, 28, 23 and 2 nodes per level, as the published tree of the 7B model.
CHANCES = [
    [0.7, 0.27, 0.16, 0.11, 0.08, 0.062, 0.051, 0.042, 0.036, 0.031],
    [0.5, 0.17, 0.09, 0.056, 0.04, 0.03, 0.023, 0.019, 0.016, 0.013],
    [0.36, 0.14, 0.08, 0.056, 0.041, 0.032, 0.026, 0.022, 0.019, 0.016],
    [0.12, 0.08, 0.06, 0.05, 0.045, 0.04, 0.038, 0.035, 0.033, 0.031],
]


def medusa_shape(
    *, num_nodes: int = 63, head_chances: Sequence[Sequence[float]] | None = None, **_: Any
) -> TreeShape:  # fmt: skip
    return best_shape_by_level([check_chances(chances) for chances in head_chances or CHANCES], num_nodes)


@DRAFTERS.register("medusa", needs=MEDUSA_NEEDS, tree_shape=medusa_shape)
class MedusaDrafter(Drafter):
    """Heads on the target's last hidden state draft a tree of their most probable tokens, without a draft pass
    (arXiv:2401.10774)."""

    # The tree has a fixed shape: the tokens at depth d are the most probable ones of head d, whatever the tokens before
    # them. The pass of the heads is logged as a draft pass.

    draws: Draws | None = "fixed"

    def __init__(
        self,
        models: ModelPair,
        sampling: Sampling,
        *,
        path: Annotated[str | None, Field(min_length=1, description=MEDUSA_PATH)] = None,
        revision: HeadRevision = None,
        num_nodes: NumNodes = 63,
        head_chances: Annotated[
            list[Annotated[list[Chance], Field(min_length=1, max_length=64)]],
            Field(min_length=1, max_length=16, description=HEAD_CHANCES),
        ]
        | None = None,
    ) -> None:
        super().__init__()
        target = models.target
        if path is not None or target.name in HEADS["medusa"]:
            checkpoint = read_checkpoint(path or published_head("medusa", target.name), revision)
        elif revision is not None:
            raise ConfigError(f"drafter.revision = '{revision}': needs drafter.path with a hub id")
        else:
            checkpoint = medusa_heads_of_target(target) or read_checkpoint(published_head("medusa", target.name))
        self.name, self.revision = checkpoint.name, checkpoint.revision
        self.heads = load_medusa(checkpoint, target)
        num_heads = len(self.heads)
        self.shape = medusa_shape(num_nodes=num_nodes, head_chances=head_chances or CHANCES[:num_heads])
        if self.shape.depth > num_heads:
            raise ConfigError(
                f"drafter.head_chances: the tree has {self.shape.depth} levels, and '{self.name}' has {num_heads} heads"
                f": give {num_heads} lists of chances or fewer"
            )
        self.max_nodes, self._num_ranks = len(self.shape.parents), max(self.shape.ranks) + 1
        self.hidden_layers = (target.model.config.get_text_config().num_hidden_layers,)
        self.eos_token_ids = target.eos_token_ids
        self.passes: PassLog = PassLog(Clock(next(self.heads.parameters()).device))
        self._state = torch.empty(0)  # the hidden state of the last token that the target has read, [width]

    def propose(self, ids: list[int], num_draft_tokens: int, generator: torch.Generator) -> Proposal:
        start = self.passes.clock.mark()
        best: list[list[int]] = self.heads(self._state).topk(self._num_ranks, dim=-1).indices.tolist()  # by head
        self.passes.add(1, start, self.passes.clock.mark())
        tokens, parents = fill_shape(
            self.shape, num_draft_tokens, -1, self.eos_token_ids, lambda before, depth, rank: best[depth][rank]
        )
        return TreeProposal(tokens, parents) if tokens else Proposal()

    def observe(self, proposal: Proposal, output: Output, verification: Verification) -> None:
        (states,) = output.hidden
        last = verification.path[-1] + 1 if verification.path else 0
        self._state = states[len(states) - 1 - len(proposal.scored_ids) + last]
