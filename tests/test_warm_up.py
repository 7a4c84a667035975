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

from specbench.decoding.decoder import DraftingDecoder
from specbench.decoding.loop import ExternalCounts
from specbench.decoding.sampling import Sampling
from specbench.models.causal_lm import ModelPair
from specbench.results.leaderboard import load
from specbench.results.leaderboard_files import validate
from specbench.running import warm_up as module
from specbench.running.compose import compose
from specbench.running.prompts import PromptRenderer
from specbench.running.runner import planned_tokens
from specbench.running.warm_up import (
    FIRST_BLOCKS_CPU,
    MAX_BLOCKS,
    MAX_BLOCKS_CPU,
    MIN_BLOCKS,
    NUM_NEW_TOKENS,
    TEXT,
    TOP_UP_BLOCKS,
    WarmUp,
    is_steady,
    warm_up,
    warm_up_cell,
)
from specbench.specs.catalogue import load_method, with_overrides
from specbench.tasks.examples import Example
from tests import tiny
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


def test_what_is_measured_already_is_not_warmed_up(decoded: Run) -> None:
    decoded("en,de")
    assert decoded("en,de") == []
    assert [place for _, place in decoded("en,de,fr")] == ["warm-up"] * 4 + ["fr"] * 4


Scripted = Callable[[Sequence[float]], list[int]]


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> Scripted:
    """Takes the seconds per token of all generations to come, the last one for ever; returns a list that grows by the
    length of each one's prompt. Nothing is decoded, and time passes in generations alone."""
    monkeypatch.setattr(module, "is_steady", is_steady)
    monkeypatch.setattr(module, "NUM_NEW_TOKENS", NUM_NEW_TOKENS)
    now = [0.0]
    monkeypatch.setattr(module, "time", SimpleNamespace(perf_counter=lambda: now[0]))

    def script(times: Sequence[float]) -> list[int]:
        lengths: list[int] = []

        def generate(self: DraftingDecoder, ids: list[int], *given: Any, **named: Any) -> Any:
            seconds = times[min(len(lengths), len(times) - 1)] * 31
            lengths.append(len(ids))
            now[0] += seconds
            return SimpleNamespace(token_ids=[0] * 32, decode_seconds=seconds, external=None)

        monkeypatch.setattr(DraftingDecoder, "generate", generate)
        return lengths

    return script


def decoder(name: str = "ar", sampling: Sampling | None = None, pair: ModelPair | None = None) -> Any:
    return compose(load_method(name), pair or ModelPair(tiny.causal_lm()), sampling or Sampling())


def test_a_steady_decoder_takes_the_fewest_blocks(scripted: Scripted) -> None:
    lengths = scripted([0.5, 0.01])
    own = decoder()
    assert warm_up([own], 100, 1024) == WarmUp(MIN_BLOCKS, pytest.approx(MIN_BLOCKS * 0.31), True)
    assert lengths == [100 - NUM_NEW_TOKENS] + [NUM_NEW_TOKENS] * MIN_BLOCKS


def test_what_was_steady_takes_one_block_and_a_longer_text_if_need_be(scripted: Scripted) -> None:
    lengths = scripted([0.01])
    pair = ModelPair(tiny.causal_lm())
    own, sampled = decoder(pair=pair), decoder(pair=pair, sampling=Sampling(1.0))
    warm_up([own], 100, 1024)
    del lengths[:]
    for num_tokens in (90, 100, 110):
        assert warm_up([own], num_tokens, 1024).blocks == 1
    assert warm_up([own], 900, 30).blocks == 1
    assert lengths == [20, 20, 90, 20, 10]
    assert warm_up([sampled], 100, 1024) == WarmUp(1, pytest.approx(0.31), True), "the same method and model"
    assert lengths[5:] == [80, 20]
    assert warm_up([decoder()], 100, 1024).blocks == MIN_BLOCKS, "another model"


def test_a_speed_that_fell_since_is_found_by_the_one_block(scripted: Scripted) -> None:
    scripted([0.01] * (1 + MIN_BLOCKS) + [0.02])
    own = decoder()
    assert warm_up([own], 100, 1024).blocks == MIN_BLOCKS
    again = warm_up([own], 100, 1024)
    assert again.steady and again.blocks >= MIN_BLOCKS - 1


@pytest.mark.parametrize("num_before", [16, 24, 32, 48, 64])
@pytest.mark.parametrize("factor", [0.5, 2.0])
def test_the_one_block_shows_a_change_after_many_blocks(
    scripted: Scripted, monkeypatch: pytest.MonkeyPatch, num_before: int, factor: float
) -> None:
    monkeypatch.setattr(module, "MAX_BLOCKS_CPU", 1000)
    scripted([0.01] * (1 + num_before) + [0.01 * factor])
    own = decoder()
    assert warm_up([own], 100, 1024).blocks == MIN_BLOCKS
    assert [warm_up([own], 100, 1024).blocks for _ in range(num_before - MIN_BLOCKS)] == [1] * (num_before - MIN_BLOCKS)
    changed = warm_up([own], 100, 1024)
    assert changed.steady and MIN_BLOCKS - 1 <= changed.blocks <= MIN_BLOCKS
    assert warm_up([own], 100, 1024).blocks == 1


def test_after_the_budget_what_was_steady_gets_as_many_blocks_as_the_rule_needs(scripted: Scripted) -> None:
    """A change is found, and so is that one block was slow by chance; what never settles takes one block."""
    even = [0.01] * (1 + MAX_BLOCKS_CPU)
    for after in ([0.02], [0.05, 0.01]):
        scripted(even + after)
        own = decoder()
        assert all(warm_up([own], 100, 1024).steady for _ in range(MAX_BLOCKS_CPU - MIN_BLOCKS + 1))
        again = warm_up([own], 100, 1024)
        assert 1 < again.blocks <= MIN_BLOCKS + 1 and again.steady
    scripted(even + [0.01 * 1.3**n for n in range(1, 200)])
    own = decoder()
    assert all(warm_up([own], 100, 1024).steady for _ in range(MAX_BLOCKS_CPU - MIN_BLOCKS + 1))
    found = [warm_up([own], 100, 1024) for _ in range(8)]
    assert not any(each.steady for each in found)
    assert [each.blocks for each in found] == [MIN_BLOCKS + 1, *[TOP_UP_BLOCKS] * 6, 1]


def test_a_single_slow_block_costs_more_blocks_alone(scripted: Scripted) -> None:
    scripted([0.01] * (1 + 3 * MIN_BLOCKS) + [0.05] + [0.01] * 50)
    own = decoder()
    assert all(warm_up([own], 100, 1024).steady for _ in range(2 * MIN_BLOCKS + 1))
    again = warm_up([own], 100, 1024)
    assert again.steady and 1 < again.blocks <= MIN_BLOCKS + 1


@pytest.mark.parametrize(("num_planned", "most"), [(2 * 40, 8), (1600, 8), (10 * 20 * 17 - 1, 16), (32_000, 16)])
def test_the_blocks_are_a_tenth_of_what_is_measured(scripted: Scripted, num_planned: int, most: int) -> None:
    """In all subsets together, but never fewer than the rule needs."""
    scripted([1e-9 * 1.3**n for n in range(200)])
    own = decoder()
    found = [warm_up([own], 100, 1024, num_planned) for _ in range(2)]
    second = TOP_UP_BLOCKS if num_planned < 32_000 else MAX_BLOCKS_CPU - most
    assert [(each.blocks, each.steady) for each in found] == [(most, False), (second, False)]


def test_a_stall_that_spends_the_budget_is_forgotten_by_the_next_subsets(scripted: Scripted) -> None:
    """One subset decodes at a tenth of the speed, for as many seconds as the budget has."""
    scripted([0.1, *[0.1 * 1.3**n for n in range(MIN_BLOCKS)], *[0.05] * 100])
    own = decoder()
    found = [warm_up([own], 100, 1024, 5632) for _ in range(11)]
    assert found[0].seconds > module.MAX_SECONDS and not found[0].steady
    assert [each.steady for each in found[1:]] == [False] + [True] * 9
    assert [each.blocks for each in found[1:]] == [TOP_UP_BLOCKS, TOP_UP_BLOCKS, *[1] * 8]


@pytest.mark.parametrize(("max_new_tokens", "num_new"), [(1, 4), (8, 8), (32, 20), (512, 20)])
def test_a_block_is_no_longer_than_the_answers(
    monkeypatch: pytest.MonkeyPatch, max_new_tokens: int, num_new: int
) -> None:
    """The text before it is longer then, so that the whole context is filled all the same."""
    monkeypatch.setattr(module, "is_steady", lambda times: True)
    monkeypatch.setattr(module, "NUM_NEW_TOKENS", NUM_NEW_TOKENS)
    seen = []
    generate = DraftingDecoder.generate

    def spy(self: DraftingDecoder, ids: list[int], *given: Any, **named: Any) -> Any:
        found = generate(self, ids, *given, **named)
        seen.append((len(ids), len(found.token_ids)))
        return found

    monkeypatch.setattr(DraftingDecoder, "generate", spy)
    warm_up([decoder()], 100, None, max_new_tokens=max_new_tokens)
    assert seen == [(100 - num_new, num_new), (num_new, num_new)]


def test_a_run_says_what_it_measures(decoded: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    planned = []

    def spy(decoders: Any, num_tokens: int, context_limit: int, num_planned: int, max_new_tokens: int) -> WarmUp:
        planned.append(num_planned)
        assert max_new_tokens == 8
        return module.NOTHING

    monkeypatch.setattr(module, "warm_up", spy)
    decoded("en,de")
    assert planned == [4 * 8] * 4
    decoded("en,de,fr")
    assert planned[4:] == [2 * 8] * 2, "without what is measured already"


def test_what_is_to_be_measured_is_expected_from_the_answers_so_far() -> None:
    """Of two tasks with 100 and 10 new tokens at most; the second answer of the first is recorded already."""
    blocks = [
        SimpleNamespace(
            key=(task, number),
            cell=SimpleNamespace(task=SimpleNamespace(generation=SimpleNamespace(max_new_tokens=most))),
        )
        for task, most in (("long", 100), ("short", 10)) for number in range(3)
    ]  # fmt: skip
    answers: Any = {("long", n): {"methods": {"ar": {"token_ids": [0] * 25}}} for n in range(3)}
    plan: Any = blocks
    assert planned_tokens(plan, {}, {}) == 330
    done = {("long", 1): answers["long", 1]}
    assert planned_tokens(plan, done, done) == 230 // 4
    assert planned_tokens(plan, done, answers) == 230 // 4
    half = {key: {"methods": {"ar": {"token_ids": [0] * 50}}} for key in answers}
    assert planned_tokens(plan, {}, half) == 165


def test_the_budget_ends_what_does_not_settle(scripted: Scripted, monkeypatch: pytest.MonkeyPatch) -> None:
    scripted([1e-5 * 1.3**n for n in range(200)])
    own = decoder()
    found = warm_up([own], 100, 1024)
    assert (found.blocks, found.steady) == (FIRST_BLOCKS_CPU, False) and found.seconds < module.MAX_SECONDS
    assert warm_up([own], 100, 1024).blocks == MAX_BLOCKS_CPU - FIRST_BLOCKS_CPU, "the whole budget"
    more = [warm_up([own], 100, 1024).blocks for _ in range(12)]
    assert more == [TOP_UP_BLOCKS] * 8 + [1] * 4, "each cell afterwards: less and less"
    monkeypatch.setattr(module, "MAX_SECONDS", 1e9)
    for device, most in (("cpu", FIRST_BLOCKS_CPU), ("cuda", MAX_BLOCKS)):
        other = decoder()
        monkeypatch.setattr(other.model, "device", torch.device(device))
        scripted([1.1**n for n in range(200)])
        assert warm_up([other], 100, 1024) == WarmUp(
            most, pytest.approx(31 * sum(1.1**n for n in range(1, most + 1))), False
        )


def test_the_seconds_end_it_too_but_not_before_the_rule_can_tell(scripted: Scripted) -> None:
    scripted([0.5, *(0.5 * 1.2**n for n in range(200))])
    found = warm_up([decoder()], 100, 1024)
    assert (found.blocks, found.steady) == (MIN_BLOCKS, False) and found.seconds > module.MAX_SECONDS
    scripted([5.0])
    assert warm_up([decoder()], 100, 1024) == WarmUp(MIN_BLOCKS, 31 * 5.0 * MIN_BLOCKS, True)


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
        external = SimpleNamespace(token_ids=[0] * 11, decode_seconds=2.0, external=ExternalCounts(num_first, None))
        assert module.seconds_per_token(external) == expected  # type: ignore[arg-type]


def test_a_drafter_that_learns_does_equal_blocks_and_forgets_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "is_steady", lambda times: len(times) >= 3)
    _, (method,) = with_overrides([], [load_method("token-recycling")], ["drafter.memory=cell"])
    own = compose(method, ModelPair(tiny.causal_lm()), Sampling())
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
    warm_up_cell(SimpleNamespace(task=task, data=data, decoders=(own,), context_limit=80, renderer=PromptRenderer()))  # type: ignore[arg-type]
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
    """Of AR and the method, in both subsets and in both processes of a run that was resumed."""
    steady_until += [True] * 4
    decoded("en,de")
    path = tmp_path / "out"
    rows = {(row.method_name, row.subset): row for row in load(path / "leaderboard.json")}
    assert {key: row.warm_up.blocks for key, row in rows.items() if row.warm_up} == {
        ("ar", "en"): 1, ("ar", "de"): 1, ("ar", "all"): 2, ("sd", "en"): 2, ("sd", "de"): 2, ("sd", "all"): 4,
    }  # fmt: skip
    assert all(row.warm_up and row.warm_up.steady for row in rows.values())
    lines = (path / "records.jsonl").read_text().splitlines()
    own = [json.loads(line)["methods"]["sd"]["warm_up"] for line in lines if json.loads(line)["subset"] == "en"]
    assert rows["sd", "en"].warm_up.seconds > own[0]["seconds"] and own[0] == own[1]  # type: ignore[union-attr]
    (path / "records.jsonl").write_text("\n".join(lines[:3]) + "\n")
    monkeypatch.setattr("specbench.running.runner.PROCESS", "another")
    steady_until += [True, False]
    decoded("en,de")
    assert not steady_until, "a resumed run warms up again"
    rows = {(row.method_name, row.subset): row for row in load(path / "leaderboard.json")}
    found = {key: (row.warm_up.blocks, row.warm_up.steady) for key, row in rows.items() if row.warm_up}
    assert found["sd", "en"] == (2, True) and found["ar", "de"] == (2, True)
    assert found["sd", "de"] == (4, False) and found["sd", "all"] == (6, False)
    warned = {key for key, row in rows.items() if "not_steady" in [each.code for each in row.warnings]}
    assert warned == {("sd", "de"), ("sd", "all")}
    text = next(each.text for each in rows["sd", "de"].warnings if each.code == "not_steady")
    assert text.startswith("the speed was not steady after the warm-up (4 blocks, ") and "measure again" in text
    assert not validate(path / "leaderboard.json", with_records=True).problems


def test_records_of_before_have_rows_without_it(decoded: Run, tmp_path: Path) -> None:
    decoded("en")
    path = tmp_path / "out" / "records.jsonl"
    records = [json.loads(line) for line in path.read_text().splitlines()]
    for record in records:
        for generation in record["methods"].values():
            del generation["warm_up"]
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    decoded("en")
    assert [row.warm_up for row in load(tmp_path / "out" / "leaderboard.json")] == [None, None]
