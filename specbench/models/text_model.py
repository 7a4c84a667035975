"""A language model without its passes: its identity, tokenizer, end tokens and context limit."""

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

from specbench.core.errors import ConfigError
from specbench.models.vocabulary import Vocabulary


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
        self.chat_template_args: Mapping[str, Any] = {}
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

    def decode_text(self, token_ids: Sequence[int]) -> str:
        text: str = self.tokenizer.decode(list(token_ids), skip_special_tokens=True, clean_up_tokenization_spaces=False)
        return text

    def encode_prompt(self, prompt: str, chat: bool, earlier: Sequence[str] = ()) -> list[int]:
        """Returns the token ids of a prompt. If `chat` is set, the chat template renders it as a user message.

        `earlier`: the previous texts of user and model, alternating. Without a chat template, each answer directly
        follows its prompt, and an empty line follows the answer. The tokenizer's warning about long inputs is off,
        because callers reject or shorten prompts that do not fit. Raises ConfigError for a token id that the model
        lacks.
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
            text: str = self.tokenizer.apply_chat_template(
                messages, add_generation_prompt=True, tokenize=False, **self.chat_template_args
            )
        except Exception as error:  # templates are programs: they may raise anything
            reason = " ".join(str(error).split())[:200]
            refused = "a single user turn" if len(texts) == 1 else f"a conversation of {len(texts)} messages"
            raise ConfigError(
                f"model '{self.name}': its chat template refuses {refused} ({reason}); use --chat never"
            ) from error
        return text


def shortest_context(models: Iterable[TextModel]) -> int | None:
    """Returns the smallest context limit of the models, in tokens; None if no model has a limit."""
    return min((model.context_limit for model in models if model.context_limit), default=None)
