"""What runs on a machine of a cluster: a process that measures, in a folder of its own."""

import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from specbench.suite.jobs import Begun, Event, Finished, Job, Lost, Opening, Ready, Said
from specbench.suite.process import MeasuringProcess

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
