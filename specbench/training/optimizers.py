"""The optimizer of a training, and its learning rate as a function of the step (the update) alone."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from specbench.errors import ConfigError
from specbench.training.spec import TrainSpec

NO_BITSANDBYTES = "quantize = 'nf4': needs bitsandbytes: pip install 'specbench[quant]'"


def make_optimizer(parameters: Sequence[nn.Parameter], spec: TrainSpec) -> torch.optim.Optimizer:
    """AdamW (arXiv:1711.05101), with its state in 8 bits (arXiv:2110.02861) where the models are quantised. Its rate is
    set at every update.

    Raises ConfigError when bitsandbytes is missing.
    """
    if spec.quantize == "none":
        return torch.optim.AdamW(parameters, lr=0.0, weight_decay=spec.weight_decay)
    made: torch.optim.Optimizer = bitsandbytes().optim.AdamW8bit(parameters, lr=0.0, weight_decay=spec.weight_decay)
    return made


def bitsandbytes() -> Any:
    """The library of 4-bit weights and 8-bit optimizers. Raises ConfigError when it is missing or does not load."""
    try:
        import bitsandbytes
    except Exception as error:  # it looks for the driver's libraries when it is imported
        raise ConfigError(NO_BITSANDBYTES) from error
    return bitsandbytes


def rate_at(spec: TrainSpec, highest: float, step: int, num_steps: int) -> float:
    """The learning rate of the update that ends `step` (from 1): linear warm-up to `highest`, then constant, or half a
    cosine that would reach 0 one step after the last."""
    warmup = spec.warmup if spec.warmup >= 1 else spec.warmup * num_steps
    if step <= warmup:
        return highest * step / warmup
    if spec.schedule == "constant":
        return highest
    share = (step - warmup) / (num_steps + 1 - warmup)
    return highest * (1 + math.cos(math.pi * share)) / 2
