"""One wait for the device in a step, however many tokens are drafted: counted on the CPU, where reads cost nothing.

What would wait on an accelerator: reading numbers of a tensor, and operations whose shape depends on them.
"""

from itertools import pairwise
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from specbench.catalogue import load_method
from specbench.decoding.ledger import StopRules
from specbench.decoding.loop import Generation
from specbench.decoding.proposal import Proposal
from specbench.decoding.sampling import Sampling
from specbench.models.causal_lm import CausalLM
from specbench.models.pair import ModelPair
from specbench.running.compose import Decoder, compose
from specbench.specs.components import VerificationSpec
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
        masks = args[1] if name in ("index", "index_put_") else ()
        if name in SHAPED_BY_VALUES or any(mask is not None and mask.dtype == torch.bool for mask in masks):
            self.names.append(name)
        return func(*args, **(kwargs or {}))


def test_the_counter_sees_reads() -> None:
    numbers = torch.arange(3)
    with Reads() as reads, ShapedByValues() as shaped:
        assert numbers.tolist() == [0, 1, 2] and int(numbers[2]) == 2 and bool(numbers[1])
        assert len(numbers.nonzero()) == 2 and len(numbers[numbers > 1]) == 1
    assert reads.number == 3
    assert {"nonzero", "index"} <= set(shaped.names)


def model(seed: int, defers: bool = True, **options: Any) -> CausalLM:
    made = CausalLM(tiny.network(seed=seed, num_hidden_layers=1, **options), tiny.tokenizer(), f"tiny-{seed}", None)
    made.defers = defers
    made.eos_token_ids = frozenset()  # behind a drafted end both ways go on with other random numbers
    return made


def decoder(name: str, sampling: Sampling, rule: str | None = None, defers: bool = True) -> Decoder:
    """The drafter is the target with a little noise, so that runs of all lengths stand."""
    target, drafter = model(0, defers), model(0, defers)
    with torch.no_grad():
        for weight in drafter.model.parameters():
            weight += 0.02 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(1))
    method = load_method(name)
    if rule is not None:
        method = method.model_copy(update={"verification": VerificationSpec(rule=rule)})
    return compose(method, ModelPair(target, drafter), sampling)


METHODS = [("sd", None), ("sd", "exact_match"), ("fsd", None), ("random-accept", None)]


@pytest.mark.parametrize("sampling", [GREEDY, DRAWN], ids=["greedy", "drawn"])
@pytest.mark.parametrize(("name", "rule"), [*METHODS, ("ar", None), ("pld", None)], ids=str)
def test_a_step_waits_once(name: str, rule: str | None, sampling: Sampling) -> None:
    generation, waits, shaped = waited(decoder(name, sampling, rule))
    assert len(generation.steps) > 5 and set(waits) == {1}
    assert shaped <= {"_local_scalar_dense"}  # what an `int` is made of: counted as a read


def test_control_a_drafter_that_reads_its_tokens_waits_for_each() -> None:
    _, waits, _ = waited(decoder("sd", DRAWN, defers=False))
    assert max(waits) == 6


def waited(made: Decoder) -> tuple[Generation, list[int], set[str]]:
    """A generation, the reads between one proposal and the next, and the operations that would wait."""
    at_step: list[int] = []
    propose = made.drafter.propose
    with Reads() as reads, ShapedByValues() as shaped:

        def counting(*arguments: Any) -> Proposal:
            at_step.append(reads.number)
            return propose(*arguments)

        made.drafter.propose = counting  # type: ignore[method-assign]
        generation = made.generate(PROMPT, StopRules(40), seed=3)
    return generation, [after - before for before, after in pairwise(at_step)], set(shaped.names)


@pytest.mark.parametrize("sampling", [GREEDY, DRAWN], ids=["greedy", "drawn"])
@pytest.mark.parametrize(("name", "rule"), METHODS, ids=str)
def test_reading_late_changes_nothing(name: str, rule: str | None, sampling: Sampling) -> None:
    late, early = (
        decoder(name, sampling, rule, defers=defers).generate(PROMPT, StopRules(60), seed=3) for defers in (True, False)
    )
    assert late.token_ids == early.token_ids and late.steps == early.steps
    assert late.positions.keys() == early.positions.keys()
    for column, other in zip(late.positions.values(), early.positions.values(), strict=True):
        assert column == pytest.approx(other, abs=1e-5)
    assert sum(step.num_accepted for step in late.steps) > 0


@pytest.mark.parametrize("name", ["sd", "fsd"])
def test_an_end_that_is_read_late_ends_the_draft(name: str) -> None:
    """Any greedy token of the middle as the end: what is drafted behind it counts nowhere."""
    made = decoder(name, GREEDY)
    tokens = made.generate(PROMPT, StopRules(60), seed=3).token_ids
    for end in tokens[10:30]:
        late, early = decoder(name, GREEDY), decoder(name, GREEDY, defers=False)
        for each in (late, early):
            each.drafter.model.eos_token_ids = frozenset({end})  # type: ignore[attr-defined]
        stops = (StopRules(60, frozenset({end})), StopRules(60))  # an end for both models, and for the drafter alone
        for stop in stops:
            generations = [each.generate(PROMPT, stop, seed=3) for each in (late, early)]
            assert generations[0].token_ids == generations[1].token_ids
            assert generations[0].steps == generations[1].steps


@pytest.mark.parametrize("bridge", ["union", "intersection", "retokenize"])
def test_a_bridge_reads_a_draft_once(bridge: str) -> None:
    generation, waits, _ = waited(
        decoder({"union": "union", "intersection": "tli", "retokenize": "slem"}[bridge], GREEDY)
    )
    assert len(generation.steps) > 5 and max(waits) <= 2
