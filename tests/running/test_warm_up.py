"""Warming up: a subset at a time, just before it is measured, and until the speed is steady.

How long a block takes is scripted: no test reads a real clock.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from specbench.core import progress
from specbench.decoding.build import build_decoder
from specbench.decoding.decoder import DraftingDecoder
from specbench.decoding.sampling import Sampling
from specbench.models.causal_lm import ModelPair
from specbench.records.generation import External
from specbench.results.leaderboard import load
from specbench.results.leaderboard_files import validate
from specbench.running import warm_up as module
from specbench.running.measure import planned_tokens
from specbench.running.prompts import PromptRenderer
from specbench.running.warm_up import (
    FIRST_BLOCKS_CPU,
    MAX_BLOCKS,
    MAX_BLOCKS_CPU,
    MIN_BLOCKS,
    NUM_NEW_TOKENS,
    TEXT,
    TOP_UP_BLOCKS,
    Budget,
    WarmUp,
    is_steady,
    warm_up,
    warm_up_subset,
)
from specbench.specs.catalogue import load_method, with_overrides
from specbench.tasks.examples import Example
from tests.support import tiny
from tools.warmup import H100, blocks_until_steady, series, simulated, simulated_run

Run = Callable[..., list[tuple[str, str]]]
LENGTHS = {"en": 1, "de": 30, "fr": 5}  # of the prompts: de needs a longer warm-up than en, fr a shorter one


@pytest.fixture
def decoded(
    monkeypatch: pytest.MonkeyPatch, specbench: Callable[..., tuple[int, str, str]], tiny_pair: tuple[str, str],
    tmp_path: Path,
) -> Run:  # fmt: skip
    """What a run decodes, in order: the method and the subset, `warm-up` for the filler."""
    for subset, length in LENGTHS.items():
        rows = "".join(f"{subset}: {'why ' * length}\t{n}\n" for n in range(2))
        (tmp_path / f"mgsm_{subset}.tsv").write_text(rows, encoding="utf-8")
    seen: list[tuple[str, str]] = []
    generate = DraftingDecoder.generate

    def spy(self: DraftingDecoder, prompt_ids: list[int], *given: Any, **named: Any) -> Any:
        text = self.model.decode_text(prompt_ids)
        seen.append((self.method.name, next((s for s in LENGTHS if f"{s}: why" in text), "warm-up")))
        assert (text[:4] == TEXT[:4]) == (seen[-1][1] == "warm-up")
        return generate(self, prompt_ids, *given, **named)

    monkeypatch.setattr(DraftingDecoder, "generate", spy)

    def run(subsets: str, *more: str) -> list[tuple[str, str]]:
        seen.clear()
        if "--warm-up" not in more:  # time enough for a block and a long text, on whatever machine
            more = (*more, "--warm-up", "60")
        code, _, err = specbench(
            "run", "--task", "mgsm", "--method", "sd", "--data", str(tmp_path), "--subset", subsets, "--output", "out",
            "--target", tiny_pair[0], "--drafter", tiny_pair[1], "--set", "generation.max_new_tokens=8", *more,
        )  # fmt: skip
        assert code == 0, err
        return list(seen)

    return run


def test_a_subset_is_warmed_up_just_before_its_first_example(decoded: Run) -> None:
    """The subsets take turns: their other examples follow without a warm-up."""
    places = [place for _, place in decoded("en,de,fr")]
    long_and_block, block = ["warm-up"] * 4, ["warm-up"] * 2  # of both methods
    first = [*long_and_block, *["en"] * 2, *long_and_block, *["de"] * 2, *block, *["fr"] * 2]
    assert places == [*first, *["en"] * 2, *["de"] * 2, *["fr"] * 2]


def test_a_run_names_what_it_decodes(decoded: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a line can break its silence: `specbench.core.progress.Heartbeat`."""
    said: list[str] = []
    generate = DraftingDecoder.generate

    def spy(self: DraftingDecoder, *given: Any, **named: Any) -> Any:
        said.append(progress._activities[-1].text)
        return generate(self, *given, **named)

    monkeypatch.setattr(DraftingDecoder, "generate", spy)
    decoded("en")
    assert [line.partition(" · ")[0] for line in said[:4]] == [
        f"warming up mgsm/en: {name}, {what}" for what in ("block 1", "a text of 47 tokens") for name in ("ar", "sd")
    ]
    assert " of 60 s · up to " in said[3]
    assert said[4:6] == [f"mgsm/en, example 0: {name} is generating" for name in ("ar", "sd")]
    assert not progress._activities


def test_what_is_measured_already_is_not_warmed_up(decoded: Run) -> None:
    decoded("en,de")
    assert decoded("en,de") == []
    assert [place for _, place in decoded("en,de,fr")] == ["warm-up"] * 4 + ["fr"] * 4


Scripted = Callable[[Sequence[float]], list[int]]


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> Scripted:
    """Takes the seconds per token of all generations to come, the last one for ever; returns a list that grows by the
    length of each one's prompt. Nothing is decoded, and time passes for new tokens alone."""
    monkeypatch.setattr(module, "is_steady", is_steady)
    monkeypatch.setattr(module, "NUM_NEW_TOKENS", NUM_NEW_TOKENS)
    now = [0.0]
    monkeypatch.setattr(module, "time", SimpleNamespace(perf_counter=lambda: now[0]))

    def script(times: Sequence[float]) -> list[int]:
        lengths: list[int] = []

        def generate(self: DraftingDecoder, ids: list[int], stop: Any, **named: Any) -> Any:
            seconds = times[min(len(lengths), len(times) - 1)] * stop.max_new_tokens
            lengths.append(len(ids))
            now[0] += seconds
            return SimpleNamespace(token_ids=[0] * (stop.max_new_tokens + 1), decode_seconds=seconds, external=None)

        monkeypatch.setattr(DraftingDecoder, "generate", generate)
        return lengths

    return script


def decoder(name: str = "ar", sampling: Sampling | None = None, pair: ModelPair | None = None) -> Any:
    return build_decoder(load_method(name), pair or ModelPair(tiny.causal_lm()), sampling or Sampling())


def warm(own: Any, num_tokens: int, limit: int | None = 1024, max_new_tokens: int = 20, **budget: Any) -> WarmUp:
    """Warms up one decoder."""
    return warm_up([(own, num_tokens)], limit, max_new_tokens, Budget(**budget))[own.method.name]


FIRST = 2  # generations before the blocks of a new decoder: a short block, and the long text


def test_a_steady_decoder_takes_the_fewest_blocks(scripted: Scripted) -> None:
    """After a short first block, which tells the speed, and the long text."""
    lengths = scripted([0.5, 0.5, 0.01])
    assert warm(decoder(), 100) == WarmUp(1 + MIN_BLOCKS, pytest.approx(2 * 4 * 0.5 + MIN_BLOCKS * 0.2), True)
    assert lengths == [NUM_NEW_TOKENS, 96] + [NUM_NEW_TOKENS] * MIN_BLOCKS


def test_what_was_steady_takes_one_block_and_a_longer_text_if_need_be(scripted: Scripted) -> None:
    lengths = scripted([0.01])
    pair = ModelPair(tiny.causal_lm())
    own, sampled = decoder(pair=pair), decoder(pair=pair, sampling=Sampling(1.0))
    warm(own, 100)
    del lengths[:]
    for num_tokens in (90, 100, 110):
        assert warm(own, num_tokens).blocks == 1
    assert warm(own, 900, 30).blocks == 1
    assert lengths == [20, 20, 106, 20, 10]
    assert warm(sampled, 100) == WarmUp(1, pytest.approx(0.24), True), "the same method and model"
    assert lengths[5:] == [96, 20]
    assert warm(decoder(), 100).blocks == 1 + MIN_BLOCKS, "another model"


def test_a_speed_that_fell_since_is_found_by_the_one_block(scripted: Scripted) -> None:
    scripted([0.01] * (FIRST + MIN_BLOCKS) + [0.02])
    own = decoder()
    assert warm(own, 100).blocks == 1 + MIN_BLOCKS
    again = warm(own, 100)
    assert again.steady and again.blocks >= MIN_BLOCKS - 1


@pytest.mark.parametrize("num_before", [16, 24, 32, 48, 64])
@pytest.mark.parametrize("factor", [0.5, 2.0])
def test_the_one_block_shows_a_change_after_many_blocks(
    scripted: Scripted, monkeypatch: pytest.MonkeyPatch, num_before: int, factor: float
) -> None:
    monkeypatch.setattr(module, "MAX_BLOCKS_CPU", 1000)
    scripted([0.01] * (FIRST + num_before) + [0.01 * factor])
    own = decoder()
    assert warm(own, 100).blocks == 1 + MIN_BLOCKS
    assert [warm(own, 100).blocks for _ in range(num_before - MIN_BLOCKS)] == [1] * (num_before - MIN_BLOCKS)
    changed = warm(own, 100)
    assert changed.steady and MIN_BLOCKS - 1 <= changed.blocks <= MIN_BLOCKS
    assert warm(own, 100).blocks == 1


def test_after_the_budget_what_was_steady_gets_as_many_blocks_as_the_rule_needs(scripted: Scripted) -> None:
    """A change is found, and so is that one block was slow by chance; what never settles takes one block."""
    even = [0.01] * (FIRST + MAX_BLOCKS_CPU)
    for after in ([0.02], [0.05, 0.01]):
        scripted(even + after)
        own = decoder()
        assert all(warm(own, 100).steady for _ in range(MAX_BLOCKS_CPU - MIN_BLOCKS + 1))
        again = warm(own, 100)
        assert 1 < again.blocks <= MIN_BLOCKS + 1 and again.steady
    scripted(even + [0.01 * 1.3**n for n in range(1, 200)])
    own = decoder()
    assert all(warm(own, 100).steady for _ in range(MAX_BLOCKS_CPU - MIN_BLOCKS + 1))
    found = [warm(own, 100) for _ in range(8)]
    assert not any(each.steady for each in found)
    assert [each.blocks for each in found] == [MIN_BLOCKS + 1, *[TOP_UP_BLOCKS] * 6, 1]


def test_a_single_slow_block_costs_more_blocks_alone(scripted: Scripted) -> None:
    scripted([0.01] * (FIRST + 3 * MIN_BLOCKS) + [0.05] + [0.01] * 50)
    own = decoder()
    assert all(warm(own, 100).steady for _ in range(2 * MIN_BLOCKS + 1))
    again = warm(own, 100)
    assert again.steady and 1 < again.blocks <= MIN_BLOCKS + 1


UNEVEN = [1e-9 * 1.3**n for n in range(200)]


@pytest.mark.parametrize(("num_planned", "most"), [(2 * 40, 8), (1600, 8), (10 * 20 * 17 - 1, 16), (320_000, 64)])
def test_on_a_gpu_the_blocks_are_a_tenth_of_the_tokens_but_as_many_as_the_rule_needs(
    scripted: Scripted, monkeypatch: pytest.MonkeyPatch, num_planned: int, most: int
) -> None:
    """Also if --warm-up allows no time, since its clock rises slowly."""
    scripted(UNEVEN)
    own = decoder()
    monkeypatch.setattr(own.model, "device", torch.device("cuda"))
    found = [warm(own, 100, num_planned=num_planned) for _ in range(2)]
    assert [(each.blocks, each.steady) for each in found] == [(1 + most, False), (TOP_UP_BLOCKS, False)]
    other = decoder()
    monkeypatch.setattr(other.model, "device", torch.device("cuda"))
    scripted(UNEVEN)
    found = [warm(other, 100, num_planned=num_planned, seconds=0.0) for _ in range(2)]
    assert [(each.blocks, each.steady) for each in found] == [(1 + MIN_BLOCKS, False), (TOP_UP_BLOCKS, False)]


# Seconds per token, planned tokens of each of two methods, --warm-up: blocks, seconds of both, and lengths of prompts.
BUDGETS = {
    "a tenth of 2 · 10 s; blocks of 12 tokens": (0.1, 100, None, 1, 1.6, [20, 20, 96, 96]),
    "a tenth of 2 · 64 s": (1.0, 64, None, 1, 8.0, [20, 20]),
    "a tenth of 2 · 800 s": (1.0, 800, None, 4, 136.0, None),
    "none": (0.01, 10**6, 0.0, 1, 0.08, [20, 20]),
}


@pytest.mark.parametrize("case", BUDGETS)
def test_on_a_cpu_the_time_bounds_the_warm_up_and_all_methods_have_equal_blocks(scripted: Scripted, case: str) -> None:
    """Fewer blocks than the rule needs do not tell whether the speed was steady."""
    per_token, num_planned, given, blocks, seconds, expected = BUDGETS[case]
    lengths, budget = scripted([per_token]), Budget(given, num_planned)
    pair = ModelPair(tiny.causal_lm())
    found = warm_up([(decoder("ar", pair=pair), 100), (decoder("pld", pair=pair), 100)], 1024, 512, budget)
    assert list(found) == ["ar", "pld"] and {each.blocks for each in found.values()} == {blocks}
    assert all(each.steady is None for each in found.values())
    assert budget.spent == pytest.approx(seconds) == sum(each.seconds for each in found.values())
    assert expected is None or lengths == expected


@pytest.mark.parametrize(("given", "prompts"), [(0.2, [20]), (2.6, [20, 66]), (4.6, [20, 96, 12])])
def test_the_long_text_is_as_long_as_there_is_time_to_read_it(
    monkeypatch: pytest.MonkeyPatch, given: float, prompts: list[int]
) -> None:
    """Reading takes .02 s a token, and a new token .1 s: .8 s for the first block, 2.4 s for the whole text."""
    monkeypatch.setattr(module, "NUM_NEW_TOKENS", NUM_NEW_TOKENS)
    monkeypatch.setattr(module, "is_steady", is_steady)
    now, lengths = [0.0], []
    monkeypatch.setattr(module, "time", SimpleNamespace(perf_counter=lambda: now[0]))

    def generate(self: DraftingDecoder, ids: list[int], stop: Any, **named: Any) -> Any:
        lengths.append(len(ids))
        seconds = 0.1 * stop.max_new_tokens
        now[0] += 0.02 * len(ids) + seconds
        return SimpleNamespace(token_ids=[0] * (stop.max_new_tokens + 1), decode_seconds=seconds, external=None)

    monkeypatch.setattr(DraftingDecoder, "generate", generate)
    warm(decoder(), 100, seconds=given)
    assert lengths == prompts and now[0] <= max(0.8, given)


def test_one_method_that_is_not_steady_gives_all_more_blocks(scripted: Scripted) -> None:
    """Blocks take turns: every second one, of pld, gets slower and slower."""
    scripted([value for n in range(100) for value in (0.01, 0.01 * 1.05**n)])
    pair = ModelPair(tiny.causal_lm())
    found = warm_up([(decoder("ar", pair=pair), 100), (decoder("pld", pair=pair), 100)], 1024)
    assert [(each.blocks, each.steady) for each in found.values()] == [(17, True), (17, False)]


def test_a_subset_without_time_has_a_short_block_and_what_the_long_ones_before_told(scripted: Scripted) -> None:
    """A block of 4 tokens is too noisy to judge the speed by, however many there are."""
    lengths = scripted([0.01] * (FIRST + MIN_BLOCKS) + [0.01 * 1.3**n for n in range(100)])
    own, other = decoder(), decoder()
    assert warm(own, 100).steady
    del lengths[:]
    found = [warm(own, 100, seconds=0.0) for _ in range(2 * MIN_BLOCKS)]
    assert lengths == [4] * 2 * MIN_BLOCKS and {(each.blocks, each.steady) for each in found} == {(1, True)}
    assert {warm(other, 100, seconds=0.0).steady for _ in range(2 * MIN_BLOCKS)} == {None}
    assert warm(other, 100).steady is False and warm(other, 100, seconds=0.0).steady is None, "uneven, then not tested"


def test_more_time_than_the_default_gives_more_blocks(scripted: Scripted) -> None:
    scripted([0.01 * 1.04**n for n in range(500)])
    found = warm(decoder(), 100, num_planned=100, seconds=100.0)
    assert found.blocks > MAX_BLOCKS and 90 < found.seconds <= 100


def test_the_progress_names_method_block_and_time(scripted: Scripted) -> None:
    scripted([0.1])
    lines: list[str] = []
    warm_up([(decoder(), 100)], 1024, 64, Budget(num_planned=2000, num_left=1000), lines.append)
    assert lines[:3] == [
        "ar, block 1",
        "ar, a text of 100 tokens · 0 of 20 s · up to 120 s left",
        "ar, block 2 · 1 of 20 s · up to 119 s left",
    ]
    assert lines[-1] == "ar, block 9 · 15 of 20 s · up to 105 s left"


def test_a_stall_that_spends_the_budget_is_forgotten_by_the_next_subsets(scripted: Scripted) -> None:
    """One subset decodes at a tenth of the speed, for as many seconds as the budget has."""
    scripted([0.2, 0.2, *[0.2 * 1.3**n for n in range(MIN_BLOCKS)], *[0.1] * 100])
    own = decoder()
    found = [warm(own, 100) for _ in range(11)]
    assert found[0].seconds > module.MAX_SECONDS and not found[0].steady
    assert [each.steady for each in found[1:]] == [False] + [True] * 9
    assert [each.blocks for each in found[1:]] == [TOP_UP_BLOCKS, TOP_UP_BLOCKS, *[1] * 8]


@pytest.mark.parametrize(("max_new_tokens", "num_new"), [(1, 4), (8, 8), (32, 20), (512, 20)])
def test_a_block_is_no_longer_than_the_answers(
    monkeypatch: pytest.MonkeyPatch, max_new_tokens: int, num_new: int
) -> None:
    """After the short first block and the long text."""
    monkeypatch.setattr(module, "is_steady", bool)
    monkeypatch.setattr(module, "NUM_NEW_TOKENS", NUM_NEW_TOKENS)
    seen = []
    generate = DraftingDecoder.generate

    def spy(self: DraftingDecoder, ids: list[int], *given: Any, **named: Any) -> Any:
        found = generate(self, ids, *given, **named)
        seen.append((len(ids), len(found.token_ids)))
        return found

    monkeypatch.setattr(DraftingDecoder, "generate", spy)
    warm(decoder(), 100, None, max_new_tokens)
    assert seen == [(20, 4), (96, 4), *([(num_new, num_new)] if num_new > 4 else [])]


def test_a_run_says_what_it_measures(decoded: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    planned = []

    def spy(decoders: Any, context_limit: int, max_new_tokens: int, budget: Budget, progress: Any) -> dict[str, WarmUp]:
        planned.append((budget.seconds, budget.num_planned, budget.num_left))
        assert max_new_tokens == 8
        return {}

    monkeypatch.setattr(module, "warm_up", spy)
    decoded("en,de")
    assert planned == [(60.0, 4 * 8, 4 * 8), (60.0, 4 * 8, 3 * 8)]
    decoded("en,de,fr", "--warm-up", "7.5")
    assert planned[2:] == [(7.5, 2 * 8, 2 * 8)], "without what is measured already"


def test_what_is_to_be_measured_is_expected_from_the_answers_so_far() -> None:
    """Of two tasks with 100 and 10 new tokens at most; the second answer of the first is recorded already."""
    blocks = [
        SimpleNamespace(
            key=(task, number),
            run=SimpleNamespace(task=SimpleNamespace(generation=SimpleNamespace(max_new_tokens=most))),
        )
        for task, most in (("long", 100), ("short", 10)) for number in range(3)
    ]  # fmt: skip
    answers: Any = {("long", n): 25 for n in range(3)}
    plan: Any = blocks
    assert planned_tokens(plan, {}, {}) == 330
    done = {("long", 1): answers["long", 1]}
    assert planned_tokens(plan, done, done) == 230 // 4
    assert planned_tokens(plan, done, answers) == 230 // 4
    assert planned_tokens(plan, {}, dict.fromkeys(answers, 50)) == 165


def test_the_budget_ends_what_does_not_settle(scripted: Scripted, monkeypatch: pytest.MonkeyPatch) -> None:
    scripted([1e-5 * 1.3**n for n in range(200)])
    own = decoder()
    found = warm(own, 100)
    assert (found.blocks, found.steady) == (1 + FIRST_BLOCKS_CPU, False) and found.seconds < module.MAX_SECONDS
    assert warm(own, 100).blocks == MAX_BLOCKS_CPU - FIRST_BLOCKS_CPU, "the whole budget"
    more = [warm(own, 100).blocks for _ in range(12)]
    assert more == [TOP_UP_BLOCKS] * 8 + [1] * 4, "each subset afterwards: less and less"
    monkeypatch.setattr(module, "MAX_SECONDS", 1e9)
    for device, most in (("cpu", FIRST_BLOCKS_CPU), ("cuda", MAX_BLOCKS)):
        other = decoder()
        monkeypatch.setattr(other.model, "device", torch.device(device))
        scripted([1.1**n for n in range(200)])
        times = [1.1**n for n in range(most + FIRST)]
        seconds = 4 * sum(times[:FIRST]) + 20 * sum(times[FIRST:])
        assert warm(other, 100) == WarmUp(1 + most, pytest.approx(seconds), False)


def test_the_seconds_end_it_too_but_not_before_the_rule_can_tell(scripted: Scripted) -> None:
    scripted([0.5, *(0.5 * 1.2**n for n in range(200))])
    found = warm(decoder(), 100)
    assert (found.blocks, found.steady) == (1 + MIN_BLOCKS, False) and found.seconds > module.MAX_SECONDS
    scripted([5.0])
    assert warm(decoder(), 100) == WarmUp(1 + MIN_BLOCKS, 5.0 * (2 * 4 + 20 * MIN_BLOCKS), True)


def test_the_rule_on_what_a_gpu_did() -> None:
    """Answers one after the other: not steady in any of the sixteen, and steady after as many that are."""
    assert not any(is_steady(H100[:num]) for num in range(len(H100) + 1))
    found = blocks_until_steady(series()["H100, 2 blocks"], MAX_BLOCKS)
    assert found is not None and 2 * 16 < found <= 48
    assert blocks_until_steady(series()["H100, 2 blocks"], MAX_BLOCKS_CPU) is None


@pytest.mark.parametrize("noise", [0.03, 0.1])
def test_the_rule_in_simulations(noise: float) -> None:
    """Even series end soon, and a settling one is hardly ever said to be steady on its way."""
    for name, most, is_even in (("even", 10, True), ("settles 4, 2", 20, False), ("step at 4", 16, False)):
        num, wrong, never = simulated(series()[name], noise, MAX_BLOCKS_CPU, 100)
        assert num <= most and wrong <= 0.02 and never <= 0.05
        assert is_even or num > MIN_BLOCKS
    _, wrong, _ = simulated(series()["settles 4, 10"], noise, MAX_BLOCKS, 100)
    assert wrong <= 0.15


def test_whole_runs_in_simulations(monkeypatch: pytest.MonkeyPatch) -> None:
    """An even speed costs the fewest blocks; a stall of one subset leaves hardly more than that one unsteady."""
    monkeypatch.setattr(module, "is_steady", is_steady)
    num_blocks, num_unsteady = simulated_run("even", 0.03, 50)
    assert 18 <= num_blocks <= 20 and num_unsteady == 0
    _, num_unsteady = simulated_run("stall", 0.03, 50)
    assert 0.5 < num_unsteady <= 3
    assert simulated_run("even", 0.3, 50)[0] < 70


def test_an_external_decoder_is_warmed_by_the_same_rule() -> None:
    """Its clock may start with the prompt, or after several tokens."""
    plain = SimpleNamespace(token_ids=[0] * 11, decode_seconds=2.0, external=None)
    assert module.seconds_per_token(plain) == 0.2  # type: ignore[arg-type]
    for num_first, expected in ((0, 2 / 11), (6, 0.4), (11, 2.0)):
        counts = External(num_first_tokens=num_first, num_target_passes=None)
        external = SimpleNamespace(token_ids=[0] * 11, decode_seconds=2.0, external=counts)
        assert module.seconds_per_token(external) == expected  # type: ignore[arg-type]


def test_a_drafter_that_learns_does_equal_blocks_and_forgets_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "is_steady", lambda times: len(times) >= 3)
    _, (method,) = with_overrides([], [load_method("token-recycling")], ["drafter.memory=run"])
    own = build_decoder(method, ModelPair(tiny.causal_lm()), Sampling())
    assert own.drafter.learns_over_prompts  # type: ignore[attr-defined]
    begun, steps = [0], []
    forget, generate = own.drafter.begin_cell, DraftingDecoder.generate  # type: ignore[attr-defined]

    def begin_cell() -> None:
        begun[0] += 1
        forget()

    def spy(self: DraftingDecoder, *given: Any, **named: Any) -> Any:
        generation = generate(self, *given, **named)
        steps.append((begun[0], [step.num_accepted for step in generation.steps]))
        return generation

    monkeypatch.setattr(own.drafter, "begin_cell", begin_cell)  # type: ignore[attr-defined]
    monkeypatch.setattr(DraftingDecoder, "generate", spy)
    task = SimpleNamespace(generation=SimpleNamespace(max_new_tokens=40))
    data = SimpleNamespace(examples=[Example(0, "a", ("What?",), ("1",))])
    warm_up_subset(SimpleNamespace(task=task, data=data, decoders=(own,), context_limit=80, renderer=PromptRenderer()))  # type: ignore[arg-type]
    blocks = steps[1:]
    assert len(blocks) == 3 and all(accepted == blocks[0][1] for _, accepted in blocks)
    assert [number for number, _ in steps] == [1, 2, 3, 4] and begun == [5], "and once when all is done"


@pytest.fixture
def steady_until(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[bool]]:
    """The answers of the rule, one for each block; the budget is one block."""
    answers: list[bool] = []
    given: dict[float, bool] = {}  # by the last block

    def answer(times: Sequence[float]) -> bool:
        if times and times[-1] not in given:
            given[times[-1]] = answers.pop(0)
        return bool(times) and given[times[-1]]

    monkeypatch.setattr(module, "is_steady", answer)
    monkeypatch.setattr(module, "MAX_BLOCKS_CPU", 1)
    monkeypatch.setattr(module, "MIN_BLOCKS", 1)
    monkeypatch.setattr(module, "TOP_UP_BLOCKS", 1)
    return answers


def test_a_row_has_the_warm_ups_of_its_records(
    steady_until: list[bool], decoded: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The method's own, in both subsets. Of a run that was resumed, those of the process with the fewest blocks."""
    steady_until += [True] * 4
    decoded("en,de", "--warm-up", "0")
    path = tmp_path / "out"
    rows = {(row.method_name, row.subset): row for row in load(path / "leaderboard.json")}
    assert {key: row.warm_up.blocks for key, row in rows.items() if row.warm_up} == {
        ("ar", "en"): 1, ("ar", "de"): 1, ("ar", "all"): 2, ("sd", "en"): 1, ("sd", "de"): 1, ("sd", "all"): 2,
    }  # fmt: skip
    assert all(row.warm_up and row.warm_up.steady for row in rows.values())
    lines = (path / "records.jsonl").read_text().splitlines()
    own = [json.loads(line)["methods"]["sd"]["warm_up"] for line in lines if json.loads(line)["subset"] == "en"]
    assert rows["sd", "en"].warm_up.model_dump() == own[0] == own[1]  # type: ignore[union-attr]
    (path / "records.jsonl").write_text("\n".join(lines[:3]) + "\n")
    monkeypatch.setattr("specbench.running.measure.PROCESS", "another")
    steady_until += [True, False]
    decoded("en,de", "--warm-up", "0")
    assert not steady_until, "a resumed run warms up again"
    rows = {(row.method_name, row.subset): row for row in load(path / "leaderboard.json")}
    found = {key: (row.warm_up.blocks, row.warm_up.steady) for key, row in rows.items() if row.warm_up}
    assert found["sd", "en"] == (1, True) and found["ar", "de"] == (1, True)
    assert found["sd", "de"] == (1, False) and found["sd", "all"] == (1, False)
    warned = {key for key, row in rows.items() if "not_steady" in [each.code for each in row.warnings]}
    assert warned == {("sd", "de"), ("sd", "all")}
    text = next(each.text for each in rows["sd", "de"].warnings if each.code == "not_steady")
    assert text.startswith("the speed was not steady after the warm-up (1 block, ") and "measure again" in text
    assert not validate(path / "leaderboard.json", with_records=True).problems


def test_records_of_before_have_rows_without_it(decoded: Run, tmp_path: Path) -> None:
    decoded("en")
    path = tmp_path / "out" / "records.jsonl"
    records = [json.loads(line) for line in path.read_text().splitlines()]
    for each in records:
        for own in each["methods"].values():
            del own["warm_up"]
    path.write_text("".join(json.dumps(each) + "\n" for each in records))
    decoded("en")
    assert [row.warm_up for row in load(tmp_path / "out" / "leaderboard.json")] == [None, None]
