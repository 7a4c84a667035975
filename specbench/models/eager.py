"""Eager forward passes by transformers, over a growing cache of one sequence."""

import inspect
from collections.abc import Sequence
from typing import Any

import torch
import transformers
from packaging.version import Version
from transformers.cache_utils import Cache, LinearAttentionCacheLayerMixin

from specbench.core.errors import ConfigError
from specbench.models.devices import noting_memory, upload
from specbench.models.kv_cache import (
    PreallocatedLayer,
    by_layer_type,
    cache_parameter,
    check_attention,
    preallocated_cache,
    tree_inputs,
)
from specbench.models.meters import PassLog
from specbench.models.recurrent import RecurrentStates
from specbench.models.scoring import Output

# Whether a pass can return the hidden states of selected layers only; older versions return those of all layers.
SELECTS_LAYERS = Version(transformers.__version__) >= Version("5.23")
MAX_ROWS = 64  # suffixes in one batched pass
Tree = tuple[list[int], tuple[int, ...]]  # tokens and parents
NO_TREE: Tree = ([], ())
UNKNOWN = -2  # the id of a cached token that only the device knows


class EagerSequence:
    """A model's cached sequence, which is extended by eager passes."""

    def __init__(self, model: Any, name: str, vocab_size: int, passes: PassLog) -> None:
        self.model = model
        self.name = name
        self.vocab_size = vocab_size
        self.device: torch.device = model.device
        self.passes = passes
        self.cache = preallocated_cache(model.config, name)
        self.recurrent = RecurrentStates(model, self.cache, name) if has_recurrent_layers(self.cache) else None
        self._attention_layers = [layer for layer in self.cache.layers if isinstance(layer, PreallocatedLayer)]
        self.cached_ids: list[int] = []
        self._tree = NO_TREE  # the tree whose keys and values follow the cached sequence
        parameters = inspect.signature(model.forward).parameters
        self._can_keep_logits = "logits_to_keep" in parameters
        # Some hybrid models count positions from zero in every pass; models without attention take no positions.
        self._needs_positions = self.recurrent is not None and "position_ids" in parameters
        self._cache_parameter = cache_parameter(model.forward)

    def reset(self) -> None:
        """Drops the cached sequence; the buffers are kept."""
        self._truncate(0)
        if self.recurrent is not None:
            self.recurrent.reset()

    def checkpoint(self) -> int:
        """Returns the number of cached tokens, to which `rollback` can return. Recurrent layers take a snapshot."""
        if self.recurrent is not None:
            self.recurrent.keep()
        return len(self.cached_ids)

    def rollback(self, num_tokens: int) -> None:
        """Crops the cache to its first `num_tokens` tokens, in O(1) for attention layers.

        A model with recurrent layers returns to the newest snapshot at or before that position, and the next pass
        replays the tokens in between. Positions that `checkpoint` returned have a snapshot.
        """
        if num_tokens < len(self.cached_ids) or self._tree is not NO_TREE:
            self._truncate(num_tokens if self.recurrent is None else self.recurrent.rewind(num_tokens))

    def _truncate(self, num_tokens: int) -> None:
        del self.cached_ids[num_tokens:]
        self._tree = NO_TREE
        for layer in self._attention_layers:
            layer.truncate(num_tokens)

    @torch.inference_mode()
    def score(
        self, ids: list[int], num_logits: int, pending: torch.Tensor | None = None, hidden_layers: Sequence[int] = ()
    ) -> Output:
        """Returns the logits after the last `num_logits` tokens of `ids` and `pending`, [num_logits, vocab_size], and
        the hidden states of all tokens that were read.

        Reads only the tokens after the longest prefix shared with the cache, at least the last `num_logits`, and before
        them the tokens that recurrent layers must replay (see `rollback`). Raises ConfigError for a model that does not
        use the cache.
        """
        num_tokens = len(ids) + (0 if pending is None else len(pending))
        num_kept = min(num_common(self.cached_ids, ids, pending), num_tokens - num_logits)
        self.rollback(num_kept)
        num_cached = len(self.cached_ids)
        fed = self._input(ids[num_cached:], None if pending is None else pending[max(num_cached - len(ids), 0) :])
        if self.recurrent is None:
            output = self._forward(fed, num_logits, hidden_layers)
        else:
            with self.recurrent.feeding(fed.shape[1], num_kept - num_cached, num_logits > 1):
                output = self._forward(fed, num_logits, hidden_layers)
        self.cached_ids += ids[num_cached:]
        self.cached_ids += [UNKNOWN] * (num_tokens - len(self.cached_ids))
        if not self._has_cached(len(self.cached_ids)):
            raise ConfigError(f"model '{self.name}' does not store its keys in the given cache; choose another model")
        return Output(output.logits[0], tuple(states[0] for states in output.hidden))

    def check_trees(self) -> None:
        """Raises ConfigError if a single pass cannot read a draft tree: recurrent layers depend on the path, and some
        attention has no mask per token."""
        if self.recurrent is not None:
            raise ConfigError(
                f"model '{self.name}' has recurrent layers, which cannot read a draft tree in one pass; use a method "
                "that drafts chains"
            )
        check_attention(self.model, self.name)

    @torch.inference_mode()
    def score_tree(
        self, ids: list[int], tree_ids: list[int], parents: Sequence[int], num_logits: int,
        hidden_layers: Sequence[int] = (),
    ) -> Output:  # fmt: skip
        """Returns the logits after the last `num_logits` tokens of `ids` and the tree: [num_logits, vocab_size].

        If this tree begins with the tree read last, reads only the other nodes.
        """
        tree = (list(tree_ids), tuple(parents))
        num_cached = num_common_of_tree(self.cached_ids, self._tree, ids, tree, num_logits)
        if num_cached <= len(ids):  # the tree read last does not continue
            self.rollback(num_cached)
        fed = [*ids, *tree_ids][num_cached:]
        windows = {layer.is_sliding for layer in self._attention_layers}
        positions, masks = tree_inputs(
            self.model, windows, len(ids), parents, num_cached, len(fed), num_cached + len(fed)
        )
        options = {"position_ids": positions[None], "attention_mask": by_layer_type(masks)}
        output = self._forward(self._input(fed), num_logits, hidden_layers, **options)
        self.cached_ids = list(ids)
        self._tree = tree
        return Output(output.logits[0], tuple(states[0] for states in output.hidden))

    @torch.inference_mode()
    def keep_path(self, path: Sequence[int]) -> None:
        """Keeps the nodes `path` of the tree read last in the cache as tokens of the sequence, and drops all others."""
        tree_ids, _ = self._tree
        start = len(self.cached_ids)
        places = torch.tensor([start + node for node in path], dtype=torch.long, device=self.device)
        for layer in self._attention_layers:
            layer.keep(start, places)
        self.cached_ids += [tree_ids[node] for node in path]
        self._tree = NO_TREE

    @torch.inference_mode()
    def score_batch(self, ids: list[int], suffixes: list[list[int]]) -> torch.Tensor:
        """Returns the logits after `ids` followed by each suffix: [num_suffixes, vocab_size].

        All suffixes have the same length, at least one token; a pass reads up to MAX_ROWS of them. Tokens of `ids` that
        are not cached are read first. Afterwards the cache holds exactly `ids`.
        """
        if common_prefix(self.cached_ids, ids) == len(ids):
            self.rollback(len(ids))
        if self.cached_ids != ids:
            self.score(ids, 1)
        rows: list[torch.Tensor] = []
        for start in range(0, len(suffixes), MAX_ROWS):
            batch = suffixes[start : start + MAX_ROWS]
            if self.recurrent is None:
                logits = self._forward(upload(torch.tensor(batch), self.device), 1).logits
            else:
                with self.recurrent.expanded(len(batch), len(batch[0])):
                    logits = self._forward(upload(torch.tensor(batch), self.device), 1).logits
            self._truncate(len(ids))
            rows.append(logits[:, 0])
        return torch.cat(rows)

    def _input(self, ids: list[int], pending: torch.Tensor | None = None) -> torch.Tensor:
        """Returns the input of a pass: [1, num_tokens]."""
        known = upload(torch.tensor([ids], dtype=torch.long), self.device)
        return known if pending is None else torch.cat([known, pending[None]], dim=1)

    def _forward(
        self, input_ids: torch.Tensor, num_logits: int, hidden_layers: Sequence[int] = (), **options: Any
    ) -> Output:
        """Runs one timed pass over [num_rows, num_tokens]: logits [num_rows, num_logits, vocab_size] and the hidden
        states of each layer, [num_rows, num_tokens, width]."""
        start = self.passes.clock.mark()
        options[self._cache_parameter] = self.cache
        if self._can_keep_logits:
            options["logits_to_keep"] = num_logits
        if self._needs_positions:
            num_cached = len(self.cached_ids)
            positions = torch.arange(num_cached, num_cached + input_ids.shape[1], device=self.device)
            options["position_ids"] = positions.expand(input_ids.shape)
        if hidden_layers:
            options["output_hidden_states"] = list(hidden_layers) if SELECTS_LAYERS else True
        place = f"in a pass of model '{self.name}' over {input_ids.numel()} tokens"
        with noting_memory(place, self._attention_layers, self.device):
            made = self.model(input_ids=input_ids, use_cache=True, **options)
        self.passes.add(input_ids.numel(), start, self.passes.clock.mark())
        hidden = tuple(made.hidden_states[layer].to(self.device) for layer in hidden_layers)
        return Output(made.logits[:, -num_logits:, : self.vocab_size], hidden)

    def _has_cached(self, num_tokens: int) -> bool:
        """Returns whether the cache holds `num_tokens` tokens; without attention layers, whether it has any state."""
        if self._attention_layers:
            return self._attention_layers[0].length == num_tokens
        return self.cache.has_previous_state()


def has_recurrent_layers(cache: Cache) -> bool:
    return any(isinstance(layer, LinearAttentionCacheLayerMixin) for layer in cache.layers)


def num_common(cached_ids: list[int], ids: list[int], pending: torch.Tensor | None) -> int:
    """Returns the length of the longest common prefix of the cached tokens and of `ids` followed by `pending`. Unknown
    cached tokens are assumed equal to the pending tokens."""
    found = common_prefix(cached_ids, ids)
    if pending is None or found < len(ids):
        return found
    return min(len(cached_ids), len(ids) + len(pending)) if UNKNOWN in cached_ids[found : found + 1] else found


def num_common_of_tree(cached_ids: list[int], known: Tree, ids: list[int], tree: Tree, num_logits: int) -> int:
    """Returns the number of tokens of `ids` followed by `tree` that a pass need not read again to return the last
    `num_logits` rows. The tokens of `known`, the tree read last, count only if `tree` begins with all of it."""
    num_known = len(known[0])
    grows = all(new[:num_known] == old for new, old in zip(tree, known, strict=True))
    if num_known and grows and cached_ids == ids and num_logits <= len(tree[0]) - num_known:
        return len(ids) + num_known
    return min(common_prefix(cached_ids, ids), len(ids) + len(tree[0]) - num_logits)


def common_prefix(first: list[int], second: list[int]) -> int:
    """Returns the length of the longest common prefix."""
    shorter = min(len(first), len(second))
    if first[:shorter] == second[:shorter]:
        return shorter
    return next(i for i in range(shorter) if first[i] != second[i])
