"""What large vocabularies and long trainings need: kept states of the target, logits in parts, starts with parts of the
target, and checkpoints by the clock."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from specbench.core.errors import ConfigError
from specbench.models.causal_lm import CausalLM
from specbench.models.heads.checkpoints import read_checkpoint
from specbench.models.heads.eagle_checkpoint import load_eagle
from specbench.models.heads.medusa import MedusaHeads, load_medusa
from specbench.models.loading import load_model
from specbench.specs.components import build
from specbench.training import heads, loop, new_heads
from specbench.training.heads import DraftHead, HeadLosses, TargetPasses, draft_steps, read_by_target, unroll
from specbench.training.layers import layer_numbers, with_layers
from specbench.training.passes import Batch, Sample, batches_of
from specbench.training.spec import TrainSpec
from tests.support import tiny
from tests.support.training_toys import same, train_toy

KINDS = ["medusa", "eagle", "eagle3"]
RANDOM = torch.Generator().manual_seed(3)
SAMPLES = [
    Sample("en", tuple(torch.randint(0, 256, (length,), generator=RANDOM).tolist()), given)
    for length, given in ((20, 9), (14, 8), (17, 12))
]
Run = Callable[..., tuple[int, str, str]]


def spec_of(kind: str, **settings: Any) -> TrainSpec:
    block = settings.pop("block", {})
    return build(
        TrainSpec, {"kind": kind, "data": {"text": {"en": "x"}}, "output": "out", kind: block, **settings}
    )  # fmt: skip


def head_of(kind: str, target: CausalLM, **block: Any) -> tuple[TrainSpec, DraftHead]:
    spec = spec_of(kind, block=block)
    head = DraftHead.of(spec, target)
    head.choose_vocabulary(spec, SAMPLES)
    torch.manual_seed(1)
    for parameter in head.own_parameters.values():  # new heads have parts that are 0
        parameter.data += 0.1 * torch.randn_like(parameter)
    return spec, head


def losses_of(spec: TrainSpec, target: CausalLM, head: DraftHead, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
    """The losses and the gradient of one of the weights."""
    parameters = [value.requires_grad_() for value in head.own_parameters.values()]
    found = HeadLosses(spec, target, head.model)(batch, head.model)
    gradients = torch.autograd.grad(found.sum(), parameters, allow_unused=True)
    return found.detach(), torch.cat([each.flatten() for each in gradients if each is not None])


def losses_by_definition(spec: TrainSpec, target: CausalLM, head: DraftHead, batch: Batch) -> torch.Tensor:
    """From whole tensors of logits, over the whole vocabulary."""
    model: Any = head.model
    output = read_by_target(target, batch, model)
    assert output.logits is not None and spec.head is not None
    probs = torch.softmax(output.logits, dim=-1)
    num_steps = getattr(spec.head, "num_heads", None) or spec.head.num_draft_steps  # type: ignore[attr-defined]
    total = torch.zeros(batch.num_learnt)
    rows, columns = batch.places
    for number, step in enumerate(draft_steps(model, output, batch, num_steps)):
        for state, place in zip(step.states, step.learnt.tolist(), strict=True):
            if isinstance(model, MedusaHeads):
                logits = model.head_logits(number, state[None])[0]
            else:
                logits = model.logits(state[None], 257)[0]
            is_drafted = logits > -torch.inf
            wanted = probs[place] * is_drafted
            loss = -(wanted / wanted.sum() * torch.log_softmax(logits, -1).clamp_min(-1e9)).sum()
            loss = loss * is_drafted[probs[place].argmax()]
            if spec.eagle is not None:
                hidden = output.hidden[0][rows[place], columns[place]]
                distance = torch.nn.functional.smooth_l1_loss(state, hidden)
                loss = spec.eagle.logit_weight * loss + spec.eagle.state_weight * distance
            total[place] += spec.head.decay**number * loss.detach()
    return total


@pytest.mark.parametrize(
    ("kind", "block"),
    [("medusa", {"num_heads": 3}), ("medusa", {"num_heads": 2, "own_output": False}), ("eagle", {"num_draft_steps": 2}),
     ("eagle3", {"num_draft_steps": 3}), ("eagle3", {"num_draft_steps": 3, "draft_vocab_size": 120}),
     ("eagle3", {"num_draft_steps": 3, "norm_output": True})],
)  # fmt: skip
@pytest.mark.parametrize("target", ["llama", "gemma2"])  # gemma2 caps its logits after the output layer
def test_losses_are_those_of_their_definition_in_parts_and_as_a_whole(
    kind: str, block: dict[str, Any], target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tiny.causal_lm(target)
    model.model.requires_grad_(False)
    spec, head = head_of(kind, model, **block)
    batch = Batch(SAMPLES)
    expected = losses_by_definition(spec, model, head, batch)
    found, gradient = losses_of(spec, model, head, batch)
    assert torch.allclose(found, expected, atol=1e-4, rtol=1e-4)
    monkeypatch.setattr(heads, "MAX_CHUNK", 1000)  # 3 rows of logits
    monkeypatch.setattr(heads, "MAX_LOGITS", 3000)  # one text
    monkeypatch.setattr(heads, "MAX_GRAPH", 0)
    in_parts, gradient_in_parts = losses_of(spec, model, head, batch)
    assert torch.allclose(in_parts, found, atol=1e-5) and torch.allclose(gradient_in_parts, gradient, atol=1e-4)


def test_a_target_is_read_once_for_each_batch_as_far_as_memory_reaches(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny.causal_lm()
    _, head = head_of("eagle3", model, draft_vocab_size=120)
    network: Any = head.model
    batches = [Batch(SAMPLES[:1]), Batch(SAMPLES[1:])]
    reads: list[Batch] = []
    original = read_by_target

    def counting(target: CausalLM, batch: Batch, *rest: Any, **more: Any) -> Any:
        reads.append(batch)
        return original(target, batch, *rest, **more)

    monkeypatch.setattr(heads, "read_by_target", counting)
    whole = TargetPasses(model, network)
    first = [whole(batch) for batch in batches]
    assert [whole(batch) for batch in batches] == first and reads == batches
    assert all(output.logits is None for output in first)  # they are computed from the last states
    reads.clear()
    short = TargetPasses(model, network, limit_bytes=first[1].num_bytes)
    for _ in range(2):
        for batch, output in zip(batches[::-1], first[::-1], strict=True):
            found = short(batch)
            assert all(torch.equal(*pair) for pair in zip(found.hidden, output.hidden, strict=True))
            assert torch.equal(short.teacher(found), whole.teacher(output))
            assert found.is_covered is not None and output.is_covered is not None
            assert torch.equal(found.is_covered, output.is_covered)
    assert reads == [batches[1], batches[0], batches[0]]  # the second batch is kept, and the first has no room


def test_logits_that_change_after_the_output_layer_are_read_from_the_target() -> None:
    model = tiny.causal_lm("gemma2", final_logit_softcapping=1.0)
    _, head = head_of("medusa", model)
    passes, batch = TargetPasses(model, head.model), Batch(SAMPLES)
    wanted = model.model(input_ids=batch.ids).logits[batch.places[0], batch.places[1]]
    for _ in range(2):
        assert torch.allclose(passes.teacher(passes(batch)), wanted, atol=1e-4)
    assert float(wanted.detach().abs().max()) <= 1.0


@pytest.mark.parametrize("draft_vocab_size", [None, 120])
@torch.no_grad()
def test_a_head_of_eagle_3_1_feeds_back_normalized_states_and_is_read_as_it_was_trained(
    draft_vocab_size: int | None, tmp_path: Path
) -> None:
    model = tiny.causal_lm()
    _, draft = head_of("eagle3", model, norm_output=True, draft_vocab_size=draft_vocab_size)
    head: Any = draft.model
    batch = Batch(SAMPLES)
    found = read_by_target(model, batch, head)
    first, second = unroll(head, found.ids, found.hidden, 2)
    draft.save(tmp_path, torch.float32)
    config = json.loads((tmp_path / "config.json").read_text(encoding="utf-8"))
    assert config["speculators_model_type"] == "eagle3" and config["norm_output"] and config["fc_norm"]
    assert {f"fc_norm.{place}.weight" for place in range(3)} <= load_file(tmp_path / "model.safetensors").keys()
    checkpoint = read_checkpoint(str(tmp_path))
    assert checkpoint.kind == "eagle3"
    loaded = load_eagle(checkpoint, model)
    assert loaded.layout == replace(head.layout, draft_vocab_size=draft_vocab_size or model.vocab_size)
    again = unroll(loaded, found.ids, found.hidden, 2)
    assert torch.allclose(again[0], first, atol=1e-5) and torch.allclose(again[1], second, atol=1e-5)
    assert torch.allclose(loaded.logits(first, 257), head.logits(first, 257), atol=1e-5)
    # EAGLE-3 with these weights: its first step is the same, and its second one reads plain states.
    head.layout = replace(head.layout, norm_output=False)
    plain = unroll(head, found.ids, found.hidden, 2)
    assert torch.equal(plain[0], first) and not torch.allclose(plain[1], second, atol=1e-2)
    # It is trained further as it is.
    spec = spec_of("eagle3", drafter=str(tmp_path))
    assert DraftHead.of(spec, model).model.layout == loaded.layout


@pytest.mark.parametrize("kind", ["eagle", "eagle3"])
@torch.no_grad()
def test_the_prompt_is_read_in_the_first_draft_step_only(kind: str) -> None:
    model = tiny.causal_lm()
    _, head = head_of(kind, model, num_draft_steps=4)
    found = read_by_target(model, Batch(SAMPLES), head.model)
    whole = unroll(head.model, found.ids, found.hidden, 4)
    short = unroll(head.model, found.ids, found.hidden, 4, start=5)
    assert torch.allclose(whole[0], short[0], atol=1e-6)
    for step in range(1, 4):
        assert torch.allclose(whole[step][:, 5:], short[step][:, 5:], atol=1e-5) and not short[step][:, :5].any()


@pytest.mark.parametrize("kind", KINDS)
def test_padding_of_the_output_layer_is_not_learnt(kind: str) -> None:
    """The target's output layer has 300 rows, and its tokenizer 257 tokens."""
    model = tiny.causal_lm(vocab_size=300)
    model.model.requires_grad_(False)
    block = {"own_output": False} if kind == "medusa" else {}
    spec, head = head_of(kind, model, **block)
    found, _ = losses_of(spec, model, head, Batch(SAMPLES))
    assert found.shape == (Batch(SAMPLES).num_learnt,) and bool(torch.isfinite(found).all())


@pytest.mark.parametrize("kind", KINDS)
def test_a_new_head_leaves_the_target_in_its_dtype(kind: str) -> None:
    model = tiny.causal_lm()
    model.model.to(torch.bfloat16).requires_grad_(False)
    spec, head = head_of(kind, model)
    assert {value.dtype for value in model.model.parameters()} == {torch.bfloat16}
    assert {value.dtype for value in head.own_parameters.values()} == {torch.float32}
    with torch.autocast("cpu", torch.bfloat16):
        found, gradient = losses_of(spec, model, head, Batch(SAMPLES))
    assert bool(torch.isfinite(found).all()) and bool(gradient.any())


def test_a_warm_head_begins_with_the_last_layer_of_the_target() -> None:
    """Without its attention to the embeddings it is that layer, behind the last hidden state that it reads."""
    model = tiny.causal_lm(num_hidden_layers=6)
    head: Any = DraftHead.of(spec_of("eagle3"), model).model
    last = model.model.model.layers[-1]
    batch = Batch(SAMPLES[:1])
    hidden = read_by_target(model, batch, head).hidden
    states = hidden[-1]
    assert torch.equal(head.project(hidden), states)
    positions = torch.arange(states.shape[1])[None]
    mask = torch.ones(states.shape[1], states.shape[1], dtype=torch.bool).tril()[None, None]
    rotation = model.model.model.rotary_emb(states, positions)
    wanted = last(states, attention_mask=mask, position_embeddings=rotation)
    assert torch.allclose(head(batch.ids[:, :-1], states, positions, mask), wanted, atol=1e-4)
    cold: Any = DraftHead.of(spec_of("eagle3", block={"warm_start": False}), model).model
    assert not torch.allclose(cold.project(hidden), states, atol=0.1)


@pytest.mark.parametrize(("kind", "settings"), [("mamba", {}), ("qwen3_5_text", {"num_hidden_layers": 4})])
def test_a_target_of_other_layers_makes_no_warm_start(kind: str, settings: dict[str, Any]) -> None:
    target = tiny.causal_lm(kind, **settings)
    if kind == "mamba":
        head: Any = torch.nn.Module()
        head.config = tiny.network().config
        head.midlayer = tiny.network().model.layers[0]
        before = [value.clone() for value in head.parameters()]
        new_heads.start_warm(head, target)
    else:
        head = DraftHead.of(spec_of("eagle3", block={"warm_start": False}), target).model
        before = [value.clone() for value in head.parameters()]
        target.model.model.layers[-1].self_attn = None
        new_heads.start_warm(head, target)
    assert all(torch.equal(*pair) for pair in zip(before, head.parameters(), strict=True))


def test_gains_of_norms_that_add_one() -> None:
    norm = tiny.network("gemma2").model.norm
    norm.weight.data = torch.linspace(-0.5, 0.5, 32)
    assert torch.allclose(new_heads.gain_of(norm), 1 + norm.weight, atol=1e-4)
    norm = tiny.network().model.norm
    norm.weight.data = torch.linspace(0.5, 1.5, 32)
    assert torch.allclose(new_heads.gain_of(norm), norm.weight, atol=1e-4)


def test_medusa_heads_may_share_the_target_s_output_layer(tmp_path: Path) -> None:
    model = tiny.causal_lm()
    model.model.requires_grad_(False)
    before = {name: value.clone() for name, value in model.model.state_dict().items()}
    _, head = head_of("medusa", model, num_heads=2, own_output=False)
    assert set(head.own_parameters) == {f"{number}.0.linear.{part}" for number in (0, 1) for part in ("weight", "bias")}
    head.save(tmp_path, torch.float32)
    assert [name for name in load_file(tmp_path / "model.safetensors") if "lm_head" in name] == ["lm_heads.0.weight"]
    assert json.loads((tmp_path / "config.json").read_text())["original_lm_head"] is True
    loaded = load_medusa(read_checkpoint(str(tmp_path)), model)
    states = torch.randn(3, 32, generator=RANDOM)
    wanted = torch.stack([head.model.head_logits(number, states) for number in (0, 1)])
    assert torch.allclose(loaded(states), wanted, atol=1e-5)
    assert torch.allclose(wanted[0], model.model.lm_head(head.model[0][0](states)), atol=1e-5)
    first, second = loaded.output_layers()
    assert first is second  # read once in a pass
    assert all(torch.equal(value, before[name]) for name, value in model.model.state_dict().items())


def test_own_output_layers_are_stored_each(tmp_path: Path) -> None:
    model = tiny.causal_lm()
    _, head = head_of("medusa", model, num_heads=2)
    head.save(tmp_path, torch.float32)
    loaded = load_medusa(read_checkpoint(str(tmp_path)), model)
    states = torch.randn(3, 32, generator=RANDOM)
    assert torch.allclose(loaded(states)[1], head.model.head_logits(1, states), atol=1e-5)
    assert loaded.output_layers()[0] is not loaded.output_layers()[1]


def test_passes_have_a_bounded_number_of_positions() -> None:
    samples = [Sample("en", tuple(range(length)), 1) for length in (3, 9, 4, 4, 5, 20)]
    found = [[len(sample.ids) for sample in batch.samples] for batch in batches_of(samples, 3, 12)]
    assert found == [[3, 4, 4], [5], [9], [20]]
    assert [len(batch.samples) for batch in batches_of(samples, 4)] == [4, 2]


@pytest.mark.parametrize("kind", ["llama", "gemma3_text", "qwen3_5_text"])
def test_a_shallow_model_has_the_layers_of_another(kind: str) -> None:
    model = tiny.causal_lm(kind)
    ids = torch.tensor([SAMPLES[0].ids])
    everything = with_layers(model, 4)
    assert torch.allclose(everything.model(ids).logits, model.model(ids).logits, atol=1e-5)
    made = with_layers(model, [0, 1])
    assert made.model.config.num_hidden_layers == 2 and len(made.model.model.layers) == 2
    del model.model.model.layers[2:]
    model.model.config.num_hidden_layers = 2
    assert torch.allclose(made.model(ids).logits, model.model(ids).logits, atol=1e-5)
    assert made.score([1, 2, 3], 1).logits.shape == (1, 257)  # with a cache


def test_layers_are_evenly_spaced() -> None:
    assert layer_numbers(6, 30) == [0, 6, 12, 17, 23, 29]
    assert layer_numbers(1, 30) == [0] and layer_numbers(30, 30) == list(range(30))
    assert layer_numbers([3, 7], 8) == [3, 7]
    for wrong in (31, [3, 3], [4, 2], [30], []):
        with pytest.raises(ConfigError, match="init_layers"):
            layer_numbers(wrong, 30)


@pytest.fixture
def target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr("specbench.training.train.cache_folder", lambda: tmp_path / "cache")
    (tmp_path / "en.txt").write_text("".join(f"line number {number} of some\n" for number in range(6)))
    return str(tiny.save(tmp_path / "target", hidden_size=16, num_hidden_layers=4))


@pytest.mark.parametrize(("given", "numbers"), [("2", [0, 3]), ("0,1,3", [0, 1, 3])])
def test_a_drafter_starts_with_layers_of_its_target(
    specbench: Run, target: str, tmp_path: Path, given: str, numbers: list[int]
) -> None:
    words = ("train", "distill", "--target", target, "--text", f"en={tmp_path / 'en.txt'}", "--num-steps", "1",
             "--set", "max_new_tokens=4", "--init-layers", given, "--learning-rate", "1e-6", "--set", "warmup=0",
             "--output", str(tmp_path / "out"))  # fmt: skip
    code, _, err = specbench(*words)
    assert code == 0, err
    made = load_model(str(tmp_path / "out"))
    assert made.model.config.num_hidden_layers == len(numbers)
    layers = load_model(target).model.model.layers
    for place, number in enumerate(numbers):
        wanted = layers[number].mlp.up_proj.weight
        assert torch.allclose(made.model.model.layers[place].mlp.up_proj.weight, wanted, atol=1e-4)
    assert json.loads((tmp_path / "out" / "training.json").read_text())["settings"]["drafter"] == target
    code, _, err = specbench(*words)
    assert code == 0 and "already finished" in err


@pytest.mark.parametrize(
    ("kind", "words", "problem"),
    [
        ("distill", ("--init-layers", "5"), "init_layers = 5: the model has 4 layers: give fewer"),
        ("distill", ("--init-layers", "2,1"), "ascending order"),
        ("distill", ("--init-layers", "0"), "init_layers"),
        ("eagle3", ("--set", "init_layers=2"), "init_layers: has no effect on a draft head"),
        ("medusa", ("--set", "medusa.own_output=false", "--set", "medusa.num_blocks=0"), "nothing would be learnt"),
    ],
)
def test_a_mistake_is_one_line(
    specbench: Run, target: str, tmp_path: Path, kind: str, words: tuple[str, ...], problem: str
) -> None:
    text, output = f"en={tmp_path / 'en.txt'}", str(tmp_path / "out")
    code, _, err = specbench("train", kind, "--target", target, "--text", text, *words, "--output", output)
    assert code == 2 and problem in err.splitlines()[-1] and err.splitlines()[-1].startswith("error: ")


def test_a_record_without_newer_keys_is_of_a_finished_training(specbench: Run, target: str, tmp_path: Path) -> None:
    words = ("train", "medusa", "--target", target, "--text", f"en={tmp_path / 'en.txt'}", "--num-steps", "1",
             "--set", "max_new_tokens=4", "--set", "medusa.num_heads=2", "--set", "medusa.validation_share=0",
             "--output", str(tmp_path / "out"))  # fmt: skip
    assert specbench(*words)[0] == 0
    path = tmp_path / "out" / "training.json"
    record = json.loads(path.read_text())
    del record["settings"]["medusa"]["own_output"], record["settings"]["init_layers"]
    path.write_text(json.dumps(record))
    code, _, err = specbench(*words)
    assert code == 0 and "already finished" in err
    code, _, err = specbench(*words, "--set", "medusa.own_output=false")
    assert code == 2 and "other settings (medusa" in err


def test_a_slow_training_is_saved_by_the_clock_and_gives_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train_toy(tmp_path, "whole", checkpoint_every=100)
    saved: list[str] = []
    original = loop.replacing_file
    monkeypatch.setattr(loop, "replacing_file", lambda path: (saved.append(path.name), original(path))[1])
    train_toy(tmp_path, "rarely", checkpoint_every=100)
    assert saved == ["state.pt"]
    monkeypatch.setattr(loop, "SAVE_SECONDS", 0.0)
    train_toy(tmp_path, "often", checkpoint_every=100)
    assert len(saved) > 4 and same(tmp_path / "whole", tmp_path / "often")
