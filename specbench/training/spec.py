"""What a training is asked to do, with the defaults of the papers; every key is checked when it is read."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, get_args

from pydantic import Field, field_validator, model_validator

from specbench.errors import ConfigError, nearest
from specbench.specs.components import Spec, Text
from specbench.training.data_spec import DataSpec

Kind = Literal["scdf", "distill", "finetune"]
Positive = Annotated[int, Field(ge=1)]
Share = Annotated[float, Field(ge=0, lt=1)]

# What the papers leave open (weight decay and clipping of P1 and P3, the schedule of P0) is the usual choice.
DEFAULTS: dict[str, dict[str, Any]] = {
    "scdf": {"num_steps": 1000, "learning_rate": 1e-4, "schedule": "constant", "warmup": 0, "weight_decay": 0.01,
             "gradient_accumulation": 4, "max_new_tokens": 64, "max_text_tokens": 512},
    "distill": {"num_steps": 800, "learning_rate": (1e-4, 5e-5, 2e-5), "schedule": "cosine", "warmup": 60,
                "weight_decay": 0.01, "gradient_accumulation": 4, "max_new_tokens": 128, "max_text_tokens": 128},
    "finetune": {"learning_rate": 2e-5, "schedule": "cosine", "warmup": 0.03, "weight_decay": 0.0,
                 "gradient_accumulation": 1, "max_new_tokens": 512, "max_text_tokens": 2048},
}  # fmt: skip


class ScdfSpec(Spec):
    """s-CDF (P0 Alg. 1, App. D) and its baselines.

    estimator: `full`, the cross-entropy with the target's whole distribution (eq. 10), or `sampled`, on its tokens.
    num_draft_tokens: of the proxy acceptance in the log. weighting: `corrective` is s-CDF; `equal` gives every language
    the same weight; `balanced` draws the languages of a step by `proportions`, with equal weights. temperature: of the
    target's continuations.
    """

    estimator: Literal["full", "sampled"] = "full"
    languages_per_step: Positive = 5
    prompts_per_language: Positive = 64
    mini_batch: Positive = 8
    num_draft_tokens: Positive = 5
    temperature: Annotated[float, Field(gt=0)] = 1.0
    weighting: Literal["corrective", "equal", "balanced"] = "corrective"
    proportions: dict[str, Annotated[float, Field(ge=0)]] = Field(default_factory=dict)

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
    `general` on raw text."""

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
    prompts, once at each temperature. epochs: 3 after pretraining, 5 without it, as in the paper."""

    stage: Literal["pretrain", "finetune"] = "finetune"
    temperatures: Annotated[tuple[Annotated[float, Field(ge=0)], ...], Field(min_length=1)] = (0.0, 0.3, 0.7, 1.0)
    server: ServerSpec = ServerSpec()
    batch_size: Positive = 8
    epochs: Positive = 3
    validation_share: Share = 0.0


class LoraSpec(Spec):
    """Low-rank adapters on all linear layers (arXiv:2106.09685), merged into the weights at the end."""

    rank: Positive = 16
    alpha: Positive = 32
    dropout: Share = 0.0


BLOCKS: dict[str, type[Spec]] = {"scdf": ScdfSpec, "distill": DistillSpec, "finetune": FinetuneSpec}


class TrainSpec(Spec):
    """One training. The block of its kind is there and complete, those of the other kinds are None.

    num_steps: steps of the objective; None for `finetune` means its epochs. learning_rate: one, or several that are
    tried in turn and chosen by the held-back loss. warmup: steps, or below 1 a share of them. clip: of the gradient's
    norm; 0 is none. gradient_accumulation: an update every so many steps, each scaled by 1 / that.
    max_prompt_tokens and max_text_tokens: longer prompts lose their middle, longer texts their end. dtype: float32,
    or bfloat16 (mixed precision; the weights that are trained stay float32); auto is float32 on a CPU, else bfloat16.
    """

    kind: Kind
    target: Text = "embedded:target"
    target_revision: str | None = None
    drafter: Text = "embedded:drafter"
    drafter_revision: str | None = None
    data: DataSpec
    output: Text
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    num_steps: Positive | None = None
    learning_rate: Annotated[tuple[Annotated[float, Field(gt=0)], ...], Field(min_length=1)]
    schedule: Literal["constant", "cosine"]
    warmup: Annotated[float, Field(ge=0)]
    weight_decay: Annotated[float, Field(ge=0)]
    clip: Annotated[float, Field(ge=0)] = 1.0
    gradient_accumulation: Positive
    max_prompt_tokens: Positive = 512
    max_new_tokens: Positive
    max_text_tokens: Positive
    generation_batch: Positive = 32
    checkpoint_every: Positive = 100
    log_every: Positive = 1
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    device: Text = "auto"
    gradient_checkpointing: bool = False
    quantize: Literal["none", "nf4"] = "none"
    lora: LoraSpec | None = None
    scdf: ScdfSpec | None = None
    distill: DistillSpec | None = None
    finetune: FinetuneSpec | None = None

    @model_validator(mode="before")
    @classmethod
    def _with_defaults(cls, data: Any) -> Any:
        """The defaults of the kind, and its block; a block of another kind is a mistake."""
        if not isinstance(data, Mapping) or data.get("kind") not in DEFAULTS:
            given = data.get("kind") if isinstance(data, Mapping) else data
            raise ConfigError(f"kind = {given!r}: {nearest(str(given), get_args(Kind))}")
        kind = data["kind"]
        foreign = next((name for name in BLOCKS if name != kind and data.get(name) is not None), None)
        if foreign:
            raise ConfigError(f"{foreign}: has no effect in a training of kind '{kind}': leave it out")
        given = {key: value for key, value in data.items() if key in ("lora",) or value is not None}
        if given.get("lora") == "none":
            given["lora"] = None
        return {**DEFAULTS[kind], kind: {}, **given}

    @field_validator("learning_rate", mode="before")
    @classmethod
    def _several(cls, rate: Any) -> Any:
        return rate if isinstance(rate, (list, tuple)) else (rate,)

    @model_validator(mode="after")
    def _consistent(self) -> "TrainSpec":
        if len(set(self.learning_rate)) > 1 and not self.validation_share:
            raise ConfigError(
                f"learning_rate: several are chosen from by the loss on held-back data, and {self.kind} holds none "
                "back: give one, or validation_share where the kind has it"
            )
        if self.quantize == "nf4" and self.lora is None:
            raise ConfigError("quantize = 'nf4': 4-bit weights cannot be trained: give lora.rank=16 too")
        if self.kind != "finetune" and self.num_steps is None:
            raise ConfigError("num_steps: the key 'num_steps' is missing: add it")
        return self

    @property
    def validation_share(self) -> float:
        """The share of the data that is held back."""
        block = self.distill or self.finetune
        return block.validation_share if block else 0.0
