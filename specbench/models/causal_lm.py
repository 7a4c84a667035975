"""A Hugging Face causal language model: its tokenizer, and the one sequence that it reads."""

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
    """One sequence at a time: `score` feeds what the cache lacks and returns the logits that were asked for."""

    def __init__(self, model: Any, tokenizer: Any, name: str, revision: str | None) -> None:
        self.model = model
        self.tokenizer = tokenizer
        self.name = name
        self.revision = revision
        self.device: torch.device = model.device
        self.eos_token_ids = eos_token_ids(model, tokenizer)
        text_config = model.config.get_text_config()
        self.context_limit: int | None = getattr(text_config, "max_position_embeddings", None)
        # Rows of the output layer beyond the tokenizer are padding: they are no tokens and never drawn.
        self.vocab_size = min(text_config.vocab_size, max(self.vocabulary.values()) + 1)
        self.defers = self.device.type == "cuda"  # there, reading a token would wait for all that is queued
        self.passes = PassLog(Clock(self.device))
        self.sequence: EagerSequence | StaticSequence = EagerSequence(model, name, self.vocab_size, self.passes)
        self.why_eager: str | None = None  # of a model whose passes were to be recorded or compiled and cannot

    @property
    def static(self) -> "StaticSequence | None":
        """The sequence with its recorded or compiled passes; None for a model that reads eagerly."""
        return None if isinstance(self.sequence, EagerSequence) else self.sequence

    def make_static(self, engine: StaticEngine = "compiled") -> None:
        """Read in recorded or compiled passes from here on. Raises CannotCompile for a model that has none."""
        from specbench.models.static_sequence import StaticSequence  # what it imports takes seconds

        given = (self.model, self.name, self.vocab_size, self.passes, self.context_limit)
        self.sequence = StaticSequence(*given, engine=engine)

    @property
    def engine(self) -> Literal["eager", "graphs", "compiled"]:
        """How its passes are run."""
        return "eager" if self.static is None else self.static.engine

    @property
    def dtype(self) -> str:
        return str(self.model.dtype).removeprefix("torch.")

    @property
    def attention(self) -> str:
        """The attention implementation that transformers chose for the model."""
        return str(self.model.config._attn_implementation)

    @cached_property
    def vocabulary(self) -> dict[str, int]:
        """Token string → id, added tokens included."""
        vocabulary: dict[str, int] = self.tokenizer.get_vocab()
        return vocabulary

    @cached_property
    def text_vocabulary(self) -> Vocabulary:
        """What each token writes, and how texts are cut: where vocabularies meet."""
        return Vocabulary(self.tokenizer)

    def reset(self) -> None:
        """Forget the sequence; the buffers stay."""
        self.sequence.reset()

    def checkpoint(self) -> int:
        """A point of the sequence to come back to with `rollback`: the number of cached tokens."""
        return self.sequence.checkpoint()

    def rollback(self, num_tokens: int) -> None:
        """Keep the first `num_tokens` cached tokens."""
        self.sequence.rollback(num_tokens)

    def score(self, ids: list[int], num_logits: int, tail: torch.Tensor | None = None) -> torch.Tensor:
        """The logits after each of the last `num_logits` tokens of `ids`: [num_logits, vocab_size].

        Only tokens behind the prefix that `ids` shares with the cache are fed (and at least the last `num_logits`).
        `tail`: tokens [num_tail] behind `ids` that only the device knows yet, of which those that were fed before are
        the first; `settle` tells them later.
        """
        return self.sequence.score(ids, num_logits, tail)

    def resolve_pending(self, token_ids: list[int]) -> None:
        """Tell what the tail of the last pass was. An unknown one would be fed again."""
        cached = self.sequence.cached_ids
        if (num_unknown := cached[-len(token_ids) :].count(UNKNOWN)) > 0:
            cached[-num_unknown:] = token_ids[:num_unknown]

    def reserve_draft(self, num_tokens: int, draw: "Draw") -> tuple[int, float]:
        """Record drafts of `num_tokens` tokens, where the passes are recorded; returns the number of graphs that were
        recorded and the seconds that it took."""
        return (0, 0.0) if self.static is None else self.static.reserve_draft(num_tokens, draw)

    def draft(
        self, ids: list[int], num_tokens: int, draw: "Draw", generator: torch.Generator,
        given: torch.Tensor | None = None,
    ) -> "Draft | None":  # fmt: skip
        """Draft `num_tokens` tokens behind `ids` by one recorded graph; None where none was recorded for it. `settle`
        tells the tokens later. `given` [num_tokens]: tokens that are read in place of those that are drawn."""
        return None if self.static is None else self.static.draft(ids, num_tokens, draw, generator, given)

    def score_batch(self, ids: list[int], suffixes: list[list[int]]) -> torch.Tensor:
        """The logits after `ids` and each of the equally long suffixes: [num_suffixes, vocab_size].

        A suffix is at least one token. Afterwards the cache holds exactly `ids`, and what it lacked of them was fed
        before.
        """
        return self.sequence.score_batch(ids, suffixes)

    def decode_text(self, token_ids: Sequence[int]) -> str:
        text: str = self.tokenizer.decode(list(token_ids), skip_special_tokens=True, clean_up_tokenization_spaces=False)
        return text

    def encode_prompt(self, prompt: str, chat: bool, earlier: Sequence[str] = ()) -> list[int]:
        """Token ids of a prompt, through the chat template as the user's when `chat` is set.

        `earlier`: the texts of user and model in turn that come before it. Without a chat template an answer follows
        its prompt as it is, and an empty line follows the answer. The tokenizer is not to warn of a long one: what does
        not fit is refused or shortened before it reaches the model. Raises ConfigError for a token that the model
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
    """All ids that end a text, from the generation config, else the config, and the tokenizer."""
    ids: set[int] = set()
    holders = (getattr(model, "generation_config", None), model.config, tokenizer)
    for value in (getattr(holder, "eos_token_id", None) for holder in holders):
        ids.update(value if isinstance(value, list) else [value] if value is not None else [])
    return frozenset(ids)


def shortest_context(models: Iterable[CausalLM]) -> int | None:
    """The tokens that all models can read; None where no model has a limit."""
    return min((model.context_limit for model in models if model.context_limit), default=None)


@dataclass(frozen=True)
class ModelPair:
    """A target and the draft model of a method; `drafter` is None when the method asks for none. `of_routes`: the draft
    models of a method's routes by METHOD/LANGUAGE; a route that is not among them takes `drafter`."""

    target: CausalLM
    drafter: CausalLM | None = None
    of_routes: Mapping[str, CausalLM] = field(default_factory=dict)
