"""One wait for the device in a step, however many tokens are drafted: counted on the CPU, where reads cost nothing.

What would wait on an accelerator: reading numbers of a tensor, and operations whose shape depends on them.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from specbench.catalogue import load_method, with_overrides
from specbench.decoding.ledger import StopRules
from specbench.decoding.loop import Generation
from specbench.decoding.proposal import Proposal
from specbench.decoding.sampling import Sampling
from specbench.models.causal_lm import CausalLM
from specbench.models.pair import ModelPair
from specbench.running.compose import Decoder, compose
from tests import tiny

PROMPT = list(b"What is counted is every wait.")
READS = {"tolist", "item", "__bool__", "__int__", "__float__", "__index__", "cpu", "numpy", "__contains__"}
SHAPED_BY_VALUES = {"nonzero", "masked_select", "_unique2", "multinomial", "_local_scalar_dense"}
GREEDY, DRAWN = Sampling(0.0), Sampling(1.0, top_k=20, top_p=0.9)


class Reads(TorchFunctionMode):
    """Counts what reads numbers of tensors, one call of a method once."""

    def __init__(self) -> None:
        super().__init__()
        self.number = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.number += getattr(func, "__name__", "") in READS
        return func(*args, **(kwargs or {}))


class ShapedByValues(TorchDispatchMode):
    """Counts operations that an accelerator must wait for, unless a read is what they are part of."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        if name in SHAPED_BY_VALUES:
            self.names.append(name)
        return func(*args, **(kwargs or {}))


@contextmanager
def counted() -> Iterator[tuple[Reads, ShapedByValues]]:
    with Reads() as reads, ShapedByValues() as shaped:
        yield reads, shaped


def test_the_counter_sees_reads() -> None:
    numbers = torch.arange(3)
    with counted() as (reads, shaped):
        numbers.tolist(), int(numbers[0]), bool(numbers[1]), numbers.nonzero(), numbers[numbers > 1]
    assert reads.number == 3
    assert shaped.names.count("nonzero") == 2


def model(seed: int, defers: bool = True, **options: Any) -> CausalLM:
    made = CausalLM(tiny.network(seed=seed, num_hidden_layers=1, **options), tiny.tokenizer(), f"tiny-{seed}", None)
    made.defers = defers
    return made


def decoder(name: str, sampling: Sampling, *overrides: str, defers: bool = True) -> Decoder:
    """The drafter is the target with a little noise, so that runs of all lengths stand."""
    target, drafter = model(0, defers), model(0, defers)
    with torch.no_grad():
        for weight in drafter.model.parameters():
            weight += 0.02 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(1))
    _, (method,) = with_overrides([], [load_method(name)], list(overrides))
    return compose(method, ModelPair(target, drafter), sampling)


METHODS = [("sd", ()), ("sd", ("verification.rule=exact_match",)), ("fsd", ()), ("random-accept", ())]


@pytest.mark.parametrize("sampling", [GREEDY, DRAWN], ids=["greedy", "drawn"])
@pytest.mark.parametrize(("name", "overrides"), [*METHODS, ("ar", ()), ("pld", ())], ids=str)
def test_a_step_waits_once(name: str, overrides: tuple[str, ...], sampling: Sampling) -> None:
    made = decoder(name, sampling, *overrides)
    at_step: list[int] = []
    with counted() as (reads, shaped):
        propose = made.drafter.propose

        def counting(*arguments: Any) -> Proposal:
            at_step.append(reads.number)
            return propose(*arguments)

        made.drafter.propose = counting  # type: ignore[method-assign]
        if name == "ar":
            made = replace(made, drafter=OneByOne(made.drafter))
        generation = made.generate(PROMPT, StopRules(40), seed=3)
    waits = [after - before for before, after in zip(at_step, at_step[1:], strict=False)]
    assert len(generation.steps) > 5 and set(waits) == {1}
    assert set(shaped.names) <= {"_local_scalar_dense"}  # what an `int` is made of: counted above
