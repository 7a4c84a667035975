"""Draft trees and hidden states in passes over static buffers: they equal those of the eager engine, and nothing is
compiled while a method with trees decodes.

Passes are left uncompiled, except in tests that are marked slow.
"""

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch

from specbench.core.errors import ConfigError
from specbench.decoding.build import build_decoder
from specbench.decoding.decoder import Decoder
from specbench.decoding.drafters import NoDrafter, padded_lengths
from specbench.decoding.loop import StopRules
from specbench.decoding.sampling import Sampling
from specbench.models import recording, static_passes
from specbench.models.causal_lm import CausalLM, ModelPair
from specbench.models.compiling import SharedLayers
from specbench.models.scoring import Output, PassShape
from specbench.models.static_passes import NUM_MOVED, StaticPasses
from specbench.running.capture_plan import allocate_and_capture_for, compile_requirements, num_compilations
from specbench.running.models import LoadedModels
from specbench.specs.catalogue import load_method
from specbench.specs.components import StaticEngine
from tests.support import tiny
from tests.support.engines import both
from tests.support.streams import Stream
from tests.support.toys import path_to
from tests.support.trees import CLOSE, NO_SDPA, HiddenReader, generated, random_tree

KINDS = ("llama", "qwen2", "mistral", "gemma2", "gemma3_text")
TREES = [PassShape(5, "tree"), PassShape(13, "tree")]


def reserved(kind: str, attention: str, shapes: list[PassShape]) -> tuple[CausalLM, CausalLM]:
    eager, other = both(kind, num_hidden_layers=2)
    eager.model.set_attn_implementation(attention)
    other.make_static()
    assert other.static is not None
    other.static.reserve(60, (1, 4), shapes=shapes)
    return eager, other


@pytest.mark.parametrize(
    ("kind", "attention", "shapes"),
    [
        pytest.param(kind, name, shapes, marks=[pytest.mark.slow] * ((number + place + bool(shapes)) % 2))
        for number, kind in enumerate(KINDS)
        for place, name in enumerate(("sdpa", "eager")) if (kind, name) != NO_SDPA
        for shapes in (TREES, [])
    ],
)  # fmt: skip
def test_trees_are_those_of_the_eager_engine_after_any_history(
    kind: str, attention: str, shapes: list[PassShape], made: list[str]
) -> None:
    """Trees of any size, some rows of their logits only, paths that are kept, chains and ways back in between, up to
    the end of the buffers."""
    eager, other = reserved(kind, attention, shapes)
    assert other.static is not None and other.static.capacity == 128
    num_made, rng = len(made), random.Random(0)
    ids = [rng.randrange(256) for _ in range(60)]
    longest = 0
    while longest < 112:
        tokens, parents = random_tree(rng, rng.randint(1, 12), 256)
        num_logits = rng.randint(1, len(tokens) + 1)
        expected, found = (model.score_tree(ids, tokens, parents, num_logits).logits for model in (eager, other))
        torch.testing.assert_close(found, expected, **CLOSE)
        kept = path_to(rng.randrange(-1, len(tokens)), parents)
        for model in (eager, other):
            model.keep_path(kept)
        ids = [*ids, *(tokens[node] for node in kept), *(rng.randrange(256) for _ in range(rng.randint(1, 3)))]
        longest = max(longest, len(ids))
        if rng.random() < 0.3:
            expected, found = (model.score(ids, 2).logits for model in (eager, other))
            torch.testing.assert_close(found, expected, **CLOSE)
            ids = [*ids[: rng.randint(len(ids) - 4, len(ids))], rng.randrange(256)]
    assert other.static.capacity == 128 and len(made) == num_made


@pytest.mark.parametrize("kind", KINDS)
def test_the_logits_after_a_kept_path_are_those_of_a_fresh_pass(kind: str, made: list[str]) -> None:
    """The path is not the first nodes of the tree; it is short, longer than what is moved at once, or at the end of the
    buffers."""
    other = CausalLM(tiny.network(kind, num_hidden_layers=2).double(), tiny.tokenizer(), f"tiny-{kind}", None)
    other.make_static()
    assert other.static is not None
    other.static.reserve(60, (1,), shapes=[PassShape(41, "tree")])
    for num_prompt, num_levels in ((20, 4), (20, NUM_MOVED + 3), (119, 4)):
        other.reset()
        ids, tokens = (
            [3 * place % 250 for place in range(num_prompt)],
            [7 * node % 251 for node in range(2 * num_levels)],
        )
        parents = [node - 2 if node > 1 else -1 for node in range(2 * num_levels)]
        other.score_tree(ids, tokens, parents, len(tokens) + 1)
        path = list(range(1, 2 * num_levels, 2))
        other.keep_path(path)
        ids += [*(tokens[node] for node in path), 9]
        other.passes.clear()
        found = other.score(ids, 1).logits
        assert [length for length, _ in other.passes.read()] == [1]
        torch.testing.assert_close(found[0], other.static.eager_logits(ids)[-1], atol=1e-5, rtol=0)


def test_a_path_that_is_not_moved_gives_other_logits(made: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """The control of the test above."""
    _, other = reserved("llama", "sdpa", TREES)
    monkeypatch.setattr(StaticPasses, "move", lambda *given: None)
    ids = list(range(50, 70))
    other.score_tree(ids, [1, 2, 3, 4], [-1, -1, 1, 0], 5)
    other.keep_path([1, 2])
    found = other.score([*ids, 2, 3, 9], 1).logits
    other.reset()
    assert not torch.allclose(found, other.score([*ids, 2, 3, 9], 1).logits, atol=1e-3)


def test_a_tree_grows_level_by_level_in_the_same_passes(made: list[str]) -> None:
    eager, other = reserved("gemma3_text", "eager", TREES)
    ids, tokens, parents = list(range(30, 50)), [1, 2, 3, 4, 5, 6], [-1, -1, 0, 0, 1, 2]
    found = []
    for model in (eager, other):
        model.score(ids, 1)
        model.passes.clear()
        ends = ((2, 2), (5, 3), (6, 1))
        rows = [model.score_tree(ids, tokens[:end], parents[:end], num).logits for end, num in ends]
        model.keep_path([0, 2, 5])
        found.append((torch.cat(rows), model.score([*ids, 1, 3, 6, 9], 1).logits))
        assert [length for length, _ in model.passes.read()] == [2, 3, 1, 1]
    torch.testing.assert_close(found[1], found[0], **CLOSE)


@pytest.mark.parametrize(("kind", "reserves"), [*((kind, True) for kind in KINDS), ("gemma3_text", False)])
def test_hidden_states_are_those_of_the_eager_engine(kind: str, reserves: bool, made: list[str]) -> None:
    """Of prompts, chains and trees, of tokens that no earlier pass read, near the end of the buffers too."""
    layers = (0, 1, -1)
    shapes = [PassShape(4, "chain", layers), PassShape(13, "tree", layers)]
    eager, other = reserved(kind, "eager", shapes if reserves else [])
    num_made = len(made)
    eager.hidden_layers = other.hidden_layers = layers
    tokens, parents = random_tree(random.Random(3), 8, 256)
    for num_prompt in (20, 110):
        ids = [7 * place % 251 for place in range(num_prompt)]
        for model in (eager, other):
            model.reset()
        for asked in (ids, [*ids, 5, 6, 7]):
            same_output(*(model.score(asked, min(3, len(asked))) for model in (eager, other)))
        same_output(*(model.score_tree([*ids, 5, 6, 7, 8], tokens, parents, 9) for model in (eager, other)))
        same_output(*(model.score_tree([*ids, 5, 6], tokens, parents, 4) for model in (eager, other)))
    assert len(made) == num_made


def same_output(expected: Output, found: Output) -> None:
    assert len(expected.hidden) >= 2 and expected.hidden[0].shape == found.hidden[0].shape
    torch.testing.assert_close((found.logits, *found.hidden), (expected.logits, *expected.hidden), **CLOSE)


def test_a_pass_whose_hidden_states_change_when_it_is_compiled_is_refused(
    made: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def other(forward: Callable[[], Output], name: str) -> Callable[[], Output]:
        return lambda: Output(forward().logits, tuple(states.flip(-1) for states in forward().hidden))

    monkeypatch.setattr(static_passes, "compile_pass", other)
    _, model = both(num_hidden_layers=1)
    assert model.static is not None
    with pytest.raises(ConfigError, match="compiled, a pass over 3 tokens gives other hidden states"):
        model.static.reserve(60, (1,), shapes=[PassShape(3, "chain", (1,))])


def test_a_model_whose_layers_are_not_found_returns_no_hidden_states(
    made: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("specbench.models.compiling.decoder_layers", lambda *given: None)
    _, model = both(num_hidden_layers=1)
    assert model.static is not None
    model.score([1, 2], 1)
    model.hidden_layers = (1,)
    with pytest.raises(
        ConfigError, match=r"cannot be compiled: its decoder layers, .* are not found; take --engine eager"
    ):
        model.static.reserve(60, (1,), shapes=[PassShape(3, "chain", (1,))])
    with pytest.raises(ConfigError, match="its decoder layers, whose states a drafter reads, are not found"):
        model.score([1, 2], 1)


@pytest.mark.parametrize(
    ("kind", "name", "sampling"),
    [
        pytest.param(kind, name, sampling, marks=[pytest.mark.slow] * ((number + place + turn) % 2))
        for number, kind in enumerate(("llama", "gemma3_text"))
        for place, name in enumerate(("sd-tree", "token-recycling", "lookahead"))
        for turn, sampling in enumerate((Sampling(0.0), Sampling(1.0, top_k=20)))
    ],
)
def test_methods_with_trees_write_the_tokens_of_the_eager_engine(
    kind: str, name: str, sampling: Sampling, made: list[str]
) -> None:
    """And all passes that they need are made before."""
    target, drafter = (both(kind, seed, num_hidden_layers=1) for seed in (0, 1))
    pairs = [ModelPair(*models) for models in zip(target, drafter, strict=True)]
    found = [decoder(pair, name, sampling) for pair in pairs]
    num_made = len(made)
    for length in (3, 20, 108):  # the last fills the buffers
        prompt = [(7 * place) % 13 for place in range(length)]
        expected, other = (each.generate(prompt, StopRules(8), seed=5) for each in found)
        assert other.token_ids == expected.token_ids and other.steps == expected.steps
        assert [n for n, _ in other.target_passes] == [n for n, _ in expected.target_passes]
        assert [n for n, _ in other.draft_passes] == [n for n, _ in expected.draft_passes]
    assert len(made) == num_made > 0


def decoder(pair: ModelPair, name: str, sampling: Sampling) -> Decoder:
    """Returns a decoder whose passes are made."""
    method = load_method(name)
    composed = build_decoder(method, pair, sampling)
    models = LoadedModels(
        pair.target, {name: pair.drafter} if method.needs_drafter and pair.drafter is not None else {}
    )
    allocate_and_capture_for(models, [method], 120, lambda line: None, decoders=[composed])
    return composed


def test_passes_are_made_for_the_trees_and_hidden_states_of_drafters() -> None:
    pair = ModelPair(tiny.causal_lm("llama"), tiny.causal_lm("llama", 1))
    assert pair.drafter is not None
    models = LoadedModels(pair.target, {"sd-tree": pair.drafter, "sd": pair.drafter})
    methods = [load_method("sd-tree"), load_method("sd")]
    composed = [build_decoder(method, models.pair(method), Sampling(0.0)) for method in methods]
    target, drafter = compile_requirements(models, methods, composed)
    sizes = [3, 6, 6, 6, 6]
    assert target.shapes == {PassShape(1 + sum(sizes), "tree")} and target.lengths == {1, 6}
    assert drafter.shapes == {PassShape(3, "tree"), PassShape(6, "tree")} and drafter.lengths == {1, 2}
    (target, _) = compile_requirements(models, methods[:1], composed[:1])
    assert target.lengths == {1}  # no chain of draft tokens is verified
    object.__setattr__(composed[1], "drafter", HiddenReader())
    (target, _) = compile_requirements(models, methods[1:], composed[1:])
    assert target.shapes == {PassShape(1, "chain", (1, 4)), PassShape(6, "chain", (1, 4))}
    assert padded_lengths(80) == (81, 41, 21) and padded_lengths(10) == (11,)


def test_drafts_of_a_varying_length_have_shorter_passes_too() -> None:
    """A pass over few tokens would else be padded to the longest draft."""
    pair = ModelPair(tiny.causal_lm("llama"), tiny.causal_lm("llama", 1))
    assert pair.drafter is not None
    method = load_method("sd-svip")
    models = LoadedModels(pair.target, {"sd-svip": pair.drafter})
    composed = build_decoder(method, models.pair(method), Sampling(0.0))
    target, drafter = compile_requirements(models, [method], [composed])
    assert target.lengths == {1, 41, 21, 11}
    assert drafter.lengths == {1, 2}
    object.__setattr__(composed, "drafter", HiddenReader())
    (target, _) = compile_requirements(models, [method], [composed])
    assert target.shapes == {PassShape(length, "chain", (1, 4)) for length in (1, 41, 21, 11)}


def test_a_drafter_of_hidden_states_runs_on_static_passes(made: list[str]) -> None:
    eager, other = both()
    seen = []
    for model in (eager, other):
        drafter = HiddenReader()
        tokens = generated(model, drafter, 6, 0, 0.0)
        seen.append((tokens, [output.hidden for _, _, output in drafter.seen]))
    assert seen[0][0] == seen[1][0] == generated(eager, NoDrafter(), 6, 0, 0.0)
    torch.testing.assert_close(seen[1][1], seen[0][1], **CLOSE)


def test_an_attention_without_masks_in_a_buffer_refuses_trees(made: list[str]) -> None:
    _, other = both()
    other.model.config._attn_implementation = "flex_attention"
    with pytest.raises(ConfigError, match=r"\(sdpa or eager\), and model 'tiny-llama' uses flex_attention"):
        other.check_trees()


@pytest.mark.parametrize("engine", ["graphs", pytest.param("compiled", marks=pytest.mark.slow)])
def test_recorded_passes_of_trees_read_what_is_filled_in(engine: StaticEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Functions stand in for graphs; the move of a path is recorded without moving anything. The layers that share one
    compiled function are traced, not compiled."""
    compiled = SharedLayers.compile_layers
    monkeypatch.setattr(SharedLayers, "compile_layers", lambda *given, **named: compiled(*given, backend="eager"))
    monkeypatch.setattr(static_passes, "record_graph", replayed)
    monkeypatch.setattr(recording, "record_graph", replayed)
    monkeypatch.setattr(static_passes, "SharedStream", Stream)
    monkeypatch.setattr(static_passes, "has_graphs", lambda device: True)
    eager, other = (tiny.causal_lm("qwen2", num_hidden_layers=2) for _ in range(2))
    other.make_static(engine)
    assert other.static is not None
    layers = (0, 2)
    other.static.reserve(60, (1, 4), shapes=[PassShape(13, "tree", layers), PassShape(4, "chain", layers)])
    eager.hidden_layers = other.hidden_layers = layers
    rng, ids = random.Random(1), list(range(20))
    for _ in range(8):
        tokens, parents = random_tree(rng, 9, 256)
        same_output(*(model.score_tree(ids, tokens, parents, 10) for model in (eager, other)))
        kept = path_to(8, parents)
        for model in (eager, other):
            model.keep_path(kept)
        ids = [*ids, *(tokens[node] for node in kept), rng.randrange(256)]
        same_output(*(model.score(ids, 1) for model in (eager, other)))


def replayed(run: Callable[[], Any], device: torch.device, generator: Any = None) -> Callable[[], Any]:
    """Stands in for the recording of a graph, whose warm-up runs `run` several times."""
    for _ in range(3):
        run()
    return run


@pytest.mark.slow
def test_compiled_passes_over_trees_are_the_eager_ones() -> None:
    """With hidden states and a sliding window; nothing is compiled after the passes are made."""
    eager, other = both("gemma3_text", num_hidden_layers=2)
    assert other.static is not None, other.why_eager
    layers = (0, 1, 2)
    other.static.reserve(60, (1,), shapes=[PassShape(6, "tree", layers), PassShape(2, "chain", layers)])
    eager.hidden_layers = other.hidden_layers = layers
    ids, before, rng = list(range(20)), num_compilations(), random.Random(2)
    for _ in range(6):
        tokens, parents = random_tree(rng, 5, 256)
        same_output(*(model.score_tree(ids, tokens, parents, 6) for model in (eager, other)))
        kept = path_to(4, parents)
        for model in (eager, other):
            model.keep_path(kept)
        ids = [*ids, *(tokens[node] for node in kept), rng.randrange(256)]
        same_output(*(model.score(ids, 1) for model in (eager, other)))
        ids.append(5)
    assert num_compilations() == before > 0
