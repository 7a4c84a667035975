"""Sweeps: a replay of recorded evidence equals real runs where it says so, and its estimates come near elsewhere."""

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from msgspec.structs import replace as replace_fields

from specbench.analysis.tuning.replay import (
    RecordedGeneration,
    RecordedStep,
    StepCosts,
    recorded_steps,
    replay,
)
from specbench.analysis.tuning.shared_runs import RecordingRule, fuzzy_at
from specbench.analysis.tuning.sweep import pick_evenly, values_by_path
from specbench.cli.run import sweep
from specbench.core.environment import builtin_dir
from specbench.core.errors import ConfigError
from specbench.decoding.build import build_decoder
from specbench.decoding.drafters import ModelDrafter
from specbench.decoding.loop import StopRules, decode
from specbench.decoding.sampling import Sampling
from specbench.decoding.verification import Fuzzy
from specbench.models.causal_lm import ModelPair
from specbench.records.columns import Ints, StepCounts
from specbench.records.generation import Generation
from specbench.results.leaderboard import load
from specbench.specs.catalogue import load_method
from tests.support import records
from tests.support.toys import TableModel

GREEDY, WARM = Sampling(), Sampling(1.0)
EOS = frozenset({11})
LONGEST, MOST = 6, 60
THRESHOLDS = (0.0, 0.02, 0.05, 0.1, 0.2, 0.4, 0.7)


def toy_pair(seed: int, noise: float = 1.0) -> tuple[TableModel, TableModel]:
    """A target, and a drafter that is nearly it."""
    target, drafter = TableModel(12, seed, eos_token_ids=EOS), TableModel(12, seed, eos_token_ids=EOS)
    drafter.table = target.table + noise * torch.randn(12, 12, 12, generator=torch.Generator().manual_seed(seed + 1))
    return target, drafter


def as_record(generation: Any) -> Generation:
    steps = [[s.num_drafted, s.num_verified, s.num_accepted, s.num_emitted] for s in generation.steps]
    return records.generation(token_ids=list(generation.token_ids), steps=steps)


@cache
def decode_toys(
    seed: int, threshold: float, length: int, target_sampling: Sampling, draft_sampling: Sampling,
    pauses_after: int = sys.maxsize,
) -> tuple[Generation, RecordedGeneration]:  # fmt: skip
    """One generation at a setting, and what a recording of it would know."""
    target, model = toy_pair(seed)
    drafter = ModelDrafter(model, draft_sampling)
    drafter.pauses_at = 2 + pauses_after
    rule = RecordingRule(Fuzzy(divergence="js", threshold=threshold))
    generation = decode(
        target, drafter, rule, [0, 1], num_draft_tokens=length, sampling=target_sampling,
        stop=StopRules(MOST, eos_token_ids=EOS), generator=torch.Generator().manual_seed(seed),
    )  # fmt: skip
    made = as_record(generation)
    kept = recorded_steps(replace_fields(made, drafted=rule.take(len(made.steps))))
    return made, RecordedGeneration(kept, len(made.token_ids), MOST, EOS, length, pauses_after=pauses_after)


def num_known_steps(steps: list[StepCounts], real: Generation, recorded: RecordedGeneration, text: Ints) -> int:
    """How many of the first replayed steps a greedy recording with this text determines: their text is the recorded
    one, and all that they draft was drafted there."""
    same = next((i for i, pair in enumerate(zip(real.token_ids, text, strict=False)) if pair[0] != pair[1]), len(text))
    drafted = {w.start + place for w in recorded.windows for place in range(len(w.token_ids))}
    start = 1
    for number, step in enumerate(steps):
        verified = range(start, start + step.verified)
        if start + step.emitted > same or not drafted.issuperset(verified):
            return number
        start += step.emitted
    return len(steps)


@pytest.mark.parametrize("threshold", [0.05, 0.6])
def test_a_drafter_that_pauses_is_replayed_as_it_is_measured(threshold: float) -> None:
    made, _ = decode_toys(2, threshold, 3, GREEDY, GREEDY, pauses_after=6)
    _, recorded = decode_toys(2, 0.05, 3, GREEDY, GREEDY, pauses_after=6)
    steps = replay(recorded, threshold, 3)
    assert threshold != 0.05 or list(steps) == list(made.steps)
    starts = [1 + sum(step.emitted for step in steps[:number]) for number in range(len(steps))]
    assert all((step.drafted == 0) == (start >= 6) for start, step in zip(starts, steps[:-1], strict=False))


@pytest.mark.filterwarnings("ignore:js never exceeds")
def test_the_known_steps_are_those_of_real_runs() -> None:
    num_known = num_steps = num_changed = 0
    for seed in range(4):
        recordings = [decode_toys(seed, threshold, LONGEST, GREEDY, GREEDY) for threshold in (0.0, 0.05, 0.4)]
        for length in (1, 3, LONGEST):
            for threshold in THRESHOLDS:
                real, _ = decode_toys(seed, threshold, length, GREEDY, GREEDY)
                for made, recorded in recordings:
                    steps = replay(recorded, threshold, length)
                    known = num_known_steps(steps, real, recorded, made.token_ids)
                    assert steps[:known] == list(real.steps)[:known]
                    num_known, num_steps = num_known + known, num_steps + len(steps)
                    num_changed += known < len(steps)
    assert num_known > 0.05 * num_steps and num_changed > 50, "neither all nor nothing is known"


@pytest.mark.filterwarnings("ignore:js never exceeds")
@pytest.mark.parametrize("samplings", [(GREEDY, GREEDY), (WARM, GREEDY), (WARM, WARM)], ids=["greedy", "p2", "sampled"])
def test_at_its_own_setting_the_walk_is_the_recorded_run(samplings: tuple[Sampling, Sampling]) -> None:
    for seed in range(4):
        for threshold in THRESHOLDS:
            real, recorded = decode_toys(seed, threshold, LONGEST, *samplings)
            assert replay(recorded, threshold, LONGEST) == list(real.steps)


def test_wrong_evidence_is_found_out() -> None:
    """The control of the two tests above: a divergence that is not the real one makes other steps."""
    num_wrong = 0
    for seed in range(24):
        real, recorded = decode_toys(seed, 0.1, LONGEST, GREEDY, GREEDY)
        wrong = [replace(w, divergence=tuple(0.2 - d for d in w.divergence)) for w in recorded.windows]
        num_wrong += replay(replace(recorded, windows=wrong), 0.1, LONGEST) != list(real.steps)
    assert num_wrong > 6


def test_longer_steps_of_the_same_text_are_found() -> None:
    """At threshold 0 nothing is accepted; at any threshold that accepts only the target's own tokens the answer is the
    same, in longer steps."""
    longer = 0
    for seed in range(24):
        _, recorded = decode_toys(seed, 0.0, LONGEST, GREEDY, GREEDY)
        for threshold in (0.02, 0.05):
            real, other = decode_toys(seed, threshold, LONGEST, GREEDY, GREEDY)
            if real.token_ids == decode_toys(seed, 0.0, LONGEST, GREEDY, GREEDY)[0].token_ids:
                steps = replay(recorded, threshold, LONGEST)
                assert len(steps) == len(other.windows)
                longer += len(steps) < len(recorded.windows)
    assert longer > 3


def test_the_first_step_accepts_more_at_larger_thresholds_and_longer_drafts() -> None:
    for seed in range(20):
        _, recorded = decode_toys(seed, 0.05, LONGEST, GREEDY, GREEDY)
        if not recorded.windows:  # the first token ended it
            continue
        for length in (1, 3, LONGEST):
            accepted = [replay(recorded, t, length)[0].accepted for t in THRESHOLDS]
            assert accepted == sorted(accepted)
        for threshold in THRESHOLDS:
            accepted = [replay(recorded, threshold, n)[0].accepted for n in range(1, LONGEST + 1)]
            assert accepted == sorted(accepted)


def test_longer_drafts_than_recorded_are_not_replayed() -> None:
    _, recorded = decode_toys(0, 0.05, LONGEST, WARM, WARM)
    with pytest.raises(ValueError, match="recorded with 6 draft tokens, not 7"):
        replay(recorded, 0.05, 7)


def test_the_comparison_is_that_of_the_rule() -> None:
    """In float32, and at the threshold itself only where the rule takes it."""
    window = RecordedStep(1, [3], [float(torch.tensor(0.3))], [4, 5], 0, 4)
    recorded = RecordedGeneration([window], 2, MOST, EOS, 1)
    found = [replay(replace(recorded, inclusive=each), 0.3, 1)[0].accepted for each in (False, True)]
    assert found == [0, 1]


@pytest.mark.slow
def test_estimates_come_near_real_runs_of_the_embedded_pair(
    embedded_pair: ModelPair, embedded_prompts: dict[str, list[list[int]]]
) -> None:
    base = load_method("fsd")
    prompts = embedded_prompts["en"][:4]

    def measure(threshold: float, length: int, keep: bool = False) -> tuple[list[Generation], list[RecordedGeneration]]:
        decoder = build_decoder(fuzzy_at(base, threshold, length), embedded_pair, GREEDY)
        decoder = replace(decoder, rule=RecordingRule(decoder.rule)) if keep else decoder
        made_records, kept = [], []
        for prompt in prompts:
            stop = StopRules(80, embedded_pair.target.eos_token_ids)
            record = as_record(decoder.generate(prompt, stop, seed=0))
            made_records.append(record)
            if isinstance(decoder.rule, RecordingRule):
                made = recorded_steps(replace_fields(record, drafted=decoder.rule.take(len(record.steps))))
                kept.append(RecordedGeneration(made, len(record.token_ids), 80, stop.eos_token_ids, length))
        return made_records, kept

    _, recorded = measure(0.1, 10, keep=True)
    taus = []
    for threshold in (0.1, 0.3, 0.6):
        walks = [replay(each, threshold, 5) for each in recorded]
        real, _ = measure(threshold, 5)
        estimated = sum(s.emitted for steps in walks for s in steps) / sum(map(len, walks))
        measured = sum(s[3] for r in real for s in r.steps) / sum(len(r.steps) for r in real)
        assert estimated == pytest.approx(measured, rel=0.15)
        taus.append(estimated)
    assert taus == sorted(taus)


def test_costs_give_back_the_recorded_seconds_and_lie_between_the_lengths() -> None:
    def generation(drafted: int, count: int, target: float, draft: float, overhead: float) -> Generation:
        return records.generation(
            steps=[[drafted, 0, 0, 1]] * count,
            passes={"target": [[drafted + 1, target]] * count, "draft": [[1, draft]] * (drafted * count)},
            decode_seconds=count * (target + drafted * draft + overhead),
        )

    record = records.record({"ar": generation(0, 40, 1.0, 0.0, 0.1), "fsd": generation(10, 8, 2.0, 0.05, 0.3)})
    costs = StepCosts.of([record], "fsd")
    assert 8 * costs.step_seconds(10) == pytest.approx(record.methods["fsd"].decode_seconds)
    assert costs.step_seconds(0) == pytest.approx(1.1) and costs.step_seconds(5) == pytest.approx(1.5 + 0.25 + 0.2)


def test_values_of_a_sweep() -> None:
    fsd = load_method("fsd")
    assert set(values_by_path(fsd, None, None)) == {"num_draft_tokens", "verification.threshold"}
    assert values_by_path(fsd, "verification.threshold", "0.1, 0.25") == {"verification.threshold": [0.1, 0.25]}
    assert values_by_path(fsd, "verification.divergence", "js,tv") == {"verification.divergence": ["js", "tv"]}
    for path, values, problem in [
        (None, "0.1", "--values 0.1: needs --path"),
        ("verification.treshold", None, r"--path verification\.treshold: .*'verification\.threshold'"),
        ("verification.divergence", None, "sweeps no values of it"),
    ]:
        with pytest.raises(ConfigError, match=problem):
            values_by_path(fsd, path, values)


def test_checks_are_spread_over_the_thresholds() -> None:
    assert pick_evenly([1, 2, 3, 4, 5, 6], 3) == [1, 3, 6] and pick_evenly([1, 2], 3) == [1, 2]
    assert all(len(set(pick_evenly(list(range(n)), k))) == min(n, k) for n in range(1, 12) for k in range(1, 12))


@pytest.fixture
def call(
    tmp_path: Path, tiny_pair: tuple[str, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[str, str]]:
    """The command on a random pair and five rows: (stdout, stderr)."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("specbench.models.machine.commit", lambda checkout: None)  # of a checkout at work
    monkeypatch.setattr("sys.argv", ["specbench", "sweep"])
    rows = [f"Question {i}: what is {i} + {i}?\t{2 * i}" for i in range(5)]
    (tmp_path / "mgsm_en.tsv").write_text("\n".join(rows), encoding="utf-8")

    def run(method: str, **options: Any) -> tuple[str, str]:
        options |= {name: Path(options[name]) for name in ("runs", "leaderboard", "plot") if name in options}
        sweep(
            task="mgsm", method=method, target=tiny_pair[0], drafter=tiny_pair[1], data=".", subsets="en",
            **{"overrides": ["generation.max_new_tokens=4"], **options},
        )  # fmt: skip
        captured = capsys.readouterr()
        return captured.out, captured.err

    return run


def test_one_pass_estimates_every_setting_and_checks_three(call: Callable[..., tuple[str, str]]) -> None:
    pytest.importorskip("matplotlib")
    board, plot = "board.json", "sweep.png"
    out, err = call("fsd", leaderboard=board, plot=plot, runs="out")
    said = " ".join(out.split())
    assert "estimated, not measured" in said and "≈ τ" in said and "the estimates against real runs" in said
    assert max(map(len, out.split("runs: ")[0].splitlines())) <= 100
    assert err.count("measuring 5 examples") == 4 and Path(plot).read_bytes().startswith(b"\x89PNG")
    assert len({row.method for row in load(board)}) == 4, "AR and three real runs; no estimate is a row"

    folders = {path.parent.name: path.read_text() for path in Path("out").glob("*/records.jsonl")}
    assert len(folders) == 4
    assert {name.startswith("record-") for name, text in folders.items() if '"drafted":' in text} == {True}, (
        "ordinary ones not"
    )

    found, err = call("fsd", as_json=True, runs="out")
    assert err.count("all 5 examples are measured already") == 4
    data = json.loads(found)
    assert data["recorded"]["threshold"] == 0.1 and data["recorded"]["num_draft_tokens"] == 20
    assert len(data["estimates"]) == 24 and all(each["estimate"] for each in data["estimates"])
    assert [each["threshold"] for each in data["measured"]] == [0.1, 0.3, 0.6]
    for each in data["measured"]:
        assert each["estimate_over_measured_minus_1"]["mean_acceptance_length"]["value"] is not None


def test_any_method_is_measured_value_by_value(call: Callable[..., tuple[str, str]]) -> None:
    out, err = call("sd", path="num_draft_tokens", values="2")
    assert "every value measured" in out and "≈" not in out and err.count("measuring 5 examples") == 1
    out, err = call("sd", path="num_draft_tokens", values="2,4", as_json=True)
    assert err.count("measured already") == 1 and err.count("measuring 5 examples") == 1
    measured = json.loads(out)["measured"]
    assert [each["value"] for each in measured] == [2, 4] and not any(each["estimate"] for each in measured)


def test_every_value_of_a_fuzzy_method_can_be_run(call: Callable[..., tuple[str, str]], tmp_path: Path) -> None:
    """One key at a time; the file's own threshold and its own length are the same method, and run once."""
    text = yaml.safe_load((builtin_dir("methods") / "fsd.yaml").read_text())
    text |= {"name": "mine", "sweep": {"num_draft_tokens": [5], "verification.threshold": [0.3, 0.4]}}
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(text))
    out, err = call("mine.yaml", measure_all=True, as_json=True)
    assert err.count("measuring 5 examples") == 2
    measured = json.loads(out)["measured"]
    assert [(each["path"], each["value"]) for each in measured] == [
        ("num_draft_tokens", 5), ("verification.threshold", 0.3), ("verification.threshold", 0.4)
    ]  # fmt: skip
    assert measured[0]["folder"] == measured[1]["folder"] != measured[2]["folder"]


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"method": "ar"}, "--method ar: drafts nothing, so there is nothing to sweep"),
        ({"method": "sd,fsd"}, "takes one method"),
        ({"method": "fsd", "checks": 2}, "--checks 2: estimates are shown with their errors: give at least 3"),
        ({"method": "fsd", "path": "verification.threshold", "values": "0.1,-1"}, "value -1: .*threshold"),
        ({"method": "fsd", "plot": "sweep.doc"}, "unknown picture format"),
        ({"method": "sd", "path": "num_draft_tokens", "values": "0"}, "nothing is drafted"),
    ],
)
def test_bad_input_is_one_line(call: Callable[..., tuple[str, str]], options: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem) as error:
        call(**options)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("path", ["calibration", "decodes_with", "drafter.type", "title"])
def test_what_makes_another_method_is_not_swept(path: str) -> None:
    with pytest.raises(ConfigError, match=f"--path {path}: method 'fsd' has no such key: ") as error:
        values_by_path(load_method("fsd"), path, "3")
    assert "calibration," not in str(error.value) and "verification.rule" in str(error.value)
