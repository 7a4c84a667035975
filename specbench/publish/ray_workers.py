"""Workers on the machines of a ray cluster: each has one GPU or several CPUs, and sends back every record."""

import os
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from specbench.core.environment import require
from specbench.core.errors import ConfigError
from specbench.core.files import write_atomically
from specbench.publish.workers import (
    Event,
    JobFinished,
    JobStarted,
    LogLine,
    MeasuringProcess,
    RunJob,
    TrialRecorded,
    WorkerLost,
    WorkerReady,
    WorkerSettings,
)
from specbench.records.folder import ENVIRONMENT
from specbench.records.records import RECORDS, RecordFile
from specbench.results.runs import NEEDED_FILES

Files = dict[str, bytes]
FILES = tuple(name for name in (*NEEDED_FILES, ENVIRONMENT) if name != RECORDS)  # records come one by one


class ActorHost:
    """A ray actor in the cluster, with a process that measures."""

    def __init__(self, settings: WorkerSettings) -> None:
        self._process = MeasuringProcess(settings)

    def open(self) -> WorkerReady | WorkerLost:
        return self._process.open()

    def measure(self, job: RunJob, files: Files) -> Iterator[Event]:
        """Does a job in a temporary folder that starts with these files. Yields the events with the files that were
        written, and with paths as on the sender's machine."""
        last: Event = WorkerLost("it sent no event")
        with tempfile.TemporaryDirectory(prefix="specbench-") as scratch:
            folder = Path(scratch)
            for name, content in files.items():
                (folder / name).write_bytes(content)
            for event in self._process.events(replace(job, request=replace(job.request, output=folder))):
                match event:
                    case JobStarted():
                        yield replace(event, files=files_of(folder))
                    case LogLine(line):
                        yield LogLine(line.replace(scratch, str(job.folder)))
                    case TrialRecorded():
                        yield event
                    case JobFinished(None):
                        last = replace(event, files=files_of(folder))
                    case JobFinished(failure):
                        last = replace(event, failure=str(failure).replace(scratch, str(job.folder)))
                    case _:
                        last = event
        yield last  # when the folder is gone, since the receiver may end this process at once


def files_of(folder: Path, with_records: bool = False) -> Files:
    """Returns the files of a run by name. `with_records`: includes the records."""
    names = (*FILES, *([RECORDS] if with_records else []))
    return {name: (folder / name).read_bytes() for name in names if (folder / name).is_file()}


ANSWER_SECONDS = 10  # time for a cluster's head to answer
START_SECONDS = 180  # time for a worker to start Python and import torch
STORE_BYTES = 128 * 2**20  # memory of ray's object store on this machine, which only carries records
LOCAL = "local"


@dataclass
class RayWorker:
    """A worker with an actor in the cluster. `ray`: the module. `needs`: the GPUs or CPUs of the actor."""

    ray: Any
    name: str
    settings: WorkerSettings
    needs: dict[str, float]
    actor: Any = None

    def open(self) -> WorkerReady | WorkerLost:
        """Creates an actor if there is none, and starts a new process in it."""
        try:
            if self.actor is None:
                self.actor = self.ray.remote(ActorHost).options(max_restarts=0, **self.needs).remote(self.settings)
            found: WorkerReady | WorkerLost = self.ray.get(self.actor.open.remote(), timeout=START_SECONDS)
        except self.ray.exceptions.GetTimeoutError:
            self.close()
            return WorkerLost(f"the cluster had no room for it within {START_SECONDS} s")
        except self.ray.exceptions.RayError as error:
            self.close()
            return WorkerLost(first_line(error))
        return found

    def events(self, job: RunJob) -> Iterator[Event]:
        """Sends a job with its records, and writes every new record that arrives. Yields the events."""
        records = RecordFile(job.folder / RECORDS)
        known = {record.key for record in records.read()}
        try:
            measure = self.actor.measure.options(num_returns="streaming")
            for reference in measure.remote(job, files_of(job.folder, with_records=True)):
                event: Event = self.ray.get(reference)
                if isinstance(event, TrialRecorded) and event.record.key not in known:
                    records.append(event.record)
                    known.add(event.record.key)
                elif isinstance(event, JobStarted | JobFinished):
                    for name, content in (event.files or {}).items():
                        write_atomically(job.folder / name, content)
                yield event
        except self.ray.exceptions.RayError as error:
            self.close()
            yield WorkerLost(first_line(error))
        except Exception:  # a record cannot be written here, so the rest is not needed
            self.close()
            raise

    def close(self) -> None:
        """Ends the actor, whose process then ends itself."""
        if self.actor is not None:
            with suppress(Exception):
                self.ray.kill(self.actor)
            self.actor = None


def first_line(error: Exception) -> str:
    """Returns the first line of an error of ray; for a worker that could not be created, the last line, its cause."""
    lines = [line.strip() for line in str(error).strip().splitlines() if line.strip()] or [type(error).__name__]
    return lines[-1] if "creation task" in lines[0] else lines[0]


@contextmanager
def ray_workers(
    address: str, num_workers: int | None, num_runs: int, settings: WorkerSettings, log: Path
) -> Iterator[list[RayWorker]]:
    """Yields `num_workers` workers; for None, as many as the cluster has GPUs. The output of ray goes into `log`.

    Raises ConfigError if ray is not installed, or if the cluster cannot be reached or is too small.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    require("ray", "--ray")
    import ray

    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("a", encoding="utf-8") as file, redirect_stdout(file), redirect_stderr(file):
        try:
            connect(ray, address)
            needs, most = worker_needs(ray.cluster_resources(), settings)  # type: ignore[no-untyped-call]
            number = number_of_workers(num_workers, needs, most, num_runs)
            yield [RayWorker(ray, f"worker {place}", settings, needs) for place in range(1, number + 1)]
        finally:
            ray.shutdown()


def connect(ray: Any, address: str) -> None:
    """Starts ray on this machine, or joins a cluster. Raises ConfigError for a wrong address, and if there is no answer
    within ANSWER_SECONDS; ray itself would try for minutes."""
    advice = "give `local`, or the address of a cluster's head, such as 10.0.0.1:6379"
    host, _, port = address.rpartition(":")
    if address != LOCAL and (not host or "/" in address or not port.isdecimal()):
        raise ConfigError(f"--ray {address}: is not a HOST:PORT (and a ray:// client carries no records): {advice}")
    quiet = {"log_to_driver": False, "logging_level": "ERROR"}
    try:
        if address == LOCAL:
            ray.init(
                LOCAL, _node_ip_address="127.0.0.1", object_store_memory=STORE_BYTES, include_dashboard=False, **quiet
            )
            return
        socket.create_connection((host, int(port)), timeout=ANSWER_SECONDS).close()
        ray.init(address, **quiet)
    except Exception as error:  # unknown address, no answer, no token, or another version of ray
        problem = "cannot be reached"
        if address == LOCAL:
            problem, advice = "ray did not start here", "if the machine is busy, repeat the command, or leave --ray out"
        raise ConfigError(f"--ray {address}: {problem} ({first_line(error)}): {advice}") from error


def worker_needs(resources: dict[str, float], settings: WorkerSettings) -> tuple[dict[str, float], int]:
    """Returns the resources of a worker, and the number of workers for which the cluster has room. Raises ConfigError
    if workers need CPUs and --threads is not given."""
    if resources.get("GPU", 0) >= 1 and settings.device in ("auto", "cuda"):
        return {"num_gpus": 1, "num_cpus": 0}, int(resources["GPU"])
    if settings.threads is None:
        raise ConfigError(
            "--ray: the cluster has no GPU: give each worker a number of CPU threads, such as --threads 1"
        )
    return {"num_cpus": settings.threads}, int(resources.get("CPU", 0)) // settings.threads


def number_of_workers(num_workers: int | None, needs: dict[str, float], most: int, num_runs: int) -> int:
    """Returns the number of workers. Raises ConfigError if the cluster has no room for them."""
    if most < 1:
        raise ConfigError(
            "--ray: the cluster has no GPU, and fewer CPUs than --threads asks for: add a machine, or ask for fewer"
        )
    if num_workers is not None and not 1 <= num_workers <= most:
        each = "a GPU" if "num_gpus" in needs else f"{needs['num_cpus']:g} CPUs"
        raise ConfigError(f"--workers {num_workers}: the cluster has {each} for {most} workers: give 1 to {most}")
    return min(num_workers or (most if "num_gpus" in needs else 1), max(1, num_runs))
