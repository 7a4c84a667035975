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
        made: torch.Tensor = self.output_layers()[number](self._last_states(number, states))
        return made

    def _last_states(self, number: int, states: torch.Tensor) -> torch.Tensor:
        """Returns what the output layer of a head reads, [..., width]."""
        parts = self[number]
        assert isinstance(parts, nn.ModuleList)
        for block in parts[:-1]:
            states = block(states)
        return states

    def share_output(self, layer: nn.Linear) -> None:
        """Gives all heads one output layer."""
        for parts in self:
            assert isinstance(parts, nn.ModuleList)
            parts[-1] = layer

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """Returns the logits of all heads, [num_heads, ..., vocab_size], from hidden states [..., width]."""
        first, *others = self.output_layers()
        if all(layer is first for layer in others):  # its weights are read once
            made: torch.Tensor = first(torch.stack([self._last_states(number, states) for number in range(len(self))]))
            return made
        return torch.stack([self.head_logits(number, states) for number in range(len(self))])


# The names of tensors by Medusa's authors, and by vLLM.
BLOCK = re.compile(r"(\d{1,2})\.(\d{1,2})\.linear\.(weight|bias)")
OUTPUT = re.compile(r"(\d{1,2})\.\d{1,2}\.weight")
VLLM_BLOCK = re.compile(r"blocks\.(\d{1,2})\.layers\.(\d{1,2})\.(weight|bias)")
VLLM_OUTPUT = re.compile(r"lm_heads\.(\d{1,2})\.weight")


def load_medusa(checkpoint: HeadCheckpoint, target: CausalLM) -> MedusaHeads:
    """Returns Medusa heads for a target. Raises ConfigError for heads that do not fit it.

    The number of heads comes from the tensors, since published configurations have wrong numbers.
    """
    checkpoint.expect("medusa")
    checkpoint.check_booleans("original_lm_head")
    # 1. The names of Medusa's authors. One output layer of vLLM may be that of all heads.
    tensors = {
        VLLM_BLOCK.sub(r"\1.\2.linear.\3", name.removeprefix("medusa_heads.")): tensor
        for name, tensor in checkpoint.tensors.items()
    }
    if "token_map" in tensors:
        raise checkpoint.problem("its vocabulary is truncated (tensor token_map), which is not supported")
    num_blocks = 1 + max((int(match[2]) for name in tensors if (match := BLOCK.fullmatch(name))), default=-1)
    tensors = {VLLM_OUTPUT.sub(rf"\1.{num_blocks}.weight", name): tensor for name, tensor in tensors.items()}
    num_heads = 1 + max(
        (int(match[1]) for name in tensors if (match := BLOCK.fullmatch(name) or OUTPUT.fullmatch(name))), default=-1
    )
    outputs = [f"{head}.{num_blocks}.weight" for head in range(num_heads)]
    shared = tensors.pop("lm_head.weight", None)
    if shared is None and checkpoint.config.get("original_lm_head"):
        shared = tensors.get(f"0.{num_blocks}.weight")
    if shared is not None:
        tensors |= dict.fromkeys(outputs, shared)

    # 2. What the configuration and the target say.
    num_layers = checkpoint.config.get("medusa_num_layers")
    if num_layers not in (None, num_blocks):
        raise checkpoint.problem(
            f"config.json has medusa_num_layers {num_layers}, and its heads have {num_blocks} blocks"
        )
    output = tensors.get(f"0.{num_blocks}.weight")
    if output is None or output.dim() != 2:
        raise checkpoint.problem(f"its tensors do not fit: missing tensor 0.{num_blocks}.weight [vocabulary, width]")
    check_vocabulary(checkpoint, [len(output)], target)
    check_width(checkpoint, output.shape[1], target)

    # 3. The heads, without the rows of padding, which must never be drafted.
    tensors |= {name: tensors[name][: target.vocab_size] for name in outputs if name in tensors}
    vocab_size, width = tensors[outputs[0]].shape
    with torch.device("meta"):
        heads = MedusaHeads(num_heads, num_blocks, width, vocab_size, has_bias=any("bias" in name for name in tensors))
    assign(heads, checkpoint, tensors)
    if shared is not None:
        heads.share_output(heads.output_layers()[0])
    place(heads, target)
    return heads


def medusa_files(heads: MedusaHeads, tensors: Tensors, target: CausalLM) -> tuple[dict[str, object], Tensors]:
    """Returns the configuration and the tensors of heads as vLLM reads them, which assumes no biases by default."""
    blocks = {name: BLOCK.sub(r"blocks.\1.layers.\2.\3", name) for name in tensors if ".linear." in name}
    config: dict[str, object] = {
        "architectures": ["MedusaModel"], "model_type": "medusa", "medusa_num_heads": len(heads),
        "medusa_num_layers": heads.num_blocks, "base_model_name_or_path": target.name,
        "medusa_fc_bias": any(name.endswith("bias") for name in tensors),
        "hidden_size": target.model.config.get_text_config().hidden_size, "vocab_size": heads.vocab_size,
    }  # fmt: skip
    first = f"0.{heads.num_blocks}.weight"
    if first not in tensors:  # all heads have the target's output layer, which is stored once
        weight = target.model.get_output_embeddings().weight.detach()[: heads.vocab_size]
        dtype = next(iter(tensors.values())).dtype
        config["original_lm_head"] = True
        tensors = {**tensors, first: weight.to("cpu", dtype, copy=True).contiguous()}
    return config, {
        blocks.get(name, f"lm_heads.{name.partition('.')[0]}.weight"): tensor for name, tensor in tensors.items()
    }
