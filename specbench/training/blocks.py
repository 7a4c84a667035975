"""The settings of single kinds of training, and of low-rank adapters; every key is checked when it is read."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from specbench.errors import ConfigError
from specbench.specs.components import Spec, Text
from specbench.temperature import Temperature

Positive = Annotated[int, Field(ge=1)]
Share = Annotated[float, Field(ge=0, lt=1)]


class ScdfSpec(Spec):
    """s-CDF (P0 Alg. 1, App. D) and its baselines.

    estimator: `full`, the cross-entropy with the target's whole distribution (eq. 10), or `sampled`, on its tokens.
    num_draft_tokens: of the proxy acceptance in the log. weighting: `corrective` is s-CDF; `equal` gives every language
    the same weight; `balanced` draws the languages of a pass by `proportions`, with equal weights. temperature: of the
    target's continuations, which are sampled: never 0.
    """

    estimator: Literal["full", "sampled"] = "full"
    languages_per_pass: Positive = 5
    prompts_per_language: Positive = 64
    mini_batch: Positive = 8
    num_draft_tokens: Positive = 5
    temperature: Annotated[Temperature, Field(gt=0)] = 1.0
    weighting: Literal["corrective", "equal", "balanced"] = "corrective"
    proportions: dict[str, Annotated[float, Field(ge=0)]] = Field(default_factory=dict)

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


class DistillSpec(Spec):
    """Distillation on the target's top-k probabilities (P1 §3.3, App. B): `task` on its greedy answers to the prompts,
    `general` on raw text. batch_size: samples of a pass."""

    corpus: Literal["task", "general"] = "task"
    top_k: Positive = 20
    batch_size: Positive = 16
    validation_share: Share = 0.05


class ServerSpec(Spec):
    """A server with the OpenAI interface that generates in the target's place; its key is in OPENAI_API_KEY."""

    base_url: Text | None = None
    model: Text | None = None


class FinetuneSpec(Spec):
    """Language modelling (P3 §2.3, App. F): `pretrain` on the texts, `finetune` on what the target generates from the
    prompts, once at each temperature. batch_size: samples of a pass. epochs: 3 after pretraining, 5 without it, as in
    the paper."""

    stage: Literal["pretrain", "finetune"] = "finetune"
    temperatures: Annotated[tuple[Temperature, ...], Field(min_length=1)] = (0.0, 0.3, 0.7, 1.0)
    server: ServerSpec = ServerSpec()
    batch_size: Positive = 8
    epochs: Positive = 3
    validation_share: Share = 0.0


class LoraSpec(Spec):
    """Low-rank adapters on all linear layers (arXiv:2106.09685), merged into the weights at the end."""

    rank: Positive = 16
    alpha: Positive = 32
    dropout: Share = 0.0
