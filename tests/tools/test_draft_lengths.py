"""The comparison of draft lengths: its numbers from made-up records, and a run of it on the embedded pair."""

import json
import sys
from pathlib import Path

import pytest

from tests.support.records import autoregressive, generation, record
from tools import draft_lengths


def test_each_length_is_compared_with_the_fastest_fixed_one_over_both_tasks() -> None:
    """fixed-1 is the fastest on one task, fixed-2 on the other and over both; what varies is as fast as the best."""
    records = []
    seconds = {"a": {"fixed-1": 6.0, "fixed-2": 8.0, "v": 6.0}, "b": {"fixed-1": 12.0, "fixed-2": 4.0, "v": 4.0}}
    for task, by_method in seconds.items():
        for example in range(6):
            methods = {"ar": autoregressive(13, decode_seconds=12.0, target=[(1, 1.0)] * 12)}
            for name, each in by_method.items():
                length = 1 if name == "fixed-1" else 2
                steps = [[length, length, length, length + 1]] * (12 // (length + 1))
                target, draft = [(length + 1, 1.0)] * len(steps), [(1, 0.1)] * (length * len(steps))
                methods[name] = generation(steps, decode_seconds=each, target=target, draft=draft)
            records.append(record(methods, task=task, example=example, id=str(example), prompt=f"{task}{example}"))
    table, numbers = draft_lengths.compare(records, ["fixed-1", "fixed-2"], {"v": "svip 0.3"}, ["a", "b"])
    assert numbers["best_fixed"] == "fixed-2"
    assert numbers["methods"]["v"]["ratio_to_best_fixed"]["value"] == pytest.approx(12 / 10)
    assert numbers["methods"]["v"]["oracle_share"]["value"] == pytest.approx(1.0)
    assert numbers["methods"]["v"]["draft_length"]["value"] == 2
    assert "fixed-1 on a, fixed-2 on b" in table.caption[0]


@pytest.mark.slow
def test_it_runs_on_the_embedded_pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["--work", str(tmp_path), "--limit", "1", "--calibration", "1", "--warm-up", "1", "--threads", "1"]
    monkeypatch.setattr(sys, "argv", ["draft_lengths", *words])
    draft_lengths.main()
    found = json.loads((tmp_path / "draft_lengths.json").read_text())
    assert {f"varying-{policy}" for policy in ("confidence", "adaedl", "svip", "costs", "heuristic")} <= set(
        found["methods"]
    )
