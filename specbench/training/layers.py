"""A shallow draft model that starts with some of the layers of another model."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from transformers import AutoModelForCausalLM

from specbench.core.errors import ConfigError
from specbench.models.causal_lm import CausalLM

KEY = "init_layers"


def with_layers(loaded: CausalLM, chosen: int | Sequence[int]) -> CausalLM:
    """Returns a model with the chosen layers of another one, and with its embeddings, last norm and output layer. See
    `layer_numbers`."""
    network = loaded.model
    num_layers = network.config.get_text_config().num_hidden_layers
    numbers = layer_numbers(chosen, num_layers)
    # 1. The configuration, in which lists may have an entry for each layer.
    settings = network.config.to_dict()
    inner = settings.get("text_config", settings)
    for key, value in inner.items():
        if isinstance(value, list) and len(value) == num_layers:
            inner[key] = [value[number] for number in numbers]
    inner["num_hidden_layers"] = len(numbers)
    config = type(network.config).from_dict(settings)
    config._name_or_path = network.config._name_or_path
    # 2. A network of it with the weights of the chosen layers, which have other numbers there.
    stacks = [name for name, part in network.named_modules()
              if isinstance(part, nn.ModuleList) and len(part) == num_layers]  # fmt: skip
    if len(stacks) != 1:
        raise ConfigError(f"{KEY}: the layers of '{loaded.name}' are not found in its network: leave it out")
    places = {f"{stacks[0]}.{number}.": f"{stacks[0]}.{place}." for place, number in enumerate(numbers)}
    weights: dict[str, torch.Tensor] = {}
    for name, tensor in network.state_dict().items():
        if not name.startswith(f"{stacks[0]}."):
            weights[name] = tensor
        elif (old := next((prefix for prefix in places if name.startswith(prefix)), None)) is not None:
            weights[places[old] + name.removeprefix(old)] = tensor
    shallow: Any = AutoModelForCausalLM.from_config(config, dtype=network.dtype)
    shallow.load_state_dict(weights)
    shallow.generation_config = network.generation_config
    shallow = shallow.to(loaded.device).eval()
    return CausalLM(shallow, loaded.tokenizer, loaded.name, loaded.revision)


def layer_numbers(chosen: int | Sequence[int], num_layers: int) -> list[int]:
    """Returns the numbers of the chosen layers, from 0: the given ones, or so many that are evenly spaced from the
    first to the last. Raises ConfigError for numbers that the model does not have, or not in ascending order."""
    if isinstance(chosen, int):
        if chosen > num_layers:
            raise ConfigError(f"{KEY} = {chosen}: the model has {num_layers} layers: give fewer, or leave it out")
        return [round(place * (num_layers - 1) / max(1, chosen - 1)) for place in range(chosen)]
    numbers = list(chosen)
    if not numbers or sorted(set(numbers)) != numbers or numbers[-1] >= num_layers:
        raise ConfigError(
            f"{KEY} = {numbers}: give different layers in ascending order, from 0 to {num_layers - 1}, or their number"
        )
    return numbers
