"""Recorded passes on a GPU: every method writes the tokens of eager passes, nothing is recorded while it decodes, and
memory is given back.

Run them with `pytest -m gpu`; without a CUDA device they are skipped.
"""

import gc
import random
from typing import Any

import pytest
import torch

from specbench.decoding.build import build_decoder
from specbench.decoding.decoder import Decoder
from specbench.decoding.loop import GenerationOutput, StopRules
from specbench.decoding.sampling import Sampling
from specbench.models.causal_lm import CausalLM, ModelPair
from specbench.models.loading import make_passes
from specbench.models.recording import num_recordings
from specbench.models.scoring import PassShape, same_logits
from specbench.running.capture_plan import allocate_and_capture_for, num_compilations
from specbench.running.models import LoadedModels, load_models
from specbench.running.request import Request, run_spec
from specbench.specs.catalogue import load_method, method_names
from specbench.specs.run_options import RunOptions
from tests.support import tiny
from tests.support.toys import path_to
from tests.support.trees import random_tree

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
LENGTHS = (1, 2, 6, 16)
PROMPTS, NUM_TOKENS = (3, 17, 40, 90), 30  # the last two are read by recorded passes
GREEDY, DRAWN = Sampling(0.0), Sampling(1.0, top_k=20, top_p=0.9)
METHODS = [name for name in method_names() if load_method(name).decoder is None]
WITHOUT_LAYERS = {
    "mtp",
    "dflash",
    "dspark",
    "domino",
    "peagle",
}  # the embedded target has none for them: only they are skipped
HIDDEN_LAYERS = (0, 1, 2)
SHAPES = [
    *(PassShape(length, "tree") for length in (3, 6, 28, 57, 81)),
    PassShape(12, "tree", HIDDEN_LAYERS),
    PassShape(6, "chain", HIDDEN_LAYERS),
]


def model(engine: str, seed: int = 0, dtype: torch.dtype = torch.float32, **options: Any) -> CausalLM:
    """A tiny model on the GPU, whose passes are made for every method."""
    network = tiny.network("qwen2", seed, num_hidden_layers=2, **options).to("cuda", dtype)
    made = CausalLM(network, tiny.tokenizer(), f"tiny-{engine}", None)
    if engine != "eager":
        make_passes(made, engine)  # type: ignore[arg-type]
        assert made.static is not None, made.why_eager
        made.static.reserve(100, LENGTHS, packs=True, shapes=SHAPES)
    return made


class Pairs(dict[str, ModelPair]):
    """A target, and a drafter that is nearly the target, by each engine that is asked for."""

    def __missing__(self, engine: str) -> ModelPair:
        target, drafter = model(engine), model(engine)
        with torch.no_grad():
            for weight in drafter.model.parameters():
                noise = torch.randn(weight.shape, generator=torch.Generator().manual_seed(1))
                weight += 0.02 * noise.to("cuda")
        self[engine] = ModelPair(target, drafter)
        return self[engine]


@pytest.fixture(scope="module")
def pairs() -> Pairs:
    return Pairs()


class EmbeddedModels(dict[str, LoadedModels]):
    """The embedded family on the GPU, with the draft models of every method, by each engine that is asked for."""

    def __missing__(self, engine: str) -> LoadedModels:
        options = RunOptions(device="cuda", dtype="float32", engine=engine)  # type: ignore[arg-type]
        request = Request(["mgsm"], METHODS, options, "")
        self[engine] = load_models(run_spec(request))
        return self[engine]


@pytest.fixture(scope="module")
def embedded() -> EmbeddedModels:
    return EmbeddedModels()


def decoder(models: LoadedModels, name: str, sampling: Sampling) -> Decoder:
    method = load_method(name)
    made = build_decoder(method, models.pair(method), sampling)
    allocate_and_capture_for(
        models, [method], NUM_TOKENS, lambda line: None, [prompt(length) for length in PROMPTS], [made]
    )
    return made


def prompt(length: int) -> list[int]:
    return [(7 * i) % 13 for i in range(length)]


def generated(made: Decoder, length: int) -> GenerationOutput:
    return made.generate(prompt(length), StopRules(NUM_TOKENS), seed=5)


@pytest.mark.parametrize("sampling", [GREEDY, DRAWN], ids=["greedy", "drawn"])
@pytest.mark.parametrize("engine", ["graphs", "compiled"])
@pytest.mark.parametrize("name", METHODS)
def test_every_method_writes_the_tokens_of_the_eager_engine(
    name: str, engine: str, sampling: Sampling, embedded: EmbeddedModels
) -> None:
    """And nothing is recorded or compiled while it decodes."""
    if name in WITHOUT_LAYERS:
        pytest.skip("the embedded target has no layers for multi-token prediction")
    eager, other = (decoder(embedded[each], name, sampling) for each in ("eager", engine))
    before = num_compilations()
    for length in PROMPTS:
        expected, found = (generated(made, length) for made in (eager, other))
        assert found.token_ids == expected.token_ids and found.steps == expected.steps
        lengths = [[number for number, _ in each.draft_passes] for each in (expected, found)]
        assert lengths[0] == lengths[1]
    assert num_compilations() == before > 0


@pytest.mark.parametrize("engine", ["graphs", "compiled"])
def test_trees_and_hidden_states_are_those_of_the_eager_engine(engine: str, pairs: Pairs) -> None:
    """Trees, paths that are moved, and chains, up to the end of the buffers; nothing is recorded on the way."""
    models = [pairs[each].target for each in ("eager", engine)]
    rng, before, ids = random.Random(0), num_compilations(), list(range(20))
    for each in models:
        each.reset()
        each.hidden_layers = HIDDEN_LAYERS
    while len(ids) < 175:
        tokens, parents = random_tree(rng, 11, 256)
        outputs = [each.score_tree(ids, tokens, parents, 12) for each in models]
        outputs += [each.score([*ids, 7], 1) for each in models] if rng.random() < 0.2 else []
        for expected, found in zip(outputs[::2], outputs[1::2], strict=True):
            torch.testing.assert_close(
                (found.logits, *found.hidden), (expected.logits, *expected.hidden), atol=2e-3, rtol=1e-3
            )
        kept = path_to(rng.randrange(11), parents) if len(outputs) == 2 else []
        for each in models:
            each.keep_path(kept)
        ids = [*ids, *(tokens[node] for node in kept), rng.randrange(256)]
    assert num_compilations() == before
    for each in models:
        each.hidden_layers = ()


@pytest.mark.parametrize("engine", ["graphs", "compiled"])
@pytest.mark.parametrize("sampling", [GREEDY, DRAWN], ids=["greedy", "drawn"])
def test_a_recorded_draft_is_that_of_single_passes_and_moves_the_random_stream_on_alike(
    sampling: Sampling, engine: str, pairs: Pairs
) -> None:
    drafter = pairs[engine].drafter
    assert drafter is not None
    drafter.reserve_draft(5, sampling)
    ids = list(range(20))
    found = []
    for records in (True, False):
        drafter.reset()
        drafter.score(ids[:-1], 1)
        generator = torch.Generator("cuda").manual_seed(3)
        if records:
            draft = drafter.draft(ids, 5, sampling, generator)
            assert draft is not None
            tokens, logits = draft.tokens.tolist(), draft.logits.clone()
        else:
            tokens, rows = [], []
            for _ in range(5):
                rows.append(drafter.score([*ids, *tokens], 1).logits)
                tokens.append(int(sampling.draw(rows[-1], generator)[0]))
            logits = torch.cat(rows)
        found.append((tokens, logits, torch.rand(3, generator=generator, device="cuda").tolist()))
    (first, its_logits, its_numbers), (second, other_logits, other_numbers) = found
    assert first == second and its_numbers == other_numbers and same_logits(its_logits, other_logits)


def test_two_streams_that_alternate_draw_as_each_would_alone(pairs: Pairs) -> None:
    drafter = pairs["graphs"].drafter
    assert drafter is not None
    drafter.reserve_draft(5, DRAWN)

    def drafts(*seeds: int) -> dict[int, list[list[int]]]:
        generators = {seed: torch.Generator("cuda").manual_seed(seed) for seed in seeds}
        found: dict[int, list[list[int]]] = {seed: [] for seed in seeds}
        for seed in seeds * 3:
            drafter.reset()
            drafter.score(list(range(19)), 1)
            draft = drafter.draft(list(range(20)), 5, DRAWN, generators[seed])
            assert draft is not None
            found[seed].append(draft.tokens.tolist())
        return found

    assert drafts(1, 2) == {**drafts(1), **drafts(2)}


@pytest.mark.parametrize("engine", ["graphs", "compiled"])
def test_in_bfloat16_tokens_differ_only_where_two_are_as_good_as_tied(engine: str) -> None:
    eager, other = (model(each, dtype=torch.bfloat16) for each in ("eager", engine))
    ids = list(range(30))
    for _ in range(60):
        expected, found = (each.score(ids, 1).logits[0].float() for each in (eager, other))
        assert same_logits(expected.bfloat16()[None], found.bfloat16()[None])
        best = int(expected.argmax())
        gap = float(expected[best] - expected[int(found.argmax())])
        assert gap <= 0.1 * float(expected.std())
        ids.append(best)


def test_memory_of_graphs_is_given_back_when_buffers_are_dropped() -> None:
    gc.collect()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_reserved()
    made = model("graphs", hidden_size=512, intermediate_size=4096)
    made.reserve_draft(5, GREEDY)
    assert torch.cuda.memory_reserved() > before
    del made
    gc.collect()
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() <= before + 2**22


def test_graphs_are_recorded_anew_after_others_were_dropped() -> None:
    for _ in range(2):
        before = num_recordings()
        made = model("graphs")
        assert num_recordings() - before >= len(LENGTHS)
        made.score(list(range(10)), 1)
        del made


def test_auto_takes_graphs_here(tiny_pair: tuple[str, str]) -> None:
    from specbench.models.loading import load_model

    assert load_model(tiny_pair[0], engine="auto").engine == "graphs"
