"""Board repositories with bundles of the embedded family."""

import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

from specbench.publish.board.init import init_board
from specbench.publish.bundle.make import make_bundle
from specbench.publish.bundle.scrub import Scrubber
from tests.support.bundles import ABOUT

LICENSED = replace(ABOUT, licence="CC-BY-4.0")


def bundle_of(run: Path, to: Path, licence: str | None = "CC-BY-4.0", title: str = "Made for a test") -> Path:
    to.parent.mkdir(parents=True, exist_ok=True)
    make_bundle([run], to, replace(ABOUT, licence=licence, title=title), scrubber=Scrubber())
    return to


def new_board(folder: Path, *bundles: Path) -> Path:
    """A board that has bundles, which `merge` has not seen yet."""
    init_board(folder, "A board")
    for bundle in bundles:
        shutil.copy(bundle, folder / "bundles")
    return folder


def submission(board: Path, to: Path, *bundles: Path) -> Path:
    """A copy of a board with new bundles."""
    shutil.copytree(board, to, symlinks=True, ignore=shutil.ignore_patterns(".*.lock"))
    for bundle in bundles:
        shutil.copy(bundle, to / "bundles")
    return to


def set_key(board: Path, key: str, value: str) -> None:
    """Changes a key of board.yaml: a line of it, or a list that stands there as []."""
    lines = (board / "board.yaml").read_text(encoding="utf-8").splitlines()
    places = [place for place, line in enumerate(lines) if line.startswith(f"{key}:")]
    assert places, key
    lines[places[0]] = f"{key}: {value}"
    (board / "board.yaml").write_text("\n".join(lines) + "\n", encoding="utf-8")


def git(folder: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=Ada", "-c", "user.email=ada@example.org", "-c", "commit.gpgsign=false"]
    done = subprocess.run(
        ["git", "-C", str(folder), *identity, *arguments], capture_output=True, check=True, encoding="utf-8"
    )
    return done.stdout
