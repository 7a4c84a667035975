"""What a training is asked to do, with the defaults of the papers; every key is checked when it is read."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, get_args

from pydantic import Field, field_validator, model_validator

from specbench.errors import ConfigError, nearest
from specbench.specs.components import Text
from specbench.training.blocks import DistillSpec, FinetuneSpec, LoraSpec, Positive, ScdfSpec
from specbench.training.data_spec import DataSpec, Seed
from specbench.training.described import Described

Kind = Literal["scdf", "distill", "finetune"]

# P0's STEPS = 1,000 (printed "10,00") are draws of languages, of which GRAD_ACCUM = 4 make an update: App. D.1 divides
# each draw's weights by GRAD_ACCUM and clips "before stepping every GRAD_ACCUM mini-batches". That is 250 updates. The
# 800 total and 60 warm-up steps of P1's table 2 are updates of 4 · 16 samples: its keys are those of transformers'
# Trainer; with other num_steps the warm-up keeps its share of them. What the papers leave open (weight decay and
# clipping of P1 and P3, the schedule of P0) is the usual choice.
DEFAULTS: dict[str, dict[str, Any]] = {
    "scdf": {"num_steps": 250, "learning_rate": 1e-4, "schedule": "constant", "warmup": 0, "weight_decay": 0.01,
             "gradient_accumulation": 4, "max_new_tokens": 64, "max_text_tokens": 512,
             "checkpoint_every": 25},  # a step is 4 passes of 5 · 64 continuations
    "distill": {"num_steps": 800, "learning_rate": (1e-4, 5e-5, 2e-5), "schedule": "cosine", "warmup": 60 / 800,
                "weight_decay": 0.01, "gradient_accumulation": 4, "max_new_tokens": 128, "max_text_tokens": 128},
    "finetune": {"learning_rate": 2e-5, "schedule": "cosine", "warmup": 0.03, "weight_decay": 0.0,
                 "gradient_accumulation": 1, "max_new_tokens": 512, "max_text_tokens": 2048},
}  # fmt: skip


BLOCKS: dict[str, type[Described]] = {"scdf": ScdfSpec, "distill": DistillSpec, "finetune": FinetuneSpec}


class TrainSpec(Described):
    """One training. The block of its kind is there and complete, those of the other kinds are None.

    A step is one update of the weights, as transformers' Trainer counts them: the mean gradient of
    `gradient_accumulation` passes of the objective, each with a batch (of s-CDF: a draw of languages) of its own.
    """

    kind: Kind
    target: Text = "embedded:target"
    """The model that is drafted for: hub id, folder or embedded:NAME."""
    target_revision: str | None = None
    """Hub revision of the target."""
    drafter: Text = "embedded:drafter"
    """The model that is trained."""
    drafter_revision: str | None = None
    """Hub revision of the drafter."""
    data: DataSpec
    output: Text
    """Folder of the trained drafter."""
    seed: Seed = 0
    """Of every random stream."""
    num_steps: Positive | None = None
    """Updates of the weights; null, in finetune alone: as many as finetune.epochs take."""
    learning_rate: Annotated[tuple[Annotated[float, Field(gt=0)], ...], Field(min_length=1)]
    """The highest one; several are tried in turn, and the held-back loss chooses."""
    schedule: Literal["constant", "cosine"]
    """Of the learning rate after the warm-up."""
    warmup: Annotated[float, Field(ge=0)]
    """Updates until the learning rate is at its highest; below 1 a share of num_steps."""
    weight_decay: Annotated[float, Field(ge=0)]
    """Of AdamW."""
    clip: Annotated[float, Field(ge=0)] = 1.0
    """The gradient's highest norm; 0: not clipped."""
    gradient_accumulation: Positive
    """Passes of each update."""
    max_prompt_tokens: Positive = 512
    """Longer prompts lose their middle."""
    max_new_tokens: Positive
    """Of the target's continuations."""
    max_text_tokens: Positive
    """Longer texts, and in finetune prompts with their answers, lose their end."""
    generation_batch: Positive = 32
    """Prompts that the target continues together."""
    checkpoint_every: Positive = 100
    """Updates between two checkpoints, which an interrupted training goes on from."""
    log_every: Positive = 1
    """Updates between two entries of log.csv."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """bfloat16 is mixed precision, the trained weights stay float32 until they are stored in the drafter's own dtype;
    auto: float32 on a CPU, else bfloat16."""
    device: Text = "auto"
    """auto, cuda, mps or cpu."""
    gradient_checkpointing: bool = False
    """Compute the drafter's activations twice instead of keeping them: less memory."""
    quantize: Literal["none", "nf4"] = "none"
    """nf4: both models in 4 bits, with AdamW in 8 bits; needs lora and bitsandbytes."""
    lora: LoraSpec | None = None
    """Low-rank adapters instead of all weights; lora.rank=16 turns them on."""
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
        if self.num_steps is not None:
            check_warmup(self.warmup, self.num_steps)
        return self

    @property
    def validation_share(self) -> float:
        """The share of the data that is held back."""
        block = self.distill or self.finetune
        return block.validation_share if block else 0.0


def check_warmup(warmup: float, num_steps: int) -> None:
    """Raise ConfigError for a warm-up of more updates than there are: the learning rate would stay below its height."""
    if warmup >= 1 and warmup > num_steps:
        raise ConfigError(
            f"warmup = {warmup:g}: the learning rate is not at its highest before update {warmup:g}, and the training "
            f"has num_steps = {num_steps}: give fewer, or a share of the steps such as 0.1"
        )
