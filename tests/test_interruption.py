"""A run that is killed at random points and finished has the same counts as one that was never interrupted."""

import json
import os
import random
import signal
import time
from pathlib import Path

import pytest

from specbench.results.leaderboard import load
from tests.processes import started

NUM_KILLS = 4
COUNTED = ("new_tokens", "acceptance_rate", "acceptance_rate_pooled", "draft_efficiency", "mean_acceptance_length",
           "accepted_length", "drafter_share", "target_passes_per_token", "accuracy", "accuracy_ar",
           "share_cut_by_length")  # fmt: skip


def arguments(pair: tuple[str, str], data: Path, output: Path) -> list[str]:
    return [
        "specbench", "run", "--task", "mgsm", "--method", "sd,fsd", "--subset", "en,ja",
        "--target", pair[0], "--drafter", pair[1], "--data", str(data), "--output", str(output), "--repeats", "2",
        "--set", "generation.max_new_tokens=12", "--set", "generation.temperature=1.0", "--threads", "1",
    ]  # fmt: skip


def finish(argv: list[str]) -> None:
    process = started(argv)
    process.join(120)
    assert process.exitcode == 0


def size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def kill_while_it_writes(argv: list[str], records: Path, wanted: int, rng: random.Random) -> bool:
    """Start the run and kill it once the records have grown to `wanted` bytes; False when it ended before that."""
    process = started(argv)
    deadline = time.monotonic() + 120
    while process.is_alive() and size(records) < wanted and time.monotonic() < deadline:
        time.sleep(0.001)
    time.sleep(rng.random() * 0.05)
    process.kill()
    process.join()
    return process.exitcode == -signal.SIGKILL


def counts(output: Path) -> dict[tuple[str, str], dict[str, object]]:
    return {
        (row.method, row.subset): {"n": row.n, **{name: row.metrics[name].model_dump() for name in COUNTED}}
        for row in load(output / "leaderboard.json")
    }


def blocks(output: Path) -> dict[tuple[object, ...], dict[str, object]]:
    """What every record counts, by its key; a key that is there twice fails."""
    found: dict[tuple[object, ...], dict[str, object]] = {}
    for line in (output / "records.jsonl").read_bytes().splitlines():
        record = json.loads(line)
        key = (record["subset"], record["example"], record["repeat"])
        assert key not in found
        found[key] = {
            name: (result["token_ids"], result["steps"], result["finish"], result["score"])
            for name, result in record["methods"].items()
        }
    return found


@pytest.mark.slow
def test_killed_runs_finish_with_the_same_counts(tiny_pair: tuple[str, str], tmp_path: Path) -> None:
    data = tmp_path / "rows"
    data.mkdir()
    for language in ("en", "ja"):
        lines = [f"Question {i}: what is {i} + {i}?\t{2 * i}" for i in range(4)]
        (data / f"mgsm_{language}.tsv").write_text("\n".join(lines), encoding="utf-8")
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    finish(arguments(tiny_pair, data, whole))
    final_size = size(whole / "records.jsonl")

    rng = random.Random(0)
    points = sorted(rng.uniform(0.02, 0.9) * final_size for _ in range(NUM_KILLS))
    num_killed = sum(
        kill_while_it_writes(arguments(tiny_pair, data, broken), broken / "records.jsonl", int(point), rng)
        for point in points
    )
    assert num_killed >= 3
    assert not (broken / "leaderboard.json").exists()

    with (broken / "records.jsonl").open("rb+") as file:  # and once in the middle of a line
        file.truncate(os.path.getsize(broken / "records.jsonl") - 100)
    finish(arguments(tiny_pair, data, broken))
    assert blocks(broken) == blocks(whole)
    assert counts(broken) == counts(whole)
