"""Muon (Keller Jordan 2024): momentum whose matrix updates are made orthogonal by a Newton-Schulz iteration."""

from collections import defaultdict
from collections.abc import Iterable

import torch


def orthogonal(matrices: torch.Tensor) -> torch.Tensor:
    """Nearly orthogonal matrices from [num_matrices, rows, columns], by five quintic Newton-Schulz steps."""
    tall = matrices.shape[1] > matrices.shape[2]
    result = matrices.mT if tall else matrices
    result = result / (result.norm(dim=(1, 2), keepdim=True) + 1e-7)
    for _ in range(5):
        gram = result @ result.mT
        result = 3.4445 * result + (-4.7750 * gram + 2.0315 * gram @ gram) @ result
    orthogonal_matrices: torch.Tensor = result.mT if tall else result
    return orthogonal_matrices


class Muon(torch.optim.Optimizer):
    """The optimizer for weight matrices; embeddings and gains stay with AdamW."""

    def __init__(self, params: Iterable[torch.nn.Parameter], lr: float, momentum: float = 0.95, decay: float = 0.01):
        super().__init__(params, {"lr": lr, "momentum": momentum, "decay": decay})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """One update; matrices of one shape are made orthogonal together."""
        for group in self.param_groups:
            shapes: dict[torch.Size, list[torch.nn.Parameter]] = defaultdict(list)
            for param in group["params"]:
                shapes[param.shape].append(param)
            for shape, params in shapes.items():
                updates = []
                for param in params:
                    assert param.grad is not None
                    average = self.state[param].setdefault("average", torch.zeros_like(param))
                    average.lerp_(param.grad, 1 - group["momentum"])
                    updates.append(param.grad.lerp(average, group["momentum"]))
                scale = group["lr"] * max(1.0, shape[0] / shape[1]) ** 0.5
                for param, update in zip(params, orthogonal(torch.stack(updates)), strict=True):
                    param.mul_(1 - group["lr"] * group["decay"]).sub_(update, alpha=scale)
