"""A Hugging Face causal language model with its tokenizer and its cached sequence."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import torch

from specbench.core.errors import ConfigError
from specbench.models.eager import UNKNOWN, EagerSequence
from specbench.models.timing import Clock, PassLog
from specbench.models.vocabulary import Vocabulary
from specbench.specs.components import StaticEngine

if TYPE_CHECKING:
    from specbench.models.drafting import Draft, Draw
    from specbench.models.static_sequence import StaticSequence


class CausalLM:
    """A causal language model with a cache for one sequence: `score` feeds only tokens that are not cached yet."""

    def __init__(self, model: Any, tokenizer: Any, name: str, revision: str | None) -> None:
        self.model = model
        self.tokenizer = tokenizer
        self.name = name
        self.revision = revision
        self.device: torch.device = model.device
        self.eos_token_ids = eos_token_ids(model, tokenizer)
        text_config = model.config.get_text_config()
        self.context_limit: int | None = getattr(text_config, "max_position_embeddings", None)
        # Rows of the output layer beyond the tokenizer's ids are padding and must never be drawn.
        self.vocab_size = min(text_config.vocab_size, max(self.vocabulary.values()) + 1)
        self.defers = self.device.type == "cuda"  # reading a token there waits for all queued work
        self.passes = PassLog(Clock(self.device))
        self.sequence: EagerSequence | StaticSequence = EagerSequence(model, name, self.vocab_size, self.passes)
        self.why_eager: str | None = None  # the reason if another engine was requested and failed

    @property
    def static(self) -> "StaticSequence | None":
        """The sequence with recorded or compiled passes; None for the eager engine."""
        return None if isinstance(self.sequence, EagerSequence) else self.sequence

    def make_static(self, engine: StaticEngine = "compiled") -> None:
        """Switches to recorded or compiled passes. Raises CannotCompile if the model does not support them."""
        from specbench.models.static_sequence import StaticSequence  # its imports take seconds

        given = (self.model, self.name, self.vocab_size, self.passes, self.context_limit)
        self.sequence = StaticSequence(*given, engine=engine)

    @property
    def engine(self) -> Literal["eager", "graphs", "compiled"]:
        """The engine that runs the forward passes."""
        return "eager" if self.static is None else self.static.engine

    @property
    def dtype(self) -> str:
        return str(self.model.dtype).removeprefix("torch.")

    @property
    def attention(self) -> str:
        """The attention implementation that transformers selected."""
        return str(self.model.config._attn_implementation)

    @cached_property
    def vocabulary(self) -> dict[str, int]:
        """The ids by token string, including added tokens."""
        vocabulary: dict[str, int] = self.tokenizer.get_vocab()
        return vocabulary

    @cached_property
    def text_vocabulary(self) -> Vocabulary:
        """The bytes of each token and an encoder of plain text, for vocabulary bridges."""
        return Vocabulary(self.tokenizer)

    def reset(self) -> None:
        """Drops the cached sequence; the buffers are kept."""
        self.sequence.reset()

    def checkpoint(self) -> int:
        """Returns the number of cached tokens, to which `rollback` can return."""
        return self.sequence.checkpoint()

    def rollback(self, num_tokens: int) -> None:
        """Crops the cache to its first `num_tokens` tokens."""
        self.sequence.rollback(num_tokens)

    def score(self, ids: list[int], num_logits: int, tail: torch.Tensor | None = None) -> torch.Tensor:
        """Returns the logits after the last `num_logits` tokens of `ids` and `tail`: [num_logits, vocab_size].

        Feeds only the tokens after the longest prefix shared with the cache, and at least the last `num_logits`.
        `tail` [num_tail]: the pending tokens, which follow `ids` and which only the device knows. Those that are
        already cached come first. `resolve_pending` supplies their ids later.
        """
        return self.sequence.score(ids, num_logits, tail)

    def resolve_pending(self, token_ids: list[int]) -> None:
        """Supplies the ids of the last pass's pending tokens. Cached tokens with unknown ids would be fed again."""
        cached = self.sequence.cached_ids
        if (num_unknown := cached[-len(token_ids) :].count(UNKNOWN)) > 0:
            cached[-num_unknown:] = token_ids[:num_unknown]

    def reserve_draft(self, num_tokens: int, draw: "Draw") -> tuple[int, float]:
        """Records drafts of `num_tokens` tokens, if the engine records passes. Returns the number of recorded graphs
        and the seconds spent."""
        return (0, 0.0) if self.static is None else self.static.reserve_draft(num_tokens, draw)

    def draft(
        self, ids: list[int], num_tokens: int, draw: "Draw", generator: torch.Generator,
        given: torch.Tensor | None = None,
    ) -> "Draft | None":  # fmt: skip
        """Drafts `num_tokens` tokens after `ids` with one recorded graph. Returns None if no matching graph was
        recorded. `resolve_pending` supplies the ids later. `given` [num_tokens]: tokens that replace the drawn ones."""
        return None if self.static is None else self.static.draft(ids, num_tokens, draw, generator, given)

    def score_batch(self, ids: list[int], suffixes: list[list[int]]) -> torch.Tensor:
        """Returns the logits after `ids` followed by each suffix: [num_suffixes, vocab_size].

        All suffixes have the same length, at least one token. Tokens of `ids` that are not cached are fed first.
        Afterwards the cache holds exactly `ids`.
        """
        return self.sequence.score_batch(ids, suffixes)

    def decode_text(self, token_ids: Sequence[int]) -> str:
        text: str = self.tokenizer.decode(list(token_ids), skip_special_tokens=True, clean_up_tokenization_spaces=False)
        return text

    def encode_prompt(self, prompt: str, chat: bool, earlier: Sequence[str] = ()) -> list[int]:
        """Returns the token ids of a prompt. If `chat` is set, the chat template renders it as a user message.

        `earlier`: the previous texts of user and model, alternating. Without a chat template each answer directly
        follows its prompt, and an empty line follows the answer. The tokenizer's warning about long inputs is off,
        because callers reject or shorten prompts that do not fit. Raises ConfigError for a token id that the model
        does not have.
        """
        texts = [*earlier, prompt]
        if chat:
            ids: list[int] = self.tokenizer(self._in_chat(texts), add_special_tokens=False, verbose=False)["input_ids"]
        else:
            turns = ("".join(texts[start : start + 2]) for start in range(0, len(texts), 2))
            ids = self.tokenizer("\n\n".join(turns), verbose=False)["input_ids"]
        if max(ids, default=0) >= self.vocab_size:
            raise ConfigError(
                f"the tokenizer of model '{self.name}' makes token {max(ids)}, but the model has only "
                f"{self.vocab_size}; give the tokenizer that belongs to the model"
            )
        return ids

    def _in_chat(self, texts: Sequence[str]) -> str:
        messages = [{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(texts)]
        try:
            text: str = self.tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
        except Exception as error:  # templates are programs: they may raise anything
            reason = " ".join(str(error).split())[:200]
            what = "a single user turn" if len(texts) == 1 else f"a conversation of {len(texts)} messages"
            raise ConfigError(
                f"model '{self.name}': its chat template refuses {what} ({reason}); use --chat never"
            ) from error
        return text


def eos_token_ids(model: Any, tokenizer: Any) -> frozenset[int]:
    """Returns all end-of-text ids of the generation config, the model config and the tokenizer."""
    ids: set[int] = set()
    holders = (getattr(model, "generation_config", None), model.config, tokenizer)
    for value in (getattr(holder, "eos_token_id", None) for holder in holders):
        ids.update(value if isinstance(value, list) else [value] if value is not None else [])
    return frozenset(ids)


def shortest_context(models: Iterable[CausalLM]) -> int | None:
    """Returns the smallest context limit of the models, in tokens; None if no model has a limit."""
    return min((model.context_limit for model in models if model.context_limit), default=None)


@dataclass(frozen=True)
class ModelPair:
    """The target and the draft model of a method; `drafter` is None if the method needs none. `of_routes`: the draft
    models of a method's routes by METHOD/LANGUAGE; other routes use `drafter`."""

    target: CausalLM
    drafter: CausalLM | None = None
    of_routes: Mapping[str, CausalLM] = field(default_factory=dict)
