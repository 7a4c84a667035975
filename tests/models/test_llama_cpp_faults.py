"""Defects planted into llama.cpp's cache and batches: a greedy difference from AR has the right name, as in torch
(tests/models/test_batch_width.py)."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from specbench.core.errors import ConfigError
from specbench.decoding.build import build_decoder
from specbench.decoding.decoder import DraftingDecoder
from specbench.decoding.loop import StopRules
from specbench.decoding.proposal import Proposal, Verification
from specbench.decoding.sampling import Distributions
from specbench.decoding.verification import rejection
from specbench.models.batch_width import BatchWidth, beginnings, measure_batch_width
from specbench.models.causal_lm import CausalLM, ModelPair
from specbench.models.gguf.options import GgufOptions
from specbench.models.loading import load_model
from specbench.models.near_ties import TokenDifference
from specbench.specs.catalogue import load_method
from tests.support import gguf_files
from tests.support.differences import answers_of, differences_of, kinds
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


# A public model, whose passes of some tokens are those of one, and whose passes over whole texts are not.

FACTS = "\n".join(
    f"The capital of {country} is {city}, and people there speak {language}."
    for country, city, language in [
        ("France", "Paris", "French"), ("Italy", "Rome", "Italian"), ("Spain", "Madrid", "Spanish"),
        ("Poland", "Warsaw", "Polish"), ("Japan", "Tokyo", "Japanese"), ("Greece", "Athens", "Greek"),
        ("Turkey", "Ankara", "Turkish"), ("Portugal", "Lisbon", "Portuguese"), ("Norway", "Oslo", "Norwegian"),
        ("Hungary", "Budapest", "Hungarian"), ("Sweden", "Stockholm", "Swedish"), ("Russia", "Moscow", "Russian"),
        ("Finland", "Helsinki", "Finnish"), ("Germany", "Berlin", "German"), ("China", "Beijing", "Chinese"),
    ]
)  # fmt: skip
STORY = " ".join(
    f"On day {day} the old {who} walked to the {where}, looked at the sea for a while, and went home again."
    for day, (who, where) in enumerate(
        [("captain", "harbour"), ("baker", "market"), ("teacher", "church"), ("farmer", "bridge"), ("doctor", "beach"),
         ("singer", "station"), ("painter", "garden"), ("miller", "river"), ("sailor", "tower")], 1)
)  # fmt: skip
TURN = "\n\nMy own view of the matter is quite different, because"  # behind which many tokens are about as probable
NUM_ROWS, WIDTH = 32, 192  # tokens, and the values of each in the last layer


def scale_values(patch: pytest.MonkeyPatch, target: CausalLM, num_prompt: int) -> None:
    """After a cut behind the prompt, the last tokens have other values in the last layer, with which a state ends."""
    context = target.sequence.context
    cut = context.cut

    def spoiled(number: int) -> bool:
        done = cut(number)
        if number > num_prompt:
            state = context.state()
            state[-2 * WIDTH * NUM_ROWS :].view(np.float16)[:] *= 1.5
            context.restore(state)
        return bool(done)

    patch.setattr(context, "cut", spoiled)


@pytest.mark.real
def test_a_fault_below_the_noise_of_whole_texts_is_one_of_the_state(
    real_models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = load_model(str(real_models / "smollm2-135m.gguf"), device="cpu", engine="llama.cpp")
    prompts = [target.encode_prompt(text, chat=False) for text in (FACTS + TURN, STORY + TURN)]
    assert min(map(len, prompts)) > 200
    stop = StopRules(max_new_tokens=40)
    decoder = build_decoder(load_method("pld"), ModelPair(target), GREEDY)
    assert isinstance(decoder, DraftingDecoder)
    # 1. A right method writes AR's answers. Its rows are not those after a whole text, but of passes like its own.
    assert not differences_of(decoder, target, prompts, stop, 8)[0]
    width = measure_batch_width(target, beginnings(answers_of(target, prompts, stop)), 11)
    noise = width.noise()
    assert noise.kept_tolerance is not None and noise.kept_tolerance < 1e-3 < 0.1 < noise.tolerance
    own = decoder.record_passes(prompts[0], stop, 0, 9)
    change, replay = own.state_change(target, 9), own.replay(target, 9, noise.kept_tolerance)
    assert change is not None and noise.kept_tolerance < change <= noise.tolerance
    assert replay is not None and replay.change <= noise.kept_tolerance
    # 2. One whose cache is spoiled does not, by less than a pass over a whole text changes.
    scale_values(monkeypatch, target, max(map(len, prompts)))
    found, _ = differences_of(decoder, target, prompts, stop, 8)
    assert kinds(found) == {"state"}
    assert any(each.state_change is not None and each.state_change <= noise.tolerance for each in found)
