"""Collects the hidden states of recorded and compiled passes."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from transformers.cache_utils import Cache

from specbench.models.compiling import CannotCompile, decoder_layers
from specbench.specs.components import StaticEngine


class HiddenStates:
    """Collects hidden states while a pass runs or is traced, numbered as in transformers' `hidden_states`.

    transformers' own collection also puts hooks inside the decoder layers, which separately compiled layers cannot run.
    """

    def __init__(self, model: Any, name: str, cache: Cache, engine: StaticEngine) -> None:
        layers = decoder_layers(model, cache)
        if layers is None:
            raise CannotCompile(name, "its decoder layers, whose states a drafter reads, are not found", engine)
        self._num_states = len(layers) + 1
        self._kept: dict[int, Any] = {}
        for index, layer in enumerate(layers):
            layer.register_forward_pre_hook(partial(self._keep_input, index))
        model.get_decoder().register_forward_hook(partial(self._keep_last, len(layers)))

    def start(self, layers: Sequence[int]) -> None:
        """Begins to collect the states of `layers`; a negative number counts from the end."""
        self._kept = {layer % self._num_states: None for layer in layers}

    def stop(self, layers: Sequence[int]) -> tuple[torch.Tensor, ...]:
        """Ends the collection. Returns the states of `layers`, [1, num_tokens, width] each."""
        kept, self._kept = self._kept, {}
        return tuple(kept[layer % self._num_states] for layer in layers)

    def _keep_input(self, index: int, layer: torch.nn.Module, given: tuple[Any, ...]) -> None:
        if index in self._kept:
            self._kept[index] = given[0]

    def _keep_last(self, index: int, decoder: torch.nn.Module, given: tuple[Any, ...], made: Any) -> None:
        if index in self._kept:
            self._kept[index] = made.last_hidden_state
