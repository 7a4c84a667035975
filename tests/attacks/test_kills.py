"""A run of all kinds of methods that is killed and then finished has the records of one that never was."""

import json
import random
import signal
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest

from specbench.results.leaderboard import load
from tests.support.processes import started

NUM_KILLS = 4
# One of every kind of record: of a draft model, a point mass, a fuzzy rule, text, strings, an n-gram model, a
# rehearsal, a decoder with a loop of its own, routes, and queries that the drafter decodes.
METHODS = [
    "draft-only",
    "fsd",
    "hf-sd",
    "ngram",
    "pld",
    "random-allocation",
    "routed",
    "sd",
    "slem",
    "slrs",
    "synthetic",
]
COUNTED = ("new_tokens", "acceptance_rate", "acceptance_rate_pooled", "draft_efficiency", "mean_acceptance_length",
           "accepted_length", "drafter_share", "target_passes_per_token", "accuracy", "accuracy_ar",
           "share_cut_by_length")  # fmt: skip


def arguments(output: Path) -> list[str]:
    return [
        "specbench", "run", "--task", "mgsm,msvamp", "--method", ",".join(METHODS), "--subsets-per-task", "1",
        "--limit", "1", "--repeats", "2", "--set", "generation.max_new_tokens=8",
        "--set", "generation.temperature=1.0", "--threads", "1", "--output", str(output),
    ]  # fmt: skip


def finish(output: Path) -> tuple[float, float]:
    """Run to the end; the seconds until the first record, and those of a record after it."""
    process, begin, first = started(arguments(output)), time.monotonic(), None
    while process.is_alive() and time.monotonic() < begin + 240:
        process.join(0.01)
        if first is None and recorded(output):
            first = time.monotonic() - begin
    assert process.exitcode == 0 and first is not None
    return first, (time.monotonic() - begin - first) / len(recorded(output))


def kill_after(seconds: float, output: Path) -> bool:
    """Start the run and kill it; False when it ended before that."""
    process = started(arguments(output))
    process.join(seconds)
    process.kill()
    process.join()
    return process.exitcode == -signal.SIGKILL


def recorded(output: Path) -> dict[tuple[Any, ...], bytes]:
    """The whole lines of the records by their keys; a key that occurs twice fails."""
    found: dict[tuple[Any, ...], bytes] = {}
    path = output / "records.jsonl"
    for line in path.read_bytes().splitlines(keepends=True) if path.exists() else []:
        if line.endswith(b"\n"):
            record = json.loads(line)
            key = (record["task"], record["subset"], record["example"], record["repeat"])
            assert key not in found
            found[key] = line
    return found


def counted(line: bytes) -> dict[str, tuple[Any, ...]]:
    """What a record counts, by method."""
    return {
        name: (result["token_ids"], result["steps"], result["finish"], result["score"])
        for name, result in json.loads(line)["methods"].items()
    }


def rows(output: Path) -> dict[tuple[str, ...], dict[str, Any]]:
    return {
        (row.task, row.method, row.subset): {
            "n": row.n, **{name: row.metrics[name].model_dump() for name in COUNTED if name in row.metrics}
        }
        for row in load(output / "leaderboard.json")
    }  # fmt: skip


def check_same(found: Path, expected: Path) -> None:
    """Nothing is lost or doubled, and all counts are the same, in the records and in the rows made of them."""
    assert {key: counted(line) for key, line in recorded(found).items()} == {
        key: counted(line) for key, line in recorded(expected).items()
    }
    assert rows(found) == rows(expected)
    assert not list(found.glob(".*.tmp"))


def killed_and_finished(base: Path, whole: Path, num_kills: int, longest: float) -> None:
    """Kill a run so many times, each at a random moment, and finish it. A run that ends before its kill is compared as
    it is, and the kills go on in a new folder."""
    rng, num_killed, number, kept = random.Random(base.name), 0, 0, dict[tuple[Any, ...], bytes]()
    while num_killed < num_kills:
        broken = base.with_name(f"{base.name}-{number}")
        is_killed = kill_after(rng.uniform(0.2, longest), broken)
        num_killed += is_killed
        now = recorded(broken)
        assert kept.items() <= now.items(), "what was recorded stays as it is"
        kept = now if is_killed else {}
        if not is_killed:
            check_same(broken, whole)
            number += 1
    if kept:
        with (broken / "records.jsonl").open("rb+") as file:  # and once in the middle of a line
            file.truncate(file.seek(0, 2) - 100)
    finish(broken)
    check_same(broken, whole)


@pytest.mark.slow
def test_a_run_that_is_killed_again_and_again_loses_and_doubles_nothing(tmp_path: Path) -> None:
    """Two runs at a time, each killed twice, at other moments in each."""
    started(["specbench", "--version"]).join()  # imports what all runs share
    to_first, of_each = finish(tmp_path / "whole")
    with ThreadPoolExecutor(2) as pool:
        pairs = [
            pool.submit(killed_and_finished, tmp_path / name, tmp_path / "whole", NUM_KILLS // 2, to_first + of_each)
            for name in ("one", "two")
        ]
        for pair in pairs:
            pair.result()


def test_a_run_that_is_killed_once_goes_on(specbench: Callable[..., Any], tmp_path: Path) -> None:
    """Killed after its first record and cut in the middle of the last one: what is whole stays as it is."""
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    run, again = ([*arguments(each)[1:], "--method", "sd", "--limit", "1"] for each in (whole, broken))
    assert specbench(*run)[0] == 0
    killed = get_context("fork").Process(target=specbench, args=again)
    killed.start()
    while not recorded(broken) and killed.is_alive():
        time.sleep(0.001)
    killed.kill()
    killed.join()
    kept = recorded(broken)
    assert killed.exitcode == -signal.SIGKILL and 0 < len(kept) < len(recorded(whole))
    with (broken / "records.jsonl").open("ab") as file:
        file.write(next(iter(kept.values()))[:100])
    assert specbench(*again)[0] == 0
    assert kept.items() <= recorded(broken).items()
    check_same(broken, whole)
