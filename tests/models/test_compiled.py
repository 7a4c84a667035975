"""The compiled engine: logits and tokens of the eager one, nothing compiled while measuring, and who is refused.

What is compiled here is tiny: two models of one layer, in a few shapes.
"""

import json
import re
from collections.abc import Callable
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch._inductor.exc import InvalidCxxCompiler

from specbench.analysis.audit import audit as subjects
from specbench.core.errors import ConfigError
from specbench.decoding.build import build_decoder
from specbench.decoding.loop import GenerationOutput, StopRules
from specbench.decoding.sampling import Sampling
from specbench.models import compiling as check_compilable
from specbench.models import static_passes
from specbench.models.batch_width import TRUSTED, Noise
from specbench.models.causal_lm import CausalLM, ModelPair
from specbench.models.loading import load_model
from specbench.models.scoring import Output, PassShape
from specbench.models.static_passes import StaticPasses, StaticSequence, capacity_for
from specbench.records.generation import Record
from specbench.results.conditions import conditions_that_differ
from specbench.results.leaderboard import load
from specbench.running import measure as runner
from specbench.running.capture_plan import num_compilations
from specbench.running.plan import Trial
from specbench.specs.catalogue import load_method
from tests.support import tiny
from tests.support.engines import both

Outcome = tuple[int, str, str]
LENGTHS = (1, 11)
NUM_TOKENS = 80
PROMPTS = (3, 40)  # tokens


@pytest.fixture(autouse=True, scope="module")
def few_shapes() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(static_passes, "PACKED", (64,))
        yield


def reserved(model: CausalLM, lengths: tuple[int, ...], packs: bool = False) -> CausalLM:
    assert model.static is not None
    model.static.reserve(NUM_TOKENS, lengths, packs)
    return model


@pytest.fixture(scope="module", params=["static", pytest.param("compiled", marks=pytest.mark.slow)])
def pairs(request: pytest.FixtureRequest) -> tuple[ModelPair, ModelPair]:
    """Eager, and with passes over static buffers, which are compiled or left as they are; the drafter is the target
    with a little noise, so that runs of all lengths stand."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "static":
            patch.setattr("specbench.models.static_passes.compile_pass", lambda forward, name: forward)
            patch.setattr(StaticPasses, "check", lambda self: None)
        return made_pairs()


def made_pairs() -> tuple[ModelPair, ModelPair]:
    target, drafter = both(num_hidden_layers=1), both(num_hidden_layers=1)
    with torch.no_grad():
        for weight in drafter[0].model.parameters():
            weight += 0.02 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(1))
    return (
        ModelPair(target[0], drafter[0]),
        ModelPair(reserved(target[1], LENGTHS), reserved(drafter[1], LENGTHS, packs=True)),  # whose code is shared
    )


def test_logits_are_the_eager_ones_however_the_tokens_come(pairs: tuple[ModelPair, ModelPair]) -> None:
    """Single tokens, several in a padded pass, prompts in chunks, more rows than a pass gives, and ways back."""
    eager, other = (pair.target for pair in pairs)
    random = Random(0)
    ids: list[int] = []
    for _ in range(40):
        kept = random.randint(0, len(ids))
        ids = ids[:kept] + [random.randrange(257) for _ in range(random.choice([1, 1, 2, 3, 5, 6, 9, 20, 70]))]
        ids = ids[:NUM_TOKENS]
        if len(ids) <= kept:
            ids = [*ids[: kept // 2], random.randrange(257)]
        num_logits = random.randint(1, min(6, len(ids)))
        expected, found = (model.score(ids, num_logits).logits for model in (eager, other))
        torch.testing.assert_close(found, expected, atol=2e-4, rtol=1e-3)


def test_pending_tokens_are_read_as_any_other(pairs: tuple[ModelPair, ModelPair]) -> None:
    for model in (pair.target for pair in pairs):
        model.reset()
        ids, drafted = list(range(20)), [7, 9, 11]
        model.score(ids, 1)
        model.score(ids, 1, torch.tensor(drafted[:1]))
        read = model.score(ids, 4, torch.tensor(drafted)).logits
        model.resolve_pending(drafted)
        again = model.score([*ids, *drafted, 5], 1).logits
        model.reset()
        torch.testing.assert_close(read, model.score([*ids, *drafted], 4).logits, atol=2e-4, rtol=1e-3)
        torch.testing.assert_close(again, model.score([*ids, *drafted, 5], 1).logits, atol=2e-4, rtol=1e-3)


@pytest.mark.parametrize(("num_rows", "num_each"), [(1, 1), (5, 3), (40, 2), (70, 1)])
def test_continuations_in_one_pass_see_none_of_each_other(
    num_rows: int, num_each: int, pairs: tuple[ModelPair, ModelPair]
) -> None:
    models = [pair.drafter for pair in pairs]
    random = Random(num_rows)
    ids = [random.randrange(257) for _ in range(20)]
    suffixes = [[random.randrange(257) for _ in range(num_each)] for _ in range(num_rows)]
    found = [
        (m.score_batch(ids, suffixes), m.checkpoint(), m.score([*ids, 3], 1).logits) for m in models if m is not None
    ]
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(other, one, atol=2e-4, rtol=1e-3)


def test_the_end_of_the_buffers_is_reached_by_long_passes(pairs: tuple[ModelPair, ModelPair]) -> None:
    eager, other = (pair.target for pair in pairs)
    assert other.static is not None
    ids = [i % 251 for i in range(other.static.capacity - LENGTHS[-1])]
    for model in (eager, other):
        model.reset()
        model.score(ids[:70], 1)
    expected, found = (model.score(ids, 1).logits for model in (eager, other))
    torch.testing.assert_close(found, expected, atol=2e-4, rtol=1e-3)


def one_layer(kind: str = "llama") -> tuple[CausalLM, CausalLM, StaticSequence]:
    eager, other = both(kind, num_hidden_layers=1)
    assert other.static is not None
    return eager, other, other.static


IDS = [(5 * i) % 251 for i in range(200)]


def test_a_second_subset_of_the_same_size_begins_at_the_beginning(made: list[str]) -> None:
    """After a long sequence a pass that is made ready would begin near the end of the buffers, and write behind it."""
    eager, other, sequence = one_layer()
    sequence.reserve(100, (1, 2))
    other.score(IDS[:110], 1)
    sequence.reserve(60, (1, 60))
    assert sequence.capacity == 128
    torch.testing.assert_close(other.score(IDS[:60], 3).logits, eager.score(IDS[:60], 3).logits, atol=2e-4, rtol=1e-3)


def test_a_prompt_that_is_longer_than_every_pass_is_read_at_once(made: list[str]) -> None:
    eager, other, sequence = one_layer()
    sequence.reserve(60, (1, 64))
    torch.testing.assert_close(other.score(IDS[:100], 1).logits, eager.score(IDS[:100], 1).logits, atol=2e-4, rtol=1e-3)


def test_what_was_made_for_a_size_is_kept_and_packed_passes_fit_into_it(made: list[str]) -> None:
    _, other, sequence = one_layer()
    for lengths in ((1, 2), (1, 64)):
        sequence.reserve(70, lengths, packs=True)
        number, capacity = len(made), sequence.capacity
        other.score_batch(IDS[:70], [[1], [2]])
        assert sequence.capacity == capacity and len(made) == number
    sequence.reserve(300, (1, 2))
    number = len(made)
    sequence.reserve(70, (1, 64), packs=True)
    assert sequence.capacity == capacity and len(made) == number


def test_random_histories_give_the_logits_of_a_model_that_holds_nothing(made: list[str]) -> None:
    """Scores, batches and drafts that are given later, in any order, by both engines."""
    eager, other, sequence = one_layer()
    sequence.reserve(80, (1, 2, 6), packs=True)
    fresh, rng = both(num_hidden_layers=1)[0], Random(1)
    for _ in range(40):
        ids = [rng.randrange(3) for _ in range(rng.randint(2, 8))]  # so few that beginnings are shared
        drafted = [rng.randrange(3) for _ in range(3)]
        suffixes = [[rng.randrange(250)] for _ in range(3)]
        asked = rng.choice(["score", "batch", "pending"])
        fresh.reset()
        for model in (fresh, eager, other):
            if asked == "batch":
                found = model.score_batch(ids, suffixes)
            elif asked == "pending" and model is not fresh:
                for length in range(1, 4):
                    found = model.score(ids, length + 1 if length == 3 else 1, torch.tensor(drafted[:length])).logits
                model.resolve_pending(drafted)
            else:
                found = model.score(
                    ids + (drafted if asked == "pending" else []), 4 if asked == "pending" else 1
                ).logits
            if model is fresh:
                expected = found
            torch.testing.assert_close(found, expected, atol=2e-4, rtol=1e-3)


@pytest.mark.parametrize(("kind", "attention"), [("mistral", "sdpa"), ("llama", "eager"), ("gemma3_text", "sdpa")])
def test_masks_of_every_kind_part_continuations(kind: str, attention: str, made: list[str]) -> None:
    eager, other, _ = one_layer(kind)
    other.model.set_attn_implementation(attention)
    other.make_static()
    found = [model.score_batch(IDS[:20], [[1, 2], [3, 4]]) for model in (eager, other)]
    torch.testing.assert_close(found[1], found[0], atol=2e-4, rtol=1e-3)
    assert other.checkpoint() == eager.checkpoint() == 20 and [name.split("_")[1] for name in made] == ["64"]


def test_where_no_mask_parts_them_continuations_are_read_one_by_one(
    made: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(static_passes, "ATTENTION", ())
    eager, other, _ = one_layer()
    other.make_static()
    found = [model.score_batch(IDS[:20], [[1, 2], [3, 4]]) for model in (eager, other)]
    torch.testing.assert_close(found[1], found[0], atol=2e-4, rtol=1e-3)
    assert other.checkpoint() == eager.checkpoint() == 20 and "forward_64_128" not in made


def test_what_is_compiled_is_said_before_and_pass_by_pass(made: list[str]) -> None:
    _, _, sequence = one_layer()
    told: list[tuple[int, str]] = []
    sequence.reserve(100, (1, 2), progress=lambda line: told.append((len(made), line)))
    assert told[0][0] == 0 and "compiling tiny-llama for 128 tokens: 2 passes, of 1, 2 tokens" in told[0][1]
    assert [number for number, _ in told[1:]] == [1, 2] and "2 of 2 passes are ready" in told[-1][1]


@pytest.fixture
def untraced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Models are not traced when they are loaded, which says nothing about a pass that is made later."""
    monkeypatch.setattr(StaticPasses, "check", lambda self: None)


@pytest.mark.usefixtures("untraced")
def test_a_pass_whose_logits_change_when_it_is_compiled_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "specbench.models.static_passes.compile_pass", lambda forward, name: lambda: Output(forward().logits.flip(-1))
    )
    _, _, sequence = one_layer()
    with pytest.raises(ConfigError, match=r"compiled, a pass over 1 tokens gives other logits.*--engine eager"):
        sequence.reserve(100, (1, 2))


def at_the_beginning(graphs: StaticPasses, length: int) -> Output:
    graphs.start.zero_()
    return graphs.forward(graphs.input(length))


def at_one_position(graphs: StaticPasses, length: int) -> Output:
    graphs.last_position, last = 0, graphs.last_position
    logits = graphs.forward(graphs.input(length))
    graphs.last_position = last
    return logits


def seeing_all(graphs: StaticPasses, length: int) -> Output:
    mask = torch.ones((1, 1, length, graphs.capacity), dtype=torch.bool)
    return graphs.forward(graphs.input(length), mask=mask)


@pytest.mark.usefixtures("untraced")
@pytest.mark.parametrize("wrong", [at_the_beginning, at_one_position, seeing_all])
def test_a_pass_that_looks_at_a_wrong_place_is_refused(
    wrong: Callable[[StaticPasses, int], Output], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, _, sequence = one_layer()

    def other(forward: Callable[[], Output], name: str) -> Callable[[], Output]:
        length = int(name.split("_")[1])
        return (lambda: wrong(sequence._static_passes, length)) if length == 2 else forward

    monkeypatch.setattr("specbench.models.static_passes.compile_pass", other)
    with pytest.raises(ConfigError, match=r"compiled, a pass over \d+ tokens gives other logits"):
        sequence.reserve(100, (1, 2))


@pytest.mark.usefixtures("untraced")
def test_a_packed_pass_that_sees_other_continuations_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    _, _, sequence = one_layer()

    def other(forward: Callable[[], Output], name: str) -> Callable[[], Output]:
        def seeing() -> Output:
            graphs = sequence._static_passes
            length = int(name.split("_")[1])
            positions, masks = graphs.tree_buffers(length)
            return graphs.forward(graphs.input(length), positions, torch.ones_like(masks["full_attention"]).tril(8))

        return seeing if name.startswith("forward_64") else forward

    monkeypatch.setattr("specbench.models.static_passes.compile_pass", other)
    with pytest.raises(ConfigError, match=r"compiled, a pass over 64 tokens gives other logits"):
        sequence.reserve(100, (1, 2, 16, 64), packs=True)


def generation(pair: ModelPair, name: str, sampling: Sampling, prompt: list[int]) -> GenerationOutput:
    decoder = build_decoder(load_method(name), pair, sampling)
    return decoder.generate(prompt, StopRules(12 if len(prompt) == max(PROMPTS) else 6), seed=5)


@pytest.mark.parametrize(
    ("name", "sampling"),
    [
        pytest.param(name, sampling, id=f"{name}-{kind}", marks=[pytest.mark.slow] * ((number + place) % 2))
        for number, name in enumerate(["ar", "sd", "pld", "slem", "tli", "union", "slrs", "fsd", "draft-only"])
        for place, (kind, sampling) in enumerate({"greedy": Sampling(0.0), "drawn": Sampling(1.0, top_k=20)}.items())
    ],
)
def test_both_engines_emit_the_same_and_nothing_is_compiled_on_the_way(
    name: str, sampling: Sampling, pairs: tuple[ModelPair, ModelPair], request: pytest.FixtureRequest
) -> None:
    for model in (pairs[1].target, pairs[1].drafter):
        for num_tokens in (1, 3, 20):  # torch compiles a pass anew once other models were traced after it
            assert model is not None
            model.reset()
            model.score(list(range(num_tokens)), 1)
    before = num_compilations()
    for length in PROMPTS:
        prompt = [(7 * i) % 13 for i in range(length)]  # which repeats itself, as prompt lookup needs
        eager, other = (generation(pair, name, sampling, prompt) for pair in pairs)
        assert other.token_ids == eager.token_ids and other.steps == eager.steps
    assert num_compilations() == before and (before > 0 or "compiled" not in request.node.callspec.id)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["qwen2", "mistral", "gemma2", "gemma3_text"])
def test_passes_over_static_buffers_are_those_of_other_architectures_too(kind: str) -> None:
    """Sliding windows of 8 tokens among them; traced, not compiled."""
    eager, other = both(kind, num_hidden_layers=2 if kind.startswith("gemma") else 1)  # whose layers are of two kinds
    assert other.static is not None
    ids = [(11 * i) % 251 for i in range(40)]
    torch.testing.assert_close(other.static.eager_logits(ids), eager.score(ids, 40).logits, atol=2e-4, rtol=1e-3)


def test_layers_that_differ_in_a_plain_attribute_are_of_different_kinds() -> None:
    """Networks name the kind of a layer in attributes of many names."""
    layers = torch.nn.ModuleList(torch.nn.Sequential(torch.nn.Linear(2, 2)) for _ in range(4))
    for index, layer in enumerate(layers):
        layer.layer_idx = index  # type: ignore[assignment]
        layer[0].uses_rope = index % 2 == 0
    with check_compilable.one_layer_of_each_kind(layers):
        assert [layer.layer_idx for layer in layers] == [0, 1]
    assert len(layers) == 4


@pytest.mark.parametrize(
    ("kind", "more"),
    [
        ("llama", {}),
        pytest.param(
            "gemma3_text", {"layer_types": ["sliding_attention", "full_attention"]}, marks=pytest.mark.slow
        ),
    ],
)  # fmt: skip
def test_all_layers_are_compiled_once(kind: str, more: dict[str, list[str]]) -> None:
    """A whole pass calls one graph for each layer, also where layers differ in their window. Tokens are cached before
    it, so that a layer which reads the cache of another gives other logits."""
    _, other = both(kind, num_hidden_layers=2, **more)
    assert other.static is not None, other.why_eager
    passes, graphs = other.static._static_passes, []
    tokens = passes.input(3)

    def kept(graph: torch.fx.GraphModule, example: list[Any]) -> Any:
        graphs.append(graph)
        return graph.forward

    with torch.inference_mode():
        passes.read_eagerly(torch.tensor([[5, 6, 7, 8]]), 0, 1)
        passes.fill(PassShape(3), 4, [1, 2, 3])
    whole = torch.compile(lambda: passes.forward(tokens).logits, fullgraph=True, dynamic=False, backend=kept)
    with torch.inference_mode(), passes._nested():
        found = whole()
    with torch.inference_mode():
        torch.testing.assert_close(found, passes.forward(tokens).logits, atol=1e-5, rtol=1e-4)
    (graph,) = graphs
    calls = [node for node in graph.graph.nodes if "invoke_subgraph" in str(node.target)]
    assert len(calls) == 2 and len(list(graph.children())) == 1


def stays_eager(reason: str, kind: str = "llama", **options: Any) -> None:
    """A model stays as it was, and says why."""
    eager, other = both(kind, **options)
    assert other.static is None and other.engine == "eager" and re.search(reason, str(other.why_eager))
    torch.testing.assert_close(other.score(IDS[:20], 3).logits, eager.score(IDS[:20], 3).logits, atol=2e-4, rtol=1e-3)


@pytest.mark.parametrize("kind", ["mamba", "mamba2", "qwen3_5_text"])
def test_models_whose_layers_keep_a_state_stay_eager(kind: str) -> None:
    stays_eager("keep a state that is not a buffer", kind)


def test_a_model_that_is_no_single_graph_stays_eager(monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers import LlamaForCausalLM

    monkeypatch.setattr(LlamaForCausalLM, "_can_compile_fullgraph", False)
    stays_eager("LlamaForCausalLM are not a single graph")


def test_a_model_that_looks_at_its_positions_stays_eager() -> None:
    """Transformers' flag vouches for it, yet how its positions turn depends on the longest that it has read."""
    rope = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0}
    stays_eager("a pass is not a single graph: Data-dependent branching$", rope_parameters=rope)


def test_a_model_whose_logits_change_stays_eager(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StaticSequence, "eager_logits", lambda self, ids: torch.randn(len(ids), 257))
    stays_eager("gives other logits")


def test_a_model_that_cannot_use_the_buffers_stays_eager(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(self: StaticSequence, ids: list[int]) -> torch.Tensor:
        raise RuntimeError(words)

    monkeypatch.setattr(StaticSequence, "eager_logits", failing)
    words = "no such dimension"
    stays_eager("with static buffers: no such dimension")
    words = "DefaultCPUAllocator: can't allocate memory"  # says nothing about the model
    with pytest.raises(RuntimeError, match="allocate memory"):
        both()


def test_a_machine_without_a_compiler_is_told(tiny_pair: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> str:
        raise InvalidCxxCompiler

    assert check_compilable.no_compiler("cpu") is None
    monkeypatch.setattr("torch._inductor.cpp_builder.get_cpp_compiler", missing)
    with pytest.raises(ConfigError, match=r"no C\+\+ compiler here: install g\+\+.*or take --engine eager"):
        load_model(tiny_pair[1], device="cpu", engine="compiled")
    assert "triton" in str(check_compilable.no_compiler("cuda")) or check_compilable.no_compiler("cuda") is None
    assert "mps" in str(check_compilable.no_compiler("mps"))


NOISE = Noise(num_prompts=1, num_positions=1, num_changed=0, max_gap_change=0.0, tolerance=1e-4, mean_square_change=0.0)


def test_capacities_are_few() -> None:
    assert [capacity_for(n) for n in (1, 128, 129, 192, 193, 257, 385, 1025)] == [
        128, 128, 192, 192, 256, 384, 512, 1536
    ]  # fmt: skip


RUN = ("run", "--task", "mgsm", "--subset", "en", "--data", "sample", "--limit", "1",
       "--set", "generation.max_new_tokens=4", "--device", "cpu", "--output", "here")  # fmt: skip


@pytest.mark.slow
def test_a_run_of_the_embedded_family_writes_the_same_by_both_engines(
    specbench: Callable[..., Outcome], tmp_path: Path
) -> None:
    """Its smaller member as target, compiled for two subsets of one size, the second of which begins anew."""
    asked = ("run", "--task", "mgsm", "--subset", "en,de", "--limit", "1", "--target", "embedded:drafter")
    asked += ("--method", "pld", "--set", "generation.max_new_tokens=24", "--device", "cpu")
    written = {}
    for engine in ("compiled", "eager"):
        code, _, said = specbench(*asked, "--engine", engine, "--output", engine)
        assert code == 0, said
        assert ("compiled 2 passes of embedded:drafter for 128 tokens" in said) == (engine == "compiled")
        assert {row.engine for row in load(tmp_path / engine / "leaderboard.json")} == {engine}
        records = map(json.loads, (tmp_path / engine / "records.jsonl").read_text().splitlines())
        written[engine] = {
            (record["subset"], name): (answer["token_ids"], answer["steps"])
            for record in records
            for name, answer in record["methods"].items()
        }
    assert written["compiled"] == written["eager"] and len(written["eager"]) == 4
    (line,) = (tmp_path / "compiled" / "compilations.jsonl").read_text().splitlines()
    assert json.loads(line)["num_passes"] == 2 and json.loads(line)["seconds"] > 0
    code, _, said = specbench(*asked, "--output", "compiled")
    assert code == 2 and 'engine (--engine): "compiled" → "eager"' in said


def test_a_drafter_that_cannot_be_compiled_is_eager_and_its_rows_say_so(
    specbench: Callable[..., Outcome], tiny_pair: tuple[str, str], tmp_path: Path, made: list[str]
) -> None:
    """They compare with the rows of no other engine; those of methods that do without it are compiled ones."""
    drafter = tiny.save(tmp_path / "mamba", "mamba", num_hidden_layers=1)
    asked = (*RUN, "--target", tiny_pair[0], "--drafter", str(drafter), "--method", "sd,pld", "--engine", "compiled")
    code, printed, said = specbench(*asked)
    assert code == 0, said
    (line,) = [line for line in said.splitlines() if line.startswith("warning: ")]
    assert re.search(r"model '.*mamba' cannot be compiled \(.* keep a state .*\): .*rows of sd say", line)
    assert "compiled target, eager drafter: sd; do not compare rows" in printed
    rows = {row.method_name: row for row in load(tmp_path / "here" / "leaderboard.json")}
    assert {name: row.engine for name, row in rows.items()} == {
        "ar": "compiled", "sd": "compiled target", "pld": "compiled"
    }  # fmt: skip
    assert [each.field for each in conditions_that_differ(rows["pld"], rows["sd"])] == ["engine"]
    assert not conditions_that_differ(rows["ar"], rows["pld"])
    code, printed, said = specbench("leaderboard", "validate", "here/leaderboard.json", "--records")
    assert code == 0, said
    code, _, said = specbench(*asked)
    assert code == 0 and "measured already" in said
    code, _, said = specbench(*asked[:-1], "eager")
    assert code == 2 and 'engine (--engine): "compiled" → "eager"' in said


def test_a_target_that_cannot_be_compiled_makes_the_run_an_eager_one(
    specbench: Callable[..., Outcome], tiny_pair: tuple[str, str], tmp_path: Path, made: list[str]
) -> None:
    target = tiny.save(tmp_path / "mamba", "mamba", num_hidden_layers=1)
    asked = (*RUN, "--target", str(target), "--drafter", tiny_pair[1], "--method", "sd")
    code, _, said = specbench(*asked, "--engine", "compiled")
    assert code == 0, said
    assert re.search(r"warning: --engine compiled: model '.*mamba' .*: this run and its rows use --engine eager", said)
    assert {row.engine for row in load(tmp_path / "here" / "leaderboard.json")} == {"eager"} and made == []
    for engine in ("compiled", "eager"):
        code, _, said = specbench(*asked, "--engine", engine)
        assert code == 0 and "measured already" in said


NEEDS_GPU = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]


@pytest.mark.parametrize(
    ("device", "engine", "maker", "verb"),
    [
        ("cpu", "compiled", "compile_pass", "compiled"),
        pytest.param("cuda", "graphs", "record_graph", "recorded", marks=NEEDS_GPU),
    ],
)
def test_a_pass_that_fails_while_it_is_measured_ends_in_one_line(
    device: str, engine: str, maker: str, verb: str, specbench: Callable[..., Outcome], tiny_pair: tuple[str, str],
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """What was measured before it is kept, and an error that names memory is reported as such."""
    monkeypatch.setattr(StaticPasses, "check", lambda self: None)
    asked = (*RUN, "--limit", "2", "--target", tiny_pair[1], "--method", "ar", "--engine", engine)
    asked = tuple(device if word == "cpu" else word for word in asked)
    make = getattr(static_passes, maker)
    words, num_left = "index out of bounds: 0 <= tmp10", 10**6

    def failing(forward: Callable[[], Output], given: Any) -> Callable[[], Output]:
        replay = make(forward, given) if verb == "recorded" else forward  # compiling takes seconds

        def run() -> Output:
            nonlocal num_left
            num_left -= 1
            if num_left < 0:
                raise RuntimeError(f"kernel, assert {words}")
            return replay()

        return run

    def after_the_first(block: Trial, *given: Any) -> Record:
        nonlocal num_left
        num_left = 10**6 if block.example.index == 0 else 2
        return measure(block, *given)

    measure = runner.measure
    monkeypatch.setattr(static_passes, maker, failing)
    monkeypatch.setattr(runner, "measure", after_the_first)
    code, _, said = specbench(*asked)
    assert code == 2 and len((tmp_path / "here" / "records.jsonl").read_text().splitlines()) == 1
    assert re.search(rf"error: --engine {engine}: a {verb} pass of .* failed \(.*tmp10\): take --engine eager", said)
    words, num_left = "can't allocate memory", 10**6
    code, _, said = specbench(*asked)
    assert code == 2 and re.search(
        r"error: out of memory \(in a pass of .*\); everything measured is kept in here", said
    )
    monkeypatch.setattr(runner, "measure", measure)
    num_left = 10**6
    code, _, said = specbench(*asked)
    assert code == 0 and "resuming here: 1 of 2" in said


def test_an_audit_makes_the_passes_of_a_run_and_stands_beside_the_eager_engine(
    specbench: Callable[..., Outcome], tiny_pair: tuple[str, str], made: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = ("--method", "sd", *RUN[1:-2], "--target", tiny_pair[0], "--drafter", tiny_pair[1], "--engine", "compiled")
    passes: set[tuple[str, PassShape]] = set()
    run = StaticPasses.run

    def noted(self: StaticPasses, shape: PassShape) -> Output:
        passes.add((self.name, shape))
        return run(self, shape)

    monkeypatch.setattr(StaticPasses, "run", noted)
    assert specbench("run", *asked)[0] == 0
    of_a_run, _ = set(passes), passes.clear()
    with monkeypatch.context() as patch:
        made = SimpleNamespace(
            noise=lambda *given: NOISE, trust=lambda *given: TRUSTED
        )  # measuring it reads whole texts at once
        patch.setattr("specbench.analysis.audit.audit.measure_batch_width", lambda *given, **named: made)
        code, printed, said = specbench("audit", *asked, "--draws", "0")
    assert code == 0, said
    assert passes == of_a_run
    assert re.search(r"ar \(eager\) +greedy equal +1/1 +0 ", printed)

    class Wrong(CausalLM):
        def score(self, *given: Any) -> Output:
            return Output(super().score(*given).logits.flip(-1))

    monkeypatch.setattr(subjects, "CausalLM", Wrong)
    code, printed, said = specbench("audit", *asked, "--draws", "0")
    assert code == 1 and re.search(r"ar \(eager\) +diverged +0/1", printed)


@pytest.mark.slow
def test_a_block_in_which_something_is_compiled_is_not_recorded(
    specbench: Callable[..., Outcome], tiny_pair: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A control: nothing is made ready, and the warm-up is left out."""
    monkeypatch.setattr(runner, "allocate_and_capture", lambda *given: iter(()))
    monkeypatch.setattr(runner, "allocate_and_capture_for_trial", lambda *given: iter(()))
    monkeypatch.setattr(runner, "warm_up_subset", lambda *given: {})
    code, _, said = specbench(*RUN, "--target", tiny_pair[1], "--method", "ar", "--engine", "compiled")
    assert code == 2 and "passes were compiled or recorded while it was measured" in " ".join(said.split())
    assert (tmp_path / "here" / "records.jsonl").read_text() == ""


def test_what_a_command_line_gets_wrong_is_one_line(
    specbench: Callable[..., Outcome], tiny_pair: tuple[str, str], made: list[str]
) -> None:
    code, _, said = specbench(*RUN, "--method", "ar", "--engine", "fast")
    assert code == 2 and "error: --engine fast: " in said and "auto, compiled, eager, graphs" in said
    code, _, said = specbench(*RUN, "--target", tiny_pair[1], "--method", "hf-pld", "--engine", "compiled")
    assert code == 2 and "method 'hf-pld': external decoders ignore --engine" in " ".join(said.split())
