"""Recurrent and hybrid models: whatever is fed and thrown back, the states are those of the tokens that remain."""

import random
from typing import Any

import pytest
import torch

from specbench.core.errors import ConfigError
from specbench.decoding.loop import StopRules
from specbench.models.causal_lm import CausalLM
from specbench.models.kv_cache import DUMMY
from specbench.models.loading import check_causal
from specbench.models.recurrent import MAX_REPLAY, NUM_SNAPSHOTS, PROMPT_TAIL, RecurrentStates
from specbench.models.scoring import Output
from tests.support import tiny
from tests.support.engines import plain_logits
from tests.support.loops import autoregressive, speculative

MAMBA2: dict[str, Any] = {
    "mamba_n_heads": 8, "mamba_d_head": 8, "mamba_n_groups": 2, "mamba_d_state": 8, "mamba_chunk_size": 4,
}  # fmt: skip
KINDS: dict[str, dict[str, Any]] = {
    "qwen3_5_text": tiny.two_layers("qwen3_5_text"),
    "mamba2": {},
    "mamba": {},  # passes of several tokens start from an empty state
    "falcon_h1": {"mamba_d_ssm": 64, **MAMBA2},  # attention and a state in every layer
    "bamba": {**MAMBA2, "mamba_chunk_size": 64, "attn_layer_indices": [1]},  # needs positions; chunks of many sizes
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1, "mamba_d_state": 8, "num_experts": 2},
    "lfm2": {"layer_types": ["conv", "full_attention"]},
    "nemotron_h": {
        "layers_block_type": ["linear_attention", "mlp", "full_attention"], "num_hidden_layers": 3,
        "mamba_num_heads": 8, "mamba_head_dim": 8, "n_groups": 2, "ssm_state_size": 8, "chunk_size": 4,
    },
    "zamba2": {
        "layers_block_type": ["linear_attention", "hybrid"], "num_key_value_heads": 4, "num_mem_blocks": 1,
        "mamba_d_state": 8, "n_mamba_heads": 8, "mamba_ngroups": 2, "chunk_size": 4, "use_mamba_kernels": False,
    },
}  # fmt: skip
if DUMMY is None:  # transformers before 5.23 keeps this model's states elsewhere, and it is refused
    del KINDS["nemotron_h"]
NUM_MOVES = 14  # the controls fail with them
CLOSE = {"atol": 2e-3, "rtol": 1e-3}


def options(kind: str) -> dict[str, Any]:
    """Those of two layers, since each kind of layer is enough once."""
    return {"num_hidden_layers": 2} | KINDS.get(kind, {})


def make(kind: str) -> CausalLM:
    return tiny.causal_lm(kind, **options(kind))


class SometimesWrong(CausalLM):
    """A twin that prefers another token after every ninth length: drafts of five are kept whole and in part."""

    def score(self, ids: list[int], num_logits: int, pending: torch.Tensor | None = None) -> Output:
        logits = super().score(ids, num_logits, pending).logits
        return Output(logits.roll(1, dims=-1) if len(ids) % 9 == 0 else logits)


def drafter_of(kind: str, seed: int = 0) -> CausalLM:
    return SometimesWrong(tiny.network(kind, seed, **options(kind)), tiny.tokenizer(), "drafter", None)


def recurrent(model: CausalLM) -> RecurrentStates:
    assert model.sequence.recurrent is not None
    return model.sequence.recurrent


def fed(model: CausalLM) -> list[int]:
    """The lengths of the passes since the last call."""
    lengths = [length for length, _ in model.passes.read()]
    model.passes.clear()
    return lengths


def walk(model: CausalLM, num_moves: int, seed: int) -> None:
    """Throw back to random positions, feed random tokens, alone and in batches; compare with passes without a cache."""
    rng = random.Random(seed)
    ids = [rng.randrange(256) for _ in range(20)]
    for _ in range(num_moves):
        num_logits = rng.choice([1, 1, 1, 2, 5])
        num_kept = len(ids) - rng.choice([0, 0, 1, 2, 5, 20])
        ids = ids[: max(num_kept, 5)] + [rng.randrange(256) for _ in range(rng.randint(num_logits, 6))]
        torch.testing.assert_close(model.score(ids, num_logits).logits, plain_logits(model, ids, num_logits), **CLOSE)
        if rng.random() < 0.3:
            ids = ids[: rng.randint(5, len(ids))]
            size = rng.randint(1, 4)
            suffixes = [[rng.randrange(256) for _ in range(size)] for _ in range(rng.choice([1, 3]))]
            expected = torch.cat([plain_logits(model, ids + suffix, 1) for suffix in suffixes])
            torch.testing.assert_close(model.score_batch(ids, suffixes), expected, **CLOSE)
            assert model.checkpoint() == len(ids)
        places = list(recurrent(model).snapshots)
        assert places == sorted(places) and len(places) <= NUM_SNAPSHOTS


@pytest.mark.parametrize("kind", KINDS)
def test_any_history_gives_the_logits_of_a_plain_pass(kind: str) -> None:
    model = make(kind)
    check_causal(model)
    walk(model, NUM_MOVES, seed=1)
    model.reset()
    walk(model, 2, seed=2)


@pytest.mark.parametrize("kind", ["qwen3_5_text", "mamba2", "mamba", "falcon_h1"])
def test_control_states_that_stay_are_caught(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Snapshots that are not copies, and a way back without one."""

    def same(layer: Any) -> list[torch.Tensor]:
        return [
            *filter(lambda state: state is not None, (*layer.conv_states.values(), *layer.recurrent_states.values()))
        ]

    with monkeypatch.context() as patch, pytest.raises(AssertionError, match="Tensor-likes are not close"):
        patch.setattr("specbench.models.recurrent.copy_states", same)
        walk(make(kind), NUM_MOVES, seed=1)
    with pytest.raises(AssertionError, match="Tensor-likes are not close"):
        monkeypatch.setattr(RecurrentStates, "rewind", lambda self, num_tokens: num_tokens)
        walk(make(kind), NUM_MOVES, seed=1)


@pytest.mark.parametrize("kind", ["mamba", "jamba"])
def test_control_kernels_that_start_from_an_empty_state_are_caught(kind: str) -> None:
    model = make(kind)
    assert recurrent(model).steps_only and not recurrent(make("mamba2")).steps_only
    recurrent(model).steps_only = False
    with pytest.raises(ConfigError, match=r"tiny-.*earlier contents of the cache"):
        check_causal(model)


def test_control_positions_that_start_again_are_caught() -> None:
    model = make("bamba")
    model.sequence._needs_positions = False
    with pytest.raises(ConfigError, match=r"tiny-bamba.*earlier contents of the cache"):
        check_causal(model)


PAIRS = [
    ("qwen3_5_text", "qwen3_5_text"), ("mamba2", "mamba2"), ("mamba2", "gemma2"), ("mamba", "falcon_h1"),
    ("mamba", "mamba"), ("falcon_h1", "mamba2"), ("gemma3_text", "qwen3_5_text"),
]  # fmt: skip


@pytest.mark.parametrize("gamma", [pytest.param(1, marks=pytest.mark.slow), 5])
@pytest.mark.parametrize(("kind", "draft_kind"), PAIRS)
def test_greedy_speculative_equals_autoregressive(kind: str, draft_kind: str, gamma: int) -> None:
    """As target and as drafter; a drafter of another kind is a stranger, whose drafts are nearly all thrown back."""
    target = make(kind)
    stranger = kind != draft_kind
    drafter = drafter_of(draft_kind, seed=int(stranger))
    prompt = target.encode_prompt("A few words, ", chat=False)
    plain = autoregressive(target, prompt, StopRules(12))
    drafted = speculative(target, drafter, prompt, StopRules(12), gamma=gamma)
    assert drafted.token_ids == plain.token_ids
    if not stranger:
        assert 0 < sum(step.num_accepted for step in drafted.steps) < sum(step.num_drafted for step in drafted.steps)


@pytest.mark.parametrize("kind", ["qwen3_5_text", "mamba2", "mamba"])
def test_a_step_feeds_only_what_was_accepted_and_what_is_drafted(kind: str) -> None:
    """One target pass a step: the tokens accepted in the step before again, the newest token and the drafts."""
    gamma, target, drafter = 5, make(kind), drafter_of(kind)
    prompt = target.encode_prompt("A prompt of more than a few tokens, never to be fed again.", chat=False)
    generation = speculative(target, drafter, prompt, StopRules(20), gamma=gamma)
    steps = generation.steps
    assert {step.num_accepted < step.num_drafted for step in steps[:-1]} == {True, False}
    replays = [0, *(step.num_accepted + 1 if step.num_accepted < step.num_drafted else 0 for step in steps[:-1])]
    expected = [replay + 1 + step.num_drafted for replay, step in zip(replays, steps, strict=True)]
    assert [length for length, _ in generation.target_passes] == expected
    # The drafter learns from its first way back that it needs a snapshot before each pass.
    again = speculative(target, drafter, prompt, StopRules(20), gamma=gamma)
    assert again.token_ids == generation.token_ids
    first, second = ([length for length, _ in run.draft_passes] for run in (generation, again))
    assert len(first) == len(second) == sum(step.num_drafted for step in steps)
    assert sum(length > 2 for length in first) <= 1 and max(first) <= MAX_REPLAY + gamma
    assert max(second) == 2  # the last draft of the step before, never fed, and the token after it


def test_snapshots_of_speculative_decoding_cost_the_baseline_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Autoregressive decoding takes a snapshot now and then, whatever was decoded with the model before."""
    target, prompt, taken = make("qwen3_5_text"), list(range(20)), list[int]()
    speculative(target, drafter_of("qwen3_5_text"), prompt, StopRules(12), gamma=3)
    add = RecurrentStates._add
    monkeypatch.setattr(
        RecurrentStates, "_add", lambda self, place, kept: taken.append(place) or add(self, place, kept)
    )
    autoregressive(target, prompt, StopRules(60))
    assert taken == list(range(20 - PROMPT_TAIL, 20 + 59, MAX_REPLAY))


def test_a_long_draft_is_replayed_at_most_by_half() -> None:
    """Twenty drafts have eight snapshots, denser towards the end."""
    model, prompt, rng = make("mamba2"), list(range(40)), random.Random(0)
    model.score(prompt, 1)
    model.score([*prompt, 1], 1)
    model.score([*prompt, 2], 1)  # the first way back: from here on there are snapshots
    for num_back in (1, 4, 9, 16, 19):
        ids = prompt + [rng.randrange(256) for _ in range(20)]
        for end in range(len(prompt) + 1, len(ids) + 1):
            model.score(ids[:end], 1)
        fed(model)
        model.score([*ids[:-num_back], 255], 1)
        assert fed(model)[0] <= 2 + num_back / 2


@pytest.mark.parametrize("kind", ["qwen3_5_text", "mamba2", "mamba"])
def test_another_end_of_the_prompt_feeds_only_the_end_again(kind: str) -> None:
    model, ids = make(kind), list(range(60))
    model.score(ids, 1)
    model.score(ids, 3)
    model.score([*ids[:55], 255, 254], 1)
    assert fed(model) == [60, PROMPT_TAIL, 57 - (60 - PROMPT_TAIL)]


@pytest.mark.parametrize("kind", ["qwen3_5_text", "mamba2", "mamba"])
def test_checkpoint_is_a_place_to_come_back_to_without_a_replay(kind: str) -> None:
    model, ids = make(kind), list(range(40))
    model.score(ids, 1)
    point = model.checkpoint()
    first = model.score([*ids, 5, 6, 7], 3).logits
    model.rollback(point)
    assert model.checkpoint() == point == 40
    fed(model)
    assert torch.equal(model.score([*ids, 5, 6, 7], 3).logits, first)
    assert fed(model) == [3]


def test_a_batch_leaves_the_states_as_they_were() -> None:
    model, ids = make("qwen3_5_text"), list(range(20))
    expected = make("qwen3_5_text").score([*ids, 3], 1).logits
    model.score_batch(ids, [[1, 2], [3, 4], [5, 6]])
    assert fed(model) == [20, 6]
    torch.testing.assert_close(model.score([*ids, 3], 1).logits, expected, **CLOSE)
    assert fed(model) == [1]
    model.reset()
    first = model.score_batch([], [[7], [8]])  # nothing before: the states are made and dropped again
    torch.testing.assert_close(first, torch.cat([plain_logits(model, [token], 1) for token in (7, 8)]), **CLOSE)
    torch.testing.assert_close(model.score([7], 1).logits, first[:1], **CLOSE)


def test_a_pass_that_breaks_off_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    model, ids = make("falcon_h1"), list(range(20))
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(model.model.lm_head, "forward", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        model.score(ids, 1)
    model.reset()
    torch.testing.assert_close(model.score(ids[5:], 2).logits, plain_logits(model, ids[5:], 2), **CLOSE)


def test_two_models_on_one_network() -> None:
    network = tiny.network("mamba", **options("mamba"))
    first, second = (CausalLM(network, tiny.tokenizer(), name, None) for name in ("first", "second"))
    for seed in (1, 2):
        walk(first, 5, seed)
        walk(second, 5, seed)


@pytest.mark.parametrize("kind", ["recurrent_gemma", "minimax"])
def test_states_outside_of_the_cache_are_refused(kind: str) -> None:
    """When it is loaded, or with some versions of transformers in its first pass."""
    states, keys = "the recurrent layers .* do not keep their states", "does not store its keys in the given cache"
    with pytest.raises(ConfigError, match=rf"model 'tiny-{kind}'(: {states}| {keys})"):
        tiny.causal_lm(kind).score([1, 2], 1)


@pytest.mark.parametrize("kind", ["xlstm", "rwkv"])
def test_models_with_another_way_to_go_on_are_refused(kind: str) -> None:
    with pytest.raises(ConfigError, match=rf"model 'tiny-{kind}'"):
        check_causal(tiny.causal_lm(kind, attention_hidden_size=32))
