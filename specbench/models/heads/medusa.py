"""Medusa heads (arXiv:2401.10774): each predicts one later token from the target's last hidden state."""

import torch
from torch import nn
from torch.nn import functional


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
        """Returns the output layer of each head."""
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
