"""Commands of this checkout's specbench in processes of their own, and the links of the folders that they run in."""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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


@dataclass(frozen=True)
class Timed:
    """A command that ended, with its seconds by the clock and of the CPU, those of its processes included. `printed`:
    on stdout and stderr."""

    code: int
    wall: float
    cpu: float
    printed: str


def run_timed(command: str, folder: Path, environment: Mapping[str, str]) -> Timed:
    """Runs a line of a shell in a folder."""
    with tempfile.TemporaryFile() as output:
        start = time.monotonic()
        process = subprocess.Popen(
            ["bash", "-c", command], cwd=folder, env=environment, stdout=output, stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip
        _, status, usage = os.wait4(process.pid, 0)
        wall = time.monotonic() - start
        process.returncode = os.waitstatus_to_exitcode(status)
        output.seek(0)
        return Timed(process.returncode, wall, usage.ru_utime + usage.ru_stime, output.read().decode())


def link(place: Path, source: Path) -> None:
    """Makes a symbolic link, or replaces one that points elsewhere or at nothing."""
    place.parent.mkdir(parents=True, exist_ok=True)
    if place.is_symlink():
        place.unlink()
    place.symlink_to(source.resolve())
