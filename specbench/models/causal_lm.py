"""Language models with their tokenizer. The passes of a CausalLM run in this process and have a cached sequence."""

from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, cast

import torch

from specbench.core.errors import ConfigError
from specbench.core.values import text_digest
from specbench.models.chat_template import ChatTemplate
from specbench.models.eager import UNKNOWN, CachedSequence, EagerSequence
from specbench.models.gguf.header import TEXT_ENDS, turn_ends
from specbench.models.meters import Clock, PassLog
from specbench.models.scoring import Draft, Output, Sampler, ScoringModel
from specbench.models.vocabulary import Vocabulary
from specbench.specs.components import Quantize, StaticEngine

if TYPE_CHECKING:
    from specbench.models.static_passes import StaticSequence


@dataclass(frozen=True)
class Prompt:
    """A rendered prompt: the text that the tokenizer read, and its token ids, packed, since a run keeps all prompts."""

    text: str
    packed_ids: "array[int]"

    @property
    def ids(self) -> list[int]:
        return self.packed_ids.tolist()

    @cached_property
    def digest(self) -> str:
        return ids_digest(self.packed_ids)


def ids_digest(ids: Iterable[int]) -> str:
    """Returns 12 hex digits of SHA-256 over token ids, written in decimal with commas between them."""
    return text_digest(",".join(map(str, ids)))


class TextModel:
    """What a decoder needs of a model: tokenizer, context limit and end tokens. Its passes may run anywhere."""

    def __init__(
        self, tokenizer: Any, name: str, revision: str | None, *, eos_token_ids: frozenset[int],
        context_limit: int | None, vocab_size: int,
    ) -> None:  # fmt: skip
        self.tokenizer = tokenizer
        self.name = name
        self.revision = revision
        self.eos_token_ids = eos_token_ids
        self.chat_template = ChatTemplate(tokenizer, name)
        self._kept: dict[tuple[str, ...], dict[int, str]] = {}  # special tokens in the texts of `keep`
        self.context_limit = context_limit  # in tokens; None if there is no limit
        # Rows of the output layer beyond the tokenizer's ids are padding and must never be drawn.
        self.vocab_size = min(vocab_size, max(self.vocabulary.values()) + 1)

    @cached_property
    def vocabulary(self) -> dict[str, int]:
        """The ids by token string, including added tokens."""
        vocabulary: dict[str, int] = self.tokenizer.get_vocab()
        return vocabulary

    @cached_property
    def text_vocabulary(self) -> Vocabulary:
        """The bytes of each token and an encoder of plain text, for vocabulary bridges."""
        return Vocabulary(self.tokenizer)

    @cached_property
    def special_tokens(self) -> dict[str, int]:
        """The ids of special tokens by their text. The text of an answer has none of them."""
        added = self.tokenizer.added_tokens_decoder
        found = {str(token): index for index, token in added.items() if token.special}
        named = (str(token) for token in self.tokenizer.all_special_tokens)
        return found | {token: self.vocabulary[token] for token in named if token in self.vocabulary}

    @property
    def told_ends(self) -> str:
        """The tokens that end answers, as rows have them: "0 <|endoftext|>, 2 <|im_end|>"."""
        tokens = {index: self.tokenizer.convert_ids_to_tokens(index) for index in sorted(self.eos_token_ids)}
        return ", ".join(f"{index} {token or ''}".strip() for index, token in tokens.items()) or "none"

    @property
    def unused_ends(self) -> dict[str, int]:
        """The ids of special tokens that end a text or a turn by their name and yet end no answer here, by their text:
        a checkpoint's files may name too few end tokens."""
        special = {token.encode(): index for token, index in self.special_tokens.items()}
        marks = turn_ends(special) | TEXT_ENDS.intersection(special)
        found = {self.tokenizer.eos_token, *(mark.decode() for mark in marks)} & self.special_tokens.keys()
        ids = {token: self.special_tokens[token] for token in sorted(found)}
        return {token: index for token, index in ids.items() if index not in self.eos_token_ids}

    def decode_text(self, token_ids: Sequence[int], keep: tuple[str, ...] = ()) -> str:
        """Returns the text of tokens. Special tokens are dropped, except those that occur in one of the texts of
        `keep`."""
        if keep not in self._kept:
            special = self.special_tokens.items() if keep else ()
            self._kept[keep] = {index: token for token, index in special if any(token in text for text in keep)}
        kept = self._kept[keep]
        pieces: list[str | list[int]] = [[]]  # special tokens that are kept, and runs of all others
        for token in token_ids:
            if token in kept:
                pieces += [kept[token], []]
            else:
                pieces[-1].append(token)  # type: ignore[union-attr]
        return "".join(piece if isinstance(piece, str) else self._decode(piece) for piece in pieces)

    def _decode(self, token_ids: list[int]) -> str:
        text: str = self.tokenizer.decode(token_ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        return text

    def encode_prompt(self, prompt: str, chat: bool) -> list[int]:
        """Returns the token ids of a single prompt; see `render_prompt`."""
        return self.render_prompt([prompt], chat).ids

    def render_prompt(self, texts: Sequence[str], chat: bool, system: str | None = None) -> Prompt:
        """Returns a conversation as the model reads it. If `chat` is set, the chat template renders it.

        `texts`: the texts of user and model, alternating; the last one is the user's. Without a chat template, each
        answer directly follows its prompt, an empty line follows the answer, and the system prompt stands directly
        before the whole, as in lm-eval. The tokenizer's warning about long inputs is off, because callers reject or
        shorten prompts that do not fit. Raises ConfigError for a token id that the model lacks.
        """
        if chat:
            text = self.chat_template.render(texts, system)
        else:
            turns = ("".join(texts[start : start + 2]) for start in range(0, len(texts), 2))
            text = (system or "") + "\n\n".join(turns)
        ids: list[int] = self.tokenizer(text, add_special_tokens=not chat, verbose=False)["input_ids"]
        if max(ids, default=0) >= self.vocab_size:
            raise ConfigError(
                f"the tokenizer of model '{self.name}' makes token {max(ids)}, but the model has only "
                f"{self.vocab_size}; give the tokenizer that belongs to the model"
            )
        return Prompt(text, array("I", ids))


def shortest_context(models: Iterable[TextModel]) -> int | None:
    """Returns the smallest context limit of the models, in tokens; None if no model has a limit."""
    return min((model.context_limit for model in models if model.context_limit), default=None)


# Names of the number of positions in configurations; transformers maps most of them to the first. Models without any
# of them, such as recurrent ones and those with unbounded ALiBi or rotary positions, have no limit.
POSITIONS = ("max_position_embeddings", "n_positions", "max_seq_len", "max_sequence_length", "n_ctx")


def context_limit_of(config: Any) -> int | None:
    """Returns the number of positions of a text model's configuration; None if it declares no limit (XLNet: -1)."""
    sizes = (getattr(config, name, None) for name in POSITIONS)
    return next((size for size in sizes if isinstance(size, int) and size > 0), None)


class CausalLM(TextModel, ScoringModel):
    """A causal language model whose passes run in this process, with a cache for one sequence. `why_eager`: the reason
    if another engine was requested and failed."""

    why_eager: str | None = None

    def __init__(
        self, model: Any, tokenizer: Any, name: str, revision: str | None, quantization: Quantize = "none"
    ) -> None:
        config = model.config.get_text_config()
        ends = end_token_sources(getattr(model, "generation_config", None), model.config, tokenizer)
        super().__init__(
            tokenizer, name, revision, eos_token_ids=frozenset().union(*ends.values()),
            context_limit=context_limit_of(config), vocab_size=config.vocab_size,
        )  # fmt: skip
        self._network = model
        self.quantization = quantization
        self._use(EagerSequence(model, name, self.vocab_size, PassLog(Clock(model.device))))

    def _use(self, sequence: CachedSequence) -> None:
        """Begins with a sequence, which makes all passes."""
        self.sequence = sequence
        self.device, self.passes = sequence.device, sequence.passes
        self.prefers_pending = self.device.type == "cuda"  # reading a token there waits for all queued work
        self._keeps_prompt = False  # a reset then waits for the next pass, which may be over the same prompt
        self._is_reset = False
        self._prompt: tuple[list[int], int, tuple[int, ...]] | None = None  # what the first pass after a reset read
        self._prompt_output = Output(torch.empty(0))

    @property
    def model(self) -> Any:
        """The network in torch."""
        return self._network

    @property
    def padded_vocab_size(self) -> int:
        """The number of rows of its embeddings, which may be padded beyond the tokenizer's ids."""
        size: int = self.model.config.get_text_config().vocab_size
        return size

    @property
    def static(self) -> "StaticSequence | None":
        """The sequence with recorded or compiled passes; None for the eager engine."""
        return None if isinstance(self.sequence, EagerSequence) else cast("StaticSequence", self.sequence)

    def make_static(self, engine: StaticEngine = "compiled") -> None:
        """Switches to recorded or compiled passes. Raises CannotCompile if the model does not support them."""
        from specbench.models.static_passes import StaticSequence  # its imports take seconds

        self.sequence = StaticSequence(
            self.model, self.name, self.vocab_size, self.passes, self.context_limit, engine=engine
        )

    @property
    def engine(self) -> Literal["eager", "graphs", "compiled", "llama.cpp"]:
        return "eager" if self.static is None else self.static.engine

    @property
    def dtype(self) -> str:
        return str(self.model.dtype).removeprefix("torch.")

    @property
    def needs_room(self) -> bool:
        """Whether growing its cache takes so long that room must be reserved before a generation is timed."""
        return False

    @property
    def rounds(self) -> bool:
        """Whether its passes round more than the dtype of its logits."""
        return False

    @property
    def precision(self) -> str:
        """The dtype of the passes, after the type of quantized weights: "bfloat16" or "nf4 (bfloat16)"."""
        return self.dtype if self.quantization == "none" else f"{self.quantization} ({self.dtype})"

    @property
    def placement(self) -> str:
        """The devices that hold the weights, such as "cuda:0" or "cuda:0+cuda:1+cpu"."""
        places = getattr(self.model, "hf_device_map", {"": self.device}).values()
        return "+".join(dict.fromkeys(f"cuda:{place}" if isinstance(place, int) else str(place) for place in places))

    @property
    def attention(self) -> str:
        """The attention implementation that transformers selected."""
        return str(self.model.config._attn_implementation)

    @property
    def pass_width(self) -> int | None:
        """The rows of which each pass is made; None: as many as its tokens."""
        return self.sequence.pass_width if hasattr(self, "sequence") else None  # without weights there are no passes

    @contextmanager
    def without_width(self) -> Iterator[None]:
        """Within the block, a pass has as many rows as it reads tokens."""
        num_rows, self.sequence.pass_width = self.sequence.pass_width, None
        try:
            yield
        finally:
            self.sequence.pass_width = num_rows

    @contextmanager
    def reading_prompts_once(self) -> Iterator[None]:
        """Within the block, the pass over a prompt is made only for the first of consecutive answers to it. The times
        of the other answers lack it."""
        self._keeps_prompt, self._prompt = True, None
        try:
            yield
        finally:
            self._keeps_prompt = self._is_reset = False

    def reset(self) -> None:
        if self._keeps_prompt:
            self._is_reset = True
        else:
            self.sequence.reset()

    def checkpoint(self) -> int:
        return self.sequence.checkpoint()

    def rollback(self, num_tokens: int) -> None:
        self.sequence.rollback(num_tokens)

    def score(self, ids: list[int], num_logits: int, pending: torch.Tensor | None = None) -> Output:
        if not self._is_reset:
            return self.sequence.score(ids, num_logits, pending, self.hidden_layers)
        self._is_reset = False
        asked = None if pending is not None else (list(ids), num_logits, self.hidden_layers)
        if asked is not None and asked == self._prompt and self.sequence.cached_ids[: len(ids)] == ids:
            self.sequence.rollback(len(ids))
            return self._prompt_output
        self.sequence.reset()
        self._prompt, self._prompt_output = asked, self.sequence.score(ids, num_logits, pending, self.hidden_layers)
        self.sequence.checkpoint()
        return self._prompt_output

    def check_trees(self) -> None:
        self.sequence.check_trees()

    def score_tree(self, ids: list[int], tree_ids: list[int], parents: Sequence[int], num_logits: int) -> Output:
        return self.sequence.score_tree(ids, tree_ids, parents, num_logits, self.hidden_layers)

    def keep_path(self, path: Sequence[int]) -> None:
        self.sequence.keep_path(path)

    def resolve_pending(self, token_ids: list[int]) -> None:
        """Supplies the ids of the last pass's pending tokens. Cached tokens of unknown ids would be read again."""
        cached = self.sequence.cached_ids
        if (num_unknown := cached[-len(token_ids) :].count(UNKNOWN)) > 0:
            cached[-num_unknown:] = token_ids[:num_unknown]

    def reserve_draft(self, num_tokens: int, draw: Sampler) -> tuple[int, float]:
        return (0, 0.0) if self.static is None else self.static.reserve_draft(num_tokens, draw)

    def draft(
        self, ids: list[int], num_tokens: int, draw: Sampler, generator: torch.Generator,
        given: torch.Tensor | None = None,
    ) -> Draft | None:  # fmt: skip
        return None if self.static is None else self.static.draft(ids, num_tokens, draw, generator, given)

    def score_batch(self, ids: list[int], suffixes: list[list[int]]) -> torch.Tensor:
        return self.sequence.score_batch(ids, suffixes)


DEQUANTIZED = " dequantized"  # after the type of a GGUF file whose weights are computed with in another dtype


def split_precision(precision: str) -> tuple[str, Quantize]:
    """Returns the dtype and the quantization in `CausalLM.precision`, which is the dtype of rows."""
    quantization, is_quantized, dtype = precision.partition(" (")
    if quantization.endswith(DEQUANTIZED):
        return dtype.removesuffix(")"), "none"
    return (dtype.removesuffix(")"), quantization) if is_quantized else (precision, "none")  # type: ignore[return-value]


def end_token_sources(generation_config: Any, config: Any, tokenizer: Any) -> dict[str, list[int]]:
    """Returns the end-of-text ids by the name of the file that gives them. Raises ConfigError for values that are not
    ids."""
    holders = {"generation_config.json": generation_config, "config.json": config, "tokenizer": tokenizer}
    found = {}
    for name, holder in holders.items():
        value = getattr(holder, "eos_token_id", None)
        found[name] = value if isinstance(value, list) else [] if value is None else [value]
        if wrong := [index for index in found[name] if type(index) is not int or index < 0]:
            raise ConfigError(
                f"{name}: eos_token_id = {value!r:.60}: {wrong[0]!r:.60} is not an id of a token: correct it"
            )
    return found


@dataclass(frozen=True)
class ModelPair:
    """The target and the draft model of a method; `drafter` is None if the method needs none. `route_drafters`: the
    draft models of a method's routes by METHOD/LANGUAGE; other routes use `drafter`. `inner`: the model that drafts for
    `drafter`."""

    target: CausalLM
    drafter: CausalLM | None = None
    route_drafters: Mapping[str, CausalLM] = field(default_factory=dict)
    inner: CausalLM | None = None
