"""A Hugging Face causal language model with its own key-value cache."""

import inspect
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import torch

from specbench.errors import ConfigError
from specbench.models.kv_cache import PreallocatedLayer, preallocated_cache
from specbench.models.timing import Clock, PassLog


class CausalLM:
    """One sequence at a time: `score` feeds what the cache lacks and returns the logits that were asked for."""

    def __init__(self, model: Any, tokenizer: Any, name: str, revision: str | None) -> None:
        self.model = model
        self.tokenizer = tokenizer
        self.name = name
        self.revision = revision
        self.device: torch.device = model.device
        self.passes = PassLog(Clock(self.device))
        self.cache = preallocated_cache(model.config, name)
        self._cached_ids: list[int] = []
        self._can_keep_logits = "logits_to_keep" in inspect.signature(model.forward).parameters
        self.eos_token_ids = eos_token_ids(model, tokenizer)
        text_config = model.config.get_text_config()
        self.context_limit: int | None = getattr(text_config, "max_position_embeddings", None)
        # Rows of the output layer beyond the tokenizer are padding: they are no tokens and never drawn.
        self.vocab_size = min(text_config.vocab_size, max(self.vocabulary.values()) + 1)

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

    def reset(self) -> None:
        """Forget the sequence; the buffers stay."""
        self.rollback(0)

    def checkpoint(self) -> int:
        """A point of the sequence to come back to with `rollback`: the number of cached tokens."""
        return len(self._cached_ids)

    def rollback(self, num_tokens: int) -> None:
        """Keep the first `num_tokens` cached tokens. O(1) for attention layers."""
        if num_tokens < len(self._cached_ids):
            del self._cached_ids[num_tokens:]
            for layer in self.cache.layers:
                assert isinstance(layer, PreallocatedLayer)
                layer.truncate(num_tokens)

    @torch.inference_mode()
    def score(self, ids: list[int], num_logits: int) -> torch.Tensor:
        """The logits after each of the last `num_logits` tokens of `ids`: [num_logits, vocab_size].

        Only tokens behind the prefix that `ids` shares with the cache are fed (and at least the last `num_logits`).
        """
        self.rollback(min(common_prefix(self._cached_ids, ids), len(ids) - num_logits))
        new_ids = ids[self.checkpoint() :]
        input_ids = torch.tensor([new_ids], device=self.device)
        start = self.passes.clock.mark()
        keep = {"logits_to_keep": num_logits} if self._can_keep_logits else {}
        logits = self.model(input_ids=input_ids, past_key_values=self.cache, use_cache=True, **keep).logits
        self.passes.add(len(new_ids), start, self.passes.clock.mark())
        self._cached_ids += new_ids
        if self.cache.get_seq_length() != self.checkpoint():
            raise ConfigError(
                f"model '{self.name}' does not keep its keys in the cache it is given; choose another model"
            )
        scores: torch.Tensor = logits[0, -num_logits:, : self.vocab_size]
        return scores

    def decode_text(self, token_ids: Sequence[int]) -> str:
        text: str = self.tokenizer.decode(list(token_ids), skip_special_tokens=True, clean_up_tokenization_spaces=False)
        return text

    def encode_prompt(self, prompt: str, chat: bool) -> list[int]:
        """Token ids of a prompt, through the chat template as one user turn when `chat` is set."""
        if chat:
            ids: list[int] = self.tokenizer(self._in_chat(prompt), add_special_tokens=False)["input_ids"]
        else:
            ids = self.tokenizer(prompt)["input_ids"]
        return ids

    def _in_chat(self, prompt: str) -> str:
        try:
            text: str = self.tokenizer.apply_chat_template(
                [{"role": "user", "content": prompt}], add_generation_prompt=True, tokenize=False
            )
        except Exception as error:  # templates are programs: they may raise anything
            reason = " ".join(str(error).split())[:200]
            raise ConfigError(
                f"model '{self.name}': its chat template refuses a single user turn ({reason}); use --chat never"
            ) from error
        return text


def common_prefix(first: list[int], second: list[int]) -> int:
    """The length of the longest common prefix."""
    shorter = min(len(first), len(second))
    if first[:shorter] == second[:shorter]:
        return shorter
    return next(i for i in range(shorter) if first[i] != second[i])


def eos_token_ids(model: Any, tokenizer: Any) -> frozenset[int]:
    """All ids that end a text, from the generation config, else the config, and the tokenizer."""
    ids: set[int] = set()
    holders = (getattr(model, "generation_config", None), model.config, tokenizer)
    for value in (getattr(holder, "eos_token_id", None) for holder in holders):
        ids.update(value if isinstance(value, list) else [value] if value is not None else [])
    return frozenset(ids)
