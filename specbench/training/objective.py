"""What the training loop asks of an objective: the mini-batches of a pass, its log lines and its held-back loss."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor, nn


@dataclass(frozen=True)
class Part:
    """One mini-batch of a pass: its loss is computed when asked, so that only one graph is alive.

    The gradient of a pass is the sum of `weight` times the gradient of `loss` over its parts.
    """

    group: str
    """Language, or "all" where there is only one group."""
    weight: float
    """Constant factor of the loss: no gradient goes through it."""
    num_tokens: int
    """Tokens that the loss is the mean over."""
    loss: Callable[[nn.Module], Tensor]
    """The drafter's loss on this mini-batch: a float32 scalar with its graph."""


class Objective(Protocol):
    """What a drafter is trained on, in passes that are counted from 0; a step of the training is one or several.

    Every draw of a pass depends on (seed, number, purpose) alone, so that a training can resume. In the log, `columns`
    follow the columns timestamp, step and pass.
    """

    columns: tuple[str, ...]

    def parts(self, drafter: nn.Module, number: int) -> list[Part]:
        """The mini-batches of a pass; may run the drafter without gradient first (s-CDF needs every group's loss)."""
        ...

    def rows(self, drafter: nn.Module, number: int) -> list[dict[str, Any]]:
        """The log lines of the pass just made, one per group, with the keys of `columns`; called before the update."""
        ...

    def validation(self, drafter: nn.Module) -> float | None:
        """Mean loss on held-back data, or None where nothing is held back."""
        ...
