"""Medusa heads in the layouts of their authors, of TGI and of vLLM."""

import re

import torch

from specbench.models.causal_lm import CausalLM
from specbench.models.heads.checkpoints import HeadCheckpoint, assign, check_vocabulary, place
from specbench.models.heads.medusa import MedusaHeads
from specbench.models.heads.weight_files import Tensors

AUTHORS_BLOCK = re.compile(r"(\d+)\.(\d+)\.linear\.(weight|bias)")
VLLM_BLOCK = re.compile(r"blocks\.(\d+)\.layers\.(\d+)\.(weight|bias)")
VLLM_OUTPUT = re.compile(r"lm_heads\.(\d+)\.weight")


def load_medusa(checkpoint: HeadCheckpoint, target: CausalLM) -> MedusaHeads:
    """Returns Medusa heads for a target. Raises ConfigError for heads that do not fit it.

    The tensors give the number of heads: published configurations name another one.
    """
    checkpoint.expect("medusa")
    tensors = with_author_names(checkpoint)
    blocks = [name.split(".") for name in tensors if ".linear." in name]
    num_heads = 1 + max(int(name.partition(".")[0]) for name in tensors)
    num_blocks = 1 + max((int(block) for _, block, *_ in blocks), default=-1)
    told = checkpoint.config.get("medusa_num_layers")
    if told not in (None, num_blocks):
        raise checkpoint.problem(f"config.json has medusa_num_layers {told}, and its heads have {num_blocks} blocks")
    output = tensors.get(f"0.{num_blocks}.weight")
    if output is None or output.dim() != 2:
        raise checkpoint.problem(f"its tensors do not fit: missing tensor 0.{num_blocks}.weight [vocabulary, width]")
    vocab_size, width = output.shape
    check_vocabulary(checkpoint, [vocab_size], target)
    if width != (expected := target.model.config.get_text_config().hidden_size):
        raise checkpoint.problem(
            f"it reads hidden states of {width} values, and those of target '{target.name}' have {expected}: it is a "
            "head of another target"
        )
    with torch.device("meta"):
        heads = MedusaHeads(num_heads, num_blocks, width, vocab_size, has_bias=any("bias" in name for name in tensors))
    assign(heads, checkpoint, tensors)
    place(heads, target)
    return heads


def with_vllm_names(tensors: Tensors) -> Tensors:
    """Returns tensors under the names of vLLM, given those of Medusa's authors (see `with_author_names`)."""
    blocks = {name: AUTHORS_BLOCK.sub(r"blocks.\1.layers.\2.\3", name) for name in tensors if ".linear." in name}
    return {blocks.get(name, f"lm_heads.{name.partition('.')[0]}.weight"): tensor for name, tensor in tensors.items()}


def with_author_names(checkpoint: HeadCheckpoint) -> Tensors:
    """Returns the tensors under the names of Medusa's authors, HEAD.BLOCK.linear.weight and HEAD.NUM_BLOCKS.weight.

    vLLM calls them blocks.HEAD.layers.BLOCK.weight and lm_heads.HEAD.weight; lm_heads.0 is of all heads if the
    configuration says `original_lm_head`. Raises ConfigError for a truncated vocabulary.
    """
    tensors = {name.removeprefix("medusa_heads."): tensor for name, tensor in checkpoint.tensors.items()}
    if "token_map" in tensors:
        raise checkpoint.problem("its vocabulary is truncated (tensor token_map), which is not supported")
    if not any(VLLM_OUTPUT.fullmatch(name) or name == "lm_head.weight" for name in tensors):
        return tensors
    blocks = {name: match for name in tensors if (match := VLLM_BLOCK.fullmatch(name))}
    num_blocks = 1 + max((int(match[2]) for match in blocks.values()), default=-1)
    outputs = {match[1]: tensors[name] for name in tensors if (match := VLLM_OUTPUT.fullmatch(name))}
    shared = tensors.get("lm_head.weight", outputs.get("0") if checkpoint.config.get("original_lm_head") else None)
    if shared is not None:
        outputs = dict.fromkeys((match[1] for match in blocks.values()), shared)
    known = {*blocks, "lm_head.weight", *(name for name in tensors if VLLM_OUTPUT.fullmatch(name))}
    return {
        **{f"{match[1]}.{match[2]}.linear.{match[3]}": tensors[name] for name, match in blocks.items()},
        **{f"{head}.{num_blocks}.weight": output for head, output in outputs.items()},
        **{name: tensor for name, tensor in tensors.items() if name not in known},
    }
