"""What a worker is asked for, and what it tells: plain values, since they go from process to process."""

from dataclasses import dataclass
from pathlib import Path

from specbench.request import Request
from specbench.running.records import Record


@dataclass(frozen=True)
class Job:
    """One run. `cwd`: the folder that its paths are seen from, where it is there. `num_sharing`: the workers that share
    the CPUs of the machine, this one among them."""

    request: Request
    allow_code_execution: bool = False
    cwd: Path | None = None
    num_sharing: int = 1

    @property
    def folder(self) -> Path:
        """Where the records are to be."""
        assert self.request.output is not None
        return self.request.output


@dataclass(frozen=True)
class Opening:
    """The first that a worker is sent: what it measures with, which its machine's name may hold. `scratch`: a folder
    that is removed when whoever asks is gone."""

    device: str
    threads: int | None
    scratch: Path | None = None


@dataclass(frozen=True)
class Ready:
    """A worker is there. What must be equal in all of them: the device, the versions, the code."""

    host: str
    pid: int
    device: str
    versions: dict[str, str | None]
    commit: str | None


@dataclass(frozen=True)
class Said:
    """A line for the user."""

    line: str


@dataclass(frozen=True)
class Begun:
    """The models are loaded, and the blocks of the run are known. `files`: of its folder, by name, where the folder
    is the worker's own."""

    num_blocks: int
    files: dict[str, bytes] | None = None


@dataclass(frozen=True)
class Recorded:
    """A block is on the worker's disk. `measured`: False where it was there before."""

    record: Record
    measured: bool


@dataclass(frozen=True)
class Finished:
    """The run is over. `failure`: why it has no rows. `load_seconds`: for models that were not loaded before.
    `is_last`: the process ends itself."""

    failure: str | None
    seconds: float = 0.0
    load_seconds: float = 0.0
    is_last: bool = False
    files: dict[str, bytes] | None = None


@dataclass(frozen=True)
class Lost:
    """The worker's process is gone, and why; a job that it had is not finished."""

    reason: str


Event = Ready | Said | Begun | Recorded | Finished | Lost
