"""A Hugging Face causal language model with its own key-value cache."""

import inspect
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any

import torch
from transformers.cache_utils import Cache, LinearAttentionCacheLayerMixin

from specbench.errors import ConfigError
from specbench.models.kv_cache import PreallocatedLayer, preallocated_cache
from specbench.models.recurrent import RecurrentStates
from specbench.models.timing import Clock, PassLog
from specbench.models.vocabulary import Vocabulary

MAX_ROWS = 64  # of one batched pass


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
        self._attention_layers = [layer for layer in self.cache.layers if isinstance(layer, PreallocatedLayer)]
        self._recurrent = RecurrentStates(model, self.cache, name) if has_recurrent_layers(self.cache) else None
        self._cached_ids: list[int] = []
        parameters = inspect.signature(model.forward).parameters
        self._can_keep_logits = "logits_to_keep" in parameters
        # Some hybrids count positions from zero in every pass; those without attention have none.
        self._needs_positions = self._recurrent is not None and "position_ids" in parameters
        self._cache_parameter = "past_key_values" if "past_key_values" in parameters else "cache_params"
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

    @cached_property
    def text_vocabulary(self) -> Vocabulary:
        """What each token writes, and how texts are cut: where vocabularies meet."""
        return Vocabulary(self.tokenizer)

    def reset(self) -> None:
        """Forget the sequence; the buffers stay."""
        self._truncate(0)
        if self._recurrent is not None:
            self._recurrent.reset()

    def checkpoint(self) -> int:
        """A point of the sequence to come back to with `rollback`: the number of cached tokens."""
        if self._recurrent is not None:
            self._recurrent.keep()
        return len(self._cached_ids)

    def rollback(self, num_tokens: int) -> None:
        """Keep the first `num_tokens` cached tokens. O(1) for attention layers.

        Recurrent layers return to their newest snapshot at or before that point, and the model with them: the tokens
        in between are fed again by the next pass. A point that `checkpoint` gave has its snapshot.
        """
        if num_tokens < len(self._cached_ids):
            self._truncate(num_tokens if self._recurrent is None else self._recurrent.rewind(num_tokens))

    def _truncate(self, num_tokens: int) -> None:
        del self._cached_ids[num_tokens:]
        for layer in self._attention_layers:
            layer.truncate(num_tokens)

    @torch.inference_mode()
    def score(self, ids: list[int], num_logits: int) -> torch.Tensor:
        """The logits after each of the last `num_logits` tokens of `ids`: [num_logits, vocab_size].

        Only tokens behind the prefix that `ids` shares with the cache are fed (and at least the last `num_logits`),
        after those that recurrent layers must see again (see `rollback`).
        """
        num_kept = min(common_prefix(self._cached_ids, ids), len(ids) - num_logits)
        self.rollback(num_kept)
        num_cached = len(self._cached_ids)
        new_ids = ids[num_cached:]
        if self._recurrent is None:
            logits = self._forward([new_ids], num_logits)
        else:
            with self._recurrent.feeding(len(new_ids), num_kept - num_cached, num_logits > 1):
                logits = self._forward([new_ids], num_logits)
        self._cached_ids += new_ids
        if not self._has_cached(len(self._cached_ids)):
            raise ConfigError(
                f"model '{self.name}' does not keep its keys in the cache it is given; choose another model"
            )
        return logits[0]

    @torch.inference_mode()
    def score_batch(self, ids: list[int], suffixes: list[list[int]]) -> torch.Tensor:
        """The logits after `ids` and each of the equally long suffixes: [num_suffixes, vocab_size].

        A suffix is at least one token. One pass for up to MAX_ROWS suffixes; afterwards the cache holds exactly `ids`,
        and what it lacked of them was fed before.
        """
        if common_prefix(self._cached_ids, ids) == len(ids):
            self.rollback(len(ids))
        if len(self._cached_ids) != len(ids):
            self.score(ids, 1)
        rows: list[torch.Tensor] = []
        for start in range(0, len(suffixes), MAX_ROWS):
            batch = suffixes[start : start + MAX_ROWS]
            if self._recurrent is None:
                logits = self._forward(batch, 1)
            else:
                with self._recurrent.expanded(len(batch), len(batch[0])):
                    logits = self._forward(batch, 1)
            self._truncate(len(ids))
            rows.append(logits[:, 0])
        return torch.cat(rows)

    def _forward(self, rows: list[list[int]], num_logits: int) -> torch.Tensor:
        """One clocked pass over the cache: [num_rows, num_logits, vocab_size]."""
        input_ids = torch.tensor(rows, device=self.device)
        start = self.passes.clock.mark()
        options: dict[str, Any] = {self._cache_parameter: self.cache}
        if self._can_keep_logits:
            options["logits_to_keep"] = num_logits
        if self._needs_positions:
            num_cached = len(self._cached_ids)
            positions = torch.arange(num_cached, num_cached + input_ids.shape[1], device=self.device)
            options["position_ids"] = positions.expand(input_ids.shape)
        logits: torch.Tensor = self.model(input_ids=input_ids, use_cache=True, **options).logits
        self.passes.add(input_ids.numel(), start, self.passes.clock.mark())
        return logits[:, -num_logits:, : self.vocab_size]

    def _has_cached(self, num_tokens: int) -> bool:
        """Whether the model keeps in the cache what it was fed, as far as the layers can tell."""
        if self._attention_layers:
            return self._attention_layers[0].length == num_tokens
        return self.cache.has_previous_state()

    def decode_text(self, token_ids: Sequence[int]) -> str:
        text: str = self.tokenizer.decode(list(token_ids), skip_special_tokens=True, clean_up_tokenization_spaces=False)
        return text

    def encode_prompt(self, prompt: str, chat: bool, earlier: Sequence[str] = ()) -> list[int]:
        """Token ids of a prompt, through the chat template as the user's when `chat` is set.

        `earlier`: the texts of user and model in turn that come before it. Without a chat template an answer follows
        its prompt as it is, and an empty line follows the answer. The tokenizer is not to warn of a long one: what does
        not fit is refused or shortened before it reaches the model.
        """
        texts = [*earlier, prompt]
        if chat:
            ids: list[int] = self.tokenizer(self._in_chat(texts), add_special_tokens=False, verbose=False)["input_ids"]
        else:
            turns = ("".join(texts[start : start + 2]) for start in range(0, len(texts), 2))
            ids = self.tokenizer("\n\n".join(turns), verbose=False)["input_ids"]
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


def has_recurrent_layers(cache: Cache) -> bool:
    return any(isinstance(layer, LinearAttentionCacheLayerMixin) for layer in cache.layers)


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


def shortest_context(models: Iterable[CausalLM]) -> int | None:
    """The tokens that all models can read; None where no model has a limit."""
    return min((model.context_limit for model in models if model.context_limit), default=None)
