"""Whether a pass computes what it should, judged by how much right passes over the same tokens differ."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import combinations
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

SAFETY = 2.0  # what is measured is a sample: others may be twice as far apart


def shift_of(first: "torch.Tensor", second: "torch.Tensor") -> "torch.Tensor":
    """Returns the root mean square change of each row in standard deviations of its logits. Logits that are −∞ in
    either row do not count."""
    import torch

    known = first.isfinite() & second.isfinite()
    change = torch.where(known, second.float() - first.float(), 0.0).square().mean(dim=-1).sqrt()
    logits = torch.where(known, first.float(), 0.0)
    return change / logits.std(dim=-1).clamp_min(torch.finfo(torch.float32).tiny)


def agree(found: "torch.Tensor", right: "Sequence[torch.Tensor]", limit: float = 0.0, *, rounds: bool = False) -> bool:
    """Returns whether rows [n, width] of logits or states are as near to right computations of the same tokens as these
    are to each other. In low precisions these may differ by any amount, which depends on the model and the text.

    The criterion is that of `BatchWidth.is_wrong`: no row may be farther from the nearest of the `right` ones than
    SAFETY times the largest distance between two of them, or than `max_shift`, which also gets `rounds`, or `limit`.
    """
    import torch

    from specbench.models.scoring import max_shift

    if not all(torch.equal(found.isfinite(), each.isfinite()) for each in right):
        return False
    nearest = torch.stack([shift_of(each, found) for each in right]).amin(dim=0)
    return float(nearest.max()) <= max(limit, max_shift(found.dtype, rounds=rounds), SAFETY * apart(right))


def apart(right: "Sequence[torch.Tensor]") -> float:
    """Returns the largest distance of a row between two computations of the same tokens, in standard deviations."""
    return max((float(shift_of(*pair).max()) for pair in combinations(right, 2)), default=0.0)


@contextmanager
def rounding_at_random(model: "torch.nn.Module", seed: int) -> Iterator[None]:
    """Makes the results of a network's innermost modules a little larger or smaller at random during the block, by up
    to half of what separates neighbouring numbers. Such a pass is as right as any other: kernels and compilers round
    the sums of these modules, and what lies between them, in ways of their own. How far passes are apart then shows how
    much the model makes of rounding (Monte Carlo arithmetic: Parker, UCLA CSD-970002, 1997)."""
    import torch

    generators: dict[torch.device, torch.Generator] = {}

    def rounded(module: "torch.nn.Module", given: Any, made: Any) -> Any:
        if not isinstance(made, torch.Tensor) or not made.is_floating_point():
            return made
        device = made.device
        generator = generators.setdefault(device, torch.Generator(device).manual_seed(seed))
        wide = torch.float32 if made.element_size() < 4 or device.type == "mps" else torch.float64
        noise = torch.rand(made.shape, generator=generator, device=device, dtype=wide) - 0.5
        return (made.to(wide) * (1 + torch.finfo(made.dtype).eps * noise)).to(made.dtype)

    with ExitStack() as stack:
        for module in model.modules():
            if not any(True for _ in module.children()):
                stack.callback(module.register_forward_hook(rounded).remove)
        yield


def example_ids(num_tokens: int, vocab_size: int) -> list[int]:
    """Returns different tokens on which passes are compared. They are from the middle of the vocabulary: behind special
    tokens, which are at its ends, some models compute in bfloat16 nothing like what they compute in float32, so that no
    comparison could tell a fault from rounding."""
    return [(vocab_size // 2 + number) % vocab_size for number in range(num_tokens)]
