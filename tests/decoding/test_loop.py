"""The loop on toy models and tiny networks: what it emits, what it counts, how many passes it makes."""

import pytest
import torch

from specbench.decoding.drafters import ModelDrafter
from specbench.decoding.loop import StopRules, decode
from specbench.decoding.sampling import Sampling
from specbench.decoding.verification import Fuzzy, rejection
from tests.support import tiny
from tests.support.loops import GREEDY, SometimesWrong, autoregressive, speculative
from tests.support.toys import TableModel

PLAIN = Sampling(1.0)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("gamma", [1, 3, 7])
def test_greedy_speculative_equals_autoregressive_on_tables(seed: int, gamma: int) -> None:
    target, draft = TableModel(6, seed, eos_token_ids=[5]), TableModel(6, seed + 50, eos_token_ids=[5])
    stop = StopRules(40, eos_token_ids=frozenset({5}))
    assert speculative(target, draft, [0, 1], stop, gamma).token_ids == autoregressive(target, [0, 1], stop).token_ids


@pytest.mark.parametrize("kind", sorted(tiny.KINDS))
def test_greedy_speculative_equals_autoregressive_on_networks(kind: str) -> None:
    options = tiny.two_layers(kind)
    target = tiny.causal_lm(kind, **options)
    twin = SometimesWrong(tiny.network(kind, **options), tiny.tokenizer(), "twin", None)
    prompt = target.encode_prompt("A few words to begin with.", chat=False)
    plain = autoregressive(target, prompt, StopRules(12))
    drafted = speculative(target, twin, prompt, StopRules(12))
    assert drafted.token_ids == plain.token_ids
    assert 0 < sum(step.num_accepted for step in drafted.steps) < sum(step.num_drafted for step in drafted.steps)


@pytest.mark.parametrize("kind", sorted(tiny.KINDS))
def test_greedy_autoregressive_equals_generate(kind: str) -> None:
    model = tiny.causal_lm(kind, **tiny.two_layers(kind))
    prompt = model.encode_prompt("Once upon a time", chat=False)
    expected = model.model.generate(torch.tensor([prompt]), max_new_tokens=12, do_sample=False)[
        0, len(prompt) :
    ].tolist()
    assert autoregressive(model, prompt, StopRules(12)).token_ids == expected


def test_a_perfect_drafter_needs_one_pass_per_gamma_plus_one_tokens() -> None:
    model, twin = TableModel(5, 3), TableModel(5, 3)
    generation = speculative(model, twin, [0, 1], StopRules(1 + 5 * 6), gamma=4)
    assert len(generation.steps) == 6
    assert all(step.num_accepted == 4 and step.num_emitted == 5 for step in generation.steps)
    assert generation.positions["overlap"] == [1.0] * 24


def test_the_ledger_of_a_sampled_run() -> None:
    target, draft = TableModel(6, 1), TableModel(6, 2)
    generation = speculative(target, draft, [0, 1], StopRules(50), sampling=PLAIN)
    num_verified = sum(step.num_verified for step in generation.steps)
    for name in ("target_prob", "draft_prob", "overlap"):
        column = generation.positions[name]
        assert column is not None and len(column) == num_verified
        assert all(0.0 <= value <= 1.0 + 1e-6 for value in column)
    assert generation.positions["divergence"] is None
    assert len(generation.target_passes) == len(generation.steps)
    assert len(generation.draft_passes) == sum(step.num_drafted for step in generation.steps)


def test_fuzzy_reports_divergences_and_no_overlap() -> None:
    target, draft = TableModel(6, 1), TableModel(6, 2)
    rule = Fuzzy(divergence="js", threshold=0.2)
    generation = speculative(target, draft, [0, 1], StopRules(50), rule=rule)
    divergences = generation.positions["divergence"]
    assert divergences is not None and generation.positions["overlap"] is None
    assert sum(value < 0.2 for value in divergences) == sum(step.num_accepted for step in generation.steps)


def test_same_tokens_counted_alike_for_every_method() -> None:
    """Same output → same count of new tokens, whether it came from the baseline or from a drafter (also after EOS)."""
    target, draft = TableModel(6, 4, eos_token_ids=[2]), TableModel(6, 4, eos_token_ids=[2])
    stop = StopRules(100, eos_token_ids=frozenset({2}))
    plain, drafted = autoregressive(target, [0, 1], stop), speculative(target, draft, [0, 1], stop)
    assert plain.token_ids == drafted.token_ids
    assert sum(s.num_emitted for s in plain.steps) == sum(s.num_emitted for s in drafted.steps)
    assert plain.token_ids.count(2) <= 1


def test_drafted_end_token_ends_the_draft() -> None:
    draft = TableModel(4, 0, eos_token_ids=[0, 1, 2, 3])
    proposal = ModelDrafter(draft, GREEDY).propose([1, 2], 5, torch.Generator())
    assert proposal.num_drafted == 1


def test_context_limit_ends_a_generation() -> None:
    target, draft = TableModel(6, 1), TableModel(6, 2)
    generation = speculative(target, draft, [0, 1], StopRules(50, context_limit=12))
    assert generation.finish == "context"
    assert len(generation.token_ids) == 10


def test_one_token_has_no_steps() -> None:
    generation = speculative(TableModel(6, 1), TableModel(6, 2), [0, 1], StopRules(1))
    assert len(generation.token_ids) == 1
    assert generation.steps == []
    assert generation.positions["target_prob"] is None


@pytest.mark.parametrize("num_prompt", [2, 12])
def test_a_drafter_pauses_at_its_context_and_the_target_goes_on(num_prompt: int) -> None:
    """It reads no token behind it, and nothing of a prompt that is too long for it."""
    target, draft = TableModel(6, 1), TableModel(6, 1)  # all drafts are accepted
    reads: list[int] = []
    score, prompt, stop = draft.score, [number % 6 for number in range(num_prompt)], StopRules(30)
    draft.score = lambda ids, *given: reads.append(len(ids)) or score(ids, *given)  # type: ignore[method-assign]
    drafter = ModelDrafter(draft, GREEDY)
    drafter.pauses_at = 12
    generation = decode(target, drafter, rejection, prompt, num_draft_tokens=4, sampling=GREEDY, stop=stop,
                        generator=torch.Generator().manual_seed(0))  # fmt: skip
    assert generation.finish == "length" and generation.token_ids == autoregressive(target, prompt, stop).token_ids
    ends = [num_prompt + 1 + sum(s.num_emitted for s in generation.steps[:n]) for n in range(len(generation.steps))]
    drafted = [step.num_drafted for step in generation.steps]
    assert drafted == [min(4, max(0, 12 - end), 30 - 1 - (end - num_prompt)) for end in ends]
    assert max(reads, default=0) <= 12 and bool(reads) == (num_prompt < 12)
