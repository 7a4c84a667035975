"""A copy of a model on a CPU with its linear layers in 8 or 4 bits, beside the model itself."""

import copy
from typing import Any, Literal
from weakref import WeakKeyDictionary

import torch
from torch import nn

from specbench.core.errors import ConfigError
from specbench.models.causal_lm import CausalLM
from specbench.models.packed import StoredLinear, store_weights, stored_layers

FewBits = Literal["int8", "int4"]
_copies: "WeakKeyDictionary[CausalLM, dict[str, CausalLM]]" = WeakKeyDictionary()


def quantized_copy(target: CausalLM, quantize: FewBits) -> CausalLM:
    """Returns a copy of a model that computes in bfloat16 with weights of few bits; the same one for each call. What is
    not quantized, such as embeddings, is shared if the model has bfloat16 weights. Raises ConfigError for a model whose
    weights torch's kernels cannot store so."""
    place = f"drafter.quantize = '{quantize}': target '{target.name}'"
    if target.quantization != "none":
        raise ConfigError(f"{place} has {target.quantization} weights already: leave out --quantize")
    if target.engine != "eager":
        other = "take --engine eager, or give a GGUF file as drafter.checkpoint"
        raise ConfigError(f"{place} has passes of engine {target.engine}, and its copy would have eager ones: {other}")
    if target.device.type != "cpu":
        raise ConfigError(
            f"{place} is on {target.device}, and torch's kernels for such weights are for a CPU: take another"
        )
    made = _copies.setdefault(target, {})
    if quantize not in made:
        network = _quantized(target.model, quantize)
        if not any(layer.kind == quantize for layer in stored_layers(network)):
            raise ConfigError(f"{place} has no linear layer of a size that torch's kernels take: take another method")
        made[quantize] = CausalLM(network, target.tokenizer, target.name, target.revision, quantize)
    return made[quantize]


@torch.no_grad()
def _quantized(network: Any, quantize: FewBits) -> Any:
    # 1. A copy of the modules, with the same tensors.
    tensors = [*network.parameters(), *network.buffers()]
    made = copy.deepcopy(network, {id(tensor): tensor for tensor in tensors})
    # 2. Layer by layer: what was packed is unpacked, in bfloat16, and stored anew, so that no more than one layer's
    #    weights are there a third time.
    in_bfloat16: dict[int, nn.Parameter] = {}  # a weight that two modules share stays shared
    stacks = [part for part in made.modules() if isinstance(part, nn.ModuleList)]
    for part in (*(layer for stack in stacks for layer in stack), made):
        for module in part.modules():
            if isinstance(module, StoredLinear) and module.kind not in ("int8", "int4"):
                module.restore()
            for name, value in module._parameters.items():
                if value is not None and value.dtype != torch.bfloat16 and value.is_floating_point():
                    if id(value) not in in_bfloat16:
                        in_bfloat16[id(value)] = nn.Parameter(value.detach().bfloat16(), requires_grad=False)
                    module._parameters[name] = in_bfloat16[id(value)]
        store_weights(part, quantize)
    return made
