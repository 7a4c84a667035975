"""Drafters for targets that have none: the target itself with fewer bits, with some of its sub-layers skipped, or with
a window of the text."""

from typing import Annotated, Literal

import torch
from pydantic import Field

from specbench.core.errors import ConfigError
from specbench.core.registry import DRAFTERS
from specbench.decoding.drafters import BeyondContext, Checkpoint, ModelDrafter
from specbench.decoding.proposal import Proposal
from specbench.decoding.sampling import Sampling
from specbench.models.causal_lm import CausalLM, ModelPair
from specbench.models.gguf.files import is_gguf
from specbench.models.own_drafts import OwnDraftModel, SkippingSequence, SubLayers, WindowSequence
from specbench.models.quantized_copy import FewBits, quantized_copy
from specbench.specs.components import DraftTemperature

QUANTIZE = "The bits of the copy's weights, by torch's kernels for a CPU; null: the drafter is the file in checkpoint."
GGUF = "The target's GGUF file, which drafts in place of a copy: FILE.gguf or org/repo:Q4_K_M."


Drawing = tuple[tuple[str, ...], str]


def quantized_drawing(*, quantize: str | None = None, checkpoint: str | None = None, **others: object) -> Drawing:
    what = "GGUF file" if quantize is None else f"{quantize} copy"
    return (f"{what:<10} x → a → b → c → d    a pass for each token", "target     x   a   b   y        one pass"), (
        "The drafter is the target with fewer bytes: it agrees often, and a pass takes about as long as reading its "
        "weights. It has keys and values of its own, and a prefill."
    )


@DRAFTERS.register("self_quantized", drawing=quantized_drawing)
def self_quantized_drafter(
    models: ModelPair,
    sampling: Sampling,
    *,
    quantize: Annotated[FewBits | None, Field(description=QUANTIZE)] = None,
    checkpoint: Annotated[Checkpoint, Field(description=GGUF)] = None,
    temperature: DraftTemperature = None,
    beyond_context: BeyondContext = None,
) -> ModelDrafter:
    """The target with weights of 8 or 4 bits drafts token by token: a copy of its linear layers, or its GGUF file."""
    del beyond_context  # `build_decoder` sets pauses_at
    if (quantize is None) == (checkpoint is None):
        given = "neither is" if quantize is None else "both are"
        raise ConfigError(
            f"drafter.quantize: needs either quantize or checkpoint, and {given} given: give int8 or int4, or null "
            "and drafter.checkpoint=FILE.gguf"
        )
    if quantize is None:
        assert checkpoint is not None and models.drafter is not None
        if not is_gguf(checkpoint):
            raise ConfigError(
                f"drafter.checkpoint = '{checkpoint}': is not a GGUF file: give the target's, or take method sd with "
                f"--drafter {checkpoint}"
            )
        return ModelDrafter(models.drafter, sampling.at(temperature))
    copied = quantized_copy(models.target, quantize)
    drafter = ModelDrafter(copied, sampling.at(temperature))
    drafter.name, drafter.revision = f"{copied.name}, {quantize}", copied.revision
    return drafter


class OwnDrafter(ModelDrafter):
    """The target drafts by passes that make less of it, and that begin with its own keys and values."""

    model: OwnDraftModel

    def __init__(self, model: OwnDraftModel, sampling: Sampling, target: CausalLM) -> None:
        super().__init__(model, sampling)
        self.name, self.revision = target.name, target.revision

    def prefill(self, prompt_ids: list[int]) -> None:
        """Reads nothing: the target reads the prompt."""
        self._last = self._is_end = None

    def propose(self, ids: list[int], num_draft_tokens: int, generator: torch.Generator) -> Proposal:
        if not num_draft_tokens:
            return Proposal()
        with self.model.drafting(ids):
            return super().propose(ids, num_draft_tokens, generator)


Numbers = Annotated[list[Annotated[int, Field(ge=0)]], Field(max_length=1024)] | None
ATTENTION = "The numbers of the layers, from 0, whose attention is skipped; null: those that `share` gives."
MLP = "The numbers of the layers whose feed-forward network is skipped; null: those that `share` gives."
SHARE = (
    "The share of sub-layers that are skipped, without those of the first and the last layer: evenly spaced layers, "
    "attention and feed-forward network."
)
CHOICE = (
    "fixed: the same sub-layers for all drafts; on_the_fly: before a draft another set may be tried on the last tokens "
    "of the answer, and replaces the old one if it finds more of them (SWIFT)."
)
MEMORY = (
    "How long a set that was found is kept. prompt: until the next prompt; run: for all prompts of a task's subset, so "
    "that a prompt's speed depends on the prompts before it."
)
TRIED_ON = "The number of the answer's last tokens on which a set is tried."
TRIALS = "Maximum number of trials; each is one pass."
ENOUGH = "Share of these tokens at which a set is good enough, so that no other is tried."
SEED = 0x5C1F7  # separates the draws of sets from the run's


DRAWN_LAYERS = 12


def skip_drawing(
    *,
    share: float,
    attention: list[int] | None = None,
    mlp: list[int] | None = None,
    choice: str = "fixed",
    **_: object,
) -> Drawing:
    most = max([DRAWN_LAYERS - 2, *(attention or ()), *(mlp or ())]) + 2
    skipped = chosen(most, share, attention, mlp)
    lines = [f"{'layer':<10}" + "".join(f"{number:>4}" for number in range(most))] if most <= DRAWN_LAYERS else []
    if lines:
        for name, numbers in skipped._asdict().items():
            lines.append(f"{name:<10}" + "".join(f"{'·' if number in numbers else '█':>4}" for number in range(most)))
    example = " of a target of 12 layers" if attention is None and mlp is None else ""
    found = " The set is replaced by another that finds more of the answer's last tokens." if choice != "fixed" else ""
    return tuple(lines), (
        f"A draft pass skips the sub-layers ·{example}; it reads the keys and values of the target's own passes, and "
        f"what it writes is dropped: the pass that verifies the draft writes those of all layers.{found}"
    )


@DRAFTERS.register("self_skip", drawing=skip_drawing)
class SelfSkipDrafter(OwnDrafter):
    """The target drafts token by token and skips some sub-layers; what it skips may be chosen on the fly
    (arXiv:2309.08168, arXiv:2410.06916). Its drafts read the keys and values of the target's own passes, so that there
    is neither a second copy of the weights nor a prefill."""

    def __init__(
        self,
        models: ModelPair,
        sampling: Sampling,
        *,
        attention: Annotated[Numbers, Field(description=ATTENTION)] = None,
        mlp: Annotated[Numbers, Field(description=MLP)] = None,
        share: Annotated[float, Field(gt=0, le=0.9, description=SHARE)] = 0.45,
        choice: Annotated[Literal["fixed", "on_the_fly"], Field(description=CHOICE)] = "fixed",
        memory: Annotated[Literal["prompt", "run"], Field(description=MEMORY)] = "prompt",
        tried_on: Annotated[int, Field(ge=4, le=1024, description=TRIED_ON)] = 32,
        trials: Annotated[int, Field(ge=1, le=100_000, description=TRIALS)] = 64,
        enough: Annotated[float, Field(gt=0, le=1, description=ENOUGH)] = 0.95,
        temperature: DraftTemperature = None,
    ) -> None:
        self.sequence = SkippingSequence(models.target, "drafter 'self_skip'")
        super().__init__(OwnDraftModel(models.target, self.sequence), sampling.at(temperature), models.target)
        self.num_layers = len(self.sequence.layers)
        self.first_choice = chosen(self.num_layers, share, attention, mlp)
        self.searches = choice == "on_the_fly"
        self.keeps_choice = self.learns_over_prompts = self.searches and memory == "run"
        self.tried_on, self.num_trials, self.enough = tried_on, trials, enough
        self._coins = torch.Generator()
        self._is_seeded = False
        self._num_prompt = 0
        self.forget()

    def forget(self) -> None:
        """Returns to the first set, which has no score yet."""
        self.sequence.skipped = self.first_choice
        self._score: float | None = None
        self._num_tried = 0

    def begin_cell(self) -> None:
        self.forget()
        self._is_seeded = False

    def prefill(self, prompt_ids: list[int]) -> None:
        super().prefill(prompt_ids)
        self._num_prompt = len(prompt_ids)
        if not self.keeps_choice:
            self.forget()
            self._is_seeded = False

    def propose(self, ids: list[int], num_draft_tokens: int, generator: torch.Generator) -> Proposal:
        if self.searches and num_draft_tokens:
            self._search(ids, generator)
        return super().propose(ids, num_draft_tokens, generator)

    def _search(self, ids: list[int], generator: torch.Generator) -> None:
        """Tries one set on the end of the answer, unless the current one is good enough. The choice depends on tokens
        that were emitted and on coins of its own, so that every draft token is drawn from the distribution that is
        handed on."""
        is_done = self._num_tried >= self.num_trials or (self._score is not None and self._score >= self.enough)
        if is_done or len(ids) - self._num_prompt <= self.tried_on:
            return
        if not self._is_seeded:
            self._coins.manual_seed(generator.initial_seed() ^ SEED)
            self._is_seeded = True
        current = self.sequence.skipped
        tried = current if self._score is None else neighbour(current, self.num_layers, self._coins)
        with self.model.drafting(ids):
            if len(self.sequence.cached_ids) != len(ids) - 1:
                return
            self.sequence.skipped = tried
            score = self.sequence.agreement(ids, self.tried_on)
        self._num_tried += 1
        if self._score is not None and score <= self._score:
            self.sequence.skipped = current
        else:
            self._score = score


def chosen(num_layers: int, share: float, attention: list[int] | None, mlp: list[int] | None) -> SubLayers:
    """Returns the sub-layers to skip. Raises ConfigError for layers that the target does not have, none, and all."""
    for name, numbers in (("attention", attention), ("mlp", mlp)):
        if numbers is not None and (sorted(set(numbers)) != numbers or (numbers and numbers[-1] >= num_layers)):
            raise ConfigError(
                f"drafter.{name} = {numbers}: give different layers in ascending order, from 0 to {num_layers - 1}"
            )
    if num_layers < 3 and (attention is None or mlp is None):
        raise ConfigError(
            f"drafter.share = {share:g}: the target has {num_layers} layers, and the first and the last are kept: name "
            "layers with drafter.attention and drafter.mlp"
        )
    number = max(1, round(share * (num_layers - 2)))
    spaced = [1 + int((place + 0.5) * (num_layers - 2) / number) for place in range(number)]
    found = SubLayers(tuple(spaced if attention is None else attention), tuple(spaced if mlp is None else mlp))
    if not any(found):
        raise ConfigError("drafter.attention = []: with drafter.mlp = [] nothing is skipped: name a layer")
    return found


def neighbour(skipped: SubLayers, num_layers: int, coins: torch.Generator) -> SubLayers:
    """Returns a random set of the same size: every other time all of it is drawn anew, else one skipped sub-layer is
    exchanged for another. The first and the last layer are never skipped."""
    every = [(kind, number) for kind in (0, 1) for number in range(1, num_layers - 1)]
    current = [(kind, number) for kind, numbers in enumerate(skipped) for number in numbers]
    order = torch.randperm(len(every), generator=coins).tolist()
    size = min(len(current), len(every))
    if draw_index(2, coins):
        new = [every[place] for place in order[:size]]
    else:
        others = [every[place] for place in order if every[place] not in current]
        dropped = draw_index(len(current), coins)
        new = [*current[:dropped], *current[dropped + 1 :], *(others[:1] or [current[dropped]])]
    return SubLayers(*(tuple(sorted(number for each, number in new if each == kind)) for kind in (0, 1)))


def draw_index(number: int, coins: torch.Generator) -> int:
    return int(torch.randint(number, (1,), generator=coins))


SINK = "The number of tokens at the beginning of the text that drafts read."
WINDOW = "The number of tokens before the draft that drafts read."


def window_drawing(*, sink: int, window: int, **others: object) -> Drawing:
    return (
        "text       t t t t t t t … t t t t t t t t",
        f"draft      █ █ █ · · · · … · · · · █ █ █ █ → a → b → c    the first {sink} and the last {window} tokens",
        "target     █ █ █ █ █ █ █ … █ █ █ █ █ █ █ █   a   b   y    all tokens",
    ), (
        "A draft pass reads the keys and values of few tokens, at the positions that they have in the text: copies of "
        "the target's own, made anew for each draft. A text of no more tokens is drafted as the target writes it."
    )


@DRAFTERS.register("self_window", drawing=window_drawing)
class SelfWindowDrafter(OwnDrafter):
    """The target drafts token by token and reads only the first and the last tokens of the text, by the keys and values
    of its own passes; it verifies with all of them (arXiv:2408.11049). For long texts."""

    def __init__(
        self,
        models: ModelPair,
        sampling: Sampling,
        *,
        sink: Annotated[int, Field(ge=0, le=4096, description=SINK)] = 16,
        window: Annotated[int, Field(ge=1, le=2**20, description=WINDOW)] = 256,
        temperature: DraftTemperature = None,
    ) -> None:
        sequence = WindowSequence(models.target, "drafter 'self_window'", sink, window)
        super().__init__(OwnDraftModel(models.target, sequence), sampling.at(temperature), models.target)
