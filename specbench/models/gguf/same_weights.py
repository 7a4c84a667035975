"""Whether a draft model has the target's own weights: the same files, or a GGUF file that one was dequantized from."""

from collections.abc import Iterator
from typing import Any

import torch

from specbench.models.causal_lm import CausalLM
from specbench.models.gguf.header import TensorPlace

NUM_ROWS = 64  # of a tensor that are compared
ROUNDING = 2.0**-8  # of bfloat16, relative to a value; types of 4 to 8 bits move small values by far more


def has_same_weights(target: CausalLM, drafter: CausalLM) -> bool:
    """Returns whether two models have the same weights: both are of the same files, in whatever engines, or one is a
    checkpoint that was dequantized from the other's GGUF file. For that, some rows of two tensors are compared. False
    also for layouts in which these are not found, and if only one of the two is quantized when it is loaded."""
    if target.revision is not None and target.revision == drafter.revision:
        return target.quantization == drafter.quantization
    files = [header for model in (target, drafter) if (header := getattr(model, "header", None)) is not None]
    if len(files) != 1:
        return False
    network = (drafter if getattr(target, "header", None) is not None else target).model
    pairs = [(files[0].tensors[name], weight) for name, weight in weights_by_name(network) if name in files[0].tensors]
    return bool(pairs) and all(map(equal_rows, *zip(*pairs, strict=True)))


def weights_by_name(network: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """Yields two weights whose layout is that of the file, by their names there: the embeddings, and the last matrix of
    the feed-forward network in the middle."""
    yield "token_embd.weight", network.get_input_embeddings().weight
    number = network.config.get_text_config().num_hidden_layers // 2
    for name, part in network.named_modules():
        if name.endswith(f"layers.{number}.mlp.down_proj") and isinstance(part, torch.nn.Linear):
            yield f"blk.{number}.ffn_down.weight", part.weight


def equal_rows(place: TensorPlace, weight: torch.Tensor) -> bool:
    """Returns whether the first rows of a tensor of a file are those of a weight, up to the rounding to bfloat16."""
    import gguf
    import numpy as np

    if weight.is_meta or len(place.sizes) != 2 or weight.shape[1] != place.sizes[0]:
        return False
    kind = gguf.GGMLQuantizationType(place.kind)
    per_block, block_bytes = gguf.GGML_QUANT_SIZES[kind]
    num_rows, row_bytes = min(NUM_ROWS, place.sizes[1], len(weight)), place.sizes[0] // per_block * block_bytes
    data = np.fromfile(place.path, np.uint8, num_rows * row_bytes, offset=place.start).reshape(num_rows, row_bytes)
    try:
        stored = torch.from_numpy(gguf.dequantize(data, kind).astype(np.float32))
    except NotImplementedError:  # a type that the package does not dequantize
        return False
    own = weight[:num_rows].detach().float().cpu()
    return bool(((own - stored).abs() <= ROUNDING * stored.abs() + 1e-12).all())
