"""One wait for the device in a step, however many tokens are drafted: counted on the CPU, where reads cost nothing.

What would wait on an accelerator: reading numbers of a tensor, operations whose shape depends on them, and numbers of
the host that go to the device by any other way than `upload`.
"""

from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from specbench.decoding.bridges import MaskedDraftModel
from specbench.decoding.build import build_decoder
from specbench.decoding.decoder import Decoder
from specbench.decoding.drafters import ModelDrafter
from specbench.decoding.loop import GenerationOutput, GenerationState, StopRules
from specbench.decoding.proposal import Proposal
from specbench.decoding.sampling import Distributions, Sampling
from specbench.models.causal_lm import CausalLM, ModelPair
from specbench.models.devices import upload
from specbench.models.scoring import Output
from specbench.specs.catalogue import load_method
from specbench.specs.components import build
from specbench.specs.method import MethodSpec
from tests.support import tiny

PROMPT = list(b"What is counted is every wait.")
SCALARS = {"item", "__bool__", "__int__", "__float__", "__index__"}
READS = {"tolist", "cpu", "numpy", "__contains__"} | SCALARS
FROM_HOST = {"tensor", "as_tensor"}
SHAPED_BY_VALUES = {"nonzero", "masked_select", "_unique2", "multinomial", "_local_scalar_dense"}
GREEDY, DRAWN = Sampling(0.0), Sampling(1.0, top_k=20, top_p=0.9)
NEVER: frozenset[int] = frozenset()
Changes = Mapping[str, Any]
NOTHING: Changes = {}
RECURRENT = ("mamba", "mamba2", "qwen3_5_text")
SHALLOW: dict[str, dict[str, Any]] = {
    "qwen3_5_text": {"num_hidden_layers": 2, "layer_types": ["linear_attention", "full_attention"]}
}


class Reads(TorchFunctionMode):
    """Counts what reads numbers of tensors, one call of a method once, and what copies numbers of the host: tensors
    that are made of them on a device, whose use is not `upload`, and lists that index."""

    def __init__(self) -> None:
        super().__init__()
        self.number = 0
        self.scalars = 0
        self.copies: list[str] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        self.number += name in READS
        self.scalars += name in SCALARS
        uploads = name == "to" and kwargs.get("non_blocking")
        made_there = name in FROM_HOST and kwargs.get("device") is not None
        taken_along = not uploads and name != "pin_memory" and any(getattr(each, "of_host", False) for each in args)
        if made_there or taken_along or (name in ("__getitem__", "__setitem__") and has_list(args[1])):
            self.copies.append(name)
        found = func(*args, **kwargs)
        if name in FROM_HOST:
            found.of_host = True
        elif uploads:
            found.of_host = False
        return found


def has_list(index: Any) -> bool:
    return any(isinstance(part, list) for part in (index if isinstance(index, tuple) else (index,)))


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
    with Reads() as reads:
        numbers[:2] = upload(torch.tensor([1, 2]), numbers.device)
        assert reads.copies == []
        numbers[:2] = torch.tensor([1, 2, 3])[:2]
        numbers[1:] = torch.tensor([1, 2])
        torch.tensor([1], device=numbers.device)
        numbers[[0, 1]] = 0
    assert reads.copies == ["__getitem__", "__setitem__", "tensor", "__setitem__"]


def model(pending: bool = True, device: str = "cpu", kind: str = "llama", ends: frozenset[int] = NEVER) -> CausalLM:
    network = tiny.network(kind, **SHALLOW.get(kind, {"num_hidden_layers": 1})).to(device)
    made = CausalLM(network, tiny.tokenizer(), f"tiny-{kind}", None)
    made.prefers_pending = pending
    made.eos_token_ids = ends
    return made


def decoder(
    name: str, sampling: Sampling, changes: Changes = NOTHING, pending: bool = True, device: str = "cpu",
    kind: str = "llama", ends: frozenset[int] = NEVER,
) -> Decoder:  # fmt: skip
    """The drafter is the target with a little noise, so that runs of all lengths stand; `ends` end its texts. Without
    them: behind a drafted end reading late and early go on with other random numbers."""
    target, drafter = model(pending, device, kind), model(pending, device, kind, ends)
    with torch.no_grad():
        for weight in drafter.model.parameters():
            weight += 0.02 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(1)).to(device)
    method = build(MethodSpec, load_method(name).model_dump() | changes)
    return build_decoder(method, ModelPair(target, drafter), sampling)


METHODS = [
    ("sd", {}),
    ("sd", {"verification": {"rule": "exact_match"}}),
    ("fsd", {}),
    ("random-accept", {}),
    ("tli", {}),
    ("fsd", {"bridge": {"type": "intersection"}}),
]


def sampled(methods: list[tuple[str, Changes]]) -> list[Any]:
    """Every method greedily and with draws; the fast tests have one of both, by turns."""
    return [
        pytest.param(name, changes, sampling, marks=[pytest.mark.slow] * ((number + place + 1) % 2))
        for number, (name, changes) in enumerate(methods)
        for place, sampling in enumerate([GREEDY, DRAWN])
    ]


@pytest.mark.parametrize(("name", "changes", "sampling"), sampled([*METHODS, ("ar", {}), ("pld", {})]), ids=str)
def test_a_step_waits_once(name: str, changes: Changes, sampling: Sampling) -> None:
    generation, waits, reads, shaped = waited(decoder(name, sampling, changes))
    assert len(generation.steps) > 3 and set(waits) == {1}
    assert set(shaped) <= {"_local_scalar_dense"} and len(shaped) <= reads.scalars  # what an `int` is made of: a read
    assert reads.copies == []


def test_control_a_drafter_that_reads_its_tokens_waits_for_each() -> None:
    assert max(waited(decoder("sd", DRAWN, pending=False))[1]) == 6


def waited(made: Decoder) -> tuple[GenerationOutput, list[int], Reads, list[str]]:
    """A generation, the reads between one proposal and the next, all that was read or copied in its steps, and the
    operations that would wait."""
    at_step: list[int] = []
    propose = made.drafter.propose
    with Reads() as reads, ShapedByValues() as shaped:

        def counting(*arguments: Any) -> Proposal:
            at_step.append(reads.number)
            return propose(*arguments)

        made.drafter.propose = counting  # type: ignore[method-assign]
        generation = made.generate(PROMPT, StopRules(20), seed=3)
    return generation, [after - before for before, after in pairwise(at_step)], reads, shaped.names


@pytest.mark.parametrize(("name", "changes", "sampling"), sampled(METHODS), ids=str)
def test_reading_late_changes_nothing(name: str, changes: Changes, sampling: Sampling) -> None:
    late_as_early(*(decoder(name, sampling, changes, pending) for pending in (True, False)))


@pytest.mark.parametrize(
    "sampling", [pytest.param(GREEDY, id="greedy"), pytest.param(DRAWN, id="drawn", marks=pytest.mark.slow)]
)
@pytest.mark.parametrize(
    "kind", [RECURRENT[0], *(pytest.param(kind, marks=pytest.mark.slow) for kind in RECURRENT[1:])]
)
def test_states_that_cannot_be_cropped_are_read_late_as_well(kind: str, sampling: Sampling) -> None:
    """Target and drafter go back to a snapshot, behind which they read again what was unknown when they read it."""
    made = [decoder("sd", sampling, pending=pending, kind=kind) for pending in (True, False)]
    assert all(each.model.sequence.recurrent is not None for each in made)  # type: ignore[union-attr]
    steps = late_as_early(*made).steps
    assert sum(step.num_accepted for step in steps) < sum(step.num_verified for step in steps)


def late_as_early(late_decoder: Decoder, early_decoder: Decoder) -> GenerationOutput:
    late, early = (made.generate(PROMPT, StopRules(40), seed=3) for made in (late_decoder, early_decoder))
    for passes, others in ((late.draft_passes, early.draft_passes), (late.target_passes, early.target_passes)):
        assert [length for length, _ in passes] == [length for length, _ in others]
    assert late.token_ids == early.token_ids and late.steps == early.steps
    assert late.positions.keys() == early.positions.keys()
    for column, other in zip(late.positions.values(), early.positions.values(), strict=True):
        assert column == pytest.approx(other, abs=1e-5)
    assert sum(step.num_accepted for step in late.steps) > 0
    return late


@pytest.mark.parametrize("sampling", [GREEDY, DRAWN], ids=["greedy", "drawn"])
def test_a_synthetic_draft_is_read_as_that_of_any_drafter(sampling: Sampling) -> None:
    """Where reading would wait its tokens come from the device; passes and outputs are the same."""
    late, early = (decoder("synthetic", sampling, pending=pending) for pending in (True, False))
    draft = late.drafter.model  # type: ignore[attr-defined]
    num_pending: list[int] = []
    score = draft.score

    def watched(ids: list[int], num_logits: int, pending: torch.Tensor | None = None) -> Output:
        num_pending.append(0 if pending is None else len(pending))
        return score(ids, num_logits, pending)

    draft.score = watched
    generations = [made.generate(PROMPT, StopRules(16), seed=3) for made in (late, early)]
    assert generations[0].token_ids == generations[1].token_ids and generations[0].steps == generations[1].steps
    lengths = [[length for length, _ in each.draft_passes] for each in generations]
    assert lengths[0] == lengths[1] and max(num_pending) == 4


@pytest.mark.parametrize("name", ["sd", "tli", pytest.param("fsd", marks=pytest.mark.slow)])
def test_an_end_that_is_read_late_ends_the_draft(name: str) -> None:
    """Any greedy token of the middle as the end: what is drafted behind it counts nowhere."""
    made = decoder(name, GREEDY)
    tokens = made.generate(PROMPT, StopRules(16), seed=3).token_ids
    for end in tokens[6:14:6]:
        late, early = (decoder(name, GREEDY, pending=pending, ends=frozenset({end})) for pending in (True, False))
        stops = (StopRules(16, frozenset({end})), StopRules(16))  # an end for both models, and for the drafter alone
        for stop in stops:
            generations = [each.generate(PROMPT, stop, seed=3) for each in (late, early)]
            assert generations[0].token_ids == generations[1].token_ids
            assert generations[0].steps == generations[1].steps


@pytest.mark.parametrize(
    "sampling", [pytest.param(GREEDY, id="greedy", marks=pytest.mark.slow), pytest.param(DRAWN, id="drawn")]
)
def test_a_draft_that_is_cut_anew_is_read_before_it_is_verified(sampling: Sampling) -> None:
    """By a tokenizer, which works on the host: a second wait."""
    generation, waits, reads, shaped = waited(decoder("slem", sampling))
    assert len(generation.steps) > 3 and set(waits) <= {1, 2}
    assert set(shaped) <= {"_local_scalar_dense"} and len(shaped) <= reads.scalars and reads.copies == []


def test_where_common_tokens_end_a_draft_no_pass_is_made_behind_them() -> None:
    """Of union the tokens that the target has not: each is read before the next pass."""
    draft = model()
    assert (
        MaskedDraftModel(draft, frozenset()).prefers_pending
        and not MaskedDraftModel(draft, frozenset({7})).prefers_pending
    )
    ends = frozenset(range(0, 256, 3))
    drafter = ModelDrafter(MaskedDraftModel(draft, ends), GREEDY)
    drafter.prefill(PROMPT)
    for number in range(20):
        draft.passes.clear()
        proposal = drafter.propose([*PROMPT, number], 6, torch.Generator())
        assert draft.passes.num_passes == proposal.num_drafted
        assert not ends & set(proposal.token_ids[:-1])


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="what waits for a GPU is only known where there is one")
@pytest.mark.parametrize("engine", ["eager", "graphs", "compiled"])
@pytest.mark.parametrize("sampling", [GREEDY, DRAWN], ids=["greedy", "drawn"])
@pytest.mark.parametrize("name", ["sd", "fsd", "pld", "tli"])
def test_a_gpu_is_waited_for_in_reading_a_step_alone(
    name: str, sampling: Sampling, engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torch raises for everything else that would wait, from the second step to the last."""
    made = decoder(name, sampling, device="cuda")
    for each in (made.model, drafting_model(made)):
        if each is not None and engine != "eager":
            each.make_static(engine)  # type: ignore[arg-type]
            each.sequence.reserve(len(PROMPT) + 40, (1, 2, 6))  # type: ignore[union-attr]
    if isinstance(made.drafter, ModelDrafter):
        made.drafter.reserve(made.method.num_draft_tokens)
    made.generate(PROMPT, StopRules(40), seed=3)
    reads, propose, check = 0, made.drafter.propose, GenerationState.check

    def strict(*arguments: Any) -> Proposal:
        torch.cuda.set_sync_debug_mode("error" if reads > 1 else "default")
        return propose(*arguments)

    def reading(function: Callable[..., Any]) -> Callable[..., Any]:
        def read(*arguments: Any) -> Any:
            nonlocal reads
            reads += 1
            mode = torch.cuda.get_sync_debug_mode()
            torch.cuda.set_sync_debug_mode("default")
            found = function(*arguments)
            torch.cuda.set_sync_debug_mode(mode)
            return found

        return read

    def ended(*arguments: Any) -> None:
        torch.cuda.set_sync_debug_mode("default")
        check(*arguments)

    monkeypatch.setattr(made.drafter, "propose", strict)
    monkeypatch.setattr(Proposal, "read", reading(Proposal.read))
    monkeypatch.setattr(Distributions, "draw", reading(Distributions.draw))  # of the prefill, and where none is drafted
    monkeypatch.setattr(GenerationState, "check", ended)
    try:
        generation = made.generate(PROMPT, StopRules(40), seed=3)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert reads == 1 + len(generation.steps) > 3


def drafting_model(made: Decoder) -> CausalLM | None:
    """The draft model, also behind a bridge."""
    own = getattr(made.drafter, "model", None)
    return own if own is not None else getattr(getattr(made.drafter, "_context", None), "_model", None)
