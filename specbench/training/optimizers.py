"""The optimizers of a training: AdamW, AdamW with 8-bit state, or Muon for the matrices of a draft head."""

from typing import Any

import torch
from torch import nn

from specbench.core.errors import ConfigError
from specbench.models.loading import bitsandbytes
from specbench.training.spec import TrainSpec


def trained_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """Returns the trained parameters by name. Tied parameters occur once."""
    return {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}


def make_optimizer(model: nn.Module, spec: TrainSpec) -> torch.optim.Optimizer:
    """Returns AdamW (arXiv:1711.05101), with 8-bit state (arXiv:2110.02861) for quantised models, or Muon and AdamW.
    The loop sets its learning rate at every update.

    Raises ConfigError if bitsandbytes or torch's Muon is missing.
    """
    if spec.optimizer == "muon":
        return MuonWithAdamW(model, spec.weight_decay)
    parameters = list(trained_parameters(model).values())
    if spec.quantize == "none":
        return torch.optim.AdamW(parameters, lr=0.0, weight_decay=spec.weight_decay)
    optimizer: torch.optim.Optimizer = bitsandbytes(f"quantize = {spec.quantize!r}").optim.AdamW8bit(
        parameters, lr=0.0, weight_decay=spec.weight_decay
    )
    return optimizer


class MuonWithAdamW(torch.optim.Optimizer):
    """Muon for the matrices inside the layers of a draft head, AdamW for its output layers, gains and biases."""

    ADAMW_SHARE = 0.15  # of Muon's learning rate

    def __init__(self, head: nn.Module, weight_decay: float) -> None:
        if not hasattr(torch.optim, "Muon"):
            raise ConfigError("optimizer = 'muon': needs torch 2.9 or later: install it, or give optimizer=adamw")
        outputs = {id(parameter) for layer in head.output_layers() for parameter in layer.parameters()}  # type: ignore[operator]
        trained = list(trained_parameters(head).values())
        matrices: list[nn.Parameter] = []
        others: list[nn.Parameter] = []
        for parameter in trained:
            (matrices if parameter.ndim == 2 and id(parameter) not in outputs else others).append(parameter)
        self.parts: list[torch.optim.Optimizer] = [
            torch.optim.Muon(matrices, lr=0.0, weight_decay=weight_decay),
            torch.optim.AdamW(others, lr=0.0, weight_decay=0.0),
        ]
        super().__init__(trained, {})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Performs one update with the learning rate of the first parameter group."""
        rate = self.param_groups[0]["lr"]
        for part, share in zip(self.parts, (1.0, self.ADAMW_SHARE), strict=True):
            part.param_groups[0]["lr"] = rate * share
            part.step()

    def state_dict(self) -> dict[str, Any]:
        """Returns the state of both optimizers."""
        return {"parts": [part.state_dict() for part in self.parts]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restores the state of both optimizers."""
        for part, state in zip(self.parts, state_dict["parts"], strict=True):
            part.load_state_dict(state)
