"""Snapshots and rollback of recurrent states (linear attention, state spaces, short convolutions).

A recurrent state cannot be cropped. A rollback restores the newest snapshot at or before the requested position, and
the next pass begins with a replay of the tokens after it. A snapshot is also taken at the end of the replay, so that
the next replay is short: recurrent layers read such a pass in two pieces, all other layers at once.
"""

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from transformers.cache_utils import Cache, LinearAttentionCacheLayerMixin

from specbench.core.errors import ConfigError

SMALLEST_CHUNK = 8  # tokens
UPDATE = "update_recurrent_state"  # the cache's method that a layer with a recurrent state calls


def code_of(module: Any) -> Any:
    """Returns the code object of the forward method of a module's class, without decorators."""
    return inspect.unwrap(type(module).forward).__code__


NUM_SNAPSHOTS = 8  # maximum number; snapshots are denser near the end, which keeps replays short
MAX_REPLAY = 32  # tokens between snapshots of a model that was never rolled back (as in autoregressive decoding)
PROMPT_TAIL = 8  # tokens after a prompt's snapshot, which a later tokenization may change
STATE_FIELDS = (
    "conv_states", "recurrent_states", "has_previous_state",
    "is_conv_states_initialized", "is_recurrent_states_initialized",
)  # fmt: skip

Snapshot = dict[int, list[torch.Tensor]]  # layer → copies of its states


class RecurrentStates:
    """The states of all recurrent layers of a cache after `position` tokens, and snapshots at earlier positions.

    Raises ConfigError for a model that keeps its states outside its cache.
    """

    def __init__(self, model: Any, cache: Cache, name: str) -> None:
        self.layers: dict[int, Any] = {
            index: layer
            for index, layer in enumerate(cache.layers)
            if isinstance(layer, LinearAttentionCacheLayerMixin)
        }
        self.position = 0
        self.snapshots: dict[int, Snapshot] = {}  # by position, ascending
        self._on_trial = False  # whether the last pass read several tokens that may be rejected
        self._goes_back = False  # whether it was rolled back after a one-token pass, as draft models are
        self._pieces: list[int] = []
        self._split = 0
        self._at_split: Snapshot = {}
        # The modules that write a state into the cache, each for one layer.
        mixers = [
            module
            for module in model.modules()
            if hasattr(module, "layer_idx") and {"update_conv_state", UPDATE} & set(code_of(module).co_names)
        ]
        if sorted(mixer.layer_idx for mixer in mixers) != sorted(self.layers):
            raise ConfigError(
                f"model '{name}': the recurrent layers of a {type(model).__name__} do not keep their states in the "
                "cache, one module for each layer, so they cannot be rolled back to an earlier token; choose another "
                "model"
            )
        # Some multi-token kernels are not given the cached state. Such layers read one token at a time.
        self.steps_only = False
        for mixer in mixers:
            code = code_of(mixer)
            keywords = {name for names in code.co_consts if isinstance(names, tuple) for name in names}
            self.steps_only |= UPDATE in code.co_names and not keywords & {"initial_state", "initial_states"}
            self._feed_in_pieces(mixer)

    def reset(self) -> None:
        """Drops all states and snapshots, including those of an interrupted pass."""
        self.position, self.snapshots = 0, {}
        for layer in self.layers.values():
            layer.has_previous_state = dict.fromkeys(layer.has_previous_state, False)

    @torch.inference_mode()
    def rewind(self, num_tokens: int) -> int:
        """Restores the newest snapshot at or before `num_tokens`. Returns its position."""
        if self.position <= num_tokens:
            return self.position
        self.snapshots = {place: snapshot for place, snapshot in self.snapshots.items() if place <= num_tokens}
        if not self.snapshots:
            self.reset()
        else:
            self.position = max(self.snapshots)
            for index, kept in self.snapshots[self.position].items():
                for state, copy in zip(state_tensors(self.layers[index]), kept, strict=True):
                    state.copy_(copy)
        self._goes_back |= not self._on_trial and self.position > 0
        return self.position

    @torch.inference_mode()
    def keep(self) -> None:
        """Takes a snapshot at the current position, unless there is one."""
        if self.position and self.position not in self.snapshots:
            self._add(self.position, {index: copy_states(layer) for index, layer in self.layers.items()})

    def _add(self, position: int, snapshot: Snapshot) -> None:
        """Adds the newest snapshot."""
        self.snapshots = thinned({**self.snapshots, position: snapshot})

    @contextmanager
    def feeding(self, num_tokens: int, num_replayed: int, on_trial: bool) -> Iterator[None]:
        """Wraps a pass over `num_tokens` tokens, of which the first `num_replayed` are replayed.

        Takes a snapshot before tokens that may be rejected, that is, before a pass `on_trial` and before every pass of
        a draft model.
        """
        newest = max(self.snapshots, default=0)
        self._on_trial = on_trial
        if on_trial or self._goes_back or not newest or self.position - newest >= MAX_REPLAY:
            self.keep()
        is_prompt = self.position == num_replayed == 0 and num_tokens > 2 * PROMPT_TAIL
        split = num_tokens - PROMPT_TAIL if is_prompt else num_replayed
        with self._in_pieces(num_tokens, split):
            yield
        if split:
            self._add(self.position + split, self._at_split)
        self.position += num_tokens

    @contextmanager
    def expanded(self, num_rows: int, num_tokens: int) -> Iterator[None]:
        """Wraps a pass over several rows that continue the current state, and restores the state afterwards."""
        saved = {
            index: {field: getattr(layer, field) for field in STATE_FIELDS} for index, layer in self.layers.items()
        }
        for layer in self.layers.values():
            for field in STATE_FIELDS:
                state = getattr(layer, field)  # tensors and whether they are there
                setattr(layer, field, {
                    key: value.expand(num_rows, *value.shape[1:]).clone() if torch.is_tensor(value) else value
                    for key, value in state.items()
                })  # fmt: skip
        try:
            with self._in_pieces(num_tokens, 0):
                yield
        finally:
            for index, fields in saved.items():
                for field, value in fields.items():
                    setattr(self.layers[index], field, value)

    @contextmanager
    def _in_pieces(self, num_tokens: int, split: int) -> Iterator[None]:
        self._split = split
        self._at_split = {}
        self._pieces = [size for size in (split, num_tokens - split) if size]
        if self.steps_only:
            head = self._pieces[:1] if self.position == 0 else []
            self._pieces = head + [1] * (num_tokens - sum(head))
        try:
            yield
        finally:
            self._pieces = []

    def _feed_in_pieces(self, mixer: Any) -> None:
        """Makes a recurrent layer read the tokens of a pass in pieces and copy its state at the split."""
        whole = mixer.forward
        layer = self.layers[mixer.layer_idx]
        # On a CPU, Mamba2 has no kernels and pads each pass to a whole chunk, such as 256 tokens: its chunks shall
        # fit short passes. The result does not depend on their size.
        largest = getattr(mixer, "chunk_size", None)
        on_cpu = next(mixer.parameters()).device.type == "cpu"

        def forward(hidden_states: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
            if on_cpu and isinstance(largest, int):
                needed = 1 << (hidden_states.shape[1] - 1).bit_length()
                mixer.chunk_size = min(largest, max(SMALLEST_CHUNK, needed))
            found: torch.Tensor = whole(hidden_states, *args, **kwargs)
            return found

        def in_pieces(hidden_states: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
            if len(self._pieces) < 2:
                return forward(hidden_states, *args, **kwargs)
            outputs: list[torch.Tensor] = []
            num_fed = 0
            for piece in hidden_states.split(self._pieces, dim=1):
                outputs.append(forward(piece, *args, **kwargs))
                num_fed += piece.shape[1]
                if num_fed == self._split:
                    self._at_split[mixer.layer_idx] = copy_states(layer)
            return torch.cat(outputs, dim=1)

        mixer.forward = in_pieces


State = TypeVar("State")


def thinned(snapshots: dict[int, State]) -> dict[int, State]:
    """Returns snapshots by position, ascending. If there are too many, the one is left out that saves the fewest
    replayed tokens relative to its distance from the newest."""
    if len(snapshots) <= NUM_SNAPSHOTS:
        return snapshots
    places = list(snapshots)
    gaps = {
        place: (after - before) / (places[-1] - place)
        for before, place, after in zip(places, places[1:], places[2:], strict=False)
    }
    dropped = min(gaps, key=lambda place: gaps[place])
    return {place: snapshot for place, snapshot in snapshots.items() if place != dropped}


def copy_states(layer: Any) -> list[torch.Tensor]:
    """Returns copies of a layer's states, which models overwrite in place."""
    return [state.clone() for state in state_tensors(layer)]


def state_tensors(layer: Any) -> list[torch.Tensor]:
    held = (*layer.conv_states.values(), *layer.recurrent_states.values())
    return [state for state in held if state is not None]
