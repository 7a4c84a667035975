"""The forward passes of a model as transformers makes them, over a cache of one sequence that grows with it."""

import inspect
from typing import Any

import torch
from transformers.cache_utils import Cache, LinearAttentionCacheLayerMixin

from specbench.errors import ConfigError
from specbench.models.kv_cache import PreallocatedLayer, preallocated_cache
from specbench.models.recurrent import RecurrentStates
from specbench.models.timing import PassLog

MAX_ROWS = 64  # of one batched pass


class EagerSequence:
    """The tokens that a model has read, and how it reads more."""

    def __init__(self, model: Any, name: str, vocab_size: int, passes: PassLog) -> None:
        self.model = model
        self.name = name
        self.vocab_size = vocab_size
        self.device: torch.device = model.device
        self.passes = passes
        self.cache = preallocated_cache(model.config, name)
        self.recurrent = RecurrentStates(model, self.cache, name) if has_recurrent_layers(self.cache) else None
        self._attention_layers = [layer for layer in self.cache.layers if isinstance(layer, PreallocatedLayer)]
        self._cached_ids: list[int] = []
        parameters = inspect.signature(model.forward).parameters
        self._can_keep_logits = "logits_to_keep" in parameters
        # Some hybrids count positions from zero in every pass; those without attention have none.
        self._needs_positions = self.recurrent is not None and "position_ids" in parameters
        self._cache_parameter = "past_key_values" if "past_key_values" in parameters else "cache_params"

    def reset(self) -> None:
        """Forget the sequence; the buffers stay."""
        self._truncate(0)
        if self.recurrent is not None:
            self.recurrent.reset()

    def checkpoint(self) -> int:
        """A point of the sequence to come back to with `rollback`: the number of cached tokens."""
        if self.recurrent is not None:
            self.recurrent.keep()
        return len(self._cached_ids)

    def rollback(self, num_tokens: int) -> None:
        """Keep the first `num_tokens` cached tokens. O(1) for attention layers.

        Recurrent layers return to their newest snapshot at or before that point, and the model with them: the tokens
        in between are fed again by the next pass. A point that `checkpoint` gave has its snapshot.
        """
        if num_tokens < len(self._cached_ids):
            self._truncate(num_tokens if self.recurrent is None else self.recurrent.rewind(num_tokens))

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
        if self.recurrent is None:
            logits = self._forward([new_ids], num_logits)
        else:
            with self.recurrent.feeding(len(new_ids), num_kept - num_cached, num_logits > 1):
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
            if self.recurrent is None:
                logits = self._forward(batch, 1)
            else:
                with self.recurrent.expanded(len(batch), len(batch[0])):
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


def has_recurrent_layers(cache: Cache) -> bool:
    return any(isinstance(layer, LinearAttentionCacheLayerMixin) for layer in cache.layers)


def common_prefix(first: list[int], second: list[int]) -> int:
    """The length of the longest common prefix."""
    shorter = min(len(first), len(second))
    if first[:shorter] == second[:shorter]:
        return shorter
    return next(i for i in range(shorter) if first[i] != second[i])
