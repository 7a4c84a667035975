"""What a training is asked to do, with the defaults of the papers; every key is checked when it is read."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, get_args

from pydantic import Field, field_validator, model_validator

from specbench.errors import ConfigError, nearest
from specbench.specs.components import Spec, Text
from specbench.training.blocks import DistillSpec, FinetuneSpec, LoraSpec, Positive, ScdfSpec
from specbench.training.data_spec import DataSpec

Kind = Literal["scdf", "distill", "finetune"]

# P0's STEPS = 1,000 (printed "10,00") are draws of languages, of which GRAD_ACCUM = 4 make an update: App. D.1 divides
# each draw's weights by GRAD_ACCUM and clips "before stepping every GRAD_ACCUM mini-batches". That is 250 updates. The
# 800 total and 60 warm-up steps of P1's table 2 are updates of 4 · 16 samples: its keys are those of transformers'
# Trainer. What the papers leave open (weight decay and clipping of P1 and P3, the schedule of P0) is the usual choice.
DEFAULTS: dict[str, dict[str, Any]] = {
    "scdf": {"num_steps": 250, "learning_rate": 1e-4, "schedule": "constant", "warmup": 0, "weight_decay": 0.01,
             "gradient_accumulation": 4, "max_new_tokens": 64, "max_text_tokens": 512,
             "checkpoint_every": 25},  # a step is 4 passes of 5 · 64 continuations
    "distill": {"num_steps": 800, "learning_rate": (1e-4, 5e-5, 2e-5), "schedule": "cosine", "warmup": 60,
                "weight_decay": 0.01, "gradient_accumulation": 4, "max_new_tokens": 128, "max_text_tokens": 128},
    "finetune": {"learning_rate": 2e-5, "schedule": "cosine", "warmup": 0.03, "weight_decay": 0.0,
                 "gradient_accumulation": 1, "max_new_tokens": 512, "max_text_tokens": 2048},
}  # fmt: skip


BLOCKS: dict[str, type[Spec]] = {"scdf": ScdfSpec, "distill": DistillSpec, "finetune": FinetuneSpec}


class TrainSpec(Spec):
    """One training. The block of its kind is there and complete, those of the other kinds are None.

    A step is one update of the weights, as transformers' Trainer counts them: the mean gradient of
    `gradient_accumulation` passes of the objective, each with a batch (of s-CDF: a draw of languages) of its own.
    num_steps, warmup, checkpoint_every and log_every count steps. num_steps: None for `finetune` means its epochs.
    warmup: below 1 a share of num_steps. learning_rate: one, or several that are tried in turn and chosen by the
    held-back loss. clip: of the gradient's norm; 0 is none. max_prompt_tokens: longer prompts lose their middle.
    max_text_tokens: longer texts, and of `finetune` prompts with their answers, lose their end. dtype: float32, or
    bfloat16 (mixed precision; the weights that are trained stay float32); auto is float32 on a CPU, else bfloat16.
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
