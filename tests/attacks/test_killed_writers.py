"""Writers of one file that are killed, or at work at the same time: nothing is left, lost or mixed."""

import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from specbench.core import environment
from specbench.core.files import write_atomically
from specbench.results.leaderboard import write
from tests.support.site_rows import some_rows

ROOT = environment.PACKAGE.parent
WRITER = """
import os, signal, sys
from pathlib import Path
from specbench.core import files

own = os.getpid()
def at(point):
    if point == sys.argv[1]: os.kill(own, signal.SIGKILL)
    if point == "synced" and sys.argv[1] == "waits": print("ready", flush=True); sys.stdin.readline()

sync, replace = os.fsync, os.replace
os.fsync = lambda number: (at("written"), sync(number), at("synced"))
os.replace = lambda old, new: (at("before"), replace(old, new), at("after"))
if len(sys.argv) > 4: os.getpid = lambda: 7
for number in range(int(sys.argv[3])):
    files.write_atomically(Path(sys.argv[2]), sys.argv[1] * 1000)
"""


def writer(kind: str, path: Path, num_writes: int = 1, *more: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", WRITER, kind, str(path), str(num_writes), *more], cwd=ROOT, text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("point", ["written", "synced", "before", "after"])
def test_the_next_writer_removes_what_a_killed_one_left(point: str, tmp_path: Path) -> None:
    path = tmp_path / "board.json"
    write_atomically(path, "old")
    killed = writer(point, path)
    assert killed.wait(60) == -signal.SIGKILL
    assert path.read_text() == ("old" if point != "after" else "after" * 1000)
    assert len(names(tmp_path)) == (1 if point == "after" else 2)
    write_atomically(path, "new")
    assert names(tmp_path) == ["board.json"] and path.read_text() == "new"


def test_the_next_writer_of_a_board_removes_what_a_killed_one_left(
    specbench: Callable[..., tuple[int, str, str]], tmp_path: Path
) -> None:
    write(tmp_path.parent / f"{tmp_path.name}.json", some_rows(1))
    rows = str(tmp_path.parent / f"{tmp_path.name}.json")
    assert specbench("leaderboard", "merge", rows, "--leaderboard", "board.json")[0] == 0
    assert writer("written", tmp_path / "board.json").wait(60) == -signal.SIGKILL
    assert len(names(tmp_path)) == 3
    assert specbench("leaderboard", "merge", rows, "--leaderboard", "board.json")[0] == 0
    assert names(tmp_path) == [".board.json.lock", "board.json"]


def test_a_writer_that_lives_keeps_its_file(tmp_path: Path) -> None:
    path = tmp_path / "board.json"
    with writer("waits", path) as waiting:
        assert waiting.stdout is not None and waiting.stdin is not None
        assert waiting.stdout.readline() == "ready\n"
        write_atomically(path, "new")
        assert len(names(tmp_path)) == 2 and path.read_text() == "new"
        waiting.stdin.write("\n")
        waiting.stdin.flush()
        assert waiting.wait(60) == 0
    assert names(tmp_path) == ["board.json"] and path.read_text() == "waits" * 1000


def test_files_of_other_names_are_kept(tmp_path: Path) -> None:
    others = [
        ".board.json.tmp",
        ".board.json.x.tmp",
        ".board.json.5.json.7.tmp",
        ".other.json.7.tmp",
        "board.json.7.tmp",
    ]
    for name in others:
        (tmp_path / name).write_text("kept")
    write_atomically(tmp_path / "board.json", "new")
    assert names(tmp_path) == sorted([*others, "board.json"])


@pytest.mark.parametrize("more", [[], ["same number"]], ids=["on one machine", "of the same number on several"])
def test_writers_at_the_same_time_of_which_some_are_killed(more: list[str], tmp_path: Path) -> None:
    path = tmp_path / "board.json"
    others = [writer(kind, path, 50, *more) for kind in ("one", "two", "three")]
    killed = [writer("written", path, 1, *more) for _ in range(2)]
    assert [each.wait(60) for each in killed] == [-signal.SIGKILL] * 2
    for each in others:
        _, error = each.communicate(timeout=60)
        assert (each.returncode, error) == (0, "")
    assert path.read_text() in {kind * 1000 for kind in ("one", "two", "three")}
    write_atomically(path, "new")
    assert names(tmp_path) == ["board.json"]
