"""What transformers makes of a GGUF file: its configuration and its network. It leaves out keys and tensors that it
does not know, without an error, which would be another model than the file's. Here they are carried over or refused."""

import math
import warnings
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from specbench.models.checkpoints import quiet_transformers
from specbench.models.gguf.files import GgufFile
from specbench.models.gguf.header import EPSILONS, EXPERTS, OLD_FACTOR, SCALING, Header

FACTORS = "rope_freqs.weight"  # by which llama.cpp divides the frequencies of positions
NOT_ROTATED = 1e29  # factors from here on stop a rotation
LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}  # of Llama 3.1–3.3
CARRIED = frozenset({"type", "factor", "original_context_length", "finetuned"})  # keys of rope.scaling
EPSILONS_THERE = ("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon", "norm_eps", "norm_epsilon")


class OtherModel(ValueError):
    """What transformers would load is another model than the file's: the key or tensor, and why."""


def file_config(path: Path, header: Header) -> Any:
    """Returns transformers' configuration of a file with the file's norms and positions. Raises OtherModel if the file
    lacks a number that transformers would not ask for, for positions that it cannot express, and what it raises."""
    config: Any = AutoConfig.from_pretrained(str(path.parent), gguf_file=path.name)
    carry_norms(config.get_text_config(), header)
    carry_positions(config.get_text_config(), header)
    return config


def carry_norms(config: Any, header: Header) -> None:
    """Gives a configuration the ε of a file's norms, of which transformers reads one of two keys. Raises OtherModel for
    a file without it or without the number of heads, neither of which shows in the sizes of tensors."""
    epsilons = [value for key in EPSILONS if (value := header.of_architecture(key)) is not None]
    there = [name for name in EPSILONS_THERE if hasattr(config, name)]
    needed = [] if epsilons else [(EPSILONS[0], name) for name in there]
    if hasattr(config, "num_attention_heads") and header.of_architecture("attention.head_count") is None:
        needed.append(("attention.head_count", "num_attention_heads"))
    for key, name in needed:
        default = getattr(config, name)
        raise OtherModel(f"{header.architecture}.{key} is missing, and transformers would take {default}")
    for name in there:
        setattr(config, name, epsilons[0])


def carry_positions(config: Any, header: Header) -> None:
    """Gives a configuration the rotary positions of a file, of which transformers reads no scaling. Raises OtherModel
    for one that transformers has not, or that was not compared with llama.cpp's."""
    prefix = f"{header.architecture}.{SCALING}"
    keys = {key.removeprefix(prefix): value for key, value in header.values.items() if key.startswith(prefix)}
    # As in llama.cpp: linear without a type, and by an older key.
    kind = keys.get("type") or "linear"
    factor = float(keys.get("factor") or header.of_architecture(OLD_FACTOR) or 1)
    factors = frequency_factors(header)
    scales = kind != "none" and (kind != "linear" or factor != 1)
    parameters = getattr(config, "rope_parameters", None) or {}
    if header.architecture == "gemma3":  # its layers with a window keep their positions
        parameters = parameters.get("full_attention", {})
    base = header.of_architecture("rope.freq_base")
    if base is not None and "rope_theta" in parameters:  # of StarCoder 2, transformers leaves out even this
        parameters["rope_theta"] = base
    if scales and (parameters.get("rope_type"), parameters.get("factor")) == (kind, factor):  # transformers has read it
        return
    if others := sorted(key for key in keys.keys() - CARRIED if (key, keys[key]) != ("attn_factor", 1)):
        raise OtherModel(f"{prefix}{others[0]} = {keys[others[0]]}: transformers does not read this key")
    named = f"{prefix}type = '{kind}', {prefix}factor = {factor:g}"
    if scales and factors is not None:
        raise OtherModel(f"{named} and tensor '{FACTORS}': transformers has no scaling of positions by both")
    if factors is not None:
        carry_factors(config, parameters, factors)
    if not scales:
        return
    if kind not in ("linear", "yarn") or parameters.get("rope_type") != "default":
        raise OtherModel(f"{named}: transformers does not read this scaling of positions for {type(config).__name__}")
    parameters.update(rope_type=kind, factor=factor)
    if kind == "yarn":
        length = keys.get("original_context_length") or header.context_length
        parameters["original_max_position_embeddings"] = int(length or config.max_position_embeddings)


def frequency_factors(header: Header) -> "np.ndarray[Any, Any] | None":
    """Returns the factors of a file's frequencies; None if there are none, or all are 1."""
    if (place := header.tensors.get(FACTORS)) is None:
        return None
    if place.kind != 0:
        raise OtherModel(f"tensor '{FACTORS}' has type {place.kind}, and float32 (0) is needed")
    found = np.fromfile(place.path, "<f4", math.prod(place.sizes), offset=place.start)
    return None if bool((found == 1).all()) else found


def carry_factors(config: Any, parameters: dict[str, Any], factors: "np.ndarray[Any, Any]") -> None:
    """Gives a configuration the scaling of which a file has only the factors. Raises OtherModel unless they are those
    of Llama 3, or those that the configuration has."""
    kind, number = parameters.get("rope_type"), len(factors)
    if kind == "proportional":  # a part of each head rotates, which transformers knows
        rotates = factors < NOT_ROTATED
        if bool((factors[rotates] == 1).all()) and rotates.mean() == parameters.get("partial_rotary_factor"):
            return
    if kind == "default":
        parameters.update(rope_type="llama3", factor=float(factors.max()), **LLAMA3)
        scaled, _ = ROPE_INIT_FUNCTIONS["llama3"](config)
        plain = parameters["rope_theta"] ** -(np.arange(number) / number)
        if len(scaled) == number and np.allclose(plain / scaled.numpy(), factors, rtol=1e-3):
            return
    raise OtherModel(
        f"tensor '{FACTORS}' has factors from {factors.min():g} to {factors.max():g}, which are not those of Llama 3: "
        f"transformers does not read them for {type(config).__name__}"
    )


def check_tensors(config: Any, header: Header) -> None:
    """Raises OtherModel for a tensor that has no place in transformers' network or has another size there, and for a
    weight of the network that the file lacks. Reads no weights. Architectures of transformers' newer reader are left to
    what it reports."""
    from transformers import modeling_gguf_pytorch_utils as reader

    if find_spec("transformers.integrations.gguf") is not None:  # not in all versions
        from transformers.integrations.gguf.utils import is_gguf_arch_supported

        if is_gguf_arch_supported(header.architecture):
            return
    with torch.device("meta"):
        network: Any = AutoModelForCausalLM.from_config(config)
    processor: Any = reader.TENSOR_PROCESSORS.get(header.architecture, reader.TensorProcessor)
    places = reader.get_gguf_hf_weights_map(network, processor())
    if without := [name for name in header.tensors if name not in places and name != FACTORS]:
        raise OtherModel(unplaced(without, network))
    weights = dict(network.named_parameters(remove_duplicate=False))
    for name, place in header.tensors.items():
        weight = weights.get(places.get(name, ""))
        if weight is not None and EXPERTS not in name and weight.numel() != math.prod(place.sizes):
            found, wanted = (" x ".join(map(str, sizes)) for sizes in (place.sizes[::-1], weight.shape))
            raise OtherModel(
                f"tensor '{name}' is {found}, and the keys {header.architecture}.* make it {wanted} in transformers' "
                f"{type(network).__name__}"
            )
    filled = {id(weights.get(place)) for name, place in places.items() if name in header.tensors}
    if lacking := sorted(name for name, weight in weights.items() if id(weight) not in filled):
        raise OtherModel(missing_weights(lacking, network))


def unplaced(names: Sequence[str], network: Any) -> str:
    others = f" and {len(names) - 1} others have" if len(names) > 1 else " has"
    return f"tensor '{names[0]}'{others} no place in transformers' {type(network).__name__}, and would be left out"


def missing_weights(names: Sequence[str], network: Any) -> str:
    return f"it lacks {len(names)} tensors that transformers' {type(network).__name__} has, such as {names[0]}"


def is_readable(file: GgufFile) -> bool:
    """Returns whether transformers would read a file. Reads no weights."""
    try:
        with quiet_transformers(), warnings.catch_warnings(action="ignore"):
            config = file_config(file.path, file.header)
            if len(file.paths) > 1:  # read from the first
                config.tie_word_embeddings = "output.weight" not in file.header.tensors
            check_tensors(config, file.header)
    except Exception:  # of many classes
        return False
    return True
