"""Workers on the machines and GPUs of a ray cluster: each holds one GPU, or CPUs, and sends back every record."""

import os
import shutil
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from specbench.core.errors import ConfigError
from specbench.core.files import write_bytes
from specbench.publish.suite.process import MeasuringProcess
from specbench.publish.suite.workers import Begun, Event, Finished, Job, Lost, Opening, Ready, Recorded, Said
from specbench.running.records import RecordFile, record_key

Files = dict[str, bytes]


class Host:
    """What runs in the cluster, as a ray actor: a process that measures, and the folder that it measures into."""

    def __init__(self, opening: Opening) -> None:
        self._scratch = Path(tempfile.mkdtemp(prefix="specbench-"))
        self._process = MeasuringProcess(replace(opening, scratch=self._scratch))

    def open(self) -> Ready | Lost:
        """Start the process, where it has ended."""
        return self._process.open()

    def measure(self, job: Job, files: Files) -> Iterator[Event]:
        """Do a job in a folder that holds these files at first; what is written there comes with the events."""
        folder = self._scratch / "cell"
        shutil.rmtree(folder, ignore_errors=True)
        self._scratch.mkdir(mode=0o700, exist_ok=True)
        folder.mkdir()
        for name, content in files.items():
            (folder / name).write_bytes(content)
        here = replace(job, request=replace(job.request, output=folder))
        for event in self._process.events(here):
            seen = self._seen_from_there(event, folder, job)
            if isinstance(event, Finished | Lost):  # who hears of it may end this process at once
                shutil.rmtree(self._scratch, ignore_errors=True)
            yield seen

    def _seen_from_there(self, event: Event, folder: Path, job: Job) -> Event:
        """With the files of the folder, and with its name as who asked knows it."""
        if isinstance(event, Begun):
            return replace(event, files=files_of(folder))
        if isinstance(event, Said):
            return Said(event.line.replace(str(folder), str(job.folder)))
        if isinstance(event, Finished):
            failure = event.failure and event.failure.replace(str(folder), str(job.folder))
            return replace(event, failure=failure, files=files_of(folder) if failure is None else None)
        return event


def files_of(folder: Path, with_records: bool = False) -> Files:
    """The files of a run by name, its records among them where they are asked for."""
    names = ("run.json", "specs.json", "leaderboard.json", *(["records.jsonl"] if with_records else []))
    return {name: (folder / name).read_bytes() for name in names if (folder / name).is_file()}


ANSWER_SECONDS = 10  # of a cluster's head
START_SECONDS = 180  # until a worker is there: it starts Python and imports torch
STORE_BYTES = 128 * 2**20  # of ray's own memory on this machine: what passes through it are records
LOCAL = "local"


@dataclass
class RayWorker:
    """An actor in the cluster; `open` makes a new one, where there is room for it. `ray`: the module."""

    ray: Any
    name: str
    opening: Opening
    needs: dict[str, float]
    actor: Any = None

    def open(self) -> Ready | Lost:
        """A new actor, where the old one is gone, and a new process in it."""
        try:
            if self.actor is None:
                self.actor = self.ray.remote(Host).options(max_restarts=0, **self.needs).remote(self.opening)
            found: Ready | Lost = self.ray.get(self.actor.open.remote(), timeout=START_SECONDS)
        except self.ray.exceptions.GetTimeoutError:
            self.close()
            return Lost(f"the cluster had no room for it within {START_SECONDS} s")
        except self.ray.exceptions.RayError as error:
            self.close()
            return Lost(first_line(error))
        return found

    def events(self, job: Job) -> Iterator[Event]:
        """Send a job with what is recorded of it, and keep every record that comes, once."""
        records = RecordFile(job.folder / "records.jsonl")
        known = {record_key(record) for record in records.read()}
        try:
            measure = self.actor.measure.options(num_returns="streaming")
            for reference in measure.remote(job, files_of(job.folder, with_records=True)):
                event: Event = self.ray.get(reference)
                if isinstance(event, Recorded) and record_key(event.record) not in known:
                    records.append(event.record)
                    known.add(record_key(event.record))
                elif isinstance(event, Begun | Finished):
                    for name, content in (event.files or {}).items():
                        write_bytes(job.folder / name, content)
                yield event
        except self.ray.exceptions.RayError as error:
            self.close()
            yield Lost(first_line(error))
        except Exception:  # what was sent cannot be kept here: nobody waits for the rest of it
            self.close()
            raise

    def close(self) -> None:
        """End the actor; the process that it has then ends itself."""
        if self.actor is not None:
            with suppress(Exception):
                self.ray.kill(self.actor)
            self.actor = None


def first_line(error: Exception) -> str:
    """What ray says, without the paragraphs behind it; of a worker that could not be made, the cause."""
    lines = [line.strip() for line in str(error).strip().splitlines() if line.strip()] or [type(error).__name__]
    return lines[-1] if "creation task" in lines[0] else lines[0]


@contextmanager
def ray_workers(
    address: str, num_workers: int | None, num_cells: int, opening: Opening, log: Path
) -> Iterator[list[RayWorker]]:
    """As many workers as the cluster has GPUs, or as are asked for. What ray itself says goes into a file.

    Raises ConfigError where ray is not installed, the cluster cannot be reached or has not enough of what they need.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
    except ImportError as error:
        raise ConfigError("--ray: ray is not installed: pip install 'specbench[ray]'") from error
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("a", encoding="utf-8") as file, redirect_stdout(file), redirect_stderr(file):
        try:
            connect(ray, address)
            needs, most = shares(ray.cluster_resources(), opening)  # type: ignore[no-untyped-call]
            number = chosen(num_workers, needs, most, num_cells)
            yield [RayWorker(ray, f"worker {place}", opening, needs) for place in range(1, number + 1)]
        finally:
            ray.shutdown()


def connect(ray: Any, address: str) -> None:
    """Start ray on this machine alone, or join a cluster. Raises ConfigError for what is no address, and where nobody
    answers: ray itself would ask for minutes."""
    advice = "give `local`, or the address of a cluster's head, such as 10.0.0.1:6379"
    host, _, port = address.rpartition(":")
    if address != LOCAL and (not host or "/" in address or not port.isdecimal()):
        raise ConfigError(f"--ray {address}: is no HOST:PORT (nor does a client's ray:// carry records): {advice}")
    quiet = {"log_to_driver": False, "logging_level": "ERROR"}
    try:
        if address == LOCAL:
            ray.init(
                LOCAL, _node_ip_address="127.0.0.1", object_store_memory=STORE_BYTES, include_dashboard=False, **quiet
            )
            return
        socket.create_connection((host, int(port)), timeout=ANSWER_SECONDS).close()
        ray.init(address, **quiet)
    except Exception as error:  # of several kinds: no such address, no answer, no token, another version
        if address == LOCAL:
            raise ConfigError(
                f"--ray {LOCAL}: ray did not start here ({first_line(error)}): where the machine is busy, run the same "
                "command again later, or leave --ray out"
            ) from error
        raise ConfigError(f"--ray {address}: cannot be reached ({first_line(error)}): {advice}") from error


def shares(resources: dict[str, float], opening: Opening) -> tuple[dict[str, float], int]:
    """What a worker needs, and how many of them the cluster has room for. Raises ConfigError where workers would have
    CPUs, and nobody says how many."""
    if resources.get("GPU", 0) >= 1 and opening.device in ("auto", "cuda"):
        return {"num_gpus": 1, "num_cpus": 0}, int(resources["GPU"])
    if opening.threads is None:
        raise ConfigError(
            "--ray: the cluster has no GPU: say how many CPU threads each worker has, such as --threads 1"
        )
    return {"num_cpus": opening.threads}, int(resources.get("CPU", 0)) // opening.threads


def chosen(asked: int | None, needs: dict[str, float], most: int, num_cells: int) -> int:
    """The number of workers. Raises ConfigError for more than there is room for."""
    if most < 1:
        raise ConfigError(
            "--ray: the cluster has no GPU, and fewer CPUs than --threads asks for: add a machine, or ask for fewer"
        )
    if asked is not None and not 1 <= asked <= most:
        what = "a GPU" if "num_gpus" in needs else f"{needs['num_cpus']:g} CPUs"
        raise ConfigError(f"--workers {asked}: the cluster has {what} for {most} workers: give 1 to {most}")
    return min(asked or (most if "num_gpus" in needs else 1), max(1, num_cells))
