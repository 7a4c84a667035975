"""Drafters and rules of users: whatever they raise or return is one line that names them, with their own exception as
its cause, and built-in parts are not checked."""

import itertools
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

import specbench
from specbench.core.errors import ConfigError, DrafterError
from specbench.decoding.build import build_decoder
from specbench.decoding.checked_parts import CheckedDrafter, CheckedRule, same_torch_state
from specbench.decoding.decoder import DraftingDecoder
from specbench.decoding.drafters import Drafter
from specbench.decoding.loop import GenerationOutput, StopRules
from specbench.decoding.proposal import PointMass, Proposal, TreeProposal, Verification
from specbench.decoding.sampling import Distributions, Sampling
from specbench.decoding.verification import Rejection, VerificationRule
from specbench.models.causal_lm import CausalLM, ModelPair
from specbench.specs.catalogue import load_method
from tests.support import tiny

VOCAB, PROMPT = 257, list(range(40, 60))
GREEDY, WARM = Sampling(0.0), Sampling(1.0)


@pytest.fixture(scope="module")
def pair() -> ModelPair:
    return ModelPair(CausalLM(tiny.network(num_hidden_layers=1), tiny.tokenizer(), "target", None))


def decode(pair: ModelPair, sampling: Sampling = GREEDY, **parts: Any) -> GenerationOutput:
    method = specbench.Method(**{"num_draft_tokens": 3, **parts}).spec
    return build_decoder(method, pair, sampling).generate(list(PROMPT), StopRules(8), 0)


def refused(error: type[ConfigError], message: str, call: Callable[[], Any]) -> ConfigError:
    with pytest.raises(error) as caught:
        call()
    text = str(caught.value)
    assert message in text and "\n" not in text and len(text) < 400, text
    return caught.value


class Mine(Drafter):
    """Proposes what a function of the sequence and the length returns."""

    def __init__(self, make: Callable[[list[int], int], Any]) -> None:
        self.make = make

    def prefill(self, prompt_ids: list[int]) -> None:
        """Nothing to read."""

    def propose(self, ids: list[int], num_draft_tokens: int, generator: Any) -> Any:
        return self.make(ids, num_draft_tokens)


async def later(*given: Any) -> list[int]:
    return [1]


pytestmark = pytest.mark.filterwarnings("ignore:coroutine 'later' was never awaited")


def failing(*given: Any) -> Any:
    raise ValueError("no such luck")


def leaving(*given: Any) -> Any:
    sys.exit(3)


def endless_failure(ids: list[int], n: int) -> Iterator[int]:
    yield 1
    raise KeyError("in the middle")


FINE = {
    "a list": lambda ids, n: [5, 6], "too many": lambda ids, n: [5] * 99, "nothing": lambda ids, n: [],
    "a tuple": lambda ids, n: (5,), "a generator without end": lambda ids, n: itertools.count(5),
    "an array": lambda ids, n: np.array([5, 6]), "a tensor": lambda ids, n: torch.tensor([5, 6]),
    "integers of NumPy": lambda ids, n: [np.int32(5)], "the sequence": lambda ids, n: (ids.append(3), ids[-2:])[1],
}  # fmt: skip


@pytest.mark.parametrize("name", FINE)
def test_tokens_of_any_kind_are_drafted(pair: ModelPair, name: str) -> None:
    plain = build_decoder(load_method("ar"), pair, GREEDY).generate(list(PROMPT), StopRules(8), 0)
    assert decode(pair, drafter=FINE[name]).token_ids == plain.token_ids


FUNCTIONS = {
    "None": (lambda ids, n: None, "drafter 'lambda' returned None: return a list of token ids"),
    "a number": (lambda ids, n: 5, "returned 5 (int): return a list of token ids"),
    "a text": (lambda ids, n: "12", "returned '12' (str): return a list"),
    "a mapping": (lambda ids, n: {1: 2}, "returned {1: 2} (dict)"),
    "a set": (lambda ids, n: {1, 2}, "returned {1, 2} (set)"),
    "two dimensions": (lambda ids, n: torch.tensor([[1, 2]]), "returned tensor([[1, 2]]) (Tensor): return a list"),
    "lists in a list": (lambda ids, n: [[1], [2]], "returned token = [1] (list): return an integer"),
    "floats": (lambda ids, n: [1.0], "returned token = 1.0 (float): return an integer"),
    "NaN": (lambda ids, n: [float("nan")], "returned token = nan (float)"),
    "floats of torch": (lambda ids, n: torch.tensor([1.5]), "(Tensor): return an integer"),
    "nothing in a list": (lambda ids, n: [None], "returned token = None"),
    "a token beyond the vocabulary": (lambda ids, n: [VOCAB], f"returned token {VOCAB}: it must be from 0 to 256"),
    "a token below zero": (lambda ids, n: [-1], "returned token -1: it must be from 0 to 256"),
    "a coroutine": (lambda ids, n: later(), "(coroutine): return a list of token ids"),
    "an exception": (failing, "drafter 'failing' raised ValueError: no such luck (test_checked_parts.py, line "),
    "an exit": (leaving, "drafter 'leaving' raised SystemExit: 3"),
    "an exception in a generator": (endless_failure, "raised KeyError: 'in the middle' (test_checked_parts.py, line "),
}  # fmt: skip


@pytest.mark.parametrize("name", FUNCTIONS)
def test_what_a_function_may_not_return(pair: ModelPair, name: str) -> None:
    function, message = FUNCTIONS[name]
    error = refused(DrafterError, message, lambda: decode(pair, drafter=function))
    if "exception" in name:
        assert type(error.__cause__) in (ValueError, KeyError) and error.__cause__.__traceback__ is not None


def chain(token_ids: Any, probs: Any = None) -> Callable[[Any, int], Proposal]:
    return lambda ids, n: Proposal(token_ids, PointMass(token_ids) if probs is None else probs)


def given(probs: torch.Tensor) -> Distributions:
    return Distributions(None, WARM, probs)


HALF = torch.full((1, VOCAB), 0.5 / VOCAB)
BELOW = torch.tensor([[1.5, -0.5] + [0.0] * (VOCAB - 2)])
NAN = torch.full((1, VOCAB), float("nan"))
PROPOSALS = {
    "None": (lambda ids, n: None, "drafter 'Mine' returned None: return a Proposal, empty if nothing is drafted"),
    "a list": (lambda ids, n: [1, 2], "returned [1, 2] (list): return a Proposal"),
    "a coroutine": (lambda ids, n: later(), "(coroutine): return a Proposal"),
    "too many": (chain([1] * 9), "proposed 9 tokens where num_draft_tokens = 3: propose at most"),
    "too deep a tree": (lambda ids, n: TreeProposal([1] * 9, range(-1, 8)), "proposed 9 levels where num_draft_"),
    "a circle": (lambda ids, n: TreeProposal([1], [0]), "raised ValueError: node 0: token 1 cannot be a child"),
    "a token beyond the vocabulary": (chain([VOCAB]), f"returned token {VOCAB}"),
    "floats": (chain([1.0]), "returned token = 1.0 (float)"),
    "tokens in a text": (lambda ids, n: Proposal("12"), "returned token_ids = '12' (str)"),  # type: ignore[arg-type]
    "no probs": (lambda ids, n: Proposal([1]), "gives no probs, which the rule needs: give PointMass(token_ids)"),
    "probs that are a tensor": (chain([1], HALF), "give a PointMass or Distributions"),
    "probs of other tokens": (lambda ids, n: Proposal([1], PointMass([1, 2])), "gave a PointMass of 2 tokens for 1"),
    "probs of one row too many": (chain([1], given(HALF.repeat(2, 1))), "gave probs of shape [2, 257]: give [1, 257]"),
    "probs of another vocabulary": (chain([1], given(HALF[:, 1:])), "gave probs of shape [1, 256]: give [1, 257]"),
    "probs of one dimension": (chain([1], given(HALF[0])), "gave probs of shape [257]"),
    "probs that sum to a half": (chain([1], given(HALF)), "gave probs whose rows sum to [0.5"),
    "probs below zero": (chain([1], given(BELOW)), "gave probs whose rows sum to [1.0]"),
    "probs that are NaN": (chain([1], given(NAN)), "gave probs whose rows sum to [nan]"),
    "logits that are NaN": (chain([1], Distributions(NAN, WARM)), "gave its tokens the probabilities [nan]"),
    "the sequence": (lambda ids, n: (ids.append(1), Proposal())[1], "changed the list `ids`, which is the sequence"),
    "an exception": (failing, "drafter 'Mine' raised ValueError: no such luck"),
}  # fmt: skip


@pytest.mark.parametrize("name", PROPOSALS)
def test_what_a_drafter_may_not_propose(pair: ModelPair, name: str) -> None:
    make, message = PROPOSALS[name]
    rule = "exact_match" if "tree" in name else "rejection"
    error = refused(DrafterError, message, lambda: decode(pair, WARM, drafter=Mine(make), rule=rule))
    assert name != "an exception" or isinstance(error.__cause__, ValueError)


def test_nan_in_a_later_step_is_told_too(pair: ModelPair) -> None:
    steps = itertools.count()
    uniform = torch.full((1, VOCAB), 1 / VOCAB)
    mine = Mine(lambda ids, n: Proposal([1], given(NAN if next(steps) > 2 else uniform)))
    refused(DrafterError, "gave its tokens the probabilities [nan]", lambda: decode(pair, WARM, drafter=mine))


def test_integers_of_other_kinds_become_ints(pair: ModelPair) -> None:
    token_ids = decode(pair, drafter=Mine(lambda ids, n: Proposal([np.int64(3)][:n], PointMass([3][:n])))).token_ids
    assert {type(token) for token in token_ids} == {int}


@pytest.mark.parametrize("name", ["prefill", "observe", "begin_cell", "reserve"])
def test_the_other_methods_of_a_drafter_are_named(pair: ModelPair, name: str) -> None:
    broken = type("Broken", (Mine,), {name: lambda self, *given: failing()})(lambda ids, n: Proposal())
    decoder = build_decoder(specbench.Method(broken).spec, pair, GREEDY)
    assert isinstance(decoder, DraftingDecoder)
    calls: dict[str, Callable[[], Any]] = {
        "begin_cell": decoder.drafter.begin_cell, "reserve": lambda: decoder.drafter.reserve(3),
    }  # fmt: skip
    generate = lambda: decoder.generate(list(PROMPT), StopRules(8), 0)  # noqa: E731
    refused(DrafterError, f"drafter 'Broken', {name} raised ValueError", calls.get(name, generate))


RULES = {
    "None": (lambda p, t, g: None, "rule 'lambda' returned None: return a Verification, or (num_accepted, next_token)"),
    "a number": (lambda p, t, g: 1, "returned 1 (int): return a Verification"),
    "three numbers": (lambda p, t, g: (0, 1, 2), "returned (0, 1, 2) (tuple): return a Verification"),
    "more than drafted": (lambda p, t, g: (9, 1), "returned num_accepted 9: it must be from 0 to 2"),
    "less than none": (lambda p, t, g: (-1, 1), "returned num_accepted -1"),
    "a float": (lambda p, t, g: (0.0, 1), "returned num_accepted = 0.0 (float): return an integer"),
    "NaN": (lambda p, t, g: (0, float("nan")), "returned next_token = nan (float)"),
    "a token beyond the vocabulary": (lambda p, t, g: (0, VOCAB), f"returned next_token {VOCAB}: it must be"),
    "a coroutine": (lambda p, t, g: later(), "(coroutine): return a Verification"),
    "an exception": (failing, "rule 'failing' raised ValueError: no such luck (test_checked_parts.py, line "),
    "a column that is too short": (lambda p, t, g: Verification(1, 1, target_prob=[0.5]), "returned target_prob = ["),
    "a column of NaN": (
        lambda p, t, g: Verification(0, 1, overlap=torch.tensor([float("nan")])), "returned overlap with nan (float)",
    ),
    "a column that is a number": (lambda p, t, g: Verification(0, 1, divergence=0.5), "returned divergence = 0.5"),
    "more nodes than accepted": (lambda p, t, g: Verification(1, 1, nodes=(0, 1)), "returned 2 nodes and num_acc"),
    "nodes that are not a path": (lambda p, t, g: Verification(1, 1, nodes=(1,)), "they are not a path from the root"),
}  # fmt: skip


@pytest.mark.parametrize("kind", ["a function", "an object"])
@pytest.mark.parametrize("name", RULES)
def test_what_a_rule_may_not_return(pair: ModelPair, name: str, kind: str) -> None:
    function, message = RULES[name]

    class Own(VerificationRule):
        def __call__(self, *given: Any) -> Any:
            return function(*given)

    rule: Any = function if kind == "a function" else Own()
    named = message if kind == "a function" else message.partition("' ")[2] or message
    error = refused(DrafterError, named, lambda: decode(pair, drafter=lambda ids, n: [1, 2], rule=rule))
    assert ("rule 'Own'" in str(error)) == (kind == "an object")
    assert name != "an exception" or isinstance(error.__cause__, ValueError)


def test_numbers_of_any_kind_are_a_decision(pair: ModelPair) -> None:
    found = decode(pair, drafter=lambda ids, n: [1, 2], rule=lambda p, t, g: [np.int64(p.num_drafted), torch.tensor(3)])
    assert found.token_ids[1:] == [1, 2, 3, 1, 2, 3, 3] and {type(token) for token in found.token_ids} == {int}


def classes() -> dict[str, tuple[Any, str]]:
    class NoArguments(Drafter):
        def __init__(self) -> None:
            """Takes nothing."""

    class Fails(Drafter):
        def __init__(self, models: Any, sampling: Any) -> None:
            raise OSError("no such table")

    class NotOne:
        def __init__(self, models: Any, sampling: Any) -> None:
            """Derives from nothing."""

    return {
        "no arguments": (NoArguments, "drafter 'NoArguments': NoArguments(models, sampling, …) raised TypeError"),
        "an exception": (Fails, "Fails(models, sampling, …) raised OSError: no such table (test_checked_parts.py"),
        "another class": (NotOne, "drafter 'NotOne' made a NotOne, which is not a specbench.decoding.drafters.Drafter"),
    }


@pytest.mark.parametrize("name", classes())
def test_a_class_that_makes_no_drafter(pair: ModelPair, name: str) -> None:
    kind, message = classes()[name]
    error = refused(ConfigError, message, lambda: decode(pair, drafter=kind))
    assert name == "another class" or isinstance(error, DrafterError)
    assert name != "no arguments" or str(error).endswith(" given"), "no line of the user's ran"


def test_a_class_without_init_drafts(pair: ModelPair) -> None:
    class Plain(Drafter):
        def propose(self, ids: list[int], num_draft_tokens: int, generator: Any) -> Proposal:
            return Proposal([7], PointMass([7])) if num_draft_tokens else Proposal()

    assert decode(pair, drafter=Plain).steps


def test_functions_that_cannot_be_called_are_refused_before_anything_is_loaded() -> None:
    for parts, message in (
        ({"drafter": lambda ids: []}, "drafter 'lambda': is called as <lambda>(ids, num_draft_tokens), but its sign"),
        ({"drafter": later}, "drafter 'later': is called as later(ids, num_draft_tokens): write it with def"),
        ({"drafter": "model", "rule": lambda p: 1}, "is called as <lambda>(proposal, target, generator), but its sig"),
    ):
        refused(
            ConfigError, message.replace("'lambda'", "'<lambda>'"), lambda parts=parts: specbench.Method(**parts).spec
        )


CHANGES: dict[str, Callable[[], Any]] = {
    "the seed of the global generator from ": lambda: torch.manual_seed(torch.initial_seed() ^ 1),
    "the default dtype from torch.float32 to torch.float64": lambda: torch.set_default_dtype(torch.float64),
    "the default device from cpu to meta": lambda: torch.set_default_device("meta"),
    "the number of threads from 1 to 2": lambda: torch.set_num_threads(2),
    "the deterministic mode from False to True": lambda: torch.use_deterministic_algorithms(True),
    "the precision of float32 products from highest to high": lambda: torch.set_float32_matmul_precision("high"),
}  # fmt: skip


@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_state_of_torch_is_told_and_restored(change: str) -> None:
    def block() -> None:
        with same_torch_state("drafter 'mine'"):
            CHANGES[change]()

    refused(DrafterError, f"drafter 'mine' changed torch's global state, which all methods share ({change}", block)
    with same_torch_state("nothing"):
        pass
    assert (torch.get_default_dtype(), torch.get_num_threads(), torch.empty(0).device.type) == (torch.float32, 1, "cpu")


def test_a_drafter_that_changes_torch_is_told(pair: ModelPair) -> None:
    def draft(ids: list[int], n: int) -> list[int]:
        torch.use_deterministic_algorithms(True)
        return [1]

    refused(DrafterError, "drafter 'draft' changed torch's global state", lambda: decode(pair, drafter=draft))
    assert not torch.are_deterministic_algorithms_enabled()


def test_built_in_parts_are_not_checked(pair: ModelPair) -> None:
    for name in ("ar", "pld", "lookahead"):
        decoder = build_decoder(load_method(name), pair, GREEDY)
        assert isinstance(decoder, DraftingDecoder)
        assert not isinstance(decoder.drafter, CheckedDrafter) and not isinstance(decoder.rule, CheckedRule)
    own = build_decoder(specbench.Method(Mine(lambda ids, n: Proposal()), rule=Rejection()).spec, pair, GREEDY)
    assert isinstance(own, DraftingDecoder) and isinstance(own.drafter, CheckedDrafter)
    assert not isinstance(own.rule, CheckedRule)


def test_a_second_run_of_the_process_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[BaseException] = []

    def inner() -> None:
        try:
            specbench.run("mgsm", "ar", limit=1, quiet=True)
        except ConfigError as error:
            told.append(error)

    def execute(*given: Any, **named: Any) -> None:
        thread = threading.Thread(target=inner)
        thread.start()
        thread.join()
        inner()
        raise ConfigError("the first one goes on")

    monkeypatch.setattr("specbench.running.execute.execute", execute)
    for _ in range(2):
        refused(ConfigError, "the first one goes on", lambda: specbench.run("mgsm", "ar", limit=1, quiet=True))
    assert [str(error)[:47] for error in told] == ["specbench.run: another run of this process is n"] * 4
