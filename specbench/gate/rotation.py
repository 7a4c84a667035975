"""`specbench check --against`: two installed versions of specbench measure one run, alternating by generation.

Each version has its own interpreter, process and folder. The processes take turns in the order baseline, candidate,
candidate, baseline, and never measure at the same time, so that other work on the machine affects both alike. They
exchange JSON lines with this process, since the versions may differ.
"""

import json
import math
import os
import queue
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from datetime import date
from pathlib import Path
from typing import Any, Self

from specbench.core import bounded
from specbench.core.console import say, stderr
from specbench.core.environment import PACKAGE
from specbench.core.errors import ConfigError
from specbench.core.files import ResumableFolder, changed_settings
from specbench.core.progress import Say
from specbench.core.source import package_digest, plugins_digest, source_files
from specbench.core.values import WHOLE, file_digest
from specbench.models.machine import environment
from specbench.models.meters import HOST
from specbench.publish.worker_program import SendingListener, run_job, send_lines, take_streams
from specbench.publish.workers import (
    ChildProcess,
    Event,
    JobFinished,
    JobStarted,
    LogLine,
    RunJob,
)
from specbench.records.folder import DATE, RunFolder, folder_of
from specbench.running.models import load_models
from specbench.running.request import Request
from specbench.specs import yaml_files
from specbench.specs.catalogue import is_path
from specbench.specs.components import is_file_entry
from specbench.specs.run_options import RunOptions, flag_of

# Earlier versions have it in another package.
PROGRAM = """
try:
    from specbench.gate.rotation import main
except ModuleNotFoundError:
    from specbench.publish.turns import main
main()
"""
FIRST_VERSION = "0.1.0"  # the first version that can be measured interleaved
BASELINE, CANDIDATE = "baseline", "candidate"
START_SECONDS, TURN_SECONDS = 300.0, 1800.0  # a silent process is ended after this time; a turn may include compiling
SLOWEST = 10  # a turn may also take this many times as long as the longest turn before it
FINISHED = math.inf  # the next trial of a side that has finished
Message = dict[str, Any]


@dataclass(frozen=True)
class Version:
    """An installed specbench. `code`: a digest of its source files, tasks and methods, and one of the installed
    plug-ins. `package`: its folder."""

    version: str | None
    commit: str | None
    code: str
    package: str
    versions: dict[str, str | None]

    def __str__(self) -> str:
        commit = f", commit {self.commit[:12]}" if self.commit else ""
        return f"specbench {self.version}{commit}, in {self.package}"


def this_version() -> Version:
    found = environment("cpu", "", "")
    code = "-".join(filter(None, (package_digest(), plugins_digest())))
    versions = found["versions"]
    return Version(versions["specbench"], found["commit"], code, str(PACKAGE), versions)


def main() -> None:
    """The program of a side: measures one run, and waits for its turn before every generation."""
    messages, events = take_streams()

    def write(message: Message) -> None:
        events.write(json.dumps(message).encode() + b"\n")
        events.flush()

    def read() -> Message:
        line = messages.readline()
        if not line:  # the parent process is gone
            os._exit(1)
        found: Message = json.loads(line)
        return found

    def send(event: Event) -> None:
        match event:
            case LogLine(line):
                write({"event": "line", "line": line})
            case JobStarted(num_trials=num_trials):
                write({"event": "started", "num_blocks": num_trials})  # as other versions call it
            case JobFinished(failure):
                write({"event": "finished", "failure": failure})

    class TurnListener(SendingListener):
        def wait(self, number: int) -> None:
            write({"event": "waiting", "block": number})
            read()

    send_lines(send)
    HOST.leave_out_waits()
    write({"event": "ready", **asdict(this_version())})
    try:
        failure, _ = run_job(RunJob(read_request(read())), load_models, send, TurnListener)
    except ConfigError as error:
        failure = str(error)
    send(JobFinished(failure))


def request_message(request: Request, output: Path) -> Message:
    """Returns a request as JSON. Options with their default are left out, since another version may not know them."""
    return {"tasks": list(request.tasks), "methods": list(request.methods), "options": request.options.changed(),
            "command": request.command, "output": str(output)}  # fmt: skip


def read_request(message: Message) -> Request:
    """Returns the request in a message of `request_message`. Raises ConfigError for an option that this version
    lacks."""
    for name in message["options"]:
        if name not in RunOptions.__dataclass_fields__:
            raise ConfigError(f"{flag_of(name)}: this version of specbench has no such option")
    options: Any = {
        name: tuple(value) if isinstance(value, list) else value for name, value in message["options"].items()
    }
    output = Path(message["output"])
    return Request(message["tasks"], message["methods"], RunOptions(**options), message["command"], output)


class Side(ChildProcess):
    """The process of one version. `python`: the interpreter that --against names; None for this version. `folder`: the
    working folder that --against-folder names; None for that of this process."""

    def __init__(self, name: str, python: str | None, folder: Path | None = None) -> None:
        super().__init__(PROGRAM, python, folder)
        self.name = name if python is None else f"{name} ({python})"
        self.say: Say = lambda line: say(stderr, f"{name}: {line}")
        self._lines = queue.SimpleQueue[bytes]()

    def __enter__(self) -> Self:
        self.start()
        _, events = self.streams

        def read() -> None:
            with suppress(OSError, ValueError):  # closed here
                for line in events:
                    self._lines.put(line)
            self._lines.put(b"")

        threading.Thread(target=read, daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def send(self, message: Message) -> None:
        """Sends a message. If the process is gone, the next `receive` reports it."""
        messages, _ = self.streams
        with suppress(OSError):
            messages.write(json.dumps(message).encode() + b"\n")
            messages.flush()

    def receive(self, seconds: float) -> Message:
        """Prints lines until the next event, and returns this event. Raises ConfigError if the process has ended, has
        failed, or is silent for `seconds`."""
        while True:
            try:
                line = self._lines.get(timeout=seconds)
            except queue.Empty:
                raise ConfigError(f"{self.name}: sent nothing for {seconds:.0f} s, and was ended") from None
            if not line:
                raise ConfigError(f"{self.name}: {self.loss()}")
            try:
                message: Message = json.loads(line)
            except ValueError:
                raise ConfigError(f"{self.name}: sent a line that is not JSON: {line[:100]!r}") from None
            if message["event"] == "finished" and message["failure"] is not None:
                raise ConfigError(f"{self.name}: {message['failure']}")
            if message["event"] != "line":
                return message
            self.say(message["line"])

    def version(self) -> Version:
        """Returns the version of the process. Raises ConfigError for a version that cannot be measured interleaved."""
        try:
            message = self.receive(START_SECONDS)
        except ConfigError as error:
            if not any(f"No module named 'specbench{end}" in str(error) for end in ("'", ".")):
                raise
            raise ConfigError(
                f"{self.name}: has no specbench that takes part in checks: install {FIRST_VERSION} or later there"
            ) from None
        del message["event"]
        return Version(**message)


@dataclass(frozen=True)
class InterleavedRuns:
    """The folders of both runs, and notes on the versions."""

    baseline: Path
    candidate: Path
    notes: tuple[str, ...]


def measure_interleaved(
    request: Request, against: str, tell: Say, against_folder: Path | None = None
) -> InterleavedRuns:  # fmt: skip
    """Measures a run with the specbench of the interpreter `against` and with this one. Trials that the folder has are
    not measured again. `tell`: receives the progress. `against_folder`: the working folder of `against`, so that
    relative paths in the request name other files there.

    Raises ConfigError for bad input, and if a process fails.
    """
    with Side(BASELINE, against, against_folder) as first, Side(CANDIDATE, None) as second:
        versions = {BASELINE: first.version(), CANDIDATE: second.version()}
        identity = {name: {"version": v.version, "commit": v.commit, "code": v.code} for name, v in versions.items()}
        asked = {**request.settings(), **identity, "files": files_of(request)}
        if against_folder is not None:
            identity[BASELINE]["folder"] = str(against_folder.resolve())
            asked["baseline_files"] = files_of(request, against_folder)
        folder = request.output or folder_of("-".join(["check", *request.tasks, *request.methods]), asked)
        if request.options.template_date == "today":  # both sides print the date of the baseline, as it began
            day = str(_identity(folder / BASELINE).get(DATE) or date.today())
            if day != str(date.today()):
                say(stderr, f"--template-date today: {folder} began on {day}, which its prompts keep")
            request = replace(request, options=replace(request.options, template_date=day))
        with ResumableFolder(folder).held(identity):
            first.send(request_message(request, folder.resolve() / BASELINE))
            second.send(request_message(request, folder.resolve() / CANDIDATE))
            try:
                interleave((first, second), tell)
            except ConfigError as error:
                again = f"what is measured is kept in {folder}; the same command resumes it"
                raise ConfigError(f"{error}; {again}") from error
    # The revisions of the code outside specbench, as the identities of both runs have them.
    used = list[dict[str, object]]()
    for name in (BASELINE, CANDIDATE):
        recorded = _identity(folder / name)
        used.append({key: recorded[key] for key in ("code", "components") if key in recorded})
    notes = version_notes(versions, changed_settings(*used), against_folder)
    return InterleavedRuns(folder / BASELINE, folder / CANDIDATE, tuple(notes))


def _identity(folder: Path) -> dict[str, object]:
    """Returns the identity of a run; an empty one if it has not begun."""
    file = folder / RunFolder.IDENTITY
    return bounded.read_mapping(file, "choose another --output", strict=False) if file.is_file() else {}


def files_of(request: Request, folder: Path = Path()) -> dict[str, str]:
    """Returns digests of the YAML files of a request in a folder, and of the code that they name, so that edited files
    are measured into another folder."""
    files: dict[str, Path] = {}
    for name in filter(is_path, (*request.tasks, *request.methods)):
        files[name] = folder / name
        decoder = yaml_files.read(files[name]).get("decoder")
        entry = str(decoder.get("entry")) if isinstance(decoder, dict) else ""
        if is_file_entry(entry):
            code = files[name].resolve().parent / entry.rpartition(":")[0]
            files |= source_files([(code.stem, code)])
    return {name: file_digest(file, WHOLE) for name, file in files.items()}


def interleave(sides: Sequence[Side], tell: Say) -> None:
    """Lets both sides measure, one at a time, until both have finished.

    A turn ends when the side waits again, before its next generation. Sides that wait in the same trial take turns; if
    one is behind, after an interruption, it measures alone until it has caught up.
    """
    num_blocks, *others = {side.receive(TURN_SECONDS)["num_blocks"] for side in sides}
    if others:
        raise ConfigError(f"the two versions measure other examples: {num_blocks} and {others[0]} of them")
    blocks = {side: side.receive(TURN_SECONDS).get("block", FINISHED) for side in sides}
    longest = 0.0
    order = list(sides)
    while (number := min(blocks.values())) < FINISHED:
        tell(f"measuring interleaved: {min(number, num_blocks)} of {num_blocks}")
        for side in [side for side in order if blocks[side] == number]:
            started = time.monotonic()
            side.send({})
            blocks[side] = side.receive(max(TURN_SECONDS, SLOWEST * longest)).get("block", FINISHED)
            longest = max(longest, time.monotonic() - started)
        order.reverse()


def version_notes(
    versions: dict[str, Version], changes: Sequence[str] = (), against_folder: Path | None = None
) -> Iterator[str]:
    """Yields a line for each version, for each package whose version differs, and for `changes` of the code outside
    specbench; if nothing differs, a line that says so. `against_folder`: that of the baseline's files, which may differ
    where the code does not."""
    before, now = versions[BASELINE], versions[CANDIDATE]
    for name, version in versions.items():
        yield f"{name}: {version}"
    others = {name: (before.versions.get(name), now.versions.get(name)) for name in {*before.versions, *now.versions}}
    differing = sorted(name for name, (first, second) in others.items() if first != second and name != "specbench")
    for name in differing:
        yield f"{name} {others[name][0]} in the baseline, {others[name][1]} in the candidate"
    yield from changes
    if against_folder is not None:
        yield f"baseline: files of {against_folder}"
    elif before.code == now.code and not differing and not changes:
        yield "both have the same code, so every difference is noise"
