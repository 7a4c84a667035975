"""Defects planted into llama.cpp's cache and batches: a greedy difference from AR has the right name, as in torch
(tests/models/test_batch_width.py)."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from specbench.core.errors import ConfigError
from specbench.decoding.build import build_decoder
from specbench.decoding.decoder import DraftingDecoder
from specbench.decoding.loop import StopRules
from specbench.decoding.proposal import Proposal, Verification
from specbench.decoding.sampling import Distributions
from specbench.decoding.verification import rejection
from specbench.models.batch_width import BatchWidth
from specbench.models.causal_lm import CausalLM, ModelPair
from specbench.models.gguf.options import GgufOptions
from specbench.models.loading import load_model
from specbench.models.near_ties import TokenDifference
from specbench.specs.catalogue import load_method
from tests.support import gguf_files
from tests.support.differences import differences_of, kinds
from tests.support.loops import GREEDY

gguf_files.needs_llama_cpp()

STOP = StopRules(max_new_tokens=24)
PROMPTS = [list(range(start, start + 20)) for start in (300, 600, 900)]


def opened(name: str) -> CausalLM:
    options = GgufOptions(cache_dtype="float32")
    return load_model(str(gguf_files.embedded(name)), device="cpu", engine="llama.cpp", gguf=options)


@pytest.fixture(scope="module")
def pair() -> tuple[CausalLM, CausalLM]:
    return opened("target"), opened("drafter")


def found_by(
    pair: tuple[CausalLM, CausalLM], method: str = "sd", rule: Any = None
) -> tuple[list[TokenDifference], BatchWidth]:
    target, drafter = pair
    decoder = build_decoder(load_method(method), ModelPair(target, drafter), GREEDY)
    assert isinstance(decoder, DraftingDecoder)
    if rule is not None:
        decoder = DraftingDecoder(decoder.method, target, decoder.drafter, rule, GREEDY)
    target.reset()
    return differences_of(decoder, target, PROMPTS, STOP, 24)


@pytest.mark.parametrize("method", ["sd", "sd-tree"])
def test_right_passes_differ_by_no_more_than_near_ties(method: str, pair: tuple[CausalLM, CausalLM]) -> None:
    found, width = found_by(pair, method)
    assert {each.kind for each in found} <= {"near-tie"} and width.trust(6).wide and width.noise().tolerance < 0.01


def spoil_a_row(patch: pytest.MonkeyPatch, target: CausalLM) -> None:
    """After a cut, the last kept token has the key and value of another one."""
    context = target.sequence.context
    cut, decode = context.cut, context.decode

    def spoiled(number: int) -> bool:
        if number > len(PROMPTS[0]):
            cut(number - 1)
            decode([7], [number - 1], [0])
        return cut(number)

    patch.setattr(context, "cut", spoiled)


def move_positions(patch: pytest.MonkeyPatch, target: CausalLM) -> None:
    """Wide passes behind cached tokens have positions that are one too high."""
    context = target.sequence.context
    decode = context.decode

    def moved(tokens: Sequence[int], positions: Sequence[int], *others: Any) -> None:
        is_wide = len(tokens) > 1 and positions[0] > 0
        decode(tokens, [each + is_wide for each in positions], *others)

    patch.setattr(context, "decode", moved)


def show_all_nodes(patch: pytest.MonkeyPatch, target: CausalLM) -> None:
    """Every node of a tree belongs to all of its sequences, so that its nodes see each other."""
    context = target.sequence.context
    decode = context.decode

    def shown(tokens: Any, positions: Any, outputs: Any, sequences: Any = None) -> None:
        if sequences is not None:
            every = sorted({index for each in sequences for index in each})
            sequences = [every if 0 in each else [each[0], *(other for other in every if other not in (0, each[0]))]
                         for each in sequences]  # fmt: skip
        decode(tokens, positions, outputs, sequences)

    patch.setattr(context, "decode", shown)


@pytest.mark.parametrize(("plant", "method"), [(spoil_a_row, "sd"), (show_all_nodes, "sd-tree")])
def test_a_fault_of_cache_or_mask_is_one_of_the_state(
    plant: Callable[[pytest.MonkeyPatch, CausalLM], None], method: str, pair: tuple[CausalLM, CausalLM],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    target, _ = pair
    target.check_trees()
    target.score(PROMPTS[0], 1)  # makes the cache that is patched
    target.reset()
    plant(monkeypatch, target)
    found, width = found_by(pair, method)
    assert kinds(found) == {"state"}
    assert all(each.state_change is not None and each.state_change > width.noise().tolerance for each in found)


def test_llama_cpp_itself_refuses_a_position_off_by_one(
    pair: tuple[CausalLM, CausalLM], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The positions of a text must follow each other, so that no answer can come from wrong ones."""
    target, _ = pair
    target.score(PROMPTS[0], 1)
    target.reset()
    move_positions(monkeypatch, target)
    with pytest.raises(ConfigError, match="failed to initialize batch"):
        found_by(pair)


def unjudged(proposal: Proposal, target: Distributions, generator: Any) -> Verification:
    """Accepts the first draft token, whatever the target says."""
    if not proposal.num_drafted:
        return rejection(proposal, target, generator)
    return Verification(1, target.draw(1, generator))


def test_a_draft_that_is_emitted_unjudged_is_a_fault_of_the_rule(pair: tuple[CausalLM, CausalLM]) -> None:
    assert kinds(found_by(pair, rule=unjudged)[0]) == {"rule"}
