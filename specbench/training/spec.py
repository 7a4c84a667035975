"""The settings of `specbench train`, with the papers' defaults, and how they are read. Imports no torch."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, get_args

from pydantic import Field, field_validator, model_validator

from specbench.core import dotted
from specbench.core.errors import ConfigError, nearest
from specbench.specs import yaml_files
from specbench.specs.components import AnySpec, Spec, Temperature, Text, build

Seed = Annotated[int, Field(ge=0, lt=2**63)]
Positive = Annotated[int, Field(ge=1)]
Share = Annotated[float, Field(ge=0, lt=1)]


class ScdfSpec(Spec):
    """Settings of s-CDF (P0 Alg. 1, App. D) and its baselines."""

    estimator: Literal["full", "sampled"] = "full"
    """Estimator of the loss: full is the cross-entropy with the target's whole distribution (P0 eq. 10); sampled is
    that on its sampled tokens."""
    languages_per_pass: Positive = 5
    """Languages drawn per pass."""
    prompts_per_language: Positive = 64
    """Prompts per drawn language."""
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
    """The drafter learns the target's top_k most probable tokens at each position."""
    batch_size: Positive = 16
    """Texts of a pass."""
    validation_share: Share = 0.05
    """Share of the prompts held out for validation."""


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
    """Share of the prompts held out for validation."""


class HeadSpec(Spec):
    """Settings of a draft head. It learns the target's distributions on the target's answers to the prompts."""

    temperatures: Annotated[tuple[Temperature, ...], Field(min_length=1)] = (0.0,)
    """The target answers every prompt once at each of these temperatures."""
    batch_size: Positive = 16
    """Texts of a pass."""
    epochs: Positive = 2
    """Epochs if num_steps is null."""
    validation_share: Share = 0.02
    """Share of the prompts held out for validation."""
    decay: Annotated[float, Field(gt=0, le=1)] = 0.8
    """The loss of draft token k has the weight decay^(k − 1)."""


class MedusaSpec(HeadSpec):
    """Settings of Medusa heads (arXiv:2401.10774, §2.2)."""

    num_heads: Annotated[int, Field(ge=1, le=16)] = 5
    """Number of heads, and so the maximum draft length."""
    num_blocks: Annotated[int, Field(ge=0, le=4)] = 1
    """Residual blocks of each head."""
    own_output: bool = True
    """Each head has its own output layer, as in the paper. false: all use the target's, which is not trained. Then the
    heads are small also beside a small target."""

    @model_validator(mode="after")
    def _check_blocks(self) -> "MedusaSpec":
        if not self.own_output and not self.num_blocks:
            raise ConfigError("medusa.num_blocks = 0: nothing would be learnt with own_output=false: give 1 or more")
        return self


class EagleSpec(HeadSpec):
    """Settings of an EAGLE-1 head (arXiv:2401.15077, §3.2, §4)."""

    epochs: Positive = 20
    """Epochs if num_steps is null."""
    num_draft_steps: Annotated[int, Field(ge=1, le=16)] = 1
    """Draft steps unrolled in training; from the second on, the head reads its own states."""
    state_weight: Annotated[float, Field(ge=0)] = 1.0
    """Weight of the distance to the target's hidden state (smooth L1)."""
    logit_weight: Annotated[float, Field(ge=0)] = 0.1
    """Weight of the cross-entropy with the target's distribution."""


class Eagle3Spec(HeadSpec):
    """Settings of an EAGLE-3 head (arXiv:2503.01840, §3.2)."""

    epochs: Positive = 10
    """Epochs if num_steps is null. The paper uses at most 40."""
    num_draft_steps: Annotated[int, Field(ge=1, le=16)] = 7
    """Draft steps unrolled in training; from the second on, the head reads its own states."""
    draft_vocab_size: Positive | None = None
    """Size of the draft vocabulary: the most frequent tokens of the training texts; null: all tokens."""
    warm_start: bool = True
    """A new head starts with the target's last layer, where it fits, and so needs fewer answers. The paper starts with
    random weights."""
    norm_output: bool = False
    """A new head is of EAGLE-3.1 (arXiv:2605.09992): each of the target's hidden states is normalized before they are
    joined, and the next draft token reads the normalized state."""


class PEagleSpec(HeadSpec):
    """Settings of a P-EAGLE head (arXiv:2602.01469). It learns to draft all tokens in one pass: the first behind every
    token of an answer, and each further one behind part of them, which are drawn anew for every pass."""

    batch_size: Positive = 4
    """Texts of a pass."""
    epochs: Positive = 5
    """Epochs if num_steps is null."""
    decay: Annotated[float, Field(gt=0, le=1)] = 1.0
    """The loss of draft token k has the weight decay^(k − 1)."""
    num_layers: Annotated[int, Field(ge=1, le=64)] = 4
    """Decoder layers of the head. Each has the shape of the target's."""
    num_draft_tokens: Annotated[int, Field(ge=1, le=64)] = 8
    """Draft tokens that are learnt."""
    kept_share: Annotated[float, Field(gt=0, le=1)] = 0.7
    """Draft token k is learnt at a share of kept_share^(k − 1) of the places, each of which also learns those before
    it."""
    min_kept_share: Annotated[float, Field(ge=0, le=1)] = 0.2
    """Lowest share of the places at which a draft token is learnt."""
    draft_vocab_size: Positive | None = None
    """Size of the draft vocabulary: the most frequent tokens of the training texts; null: all tokens."""
    mask_token_id: Annotated[int, Field(ge=0)] | None = None
    """The mask token; null: a row that pads the target's embeddings, else the rarest token of the training texts."""
    warm_start: bool = True
    """The first layer of a new head starts with the target's last layer, where it fits, and so needs fewer answers."""


class MtpSpec(HeadSpec):
    """Settings of a layer for multi-token prediction that drafts all tokens (FastMTP, arXiv:2509.18362). It learns the
    tokens of the answers."""

    batch_size: Positive = 4
    """Texts of a pass."""
    epochs: Positive = 3
    """Epochs if num_steps is null."""
    decay: Annotated[float, Field(gt=0, le=1)] = 0.6
    """The loss of draft token k has the weight decay^(k − 1), divided by the sum of these weights."""
    num_draft_steps: Annotated[int, Field(ge=1, le=16)] = 3
    """Draft steps unrolled in training; from the second on, the layer reads its own output."""


class BlockSpec(HeadSpec):
    """Settings of a head that drafts blocks. It learns at places of the answers, called anchors, to draft what follows
    from the target's hidden states of the text before."""

    batch_size: Positive = 4
    """Texts of a pass."""
    epochs: Positive = 6
    """Epochs if num_steps is null."""
    num_layers: Annotated[int, Field(ge=1, le=64)] = 5
    """Decoder layers of the head. Each has the shape of the target's."""
    block_size: Annotated[int, Field(ge=2, le=256)] = 16
    """Rows of a block: the last token of the text and mask tokens."""
    num_anchors: Positive = 512
    """Anchors of each text in a pass, drawn anew for every pass; a shorter answer has one at each of its tokens."""
    target_layer_ids: Annotated[tuple[Annotated[int, Field(ge=-1)], ...], Field(min_length=1)] | None = None
    """The target's layers whose outputs the head reads, from 0, without the last one (-1: the embeddings); null: as
    many as the head has layers, spread over the target."""
    mask_token_id: Annotated[int, Field(ge=0)] | None = None
    """The mask token; null: a row that pads the target's embeddings, else the rarest token of the training texts."""


class DFlashSpec(BlockSpec):
    """Settings of a DFlash head (arXiv:2602.06036)."""

    decay: Annotated[float, Field(gt=0, le=1)] = 0.867
    """The loss of draft token k has the weight decay^(k − 1); the paper's exp(−1/7) for blocks of 16, exp(−1/4) for
    8."""
    draft_vocab_size: Positive | None = None
    """Size of the draft vocabulary: the most frequent tokens of the training texts; null: all tokens."""


class DSparkSpec(BlockSpec):
    """Settings of a DSpark head (arXiv:2607.05147)."""

    epochs: Positive = 10
    """Epochs if num_steps is null."""
    block_size: Annotated[int, Field(ge=2, le=256)] = 7
    """Rows of a block: the last token of the text and mask tokens. Each drafts a token."""
    decay: Annotated[float, Field(gt=0, le=1)] = 0.779
    """The loss of draft token k has the weight decay^(k − 1); exp(−1/4)."""
    draft_vocab_size: Positive | None = None
    """Size of the draft vocabulary: the most frequent tokens of the training texts; null: all tokens."""
    entropy_weight: Annotated[float, Field(ge=0)] = 0.1
    """Weight of the cross-entropy with the answer's token."""
    distance_weight: Annotated[float, Field(ge=0)] = 0.9
    """Weight of the L1 distance to the target's distribution."""
    confidence_weight: Annotated[float, Field(ge=0)] = 1.0
    """Weight of the confidence head's cross-entropy with the chance of acceptance; 0: no confidence head."""
    markov_rank: Positive = 256
    """Rank of the Markov head."""
    markov_head_type: Literal["vanilla", "gated", "rnn"] = "vanilla"
    """The Markov head corrects logits by the token before (vanilla), gated by the state, or with a memory (rnn)."""

    @model_validator(mode="after")
    def _check_weights(self) -> "DSparkSpec":
        if not self.entropy_weight and not self.distance_weight:
            raise ConfigError(
                "dspark.entropy_weight = 0: nothing would be learnt with distance_weight=0: give one more than 0"
            )
        return self


class DominoSpec(BlockSpec):
    """Settings of a Domino head (arXiv:2605.29707). The loss goes linearly from the logits of the pass to the corrected
    ones."""

    decay: Annotated[float, Field(gt=0, le=1)] = 0.867
    """The loss of draft token k has the weight decay^(k − 1); exp(−1/7)."""
    gru_hidden_dim: Positive = 1024
    """Width of the GRU over the tokens before."""
    emb_dim: Positive = 256
    """Inner width of the correction."""
    pure_draft_prefix_len: Annotated[int, Field(ge=0)] = 0
    """First draft tokens that are not corrected."""


class LoraSpec(Spec):
    """Low-rank adapters on all linear layers (arXiv:2106.09685), merged into the weights at the end."""

    rank: Positive = 16
    """Rank of the adapters."""
    alpha: Positive = 32
    """The adapters are scaled by alpha / rank."""
    dropout: Share = 0.0
    """Dropout of the adapters' input."""


class DataSpec(Spec):
    """The training data by language. A language is a subset of a task, or the name that the settings give a file."""

    places: ClassVar[dict[str, str]] = {"tasks": "--task", "text": "--text"}

    tasks: tuple[Text, ...] = ()
    """Benchmark tasks whose rows are used, or world:NAME for rows of the embedded world that are never measured."""
    subsets: Annotated[tuple[Text, ...], Field(min_length=1)] | None = None
    """Subsets of the tasks; null: all."""
    limit: Annotated[int, Field(ge=1)] | None = None
    """Maximum rows per subset and file; null: all, but 256 per subset of the embedded world, which has 2048."""
    source: Text | None = None
    """Source of the tasks' rows: hub, sample (the bundled rows, which a run measures), a folder or a file; null:
    hub."""
    split: Text | None = None
    """A split of the tasks other than the measured one."""
    text: dict[Text, Text] = Field(default_factory=dict)
    """Files by language: one text per line (.txt), or a column of .jsonl, .json, .csv, .tsv, .parquet; also .gz."""
    column: Text = "text"
    """Column with the text, in all files but .txt."""

    @model_validator(mode="after")
    def _check_sources(self) -> "DataSpec":
        if not any(getattr(self, key) for key in self.places):
            raise ConfigError(f"data: there is no training data: give {' or '.join(self.places.values())}")
        for key in ("subsets", "source", "split"):
            if getattr(self, key) is not None and not self.tasks:
                raise ConfigError(f"data.{key}: has no effect without data.tasks: delete the key, or give a task")
        return self


Kind = Literal[
    "scdf", "distill", "finetune", "medusa", "eagle", "eagle3", "peagle", "mtp", "dflash", "dspark", "domino"
]  # fmt: skip
HEADS = ("medusa", "eagle", "eagle3", "peagle", "mtp", "dflash", "dspark", "domino")
NOT_FOR_HEADS = ("lora", "gradient_checkpointing", "quantize", "init_layers")

# P0's STEPS = 1,000 (printed "10,00") counts draws of languages. GRAD_ACCUM = 4 draws make an update: App. D.1 divides
# the weights of each draw by GRAD_ACCUM and clips "before stepping every GRAD_ACCUM mini-batches". That is 250 updates.
# P1's table 2 has the keys of transformers' Trainer: its 800 total and 60 warm-up steps are updates of 4 · 16 samples.
# With another num_steps the warm-up keeps its share. The papers do not give weight decay and clipping (P1, P3) and the
# schedule (P0), so usual values are used.
# Learning rates, warm-up and clipping of heads are from the papers or their published training code.
NEW_HEAD: dict[str, object] = {
    "drafter": None, "schedule": "cosine", "warmup": 0.03, "weight_decay": 0.0, "gradient_accumulation": 1,
    "max_new_tokens": 512, "max_text_tokens": 2048,
}  # fmt: skip
NEW_BLOCK_HEAD = {**NEW_HEAD, "learning_rate": 6e-4, "warmup": 0.04}
DEFAULTS: dict[str, dict[str, object]] = {
    "scdf": {"num_steps": 250, "learning_rate": 1e-4, "schedule": "constant", "warmup": 0, "weight_decay": 0.01,
             "gradient_accumulation": 4, "max_new_tokens": 64, "max_text_tokens": 512,
             "checkpoint_every": 25},  # a step is 4 passes of 5 · 64 continuations
    "distill": {"num_steps": 800, "learning_rate": (1e-4, 5e-5, 2e-5), "schedule": "cosine", "warmup": 60 / 800,
                "weight_decay": 0.01, "gradient_accumulation": 4, "max_new_tokens": 128, "max_text_tokens": 128},
    "finetune": {"learning_rate": 2e-5, "schedule": "cosine", "warmup": 0.03, "weight_decay": 0.0,
                 "gradient_accumulation": 1, "max_new_tokens": 512, "max_text_tokens": 2048},
    "medusa": {**NEW_HEAD, "learning_rate": 1e-3, "warmup": 0.1},
    "eagle": {**NEW_HEAD, "learning_rate": 3e-5, "clip": 0.5},
    "eagle3": {**NEW_HEAD, "learning_rate": 5e-5, "clip": 0.5},
    "peagle": {**NEW_HEAD, "learning_rate": 6e-4, "clip": 0.5},
    "mtp": {**NEW_HEAD, "learning_rate": 1e-4},
    "dflash": NEW_BLOCK_HEAD, "dspark": NEW_BLOCK_HEAD, "domino": NEW_BLOCK_HEAD,
}  # fmt: skip


BLOCKS: dict[str, type[Spec]] = {
    "scdf": ScdfSpec, "distill": DistillSpec, "finetune": FinetuneSpec, "medusa": MedusaSpec, "eagle": EagleSpec,
    "eagle3": Eagle3Spec, "peagle": PEagleSpec, "mtp": MtpSpec, "dflash": DFlashSpec, "dspark": DSparkSpec,
    "domino": DominoSpec,
}  # fmt: skip


class TrainSpec(Spec):
    """One training. The block of its kind is complete; the blocks of other kinds are None.

    A step is one update of the weights, as in transformers' Trainer. It uses the mean gradient of
    `gradient_accumulation` passes of the objective. Each pass has its own batch (for s-CDF: its own draw of languages).
    """

    kind: Kind
    target: Text = "embedded:target"
    """The target model: hub id, folder or embedded:NAME."""
    target_revision: str | None = None
    """Hub revision of the target."""
    drafter: Text | None = "embedded:drafter"
    """The draft model or head to train; null: a new head."""
    drafter_revision: str | None = None
    """Hub revision of the drafter."""
    init_layers: Positive | tuple[Annotated[int, Field(ge=0)], ...] | None = None
    """Start with some layers of the drafter, by default of the target: their number, evenly spaced from the first to
    the last, or a list such as [0, 1, 29]; null: all layers."""
    trust_remote_code: bool = False
    """Run the Python code that comes with a checkpoint whose architecture transformers lacks."""
    data: DataSpec
    output: Text
    """Folder of the trained drafter."""
    seed: Seed = 0
    """Seed of every random stream."""
    num_steps: Positive | None = None
    """Updates of the weights; null (only finetune and heads): the number that their epochs need."""
    optimizer: Literal["adamw", "muon"] = "adamw"
    """muon (torch 2.9 or later): torch.optim.Muon for the matrices inside layers, and AdamW with 0.15 times the
    learning rate for all other parameters."""
    learning_rate: Annotated[tuple[Annotated[float, Field(gt=0)], ...], Field(min_length=1)]
    """Peak learning rate. Several rates are tried in turn, and the validation loss selects one."""
    schedule: Literal["constant", "cosine"]
    """Schedule of the learning rate after the warm-up."""
    warmup: Annotated[float, Field(ge=0)]
    """Warm-up updates of the learning rate; below 1: a share of num_steps."""
    weight_decay: Annotated[float, Field(ge=0)]
    """Weight decay of AdamW."""
    clip: Annotated[float, Field(ge=0)] = 1.0
    """Maximum gradient norm; 0: no clipping."""
    gradient_accumulation: Positive
    """Passes of each update."""
    max_prompt_tokens: Positive = 512
    """Longer prompts are truncated in the middle."""
    max_new_tokens: Positive
    """Maximum length of the target's continuations."""
    max_text_tokens: Positive
    """Longer texts are truncated; in finetune, so are prompts with their answers."""
    generation_batch: Positive = 32
    """Batch size of the target's generation."""
    checkpoint_every: Positive = 100
    """Updates between checkpoints. An interrupted training resumes from the last one."""
    log_every: Positive = 1
    """Updates between entries of log.csv."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """bfloat16: mixed precision, in which the trained weights stay float32 until the drafter is saved in its original
    dtype. auto: float32 on a CPU, else bfloat16."""
    device: Text = "auto"
    """auto, cuda, mps or cpu."""
    gradient_checkpointing: bool = False
    """Recompute the drafter's activations instead of storing them, which saves memory."""
    quantize: Literal["none", "nf4"] = "none"
    """nf4: load both models in 4 bits and use 8-bit AdamW; needs lora and bitsandbytes."""
    lora: LoraSpec | None = None
    """Train low-rank adapters instead of all weights; lora.rank=16 turns them on."""
    scdf: ScdfSpec | None = None
    distill: DistillSpec | None = None
    finetune: FinetuneSpec | None = None
    medusa: MedusaSpec | None = None
    eagle: EagleSpec | None = None
    eagle3: Eagle3Spec | None = None
    peagle: PEagleSpec | None = None
    mtp: MtpSpec | None = None
    dflash: DFlashSpec | None = None
    dspark: DSparkSpec | None = None
    domino: DominoSpec | None = None

    @model_validator(mode="before")
    @classmethod
    def _with_defaults(cls, data: Any) -> Any:
        """Returns the settings with the defaults of the kind and its block. Raises ConfigError for another kind's
        block."""
        if not isinstance(data, Mapping) or data.get("kind") not in DEFAULTS:
            given = data.get("kind") if isinstance(data, Mapping) else data
            raise ConfigError(f"kind = {given!r}: {nearest(str(given), get_args(Kind))}")
        kind = data["kind"]
        foreign = next((name for name in BLOCKS if name != kind and data.get(name) is not None), None)
        if foreign:
            raise ConfigError(f"{foreign}: has no effect in a training of kind '{kind}': delete the key")
        given = {key: value for key, value in data.items() if key in ("lora",) or value is not None}
        if given.get("lora") == "none":
            given["lora"] = None
        if "init_layers" in given and "drafter" not in given:  # part of the target
            target = {key: given.get(key) for key in ("target", "target_revision")}
            given["drafter"] = target["target"] or cls.model_fields["target"].default
            given["drafter_revision"] = given.get("drafter_revision", target["target_revision"])
        return {**DEFAULTS[kind], kind: {}, **given}

    @field_validator("learning_rate", mode="before")
    @classmethod
    def _as_tuple(cls, rate: Any) -> Any:
        return rate if isinstance(rate, (list, tuple)) else (rate,)

    @model_validator(mode="after")
    def _check_settings(self) -> "TrainSpec":
        if len(set(self.learning_rate)) > 1 and not self.validation_share:
            raise ConfigError(
                f"learning_rate: the validation loss would select among several rates, but {self.kind} has no "
                "validation data: give one rate, or validation_share if the kind has it"
            )
        if self.quantize == "nf4" and self.lora is None:
            raise ConfigError("quantize = 'nf4': 4-bit weights cannot be trained: also give lora.rank=16")
        if self.quantize == "nf4" and self.init_layers is not None:
            raise ConfigError("init_layers: 4-bit weights cannot be copied layer by layer: also give quantize=none")
        if self.kind in ("scdf", "distill") and self.num_steps is None:
            raise ConfigError("num_steps: the key 'num_steps' is missing: add it")
        if self.head is None and self.optimizer != "adamw":
            raise ConfigError(f"optimizer = '{self.optimizer}': is only for draft heads: give adamw")
        if self.head is None and self.drafter is None:
            raise ConfigError(f"drafter: '{self.kind}' trains a draft model: give --drafter")
        for key in NOT_FOR_HEADS:
            if self.head is not None and getattr(self, key) not in (None, False, "none"):
                raise ConfigError(f"{key}: has no effect on a draft head: delete the key")
        if self.num_steps is not None:
            check_warmup(self.warmup, self.num_steps)
        return self

    @property
    def head(self) -> HeadSpec | None:
        """The settings of a draft head; None if a draft model is trained."""
        return self.medusa or self.eagle or self.eagle3 or self.peagle or self.mtp or self.block

    @property
    def block(self) -> BlockSpec | None:
        """The settings of a head that drafts blocks; None for other drafters."""
        return self.dflash or self.dspark or self.domino

    @property
    def _of_texts(self) -> DistillSpec | FinetuneSpec | HeadSpec | None:
        return self.distill or self.finetune or self.head

    @property
    def validation_share(self) -> float:
        return self._of_texts.validation_share if self._of_texts else 0.0

    @property
    def batch_size(self) -> int:
        """The texts of a pass; 0 for s-CDF."""
        return self._of_texts.batch_size if self._of_texts else 0

    @property
    def epochs(self) -> int | None:
        return getattr(self._of_texts, "epochs", None)

    @property
    def answer_temperatures(self) -> tuple[float, ...]:
        return getattr(self._of_texts, "temperatures", (0.0,))


def check_warmup(warmup: float, num_steps: int) -> None:
    if warmup >= 1 and warmup > num_steps:
        raise ConfigError(
            f"warmup = {warmup:g}: the learning rate reaches its peak at update {warmup:g}, but the training has only "
            f"num_steps = {num_steps}: give fewer, or a share of the steps such as 0.1"
        )


class CorpusSpec(DataSpec):
    """The texts of a corpus model: those of DataSpec, and files that are read row by row."""

    places: ClassVar[dict[str, str]] = {"corpus": "--corpus", **DataSpec.places}

    corpus: tuple[Text, ...] = ()
    """Text files in the formats of text. limit applies to all of them together."""


class CorpusModelSpec(Spec):
    """A model that is built from the tokens of texts, without the special tokens that the target's tokenizer adds. The
    target's end token follows the answer of a row."""

    kind: str
    target: Text = "embedded:target"
    """The model whose tokens are used: hub id, folder or embedded:NAME."""
    target_revision: str | None = None
    """Hub revision of the target."""
    trust_remote_code: bool = False
    """Run the Python code that comes with a checkpoint whose architecture transformers lacks."""
    data: CorpusSpec
    output: Text
    """Folder of the model."""
    seed: Seed = 0
    """Seed of the rows that are drawn from the embedded world."""


class NgramSpec(CorpusModelSpec):
    """One n-gram model. All tokens are counted in memory, which takes about 50 bytes per token."""

    kind: Literal["ngram"] = "ngram"
    order: Annotated[int, Field(ge=1, le=16)] = 2
    """Longest n-gram, in tokens; 2: bigrams."""


class RetrievalSpec(CorpusModelSpec):
    """One datastore. All tokens are sorted in memory, which takes about 50 bytes per token."""

    kind: Literal["retrieval"] = "retrieval"


CORPUS_MODELS: dict[str, type[CorpusModelSpec]] = {"ngram": NgramSpec, "retrieval": RetrievalSpec}

# Examples of --set for help texts and errors.
EXAMPLES = {
    "scdf": "scdf.estimator=sampled",
    "distill": "distill.top_k=10",
    "finetune": "finetune.stage=pretrain",
    "medusa": "medusa.num_heads=3",
    "eagle": "eagle.num_draft_steps=3",
    "eagle3": "eagle3.num_draft_steps=5",
    "peagle": "peagle.num_layers=2",
    "mtp": "mtp.num_draft_steps=2",
    "dflash": "dflash.num_layers=2",
    "dspark": "dspark.markov_rank=64",
    "domino": "domino.num_layers=2",
    "ngram": "data.split=train",
    "retrieval": "data.split=train",
}
KINDS = (*get_args(Kind), *CORPUS_MODELS)


def read_settings(
    model: type[AnySpec], kind: str, config: Path | None, options: Mapping[str, object], overrides: Sequence[str]
) -> AnySpec:
    """Returns the validated settings: the command line overrides the YAML file, which overrides the defaults.

    `options`: values by dotted key, None for options that are not given. `overrides`: key=value. Raises ConfigError
    that names the file or the option, the key and the value.
    """
    file = yaml_files.read(config) if config is not None else {}
    if file.get("kind", kind) != kind:
        raise ConfigError(
            f"{config}: kind = {file['kind']!r}, but the command is `train {kind}`: {nearest(kind, KINDS)}"
        )
    data = {**file, "kind": kind}
    for path, value in options.items():
        if value is not None:
            data = dotted.put(data, path, value)
    origins = {}  # of the keys that --set gives
    for pair in overrides:
        path, equals, text = pair.partition("=")
        if not equals or not path.strip():
            raise ConfigError(f"--set '{pair}': write it as key=value, such as --set {EXAMPLES[kind]}")
        origins[path.strip()] = f"--set {pair}"
        data = dotted.put(data, path.strip(), yaml_files.parse(text, f"--set {pair}"))
    if not data.get("output"):
        raise ConfigError("--output: is missing: give a folder for the trained drafter")
    try:
        return build(model, {"data": {}, **data})
    except ConfigError as error:
        key = str(error).split(" = ")[0].split(": ")[0]
        block = key.split(".")[0]
        named = (
            place for path, place in origins.items() if f"{key}.".startswith(f"{path}.") or key == path.split(".")[0]
        )
        place = next(named, str(config) if block in file else "")
        raise ConfigError(f"{place}: {error}" if place else str(error)) from error
