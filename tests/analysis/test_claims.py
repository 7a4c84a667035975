"""`specbench explain`: claims in one way of counting, their plausibility, and gaps whose parts add up exactly."""

import json
import math
from collections.abc import Callable
from dataclasses import replace
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from specbench.analysis.claims.claim import (
    ClaimSpec,
    highest_speedup,
    load_claim,
    own_length,
    public_claims,
    read_claim,
)
from specbench.analysis.claims.explain import (
    Explanation,
    Measured,
    explain,
    gap_of,
    measured_problem,
    shapley,
    step_costs,
    words,
)
from specbench.core.errors import ConfigError
from specbench.records.records import Record
from specbench.results.answers import answers_of
from specbench.results.leaderboard import load
from specbench.results.paired import RowWithRecords
from specbench.results.row import Row
from specbench.specs.components import build
from specbench.statistics.bootstrap import Array, Estimate
from tests.support.read_yaml import read_yaml
from tests.support.records import autoregressive, compared, generation
from tests.support.rows import row as make_row

Outcome = tuple[int, str, str]
BOARDS = Path(__file__).resolve().parents[2] / "leaderboards"
DEMO = BOARDS / "demo.json"
FIELDS = {"name": "x", "title": "t", "source": "s", "url": "https://x.org", "method": "m"}
DECIDABLE = FIELDS | {"batch": 1, "baseline": "same engine", "speedup": 2.0, "mean_acceptance_length": 3.0,
                      "counts_bonus": True}  # fmt: skip


def claim(**fields: Any) -> ClaimSpec:
    return build(ClaimSpec, FIELDS | fields)


def decidable(**fields: Any) -> ClaimSpec:
    return build(ClaimSpec, {key: value for key, value in (DECIDABLE | fields).items() if value is not None})


# 1. One way of counting.


@pytest.mark.parametrize(
    ("fields", "length"),
    [
        ({"mean_acceptance_length": 4.0, "counts_bonus": True, "counts_prefill": "none"}, 4.0),
        ({"mean_acceptance_length": 2.34, "counts_bonus": False}, 3.34),
        # 100 new tokens by 25 verification passes: 99 of them are of these passes
        ({"mean_acceptance_length": 4.0, "counts_prefill": "token", "new_tokens": 100}, 99 / 25),
        ({"mean_acceptance_length": 100 / 26, "counts_prefill": "pass", "new_tokens": 100}, 99 / 25),
        ({"acceptance_rate": 0.59, "acceptance_rate_of": "drafted", "num_draft_tokens": 2}, 2.18),
        ({"acceptance_rate": 0.5, "acceptance_rate_of": "verified", "num_draft_tokens": 3}, 1.875),
        ({"acceptance_rate": 1.0, "acceptance_rate_of": "verified", "num_draft_tokens": 3}, 4.0),
    ],
)
def test_a_length_is_brought_to_one_way_of_counting(fields: dict[str, Any], length: float) -> None:
    found, _ = own_length(claim(**fields))
    assert found == pytest.approx(length, abs=1e-12)


def test_all_conventions_of_one_generation_give_the_length_of_its_row() -> None:
    """A generation that nothing cuts, printed in each way."""
    made = generation([[4, 3, 2, 3], [4, 4, 4, 5], [4, 1, 0, 1]])
    (answer,) = answers_of([compared(0, autoregressive(10), made)], "m")
    emitted, passes = answer.emitted_by_passes
    new, steps = made.num_new_tokens, len(made.steps)
    printed: tuple[tuple[float, dict[str, Any]], ...] = (
        (made.num_accepted / steps, {"counts_bonus": False}),
        (made.num_emitted / steps, {"counts_bonus": True, "counts_prefill": "none"}),
        (new / steps, {"counts_bonus": True, "counts_prefill": "token"}),
        (new / (steps + 1), {"counts_bonus": True, "counts_prefill": "pass"}),
    )
    assert len({value for value, _ in printed}) == 4
    for value, fields in printed:
        length, notes = own_length(claim(mean_acceptance_length=value, new_tokens=new, **fields))
        assert length == pytest.approx(emitted / passes, abs=1e-12)
        assert bool(notes) is (fields.get("counts_prefill") != "none")


def test_what_is_not_told_is_assumed_aloud() -> None:
    assert "taken as counted" in own_length(claim(mean_acceptance_length=3.0))[1][0]
    length, notes = own_length(claim(mean_acceptance_length=3.0, counts_bonus=True, counts_prefill="token"))
    assert length == 3.0 and "new_tokens, by which" in notes[0]
    rate = {"acceptance_rate": 0.5, "acceptance_rate_of": "drafted", "num_draft_tokens": 2}
    assert (
        "if every step" in own_length(claim(**rate))[1][0]
        and "if" not in own_length(claim(**rate, full_drafts=True))[1][0]
    )


# 2. Plausible or not.


@pytest.mark.parametrize(
    ("fields", "verdict"),
    [
        ({"mean_acceptance_length": 4.0, "speedup": 4.39}, "plausible"),  # 1.1 τ
        ({"mean_acceptance_length": 4.0, "speedup": 4.41}, "implausible"),
        ({"mean_acceptance_length": 4.0, "speedup": 4.19, "verification_cost": 1.5}, "plausible"),  # 1.05 τ
        ({"mean_acceptance_length": 4.0, "speedup": 4.21, "verification_cost": 1.5}, "implausible"),
        ({"mean_acceptance_length": 4.0, "speedup": 4.46, "verification_cost": 0.94}, "plausible"),  # 1.05 τ ÷ 0.94
        ({"mean_acceptance_length": 4.0, "speedup": 4.48, "verification_cost": 0.94}, "implausible"),
        ({"mean_acceptance_length": 4.0, "speedup": 5.0, "speedup_interval": [4.39, 6.0]}, "plausible"),
        ({"mean_acceptance_length": 4.0, "speedup": 5.0, "speedup_interval": [4.41, 6.0]}, "implausible"),
        ({"mean_acceptance_length": 3.0, "counts_bonus": False, "speedup": 4.39}, "plausible"),
        ({"speedup": None, "tokens_per_second": 44.1, "tokens_per_second_ar": 10, "mean_acceptance_length": 4.0},
         "implausible"),
        # costs of 4 · 0.1 + 1.2 allow 1.05 · 4 ÷ 1.6 = 2.625
        ({"mean_acceptance_length": 4.0, "speedup": 2.62, "num_draft_tokens": 4, "draft_cost": 0.1,
          "verification_cost": 1.2}, "plausible"),
        ({"mean_acceptance_length": 4.0, "speedup": 2.63, "num_draft_tokens": 4, "draft_cost": 0.1,
          "verification_cost": 1.2}, "implausible"),
        ({"mean_acceptance_length": 4.05, "num_draft_tokens": 3}, "plausible"),  # rounded
        ({"mean_acceptance_length": 4.2, "num_draft_tokens": 3}, "implausible"),
        ({"mean_acceptance_length": 4.0, "speedup": 9.0, "batch": 10}, "undecided"),
        ({"mean_acceptance_length": 4.0, "speedup": 9.0, "baseline": "other engine"}, "undecided"),
    ],
)  # fmt: skip
def test_a_claim_is_implausible_above_its_bound_only(fields: dict[str, Any], verdict: str) -> None:
    assert read_claim(decidable(**fields)).verdict == verdict


@pytest.mark.parametrize("key", ["batch", "baseline", "speedup", "mean_acceptance_length"])
def test_an_undecided_claim_names_what_is_missing(key: str) -> None:
    reading = read_claim(decidable(**{key: None}, **({"counts_bonus": None} if "length" in key else {})))
    assert reading.verdict == "undecided" and f"missing: {key}" in reading.reason
    assert (reading.step_cost is None) is (key in ("speedup", "mean_acceptance_length"))


def test_a_length_does_not_follow_from_a_rate_if_drafts_end_early() -> None:
    rate = {"acceptance_rate": 0.7, "acceptance_rate_of": "drafted", "num_draft_tokens": 4}
    fields = {"mean_acceptance_length": None, "counts_bonus": None, **rate}
    assert read_claim(decidable(**fields)).verdict == "plausible"
    early = read_claim(decidable(**fields, full_drafts=False))
    assert early.verdict == "undecided" and "drafts end early" in early.reason


def test_the_bound_is_that_of_the_definition() -> None:
    assert highest_speedup(3.0, None) == pytest.approx(3.3)
    assert highest_speedup(3.0, 0.9) == pytest.approx(3.5)
    assert highest_speedup(3.0, 2.0) == pytest.approx(3.15)


# 3. The split.


def log_of_sum(parts: Array) -> Array:
    return np.asarray(np.log(parts.sum(axis=-1)))


def test_a_shapley_value_of_two_parts() -> None:
    found = shapley(log_of_sum, np.array([1.0, 1.0]), np.array([2.0, 3.0]))
    assert found == pytest.approx([(math.log(3 / 2) + math.log(5 / 4)) / 2, (math.log(5 / 3) + math.log(4 / 2)) / 2])


def test_shapley_values_add_up_and_treat_parts_alike() -> None:
    drawn = np.random.default_rng(0)
    before, after = drawn.uniform(0.01, 3, (50, 3)), drawn.uniform(0.01, 3, (50, 3))
    after[:, 2] = np.where(np.arange(50) % 2, after[:, 2], before[:, 2])  # does not change in every second case
    found = shapley(log_of_sum, before, after)
    assert np.abs(found.sum(axis=1) - (log_of_sum(after) - log_of_sum(before))).max() < 1e-12
    assert (found[::2, 2] == 0).all() and (found[1::2, 2] != 0).all()
    for order in permutations(range(3)):
        other = shapley(log_of_sum, before[:, order], after[:, order])
        assert np.abs(other - found[:, order]).max() < 1e-12
    equal = shapley(log_of_sum, np.array([1.0, 1.0, 0.5]), np.array([2.0, 2.0, 0.1]))
    assert equal[0] == pytest.approx(equal[1], abs=1e-15) and equal[2] < 0 < equal[0]
    reverse = shapley(log_of_sum, after, before)
    assert np.abs(reverse + found).max() < 1e-12


def records(num_prompts: int = 8) -> list[Record]:
    """Prompts of 12 tokens: AR takes 11 · 0.1 s and up; the method 4 steps of 0.3 s and up, 0.16 for drafts."""
    steps, made = [[4, 3, 2, 3], [4, 2, 1, 2], [4, 4, 3, 4], [4, 2, 1, 2]], []
    for place in range(num_prompts):
        slow = 1 + 0.02 * place
        ar = autoregressive(12, target=[(1, 0.09 * slow)] * 11, decode_seconds=1.1 * slow, ttft_seconds=0.4)
        own = generation(
            steps, target=[(5, 0.12)] * 4, draft=[(1, 0.04)] * 16, decode_seconds=1.2 + 0.01 * place, ttft_seconds=0.5
        )
        made.append(compared(place, ar, own))
    return made


def measured(whole_call: bool = False, num_prompts: int = 8, **fields: Any) -> Measured:
    own, baseline = (answers_of(records(num_prompts), name) for name in ("m", "ar"))
    row = make_row(task="t@1:0123456789ab", subset="en", method="m@1:0123456789ab", n=num_prompts, **fields)
    return Measured.of(RowWithRecords(row, own, baseline), whole_call)


def test_the_measured_side_is_that_of_its_records() -> None:
    found = measured()
    plain, own = 1.1 * sum(1 + 0.02 * n for n in range(8)), sum(1.2 + 0.01 * n for n in range(8))
    assert found.length.value == pytest.approx(11 / 4)
    assert found.ar.value == pytest.approx(8 * 11 / plain)
    assert found.speedup.value == pytest.approx(plain / own)
    assert found.step.value == pytest.approx(own / 32)
    assert found.step_cost.value == pytest.approx((own / 32) / (plain / 88))
    seconds = found.costs(in_seconds=True)
    assert seconds is not None and seconds == pytest.approx([0.16, 0.12, own / 32 - 0.28])
    assert found.costs(in_seconds=False) == pytest.approx(seconds * 88 / plain)
    whole = measured(whole_call=True)
    assert whole.speedup.value == pytest.approx((plain + 8 * 0.4) / (own + 8 * 0.5))
    assert whole.step_cost.value == pytest.approx(11 / 4 / whole.speedup.value)


COSTS_TOLD = {"num_draft_tokens": 4, "draft_cost": 0.05, "verification_cost": 1.1}
SPEEDS_TOLD = {"speedup": None, "tokens_per_second": 60.0, "tokens_per_second_ar": 30.0}


@pytest.mark.parametrize("speed", [{"speedup": 2.0}, SPEEDS_TOLD], ids=("ratio", "speeds"))
@pytest.mark.parametrize("costs", [{}, COSTS_TOLD], ids=("one cost", "costs"))
@pytest.mark.parametrize("whole_call", [False, True], ids=("decoding", "whole call"))
def test_the_parts_add_up_to_the_gap(speed: dict[str, Any], costs: dict[str, Any], whole_call: bool) -> None:
    told = decidable(**speed, **costs)
    found = measured(whole_call)
    (gap,), unsplit = gap_of(told, read_claim(told), found)
    acceptance, steps = gap.parts
    assert gap.log.value == pytest.approx(math.log(2 / found.speedup.value), abs=1e-12)
    assert acceptance.log.value == pytest.approx(math.log(3 / found.length.value), abs=1e-12)
    assert math.fsum(leaf.log.value or 0 for leaf in gap.leaves) == pytest.approx(gap.log.value, abs=1e-12)
    assert steps.log.value == pytest.approx(math.fsum(leaf.log.value or 0 for leaf in steps.leaves), abs=1e-12)
    names = [leaf.name for leaf in gap.leaves]
    has_speeds = "tokens_per_second" in speed
    middle = ["draft", "verification", "rest"] if costs else ["step"] if has_speeds else ["step cost R"]
    assert names == ["acceptance τ", *middle, *["AR"] * has_speeds]
    assert bool(unsplit) is not bool(costs and has_speeds)
    for each in (gap, acceptance, *gap.leaves):
        assert each.log.low is not None and each.log.low <= each.log.value <= each.log.high, each.name
    if costs:
        shown = [leaf for leaf in gap.leaves if leaf.name in ("draft", "verification", "rest")]
        whole = steps.parts[0] if has_speeds else steps
        assert math.fsum(leaf.claimed for leaf in shown) == pytest.approx(whole.claimed)
        assert math.fsum(leaf.measured.value or 0 for leaf in shown) == pytest.approx(whole.measured.value)


def test_equal_sides_have_no_gap() -> None:
    """A claim made of the measurement itself: every part is 0."""
    found = measured()
    draft, verify, _ = step_costs(found.sums, in_seconds=False)
    told = decidable(
        speedup=None, tokens_per_second=found.ar.value * found.speedup.value, tokens_per_second_ar=found.ar.value,
        mean_acceptance_length=found.length.value, num_draft_tokens=4, draft_cost=draft / 4, verification_cost=verify,
    )  # fmt: skip
    (gap,), _ = gap_of(told, read_claim(told), found)
    assert all(leaf.log.value == pytest.approx(0, abs=1e-12) for leaf in gap.leaves) and len(gap.leaves) == 5


def test_a_slow_baseline_is_told_apart() -> None:
    """The claim's steps take as long, but its AR is three times as slow: all of the gap is AR's."""
    found = measured()
    slow = found.ar.value / 3
    told = decidable(speedup=None, tokens_per_second=slow * 3 * found.speedup.value, tokens_per_second_ar=slow,
                     mean_acceptance_length=found.length.value)  # fmt: skip
    (gap,), _ = gap_of(told, read_claim(told), found)
    factors = {leaf.name: math.exp(leaf.log.value or 0) for leaf in gap.leaves}
    assert factors == pytest.approx({"acceptance τ": 1, "step": 1, "AR": 3})


def test_costs_beyond_the_step_are_not_split() -> None:
    told = decidable(**COSTS_TOLD | {"verification_cost": 1.9})
    (gap,), unsplit = gap_of(told, read_claim(told), measured())
    assert [leaf.name for leaf in gap.leaves] == ["acceptance τ", "step cost R"]
    assert any("more than the R of 1.50" in line for line in unsplit)


def test_without_records_the_row_gives_the_values_and_no_interval_of_the_step() -> None:
    number, row = demo_row("sd")
    (with_records,) = explain(decidable(**COSTS_TOLD, **SPEEDS_TOLD), [f"{DEMO}:{number}"])
    bare = Measured.of(RowWithRecords(row), whole_call=False)
    told = decidable(**COSTS_TOLD, **SPEEDS_TOLD)
    (gap,), _ = gap_of(told, read_claim(told), bare)
    for own, other in zip(gap.leaves, with_records.gap[0].leaves, strict=True):
        assert own.log.value == pytest.approx(other.log.value, abs=1e-9) and own.name == other.name
    assert bare.step_cost.low is None and gap.log.low is not None
    call = Measured.of(RowWithRecords(row), whole_call=True)
    assert call.speedup == row.metric("speedup_e2e") and call.ar.value is None


def demo_row(method: str) -> tuple[int, Row]:
    return next((n, row) for n, row in enumerate(load(DEMO)) if row.names == ("mgsm", "all", method))


@pytest.mark.parametrize(("speedup_of", "metric"), [("decoding", "speedup"), ("whole call", "speedup_e2e")])
def test_intervals_are_those_of_the_row(speedup_of: str, metric: str) -> None:
    number, row = demo_row("sd")
    (found,) = explain(decidable(speedup_of=speedup_of), [f"{DEMO}:{number}"])
    (gap,) = found.gap
    close(gap.measured, row.metric(metric))
    close(gap.parts[0].measured, row.metric("mean_acceptance_length"))
    assert gap.log.low == pytest.approx(math.log(2 / row.metric(metric).high))
    assert gap.log.high == pytest.approx(math.log(2 / row.metric(metric).low))
    steps = gap.parts[1]
    assert steps.measured.low < steps.measured.value < steps.measured.high


def close(first: Estimate, second: Estimate) -> None:
    assert first.model_dump() == pytest.approx(second.model_dump(), rel=1e-12)


# 4. Words.


def words_of(told: ClaimSpec, **fields: Any) -> str:
    found, reading = measured(**fields), read_claim(told)
    gap, unsplit = gap_of(told, reading, found)
    return " ".join(words(Explanation(
        claim=reading, run="r", task="t", subset="en", method="m", num_prompts=8, speedup_of="decoding", gap=gap,
        unsplit=unsplit, implausible=None, conditions=[],
    )))  # fmt: skip


def test_the_words_name_what_explains_the_gap() -> None:
    # measured: S 0.95, τ 2.75, R 2.88
    both = words_of(decidable(speedup=3.0, mean_acceptance_length=5.5))
    assert "Of the factor 3.15 between 3.00 claimed and 0.95 measured, 2.00 is acceptance" in both
    assert "acceptance is 60 % of the gap and step cost 40 %" in both
    against = words_of(decidable(speedup=2.0, mean_acceptance_length=2.2))
    assert "Step cost explains more than the whole gap, and acceptance works against it" in against
    slower = words_of(decidable(speedup=0.5, mean_acceptance_length=2.75))
    assert "between 0.95 measured and 0.50 claimed, 1.00 is acceptance" in slower
    same = words_of(decidable(speedup=0.95, mean_acceptance_length=2.75))
    assert "may be chance" in same
    without = words_of(claim(speedup=2.0))
    assert "cannot be split: missing: mean_acceptance_length" in without


# 5. The claims of the package.


def test_the_claims_of_the_package_are_whole() -> None:
    found = public_claims()
    assert len(found) >= 20
    for name, each in found.items():
        reading = read_claim(each)
        assert each.name == name and reading.verdict != "implausible", name
        assert reading.verdict == "plausible" or "missing" in reading.reason or each.batch != 1


def published(board: str, group: str, label: str, hardware: str | None = None) -> list[float | None]:
    """The figures of a row of a published table."""
    data = read_yaml(BOARDS / f"{board}.yaml")
    return next(
        row["figures"]
        for table in data["published"] if hardware is None or table["number"] == hardware
        for each in table["groups"] if group in (each.get("heading"), each.get("pair"))
        for row in each["rows"] if row["label"] == label
    )  # fmt: skip


@pytest.mark.parametrize(
    ("name", "figures", "places"),
    [
        ("eagle3-vicuna-13b", published("eagle3", "Vicuna 13B v1.3", "EAGLE-3"), (0, 1)),
        ("eagle3-llama3.1-8b", published("eagle3", "Llama 3.1 8B Instruct", "EAGLE-3"), (0, 1)),
        ("eagle3-llama3.3-70b", published("eagle3", "Llama 3.3 70B Instruct", "EAGLE-3"), (0, 1)),
        ("medusa-vicuna-13b", published("eagle3", "Vicuna 13B v1.3", "Medusa"), (0, 1)),
        ("eagle3-vicuna-13b-spec-bench", published("spec-bench", "vicuna-13b", "EAGLE3", "A100"), (7, 6)),
        ("sps-vicuna-7b-a100", published("spec-bench", "vicuna-7b", "SpS", "A100"), (7, 6)),
        ("sps-vicuna-7b-3090", published("spec-bench", "vicuna-7b", "SpS", "3090"), (7, 6)),
        ("pld-vicuna-7b-a100", published("spec-bench", "vicuna-7b", "PLD", "A100"), (7, 6)),
        ("token-recycling-vicuna-7b-a100", published("spec-bench", "vicuna-7b", "Recycling", "A100"), (7, 6)),
        ("token-recycling-vicuna-7b-3090", published("spec-bench", "vicuna-7b", "Recycling", "3090"), (7, 6)),
    ],
)
def test_claims_have_the_figures_of_the_boards(name: str, figures: list[float], places: tuple[int, int]) -> None:
    told = public_claims()[name]
    assert (told.speedup, told.mean_acceptance_length) == tuple(figures[place] for place in places)


# 6. The command.


def test_the_command_lists_reads_and_explains(specbench: Callable[..., Outcome]) -> None:
    number, _ = demo_row("sd")
    code, out, _ = specbench("explain", "--list")
    assert code == 0 and all(name in out for name in public_claims())
    code, out, _ = specbench("explain", "eagle-llama2-70b")
    assert code == 0 and "undecided: missing: mean_acceptance_length" in out
    code, out, err = specbench("explain", "sps-vicuna-7b-a100", f"{DEMO}:{number}")
    assert code == 0, err
    assert "Of the factor" in out and "acceptance τ" in out and "Vicuna 7B" in out
    code, out, _ = specbench("explain", "sps-vicuna-7b-a100", f"{DEMO}:{number}", "--json")
    (found,) = [Explanation.model_validate(each) for each in json.loads(out)]
    (gap,) = found.gap
    assert sum(leaf.log.value or 0 for leaf in gap.leaves) == pytest.approx(gap.log.value, abs=1e-12)


def test_another_task_or_subset_is_explained(specbench: Callable[..., Outcome]) -> None:
    chosen = ("--task", "mgsm", "--subset", "sw", "--json")
    code, out, err = specbench("explain", "sps-vicuna-7b-a100", f"{DEMO}:sd", *chosen)
    assert code == 0, err
    assert [(each["task"].partition("@")[0], each["subset"]) for each in json.loads(out)] == [("mgsm", "sw")]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([], "CLAIM is missing"),
        (["eagle3-vicuna-13"], "did you mean 'eagle3-vicuna-13b'"),
        (["--list", "eagle3-vicuna-13b"], "remove --list or 'eagle3-vicuna-13b'"),
        (["sps-vicuna-7b-a100", "--subset", "en"], "--subset en: has no effect"),
        (["sps-vicuna-7b-a100", "nowhere"], "'nowhere': no such folder or file"),
        (["sps-vicuna-7b-a100", f"{DEMO}:ar"], "is AR itself: name a method"),
        (["sps-vicuna-7b-a100", f"{DEMO}:sd", "--subset", "xx"], "--subset xx: no row has it"),
        (["my.yaml"], "my.yaml: cannot be read"),
    ],
)
def test_a_wrong_command_is_one_line(words: list[str], says: str, specbench: Callable[..., Outcome]) -> None:
    code, out, err = specbench("explain", *words)
    assert code == 2 and says in err and len(err.splitlines()) == 1 and not out


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"speedups": 2.0}, "x.yaml: speedups: unknown key 'speedups': did you mean 'speedup'"),
        ({"speedup": "fast"}, "x.yaml: speedup = 'fast'"),
        ({"speedup": -1.0}, "x.yaml: speedup = -1.0"),
        ({"speedup": float("inf")}, "x.yaml: speedup = inf"),
        ({"baseline": "same engines"}, "x.yaml: baseline = 'same engines': did you mean 'same engine'"),
        ({"counts_prefill": "tokens"}, "x.yaml: counts_prefill = 'tokens': did you mean 'token'"),
        ({"acceptance_rate": 75.45}, "x.yaml: acceptance_rate = 75.45"),
        ({"acceptance_rate": 0.5}, "the key 'acceptance_rate_of' is missing"),
        ({"url": "arXiv"}, "x.yaml: url = 'arXiv'"),
        ({"title": None}, "x.yaml: title: the key 'title' is missing"),
        ({"speedup_interval": [2.1, 3.0]}, "does not hold speedup = 2"),
        ({"speedup_interval": [3.0, 1.0]}, "does not hold speedup = 2"),
        ({"tokens_per_second": 30.0, "tokens_per_second_ar": 10.0}, "tokens_per_second ÷ tokens_per_second_ar is 3"),
        ({"mean_acceptance_length": 0.8}, "write counts_bonus: false"),
        ({"counts_bonus": False, "counts_prefill": "token"}, "counts_prefill = token"),
        ({"counts_prefill": "pass", "new_tokens": 3.0}, "new_tokens = 3"),
        ({"mean_acceptance_length": None}, "counts_bonus: says how mean_acceptance_length is counted"),
    ],
)
def test_a_wrong_file_is_one_line(change: dict[str, Any], says: str, tmp_path: Path) -> None:
    file = tmp_path / "x.yaml"
    told = {key: value for key, value in (DECIDABLE | change).items() if value is not None}
    file.write_text(yaml.safe_dump(told), encoding="utf-8")
    with pytest.raises(ConfigError) as error:
        load_claim(str(file))
    message = str(error.value)
    assert says in message.replace(str(file), "x.yaml") and message.startswith(str(file))
    assert message.count(": ") >= 2  # the place, the problem and the remedy


def test_a_measurement_that_cannot_be_is_told() -> None:
    fine = measured()
    assert measured_problem(fine) is None
    most = highest_speedup(fine.length.value or 0, fine.verification_cost)
    for factor, is_told in ((0.999, False), (1.001, True)):
        fast = replace(fine, speedup=Estimate(value=9.0, low=most * factor, high=10.0))
        assert (measured_problem(fast) is not None) is is_told
