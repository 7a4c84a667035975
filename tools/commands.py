"""Commands of this checkout's specbench in processes of their own, and the links of the folders that they run in."""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import IO

ROOT = Path(__file__).parents[1]


def run_specbench(
    words: Sequence[str], folder: Path, threads: int, stdout: int | IO[str], stderr: int | None = None
) -> subprocess.CompletedProcess[str]:
    """Runs `specbench` in a folder. `stdout`: a file, or `subprocess.PIPE`; `stderr`: by default the terminal."""
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": str(threads)}
    command = [sys.executable, "-m", "specbench", *words]
    return subprocess.run(command, cwd=folder, env=environment, stdout=stdout, stderr=stderr, text=True, check=False)


def link(place: Path, source: Path) -> None:
    """Makes a symbolic link, or replaces one that points elsewhere or at nothing."""
    place.parent.mkdir(parents=True, exist_ok=True)
    if place.is_symlink():
        place.unlink()
    place.symlink_to(source.resolve())
