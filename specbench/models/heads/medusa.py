"""Medusa heads (arXiv:2401.10774), which predict one later token each from the target's last hidden state, and their
checkpoints in the layouts of their authors, TGI and vLLM."""

import re

import torch
from torch import nn
from torch.nn import functional

from specbench.models.causal_lm import CausalLM
from specbench.models.heads.checkpoints import HeadCheckpoint, Tensors, assign, check_vocabulary, check_width, place


class ResidualBlock(nn.Module):
    """x + SiLU(W x + b), the identity after initialization."""

    def __init__(self, width: int, has_bias: bool = True) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width, bias=has_bias)
        for parameter in self.linear.parameters():
            nn.init.zeros_(parameter)

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """Returns [..., width] from [..., width]."""
        return states + functional.silu(self.linear(states))


class MedusaHeads(nn.ModuleList):
    """Heads of residual blocks and an output layer. Head k predicts the token k + 2 places after a hidden state.

    The parameters have the names of the published checkpoints: HEAD.BLOCK.linear.weight, HEAD.BLOCK.linear.bias and
    HEAD.NUM_BLOCKS.weight.
    """

    def __init__(self, num_heads: int, num_blocks: int, width: int, vocab_size: int, has_bias: bool = True) -> None:
        blocks = (
            [*(ResidualBlock(width, has_bias) for _ in range(num_blocks)), nn.Linear(width, vocab_size, bias=False)]
            for _ in range(num_heads)
        )
        super().__init__(nn.ModuleList(parts) for parts in blocks)
        self.num_blocks = num_blocks
        self.vocab_size = vocab_size

    def output_layers(self) -> list[nn.Linear]:
        found = []
        for parts in self:
            assert isinstance(parts, nn.ModuleList) and isinstance(parts[-1], nn.Linear)
            found.append(parts[-1])
        return found

    def head_logits(self, number: int, states: torch.Tensor) -> torch.Tensor:
        """Returns the logits of one head, [..., vocab_size], from hidden states [..., width]."""
        parts = self[number]
        assert isinstance(parts, nn.ModuleList)
        for part in parts:
            states = part(states)
        return states

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """Returns the logits of all heads, [num_heads, ..., vocab_size], from hidden states [..., width]."""
        return torch.stack([self.head_logits(number, states) for number in range(len(self))])


# No number has more digits, so that none takes long.
AUTHORS_BLOCK = re.compile(r"(\d{1,4})\.(\d{1,4})\.linear\.(weight|bias)")
AUTHORS_NAME = re.compile(r"(\d{1,4})\.(\d{1,4})\.(linear\.)?(weight|bias)")
VLLM_BLOCK = re.compile(r"blocks\.(\d{1,4})\.layers\.(\d{1,4})\.(weight|bias)")
VLLM_OUTPUT = re.compile(r"lm_heads\.(\d{1,4})\.weight")


def load_medusa(checkpoint: HeadCheckpoint, target: CausalLM) -> MedusaHeads:
    """Returns Medusa heads for a target. Raises ConfigError for heads that do not fit it.

    The number of heads comes from the tensors, since published configurations have wrong numbers.
    """
    checkpoint.expect("medusa")
    checkpoint.check_booleans("original_lm_head")
    tensors = with_author_names(checkpoint)
    names = {name: AUTHORS_NAME.fullmatch(name) for name in tensors}
    wrong = next((name for name, match in names.items() if match is None), None)
    numbers = [(int(match[1]), int(match[2]), match[3]) for match in names.values() if match]
    num_heads = 1 + max((head for head, *_ in numbers), default=-1)
    num_blocks = 1 + max((block for _, block, is_linear in numbers if is_linear), default=-1)
    if wrong is not None or num_heads * (num_blocks + 1) > 2 * len(tensors) + 8:
        name = max(tensors, key=len) if wrong is None else wrong
        raise checkpoint.problem(
            f"its tensors do not fit: {name:.60} of {len(tensors)} tensors: expected HEAD.BLOCK.linear.weight, with "
            "heads and blocks that are numbered from 0 without gaps"
        )
    num_layers = checkpoint.config.get("medusa_num_layers")
    if num_layers not in (None, num_blocks):
        raise checkpoint.problem(
            f"config.json has medusa_num_layers {num_layers}, and its heads have {num_blocks} blocks"
        )
    output = tensors.get(f"0.{num_blocks}.weight")
    if output is None or output.dim() != 2:
        raise checkpoint.problem(f"its tensors do not fit: missing tensor 0.{num_blocks}.weight [vocabulary, width]")
    vocab_size, width = output.shape
    check_vocabulary(checkpoint, [vocab_size], target)
    check_width(checkpoint, width, target)
    vocab_size = min(vocab_size, target.vocab_size)  # without padding, which must never be drafted
    for head in range(num_heads):
        name = f"{head}.{num_blocks}.weight"
        if name in tensors and tensors[name].dim() == 2:
            tensors[name] = tensors[name][:vocab_size]
    with torch.device("meta"):
        heads = MedusaHeads(num_heads, num_blocks, width, vocab_size, has_bias=any("bias" in name for name in tensors))
    assign(heads, checkpoint, tensors)
    place(heads, target)
    return heads


def with_vllm_names(tensors: Tensors) -> Tensors:
    """Returns the tensors with vLLM's names in place of those of Medusa's authors (see `with_author_names`)."""
    blocks = {name: AUTHORS_BLOCK.sub(r"blocks.\1.layers.\2.\3", name) for name in tensors if ".linear." in name}
    return {blocks.get(name, f"lm_heads.{name.partition('.')[0]}.weight"): tensor for name, tensor in tensors.items()}


def with_author_names(checkpoint: HeadCheckpoint) -> Tensors:
    """Returns the tensors with the names of Medusa's authors, HEAD.BLOCK.linear.weight and HEAD.NUM_BLOCKS.weight.

    vLLM calls them blocks.HEAD.layers.BLOCK.weight and lm_heads.HEAD.weight; if the configuration has
    `original_lm_head`, all heads use lm_heads.0. Raises ConfigError for a truncated vocabulary.
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
