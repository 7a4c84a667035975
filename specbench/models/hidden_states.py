"""Hidden states of passes that are recorded or compiled."""

from functools import partial
from typing import Any

import torch
from transformers.cache_utils import Cache

from specbench.models.compiling import CannotCompile, decoder_layers
from specbench.specs.components import StaticEngine


class HiddenStates:
    """Collects hidden states while a pass runs or is traced, numbered as in transformers' `hidden_states`.

    transformers' own collection also puts hooks inside the decoder layers, where layers that are compiled one by one
    cannot run them.
    """

    def __init__(self, model: Any, name: str, cache: Cache, engine: StaticEngine) -> None:
        layers = decoder_layers(model, cache)
        if layers is None:
            raise CannotCompile(name, "its decoder layers, whose states a drafter reads, are not found", engine)
        self._kept: dict[int, torch.Tensor] | None = None
        for index, layer in enumerate(layers):
            layer.register_forward_pre_hook(partial(self._keep_input, index))
        model.get_decoder().register_forward_hook(partial(self._keep_last, len(layers)))

    def start(self) -> None:
        """Begins to collect the states of a pass."""
        self._kept = {}

    def stop(self) -> dict[int, torch.Tensor]:
        """Ends the collection. Returns the states by number, [1, num_tokens, width]."""
        kept, self._kept = self._kept, None
        assert kept is not None
        return kept

    def _keep_input(self, index: int, layer: torch.nn.Module, given: tuple[Any, ...]) -> None:
        if self._kept is not None:
            self._kept[index] = given[0]

    def _keep_last(self, index: int, decoder: torch.nn.Module, given: tuple[Any, ...], made: Any) -> None:
        if self._kept is not None:
            self._kept[index] = made.last_hidden_state
