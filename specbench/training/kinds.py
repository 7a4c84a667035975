"""The settings of each training kind, with the papers' defaults."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from specbench.core.errors import ConfigError
from specbench.specs.components import Spec, Temperature, Text

Positive = Annotated[int, Field(ge=1)]
Share = Annotated[float, Field(ge=0, lt=1)]


class ScdfSpec(Spec):
    """Settings of s-CDF (P0 Alg. 1, App. D) and its baselines."""

    estimator: Literal["full", "sampled"] = "full"
    """Estimator of the loss: full is the cross-entropy with the target's whole distribution (P0 eq. 10); sampled is
    that on its sampled tokens."""
    languages_per_pass: Positive = 5
    """Languages drawn for each pass."""
    prompts_per_language: Positive = 64
    """Prompts of each drawn language that the target continues."""
    mini_batch: Positive = 8
    """Texts in one forward pass."""
    num_draft_tokens: Positive = 5
    """Draft tokens for the proxy acceptance in the log."""
    temperature: Annotated[Temperature, Field(gt=0)] = 1.0
    """Temperature of the target's sampled continuations."""
    weighting: Literal["corrective", "equal", "balanced"] = "corrective"
    """corrective: s-CDF; equal: all languages have the same weight; balanced: languages are drawn by proportions."""
    proportions: dict[str, Annotated[float, Field(ge=0)]] = Field(default_factory=dict)
    """Relative frequency of each language if weighting is balanced: {en: 1, sw: 3}."""

    @model_validator(mode="after")
    def _check_weighting(self) -> "ScdfSpec":
        if self.weighting == "corrective" and self.languages_per_pass < 2:
            raise ConfigError(
                "scdf.languages_per_pass = 1: the best language of a pass has weight 0, so nothing would be learnt: "
                "give 2 or more, or scdf.weighting=equal"
            )
        if self.weighting != "balanced" and self.proportions:
            raise ConfigError(
                f"scdf.proportions: have no effect with scdf.weighting = '{self.weighting}': set it to balanced, or "
                "delete the key"
            )
        if self.weighting == "balanced" and sum(self.proportions.values()) <= 0:
            raise ConfigError("scdf.proportions: weighting = 'balanced' needs them: give a number per language")
        return self


class DistillSpec(Spec):
    """Settings of distillation on the target's top-k probabilities (P1 §3.3, App. B)."""

    corpus: Literal["task", "general"] = "task"
    """task: learn the target's greedy answers to the prompts; general: learn the texts."""
    top_k: Positive = 20
    """The drafter learns this number of the target's most probable tokens at each position."""
    batch_size: Positive = 16
    """Texts of a pass."""
    validation_share: Share = 0.05
    """Share of the prompts that is held out for validation."""


class TeacherServerSpec(Spec):
    """An OpenAI-compatible server that generates instead of the target. Its key is read from OPENAI_API_KEY."""

    base_url: Text | None = None
    """URL such as http://localhost:8000/v1; null: the target itself generates."""
    model: Text | None = None
    """Name of the target on the server; null: the value of target."""


class FinetuneSpec(Spec):
    """Settings of language modelling (P3 §2.3, App. F)."""

    stage: Literal["pretrain", "finetune"] = "finetune"
    """pretrain: learn the texts; finetune: learn the target's answers to the prompts."""
    temperatures: Annotated[tuple[Temperature, ...], Field(min_length=1)] = (0.0, 0.3, 0.7, 1.0)
    """The target answers every prompt once at each of these temperatures."""
    server: TeacherServerSpec = TeacherServerSpec()
    batch_size: Positive = 8
    """Texts of a pass."""
    epochs: Positive = 3
    """Epochs if num_steps is null. The paper uses 3 after pretraining and 5 without it."""
    validation_share: Share = 0.0
    """Share of the prompts that is held out for validation."""


class HeadSpec(Spec):
    """Settings of a draft head. It learns the target's distributions on the target's answers to the prompts."""

    temperatures: Annotated[tuple[Temperature, ...], Field(min_length=1)] = (0.0,)
    """The target answers every prompt once at each of these temperatures."""
    batch_size: Positive = 16
    """Texts of a pass."""
    epochs: Positive = 2
    """Epochs if num_steps is null."""
    validation_share: Share = 0.02
    """Share of the prompts that is held out for validation."""
    decay: Annotated[float, Field(gt=0, le=1)] = 0.8
    """The loss of draft token k has the weight decay^(k − 1)."""


class MedusaSpec(HeadSpec):
    """Settings of Medusa heads (arXiv:2401.10774, §2.2)."""

    num_heads: Annotated[int, Field(ge=1, le=16)] = 5
    """Number of heads, which is the maximum draft length."""
    num_blocks: Annotated[int, Field(ge=0, le=4)] = 1
    """Residual blocks of each head."""


class EagleSpec(HeadSpec):
    """Settings of an EAGLE-1 head (arXiv:2401.15077, §3.2, §4)."""

    epochs: Positive = 20
    """Epochs if num_steps is null."""
    num_draft_steps: Annotated[int, Field(ge=1, le=16)] = 1
    """Draft steps that are trained. From the second step on, the head reads its own states."""
    state_weight: Annotated[float, Field(ge=0)] = 1.0
    """Weight of the distance to the target's hidden state (smooth L1)."""
    logit_weight: Annotated[float, Field(ge=0)] = 0.1
    """Weight of the cross-entropy with the target's distribution."""


class Eagle3Spec(HeadSpec):
    """Settings of an EAGLE-3 head (arXiv:2503.01840, §3.2)."""

    epochs: Positive = 10
    """Epochs if num_steps is null. The paper uses at most 40."""
    num_draft_steps: Annotated[int, Field(ge=1, le=16)] = 7
    """Draft steps that are trained. From the second step on, the head reads its own states."""
    draft_vocab_size: Positive | None = None
    """The head drafts only this number of tokens, the most frequent in the training texts; null: all tokens."""


class LoraSpec(Spec):
    """Low-rank adapters on all linear layers (arXiv:2106.09685), merged into the weights at the end."""

    rank: Positive = 16
    """Rank of the adapters."""
    alpha: Positive = 32
    """The adapters are scaled by alpha / rank."""
    dropout: Share = 0.0
    """Dropout of the adapters' input."""
