"""The shape of a member and its growth: residual blocks whose output projections start at zero change nothing."""

import copy

from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

HEAD_WIDTH = 32


def new_model(
    num_layers: int, width: int, vocab_size: int, end_id: int, pad_id: int, max_length: int, start_id: int | None = None
) -> LlamaForCausalLM:
    """A Llama of `num_layers` blocks and `width` hidden units, heads of 32, tied embeddings, random weights."""
    config = LlamaConfig(
        vocab_size=vocab_size,
        hidden_size=width,
        intermediate_size=2 * width,
        num_hidden_layers=num_layers,
        num_attention_heads=width // HEAD_WIDTH,
        num_key_value_heads=width // HEAD_WIDTH,
        max_position_embeddings=max_length,
        tie_word_embeddings=True,
        bos_token_id=start_id,
        eos_token_id=end_id,
        pad_token_id=pad_id,
    )
    return LlamaForCausalLM(config)


def _identity_copy(block: nn.Module) -> nn.Module:
    """A copy of a block that adds nothing yet: its inputs are in place, its two output projections are zero."""
    new = copy.deepcopy(block)
    nn.init.zeros_(new.self_attn.o_proj.weight)  # type: ignore[union-attr, arg-type]
    nn.init.zeros_(new.mlp.down_proj.weight)  # type: ignore[union-attr, arg-type]
    return new


def grow(model: LlamaForCausalLM, num_layers: int) -> None:
    """Insert identity blocks, spread evenly behind the trained ones, until there are `num_layers`. In place."""
    old = list(model.model.layers)
    blocks: list[nn.Module] = []
    for position, block in enumerate(old):
        share = (position + 1) * num_layers // len(old) - position * num_layers // len(old)
        blocks.append(block)
        blocks.extend(_identity_copy(block) for _ in range(share - 1))
    for index, block in enumerate(blocks):
        block.self_attn.layer_idx = index  # type: ignore[union-attr]
    model.model.layers = nn.ModuleList(blocks)
    model.config.num_hidden_layers = num_layers
