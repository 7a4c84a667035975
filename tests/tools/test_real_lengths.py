"""The comparison of draft lengths over two tasks, and what steps cost, from made-up records."""

from pathlib import Path

import pytest

from specbench.results.answers import BASELINE, answers_of
from tests.support.records import autoregressive, generation, record
from tools.commands import ROOT
from tools.real.archive import unpack
from tools.real.cells import CELLS
from tools.real.drafting import replays
from tools.real.lengths import Mix, StepCosts
from tools.real.measured import Measured


@pytest.fixture
def mix() -> Mix:
    """fixed-1 is the fastest on task a, fixed-2 on b and over both; v, which varies, is as fast as the best on each."""
    records = []
    seconds = {"a": {"fixed-1": 6.0, "fixed-2": 8.0, "v": 6.0}, "b": {"fixed-1": 12.0, "fixed-2": 4.0, "v": 4.0}}
    for task, by_method in seconds.items():
        for example in range(6):
            methods = {"ar": autoregressive(13, decode_seconds=12.0, target=[(1, 1.0)] * 12)}
            for name, each in by_method.items():
                length = 1 if name == "fixed-1" else 2
                steps = [[length, length, length, length + 1]] * (12 // (length + 1))
                target, draft = [(length + 1, 1.5)] * len(steps), [(1, 0.1)] * (length * len(steps))
                methods[name] = generation(steps, decode_seconds=each, target=target, draft=draft)
            records.append(record(methods, task=task, example=example, id=str(example), prompt=f"{task}{example}"))
    return Mix(records, ["fixed-1", "fixed-2"])


def test_lengths_are_compared_with_the_fastest_fixed_one_over_both_tasks(mix: Mix) -> None:
    assert mix.fastest() == "fixed-2"
    assert Mix([each for each in mix.records if each.task == "a"], mix.fixed).fastest() == "fixed-1"
    assert mix.ratio("v", "fixed-2").value == pytest.approx(12 / 10)
    assert mix.speed("v").value == pytest.approx(24 / 10)
    metrics = mix.metrics("v")
    assert metrics["oracle_share"].value == pytest.approx(1.0)
    assert metrics["draft_length"].value == 2
    assert metrics["speedup"].value == pytest.approx(24 / 10)


def test_a_step_costs_its_draft_passes_and_its_verifying_pass(mix: Mix) -> None:
    """Drafts of two tokens, all accepted: 3 tokens for two draft passes of a tenth and a verifying pass of 1.5."""
    costs = StepCosts.of(mix.answers("v"), answers_of(mix.records, BASELINE))
    assert costs == StepCosts(draft_passes=2, c=pytest.approx(0.1), v=pytest.approx(1.5), emitted=3)
    assert costs.speedup == pytest.approx(3 / 1.7)


@pytest.mark.slow
def test_replayed_lengths_of_the_real_pair_have_what_these_lengths_measured(tmp_path: Path) -> None:
    """Where verdicts are known to 90 %, what `advise` replays is within 5 % of what the same process measured, and its
    interval holds it."""
    (cell,) = [cell for cell in CELLS if cell.name == "drafting-wmt-calibration"]
    unpack(ROOT / "leaderboards" / "real" / f"{cell.name}.tar.xz", tmp_path)
    found = [*replays(Measured({cell.name: tmp_path}))]
    assert [(source, row.num_draft_tokens) for _, source, _, row in found] == [
        ("sd-recorded", 1), ("sd-recorded", 3), ("sd-recorded", 6), ("sd-6", 1), ("sd-6", 3), ("sd-3", 1)
    ]  # fmt: skip
    for _, source, replay, row in found:
        if replay.known_share >= 0.9:
            length, speedup = (row.value(name) or 0.0 for name in ("mean_acceptance_length", "speedup"))
            assert replay.mean_acceptance_length.value == pytest.approx(length, rel=0.05), (source, replay)
            assert replay.speedup.value == pytest.approx(speedup, rel=0.05), (source, replay)
            assert (replay.speedup.low or 0.0) <= speedup <= (replay.speedup.high or 0.0)
