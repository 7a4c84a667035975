"""Recorded passes and drafts without a GPU: graphs are replaced by the functions that they would record.

What is tested is everything around the recording: buffers, tokens, random streams, and what is reported about memory.
"""

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch

from specbench.core.errors import ConfigError
from specbench.decoding.build import build_decoder
from specbench.decoding.decoder import Decoder, drafting_decoders
from specbench.decoding.loop import StopRules
from specbench.decoding.sampling import Sampling
from specbench.models import loading, recording, static_passes
from specbench.models.causal_lm import CausalLM, ModelPair
from specbench.models.compiling import CannotCompile, SharedLayers
from specbench.models.devices import memory_message
from specbench.models.loading import check_engine, load_model, load_network, make_passes
from specbench.models.scoring import Output, PassShape
from specbench.models.static_passes import PROMPTS, StaticPasses
from specbench.running.capture_plan import allocate_and_capture_for
from specbench.running.models import LoadedModels
from specbench.specs.catalogue import load_method
from specbench.specs.components import StaticEngine
from tests.support import tiny
from tests.support.streams import Stream

GREEDY, DRAWN = Sampling(0.0), Sampling(1.0, top_k=20, top_p=0.9)
IDS = list(range(20))


@pytest.fixture
def recordings(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Functions stand in for graphs: they run as a graph would be replayed."""
    made: list[str] = []

    def stand_in(run: Callable[[], torch.Tensor], device: torch.device, generator: Any = None) -> Any:
        made.append("draft" if generator is not None else "pass")
        run()
        return run

    for module in (static_passes, recording):
        monkeypatch.setattr(module, "record_graph", stand_in)
    monkeypatch.setattr(static_passes, "SharedStream", Stream)
    monkeypatch.setattr(static_passes, "has_graphs", lambda device: True)
    return made


def model(seed: int = 0) -> CausalLM:
    made = tiny.causal_lm("qwen2", seed, num_hidden_layers=1)
    made.prefers_pending = True
    return made


def with_graphs(seed: int = 0) -> CausalLM:
    made = model(seed)
    make_passes(made, "graphs")
    assert made.static is not None, made.why_eager
    made.static.reserve(100, (1, 2, 6))
    return made


def test_a_graph_that_keeps_its_tokens_as_constants_is_refused(
    recordings: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = with_graphs()
    assert made.static is not None
    passes = made.static._static_passes
    tokens = passes.input(3)

    def constant(run: Callable[[], Output], device: torch.device) -> Callable[[], Output]:
        kept = tokens.clone()

        def replay() -> Output:
            asked = tokens.clone()
            tokens.copy_(kept)
            output = run()
            tokens.copy_(asked)
            return output

        return replay

    monkeypatch.setattr(static_passes, "record_graph", constant)
    with torch.inference_mode(), pytest.raises(CannotCompile, match="a pass over 3 tokens gives other logits"):
        passes.fill_example(PassShape(3))
        passes.run(PassShape(3))


def test_a_recorded_pass_is_made_for_every_length_and_told(recordings: list[str]) -> None:
    made = model()
    make_passes(made, "graphs")
    assert made.static is not None and made.engine == "graphs" and recordings == ["pass"]
    said: list[str] = []
    number, seconds = made.static.reserve(100, (1, 6), progress=said.append)
    assert number == 3 and seconds > 0 and recordings == ["pass"] * 4
    assert said[0] == "recording tiny-qwen2 for 128 tokens: 3 passes, of 6, 64, 128 tokens"


@pytest.mark.parametrize("sampling", [GREEDY, DRAWN], ids=["greedy", "drawn"])
@pytest.mark.parametrize("pending", [1, 2])
def test_a_draft_in_one_graph_is_that_of_single_passes(sampling: Sampling, pending: int, recordings: list[str]) -> None:
    made, alone = with_graphs(), model()
    assert made.reserve_draft(5, sampling)[0] == 2 and recordings.count("draft") == 2
    for each in (made, alone):
        each.score(IDS[:-pending], 1)
    drafted = made.draft(IDS, 5, sampling, torch.Generator().manual_seed(3))
    assert drafted is not None
    tokens: list[int] = []
    generator = torch.Generator().manual_seed(3)
    for row in drafted.logits:
        logits = alone.score([*IDS, *tokens], 1).logits
        torch.testing.assert_close(row[None], logits, atol=2e-4, rtol=1e-3)
        tokens.append(int(sampling.draw(logits, generator)[0]))
    assert drafted.tokens.tolist() == tokens
    made.resolve_pending(tokens)
    torch.testing.assert_close(
        made.score([*IDS, *tokens], 3).logits, alone.score([*IDS, *tokens], 3).logits, atol=2e-4, rtol=1e-3
    )
    lengths = [length for length, _ in made.passes.read()]
    assert lengths[-6:-1] == [pending, 1, 1, 1, 1]


@pytest.mark.parametrize(
    ("name", "sampling"),
    [
        pytest.param(name, sampling, id=f"{name}-{kind}", marks=[pytest.mark.slow] * ((number + place + 1) % 2))
        for number, name in enumerate(["sd", "fsd", "synthetic"])
        for place, (kind, sampling) in enumerate({"greedy": GREEDY, "drawn": DRAWN}.items())
    ],
)
def test_generations_with_recorded_drafts_are_those_without(
    name: str, sampling: Sampling, recordings: list[str]
) -> None:
    def decoder(pair: ModelPair) -> Decoder:
        made = build_decoder(load_method(name), pair, sampling)
        assert pair.drafter is not None
        for each in drafting_decoders([made]):
            each.drafter.reserve(each.method.num_draft_tokens)
        return made

    pairs = (ModelPair(model(), model(1)), ModelPair(with_graphs(), with_graphs(1)))
    found = [decoder(pair).generate(IDS, StopRules(12), seed=3) for pair in pairs]
    assert recordings.count("draft") == 2
    assert found[0].token_ids == found[1].token_ids and found[0].steps == found[1].steps
    assert [n for n, _ in found[0].draft_passes] == [n for n, _ in found[1].draft_passes]


def test_a_draft_that_was_not_recorded_is_left_to_single_passes(recordings: list[str]) -> None:
    made = with_graphs()
    made.reserve_draft(5, GREEDY)
    made.score(IDS[:-1], 1)
    generator = torch.Generator()
    assert made.draft(IDS, 4, GREEDY, generator) is None and made.draft(IDS, 5, DRAWN, generator) is None
    longest = list(range(125))  # behind which the buffers end
    made.score(longest[:-1], 1)
    assert made.draft(longest, 5, GREEDY, generator) is None


def test_a_recorded_draft_with_other_logits_is_refused(recordings: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    made = with_graphs()
    record_graph = recording.record_graph

    def wrong(run: Any, device: torch.device, generator: Any = None) -> Any:
        kept = record_graph(run, device, generator)().clone()
        return lambda: kept  # which writes nothing

    monkeypatch.setattr(recording, "record_graph", wrong)
    with pytest.raises(ConfigError, match=r"--engine graphs: .* a recorded draft gives other logits"):
        made.reserve_draft(5, GREEDY)


def test_graphs_are_refused_where_there_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    for problem, able in (None, "compiled, or eager"), ("no compiler", "eager"):
        monkeypatch.setattr("specbench.models.compiling.no_compiler", lambda device, problem=problem: problem)
        with pytest.raises(ConfigError, match=f"--engine graphs: cpu has no CUDA graphs: take --engine {able}$"):
            check_engine("graphs", "cpu")
    assert check_engine("auto", "cpu") == "eager" and check_engine("auto", "cuda") == "graphs"


def test_auto_is_eager_on_a_cpu(tiny_pair: tuple[str, str]) -> None:
    assert load_model(tiny_pair[1], device="cpu", engine="auto").engine == "eager"


def test_memory_that_ran_out_is_told_with_what_was_asked_for_and_what_was_free() -> None:
    error = torch.OutOfMemoryError(
        "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.10 GiB of which 1.20 GiB is "
        "free. Process 1 has 77 GiB"
    )
    assert memory_message(error) == "out of memory (2.00 GiB were requested, 1.20 GiB were free)"
    error.add_note("while a pass of model 'x' over 6 tokens was made")
    assert memory_message(error).startswith("out of memory (while a pass of model 'x' over 6 tokens was made, 2.00 GiB")
    assert memory_message(MemoryError()) == "out of memory"


def test_weights_that_do_not_fit_are_told_with_their_size(monkeypatch: pytest.MonkeyPatch) -> None:
    class TooLarge(torch.nn.Linear):
        def to(self, *given: Any) -> Any:
            raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(loading, "load_weights", lambda *_: TooLarge(3, 3))
    with pytest.raises(ConfigError, match=r"out of memory on cpu: its weights need 0\.00 GiB"):
        load_network("x", "auto", {}, torch.device("cpu"))


def test_a_recording_that_runs_out_of_memory_names_the_pass(
    recordings: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = with_graphs()

    def full(run: Any, device: torch.device, generator: Any = None) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 3.00 GiB.")

    monkeypatch.setattr(static_passes, "record_graph", full)
    assert made.static is not None
    with pytest.raises(torch.OutOfMemoryError) as caught:
        made.static.reserve(100, (1, 9))
    assert memory_message(caught.value) == (
        "out of memory (while a pass of model 'tiny-qwen2' over 9 tokens was made; a token takes 0.1 KiB of its cache, "
        "3.00 GiB were requested)"
    )


LAYERS = (0, 2)


def recorded(kind: str, engine: StaticEngine, num_tokens: int) -> tuple[CausalLM, CausalLM]:
    """One network, read eagerly and in recorded passes, which also return hidden states."""
    network = tiny.network(kind, num_hidden_layers=2)
    eager, other = (CausalLM(network, tiny.tokenizer(), f"tiny-{kind}", None) for _ in range(2))
    other.make_static(engine)
    assert other.static is not None
    shapes = [PassShape(13, "tree", LAYERS), PassShape(1, "chain", LAYERS)]
    other.static.reserve(num_tokens, (1, 6), shapes=shapes)
    return eager, other


@pytest.fixture
def traced(monkeypatch: pytest.MonkeyPatch) -> None:
    """The layers that share one compiled function are traced, not compiled."""
    compiled = SharedLayers.compile_layers
    monkeypatch.setattr(SharedLayers, "compile_layers", lambda *given, **named: compiled(*given, backend="eager"))


@pytest.mark.parametrize(
    ("kind", "engine"),
    [
        ("gemma3_text", "graphs"),
        *(pytest.param(*each, marks=pytest.mark.slow) for each in (("mistral", "graphs"), ("qwen2", "compiled"))),
    ],
)
def test_prompts_are_read_by_recorded_passes(
    kind: str, engine: StaticEngine, recordings: list[str], traced: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of any length, after nothing, after other text, and up to the end of the buffers; only a prompt that is longer
    than all recorded passes is read eagerly. Nothing is recorded on the way."""
    eager, other = recorded(kind, engine, 370)
    assert other.static is not None and other.static.capacity == 384
    num_recorded, rng, eagerly = len(recordings), random.Random(0), []
    read_eagerly = StaticPasses.read_eagerly

    def noted(self: StaticPasses, tokens: torch.Tensor, *given: Any, **named: Any) -> Output:
        eagerly.append(tokens.shape[1])
        return read_eagerly(self, tokens, *given, **named)

    monkeypatch.setattr(StaticPasses, "read_eagerly", noted)
    for num_prompt in (7, 64, 65, 256, 257):
        for num_before in (0, 40, 300):
            layers = rng.choice([(), LAYERS])
            ids = [rng.randrange(250) for _ in range(min(num_before + num_prompt, 383))]
            outputs = []
            for each in (eager, other):
                each.reset()
                each.hidden_layers = layers
                if num_before:
                    each.score(ids[:num_before], 1)
                eagerly.clear()
                first = each.score(ids, 1)
                second = each.score([*ids[:-3], 9], 1)  # which reads one token after a rollback
                outputs.append((first.logits, *first.hidden, second.logits, *second.hidden))
            torch.testing.assert_close(outputs[1], outputs[0], atol=2e-4, rtol=1e-3)
            assert eagerly == [num for num in [len(ids) - num_before] if num > PROMPTS[-1]]
    assert len(recordings) == num_recorded


@pytest.mark.parametrize(
    "name",
    ["sd", "pld", "sd-tree", *(pytest.param(name, marks=pytest.mark.slow) for name in ("slem", "slrs", "lookahead"))],
)
def test_methods_whose_prompts_are_recorded_write_the_tokens_of_the_eager_engine(
    name: str, recordings: list[str]
) -> None:
    found = []
    for makes in (False, True):
        pair = ModelPair(model(), model(1))
        assert pair.drafter is not None
        for each in (pair.target, pair.drafter) if makes else ():
            make_passes(each, "graphs")
        method = load_method(name)
        decoder = build_decoder(method, pair, DRAWN)
        allocate_and_capture_for(
            LoadedModels(pair.target, {name: pair.drafter}), [method], 120, lambda line: None, decoders=[decoder]
        )
        num_recorded = len(recordings)
        found.append([decoder.generate(list(range(length)), StopRules(6), seed=3) for length in (5, 64, 90)])
        assert len(recordings) == num_recorded
    for expected, other in zip(*found, strict=True):
        assert other.token_ids == expected.token_ids and other.steps == expected.steps
        assert [n for n, _ in other.target_passes] == [n for n, _ in expected.target_passes]


def test_pending_tokens_end_a_recorded_prompt(recordings: list[str]) -> None:
    eager, other = recorded("qwen2", "graphs", 100)
    found = [each.score(IDS, 1, torch.tensor([7, 9])).logits for each in (eager, other)]
    torch.testing.assert_close(found[1], found[0], atol=2e-4, rtol=1e-3)


@pytest.mark.parametrize(
    ("raised", "told"),
    [
        (RuntimeError("operation not permitted when stream is capturing"), "not permitted when stream is capturing"),
        (torch.OutOfMemoryError("Tried to allocate 3.00 GiB."), "out of memory (while a pass of model 'tiny-qwen2'"),
    ],
)
def test_prompts_that_cannot_be_recorded_are_read_eagerly(
    raised: Exception, told: str, recordings: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    made, eager, said = model(), model(), list[str]()
    make_passes(made, "graphs")
    assert made.static is not None
    run = StaticPasses._record

    def failing(self: StaticPasses, shape: PassShape, *given: Any) -> Any:
        if shape.kind == "prompt":
            raise raised
        return run(self, shape, *given)

    monkeypatch.setattr(StaticPasses, "_record", failing)
    for expected in (1, 0):  # it is not tried again
        number, _ = made.static.reserve(100, (1, 6), progress=said.append)
        assert number == expected
    (line,) = [line for line in said if "not recorded" in line]
    assert line.startswith("tiny-qwen2: prompts are read by passes that are not recorded: ") and told in line
    ids = list(range(60))
    torch.testing.assert_close(made.score(ids, 1).logits, eager.score(ids, 1).logits, atol=2e-4, rtol=1e-3)


def test_a_recorded_prompt_with_the_logits_of_another_token_is_refused(
    recordings: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The place of the last token is an input of the pass."""
    made, said, record = model(), list[str](), StaticPasses._record
    make_passes(made, "graphs")

    def at_another_place(self: StaticPasses, shape: PassShape, options: dict[str, Any]) -> Callable[[], Output]:
        if shape.kind == "prompt":
            options = {**options, "num_logits": options["num_logits"] - 1}
        return record(self, shape, options)

    monkeypatch.setattr(StaticPasses, "_record", at_another_place)
    assert made.static is not None
    made.static.reserve(100, (1, 6), progress=said.append)
    assert any("a pass over 64 tokens gives other logits" in line for line in said)
