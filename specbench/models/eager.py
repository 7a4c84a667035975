"""A cached sequence of one model, and its eager passes by transformers, over a growing cache."""

import inspect
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import torch
import transformers
from packaging.version import Version
from transformers.cache_utils import LinearAttentionCacheLayerMixin

from specbench.core.errors import ConfigError
from specbench.models.devices import is_out_of_memory, noting_memory, upload
from specbench.models.fused import attending_by_row, attending_in_groups
from specbench.models.kv_cache import (
    PreallocatedLayer,
    by_layer_type,
    cache_parameter,
    check_attention,
    preallocated_cache,
    tree_inputs,
)
from specbench.models.meters import PassLog
from specbench.models.scoring import Output

if TYPE_CHECKING:
    from specbench.models.recurrent import RecurrentStates

# Whether a pass can return the hidden states of selected layers only; older versions return those of all layers.
SELECTS_LAYERS = Version(transformers.__version__) >= Version("5.23")
MAX_ROWS = 64  # suffixes in one batched pass
Tree = tuple[list[int], tuple[int, ...]]  # tokens and parents
NO_TREE: Tree = ([], ())
UNKNOWN = -2  # the id of a cached token that only the device knows


def cannot_read_trees(name: str) -> ConfigError:
    """Returns the error for a draft tree of a model whose layers keep one state of the text."""
    return ConfigError(
        f"model '{name}' has recurrent layers, which cannot read a draft tree in one pass; use a method that drafts "
        "chains"
    )


class CachedSequence:
    """A model's cached sequence, which is extended by passes of one engine."""

    def __init__(self, model: Any, name: str, vocab_size: int, passes: PassLog) -> None:
        self.model = model
        self.name = name
        self.vocab_size = vocab_size
        self.device: torch.device = model.device
        self.passes = passes
        self.cached_ids: list[int] = []
        self._tree = NO_TREE  # the tree whose keys and values follow the cached sequence
        self.pass_width: int | None = None  # the rows of which each pass is made; None: as many as its tokens

    def fix_width(self, num_rows: int) -> None:
        """Makes every pass of `num_rows` rows from now on, so that no row depends on the number of tokens that a pass
        reads: shorter passes are padded, and longer ones are read in parts. Raises ConfigError if passes cannot be made
        so."""
        raise ConfigError(
            f"--pass-width {num_rows}: model '{self.name}' has passes of fixed lengths: take --engine eager"
        )

    def reset(self) -> None:
        """Drops the cached sequence; the buffers are kept."""
        self.cached_ids = []
        self._tree = NO_TREE

    def make_room(self, num_tokens: int) -> None:
        """Provides buffers for `num_tokens` tokens, so that none are made while a generation is timed."""
        self._ensure(num_tokens)

    def checkpoint(self) -> int:
        """Returns the number of cached tokens, to which `rollback` can return."""
        return len(self.cached_ids)

    def rollback(self, num_tokens: int) -> None:
        """Crops the cache to its first `num_tokens` tokens."""
        del self.cached_ids[num_tokens:]
        self._tree = NO_TREE

    @torch.inference_mode()
    def score(
        self, ids: list[int], num_logits: int, pending: torch.Tensor | None = None, hidden_layers: Sequence[int] = ()
    ) -> Output:
        """See ScoringModel.score. Reads only the tokens after the longest prefix shared with the cache, at least the
        last `num_logits`, and before them the tokens that recurrent layers must replay."""
        # 1. Crop the cache to what it shares with the sequence, but for the tokens whose logits are wanted.
        num_tokens = len(ids) + (0 if pending is None else len(pending))
        self._ensure(num_tokens)
        num_kept = min(num_common(self.cached_ids, ids, pending), num_tokens - num_logits)
        self.rollback(num_kept)
        # 2. One pass over all else. Recurrent layers may have been rolled back further than the others: they replay.
        num_cached = len(self.cached_ids)
        num_read, num_replayed = num_tokens - num_cached, num_kept - num_cached
        read = self._read if self.pass_width is None else self._read_parts
        output = read(ids, pending, (), num_read, num_replayed, num_logits, hidden_layers)
        self.cached_ids += ids[num_cached:]
        self.cached_ids += [UNKNOWN] * (num_tokens - len(self.cached_ids))
        return Output(output.logits[-num_logits:, : self.vocab_size], output.hidden)

    @torch.inference_mode()
    def score_tree(
        self, ids: list[int], tree_ids: list[int], parents: Sequence[int], num_logits: int,
        hidden_layers: Sequence[int] = (),
    ) -> Output:  # fmt: skip
        """See ScoringModel.score_tree."""
        tree = (list(tree_ids), tuple(parents))
        self._ensure(len(ids) + len(tree_ids))
        # 1. If the tree grows, what was read of it stays, as long as the wanted rows are all of new nodes.
        num_known = len(self._tree[0])
        grows = all(new[:num_known] == old for new, old in zip(tree, self._tree, strict=True))
        if num_known and grows and self.cached_ids == ids and num_logits <= len(tree_ids) - num_known:
            num_cached = len(ids) + num_known
        else:
            num_cached = min(common_prefix(self.cached_ids, ids), len(ids) + len(tree_ids) - num_logits)
            self.rollback(num_cached)
        # 2. One pass over all else. The cache then holds the text and behind it the tree, until `keep_path` ends it.
        num_read = len(ids) + len(tree_ids) - num_cached
        read = self._read if self.pass_width is None else self._read_parts
        output = read([*ids, *tree_ids], None, parents, num_read, 0, num_logits, hidden_layers)
        self.cached_ids, self._tree = list(ids), tree
        return Output(output.logits[-num_logits:, : self.vocab_size], output.hidden)

    @torch.inference_mode()
    def keep_path(self, path: Sequence[int]) -> None:
        """Keeps the nodes `path` of the tree read last in the cache as tokens of the sequence, and drops all others."""
        start = len(self.cached_ids)
        self._move(start, [start + node for node in path])
        self.cached_ids += [self._tree[0][node] for node in path]
        self._tree = NO_TREE

    @torch.inference_mode()
    def score_batch(self, ids: list[int], suffixes: list[list[int]]) -> torch.Tensor:
        """Returns the logits after `ids` followed by each suffix: [num_suffixes, vocab_size].

        All suffixes have the same length, at least one token. Tokens of `ids` that are not cached are read first.
        Afterwards the cache holds exactly `ids`.
        """
        if common_prefix(self.cached_ids, ids) == len(ids):
            self.rollback(len(ids))
        if self.cached_ids != ids:
            self.score(ids, 1)
        if self.pass_width is not None:  # rows of several suffixes would share passes
            rows = [self.score([*ids, *suffix], 1).logits.clone() for suffix in suffixes]
            self.rollback(len(ids))
            return torch.cat(rows)
        return torch.cat(list(self._read_suffixes(suffixes)))

    def check_trees(self) -> None:
        """Raises ConfigError if a single pass cannot read a draft tree."""
        raise NotImplementedError

    def _ensure(self, num_tokens: int) -> None:
        """Provides buffers for `num_tokens` tokens."""

    def _read_parts(
        self, ids: list[int], pending: torch.Tensor | None, parents: Sequence[int], num_read: int, num_replayed: int,
        num_logits: int, hidden_layers: Sequence[int],
    ) -> Output:  # fmt: skip
        """See `_read`, which reads as many tokens at a time as a pass has rows. These parts count as one pass."""
        assert self.pass_width is not None and not num_replayed
        tokens = ids if pending is None else [*ids, *pending.tolist()]
        total, num_text = len(tokens), len(tokens) - len(parents)
        first_pass = self.passes.num_passes
        parts = []
        for begin in range(total - num_read, total, self.pass_width):
            end = min(begin + self.pass_width, total)
            num_wanted = max(0, min(num_logits - (total - end), end - begin))
            nodes = parents[: max(0, end - num_text)]
            part = self._read(tokens[:end], None, nodes, end - begin, 0, num_wanted, hidden_layers)
            parts.append(Output(part.logits[len(part.logits) - num_wanted :], part.hidden))
        self.passes.join(first_pass)
        return Output(
            torch.cat([part.logits for part in parts]),
            tuple(torch.cat([part.hidden[place] for part in parts]) for place in range(len(hidden_layers))),
        )

    def _read(
        self, ids: list[int], pending: torch.Tensor | None, parents: Sequence[int], num_read: int, num_replayed: int,
        num_logits: int, hidden_layers: Sequence[int],
    ) -> Output:  # fmt: skip
        """Runs one timed pass over the last `num_read` tokens of `ids` and `pending`, of which the first `num_replayed`
        are cached except in recurrent layers: at least the logits of the last `num_logits`, [n, output_size], and the
        hidden states of all, [num_read, width]. `parents`: those of the tree with which `ids` end, if any."""
        raise NotImplementedError

    def _move(self, start: int, places: list[int]) -> None:
        """Moves the tokens at `places`, all at or after `start`, to `start`, and drops all others after it."""
        raise NotImplementedError

    def _read_suffixes(self, suffixes: list[list[int]]) -> Iterator[torch.Tensor]:
        """Yields the logits after the cached sequence followed by each suffix, [n, vocab_size]; the cache stays."""
        raise NotImplementedError

    def _input(self, ids: list[int], pending: torch.Tensor | None, num_read: int) -> torch.Tensor:
        """Returns the last `num_read` tokens of `ids` and `pending`: [1, num_read]."""
        if pending is None:
            return upload(torch.tensor([ids[len(ids) - num_read :]], dtype=torch.long), self.device)
        num_known = max(num_read - len(pending), 0)
        known = upload(torch.tensor([ids[len(ids) - num_known :]], dtype=torch.long), self.device)
        return torch.cat([known, pending[None, len(pending) - num_read + num_known :]], dim=1)


class EagerSequence(CachedSequence):
    """A model's cached sequence, which is extended by eager passes."""

    def __init__(self, model: Any, name: str, vocab_size: int, passes: PassLog) -> None:
        super().__init__(model, name, vocab_size, passes)
        self.cache = preallocated_cache(model.config, name)
        self.recurrent: RecurrentStates | None = None
        if any(isinstance(layer, LinearAttentionCacheLayerMixin) for layer in self.cache.layers):
            from specbench.models import recurrent  # which few models need

            self.recurrent = recurrent.RecurrentStates(model, self.cache, name)
        self._attention_layers = [layer for layer in self.cache.layers if isinstance(layer, PreallocatedLayer)]
        parameters = inspect.signature(model.forward).parameters
        self._can_keep_logits = "logits_to_keep" in parameters
        # Some hybrid models count positions from zero in every pass; models without attention take no positions.
        self._needs_positions = self.recurrent is not None and "position_ids" in parameters
        self._cache_name = cache_parameter(model.forward)
        # On a CPU, torch reads the keys anew for each query head. Passes in float32 keep the bits of transformers'.
        self.groups_heads = self.device.type == "cpu" and model.dtype == torch.bfloat16

    def fix_width(self, num_rows: int) -> None:
        """See CachedSequence. Attention is computed for each row alone, over the keys that it sees; all else has
        products of `num_rows` rows."""
        what = f"--pass-width {num_rows}: model '{self.name}'"
        if self.device.type != "cpu":
            raise ConfigError(f"{what} is on {self.device}, and this was tried on a CPU only: take --device cpu")
        if self.recurrent is not None:
            raise ConfigError(f"{what} has recurrent layers, whose states padding would change: leave the option out")
        check_attention(self.model, self.name, ("sdpa",), f"--pass-width {num_rows} needs", "leave the option out")
        self.pass_width = num_rows

    def reset(self) -> None:
        self._truncate(0)
        if self.recurrent is not None:
            self.recurrent.reset()

    def checkpoint(self) -> int:
        if self.recurrent is not None:
            self.recurrent.keep()
        return super().checkpoint()

    def rollback(self, num_tokens: int) -> None:
        """Crops the cache to its first `num_tokens` tokens, in O(1) for attention layers.

        A model with recurrent layers returns to the newest snapshot at or before that position, and the next pass
        replays the tokens in between. Positions that `checkpoint` returned have a snapshot.
        """
        if num_tokens < len(self.cached_ids) or self._tree is not NO_TREE:
            self._truncate(num_tokens if self.recurrent is None else self.recurrent.rewind(num_tokens))

    def _truncate(self, num_tokens: int) -> None:
        super().rollback(num_tokens)
        for layer in self._attention_layers:
            layer.truncate(num_tokens)

    def _read(
        self, ids: list[int], pending: torch.Tensor | None, parents: Sequence[int], num_read: int, num_replayed: int,
        num_logits: int, hidden_layers: Sequence[int],
    ) -> Output:  # fmt: skip
        """See CachedSequence. Raises ConfigError for a model that does not use the cache."""
        if self.pass_width is not None:
            return self._read_padded(ids, parents, num_read, num_logits, hidden_layers, self.pass_width)
        tokens = self._input(ids, pending, num_read)
        first = next(iter(self._attention_layers), None)
        num_before = 0 if first is None else first.length
        options = self._options(tokens, num_logits)
        if parents:
            windows = {layer.is_sliding for layer in self._attention_layers}
            num_prefix, num_cached = len(ids) - len(parents), len(ids) - num_read
            positions, masks = tree_inputs(self.model, windows, num_prefix, parents, num_cached, num_read, len(ids))
            options |= {"position_ids": positions[None], "attention_mask": by_layer_type(masks)}
        if hidden_layers:
            options["output_hidden_states"] = list(hidden_layers) if SELECTS_LAYERS else True
        states = self.recurrent
        feeding = nullcontext() if states is None else states.feeding(num_read, num_replayed, num_logits > 1)
        grouping = attending_in_groups(self.model.config) if self.groups_heads else nullcontext()
        with feeding, self._timed(num_read), grouping:
            made = self.model(input_ids=tokens, **options)
        # A model without attention layers must have some state.
        is_cached = self.cache.has_previous_state() if first is None else first.length == num_before + num_read
        if not is_cached:
            raise ConfigError(f"model '{self.name}' does not store its keys in the given cache; choose another model")
        hidden = tuple(made.hidden_states[layer][0].to(self.device) for layer in hidden_layers)
        return Output(made.logits[0], hidden)

    def _read_padded(
        self, ids: list[int], parents: Sequence[int], num_read: int, num_logits: int, hidden_layers: Sequence[int],
        num_rows: int,
    ) -> Output:  # fmt: skip
        """Reads the last `num_read` tokens of `ids` in a pass of `num_rows` rows. The rows of padding attend to
        nothing, and their keys and values are dropped at once."""
        num_padding, num_cached = num_rows - num_read, len(ids) - num_read
        tokens = self._input([*ids, *ids[-1:] * num_padding], None, num_rows)
        options = self._options(tokens, num_rows if num_logits else 1)
        windows = {layer.is_sliding for layer in self._attention_layers}
        positions, masks = tree_inputs(
            self.model, windows, len(ids) - len(parents), parents, num_cached, num_rows, len(ids) + num_padding
        )
        positions[num_read:] = positions[num_read - 1]  # which a model of so many positions has
        options |= {"position_ids": positions[None], "attention_mask": by_layer_type(masks)}
        if hidden_layers:
            options["output_hidden_states"] = list(hidden_layers) if SELECTS_LAYERS else True
        with self._timed(num_read), attending_by_row(self.model.config, num_read):
            made = self.model(input_ids=tokens, **options)
        if any(layer.length != len(ids) + num_padding for layer in self._attention_layers):
            raise ConfigError(f"model '{self.name}' does not store its keys in the given cache; choose another model")
        for layer in self._attention_layers:
            layer.truncate(len(ids))
        hidden = tuple(made.hidden_states[layer][0, :num_read] for layer in hidden_layers)
        return Output(made.logits[0, max(0, num_read - num_logits) : num_read], hidden)

    def _options(self, tokens: torch.Tensor, num_logits: int) -> dict[str, object]:
        """Returns the options of transformers' forward pass over tokens [num_rows, num_tokens], which gives the logits
        of the last `num_logits`."""
        options: dict[str, object] = {self._cache_name: self.cache, "use_cache": True}
        if self._can_keep_logits:
            options["logits_to_keep"] = num_logits
        if self._needs_positions:
            num_cached = len(self.cached_ids)
            positions = torch.arange(num_cached, num_cached + tokens.shape[1], device=self.device)
            options["position_ids"] = positions.expand(tokens.shape)
        return options

    @contextmanager
    def _timed(self, num_tokens: int) -> Iterator[None]:
        """Times the pass in the block, and adds a note to its out-of-memory error. Raises ConfigError if the network
        fails, as it does beyond its positions if its configuration does not tell how many it has."""
        start = self.passes.clock.mark()
        num_before = len(self.cached_ids)
        place = f"in a pass of model '{self.name}' over {num_tokens} tokens"
        try:
            with noting_memory(place, self._attention_layers, self.device):
                yield
        except (IndexError, RuntimeError) as error:
            if is_out_of_memory(error):
                raise
            reason = " ".join(str(error).split())[:200]
            raise ConfigError(
                f"model '{self.name}' fails in a pass over {num_tokens} tokens after {num_before} others "
                f"({type(error).__name__}: {reason}); if it holds no more than {num_before} tokens, declare them as "
                "max_position_embeddings in its config.json, or measure shorter texts"
            ) from error
        self.passes.add(num_tokens, start, self.passes.clock.mark())

    def check_trees(self) -> None:
        """Raises ConfigError if a single pass cannot read a draft tree: recurrent layers depend on the path, and some
        attention has no mask per token."""
        if self.recurrent is not None:
            raise cannot_read_trees(self.name)
        check_attention(self.model, self.name)

    def _move(self, start: int, places: list[int]) -> None:
        sources = torch.tensor(places, dtype=torch.long, device=self.device)
        for layer in self._attention_layers:
            layer.keep(start, sources)

    def _read_suffixes(self, suffixes: list[list[int]]) -> Iterator[torch.Tensor]:
        num_cached = len(self.cached_ids)
        for start in range(0, len(suffixes), MAX_ROWS):
            tokens = upload(torch.tensor(suffixes[start : start + MAX_ROWS]), self.device)
            options = self._options(tokens, 1)
            rows = nullcontext() if self.recurrent is None else self.recurrent.expanded(*tokens.shape)
            with rows, self._timed(tokens.numel()):
                logits = self.model(input_ids=tokens, **options).logits
            self._truncate(num_cached)
            yield logits[:, -1, : self.vocab_size]


def num_common(cached_ids: list[int], ids: list[int], pending: torch.Tensor | None) -> int:
    """Returns the length of the longest common prefix of the cached tokens and of `ids` followed by `pending`. Unknown
    cached tokens are assumed equal to the pending tokens."""
    found = common_prefix(cached_ids, ids)
    if pending is None or found < len(ids):
        return found
    return min(len(cached_ids), len(ids) + len(pending)) if UNKNOWN in cached_ids[found : found + 1] else found


def common_prefix(first: list[int], second: list[int]) -> int:
    shorter = min(len(first), len(second))
    if first[:shorter] == second[:shorter]:
        return shorter
    return next(i for i in range(shorter) if first[i] != second[i])
