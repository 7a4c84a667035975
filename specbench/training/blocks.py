"""The settings of single kinds of training, and of low-rank adapters; every key is checked when it is read."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from specbench.errors import ConfigError
from specbench.specs.components import Text
from specbench.temperature import Temperature
from specbench.training.described import Described

Positive = Annotated[int, Field(ge=1)]
Share = Annotated[float, Field(ge=0, lt=1)]


class ScdfSpec(Described):
    """s-CDF (P0 Alg. 1, App. D) and its baselines."""

    estimator: Literal["full", "sampled"] = "full"
    """Of the loss: the cross-entropy with the target's whole distribution (P0 eq. 10), or on its tokens."""
    languages_per_pass: Positive = 5
    """Languages that are drawn for a pass."""
    prompts_per_language: Positive = 64
    """Prompts of each of them that the target continues."""
    mini_batch: Positive = 8
    """Texts that go through the models together."""
    num_draft_tokens: Positive = 5
    """Of the proxy acceptance in the log."""
    temperature: Annotated[Temperature, Field(gt=0)] = 1.0
    """Of the target's continuations, which are sampled."""
    weighting: Literal["corrective", "equal", "balanced"] = "corrective"
    """corrective is s-CDF; equal: the same weight for every language; balanced: languages drawn by proportions."""
    proportions: dict[str, Annotated[float, Field(ge=0)]] = Field(default_factory=dict)
    """How often each language is drawn where the weighting is balanced: {en: 1, sw: 3}."""

    @model_validator(mode="after")
    def _several_languages(self) -> "ScdfSpec":
        if self.weighting == "corrective" and self.languages_per_pass < 2:
            raise ConfigError(
                "scdf.languages_per_pass = 1: the best language of a pass gets no weight, so nothing would be learnt: "
                "give 2 or more, or scdf.weighting=equal"
            )
        return self

    @model_validator(mode="after")
    def _proportions(self) -> "ScdfSpec":
        if self.weighting != "balanced" and self.proportions:
            raise ConfigError(
                f"scdf.proportions: have no effect with scdf.weighting = '{self.weighting}': set it to balanced, or "
                "leave them out"
            )
        if self.weighting == "balanced" and sum(self.proportions.values()) <= 0:
            raise ConfigError("scdf.proportions: weighting = 'balanced' needs them: give a number for each language")
        return self


class DistillSpec(Described):
    """Distillation on the target's top-k probabilities (P1 §3.3, App. B)."""

    corpus: Literal["task", "general"] = "task"
    """task: learn the target's greedy answers to the prompts; general: the texts."""
    top_k: Positive = 20
    """The target's most probable tokens that are learnt, at each position."""
    batch_size: Positive = 16
    """Texts of a pass."""
    validation_share: Share = 0.05
    """Share of the prompts that is held back."""


class ServerSpec(Described):
    """A server with the OpenAI interface that generates in the target's place; its key is in OPENAI_API_KEY."""

    base_url: Text | None = None
    """Such as http://localhost:8000/v1; null: the target itself generates."""
    model: Text | None = None
    """The server's name of the target; null: target."""


class FinetuneSpec(Described):
    """Language modelling (P3 §2.3, App. F)."""

    stage: Literal["pretrain", "finetune"] = "finetune"
    """pretrain: on the texts; finetune: on what the target generates from the prompts."""
    temperatures: Annotated[tuple[Temperature, ...], Field(min_length=1)] = (0.0, 0.3, 0.7, 1.0)
    """At each of which the target answers every prompt once."""
    server: ServerSpec = ServerSpec()
    batch_size: Positive = 8
    """Texts of a pass."""
    epochs: Positive = 3
    """Times that every text is learnt where num_steps is null: the paper has 3 after pretraining, 5 without it."""
    validation_share: Share = 0.0
    """Share of the prompts that is held back."""


class LoraSpec(Described):
    """Low-rank adapters on all linear layers (arXiv:2106.09685), merged into the weights at the end."""

    rank: Positive = 16
    """Rank of the adapters."""
    alpha: Positive = 32
    """They are scaled by alpha / rank."""
    dropout: Share = 0.0
    """Of their input."""
