"""Runs one program against its tests, in a process tree that has ended when the function returns.

A program passes only if it returns the values that the tests accept. The tests run in another process, which the
program cannot read or write; only that process has the pipe for the verdict. The program's process never sees the
tests, and sends them plain values as JSON. It gains nothing by exiting early, printing, replacing modules, built-ins or
the checker, or returning an object that equals everything. The tests decide which of its functions they call, so it
cannot replace their names. It cannot end an iteration of the tests either, such as `all(map(…))`: a StopIteration from
the program, and a `next` of the tests that finds no item, become a RuntimeError, unless the tests name StopIteration.
These limits remain:

- a program may infer from the arguments what is tested;
- tests see copies: they do not see it if a program changes an argument in place, and the other way round; iterators and
  generators are read to their end before they are sent;
- objects of a program's own classes, arrays and views of mappings are not sent back: such a call raises TypeError;
- tests call functions; they cannot use classes and constants of a program;
- tests catch what a program raises as the nearest built-in exception, with its arguments if they are plain values;
- a program may start threads (`Limits`), not processes;
- with limits only (`NOT_ISOLATED`), and not started by root, a program has all rights of its user: it may
  kill or trace any process of that user, including the one that collects the verdicts, and edit that user's files.
"""

import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal, get_args

Status = Literal["passed", "failed", "timed out", "printed too much", "not judged"]
ENDED = ("timed out", "printed too much")  # a limit stopped the program, which may be right


@dataclass(frozen=True)
class ProgramTest:
    """A program and its tests.

    program: the answer's whole source. test: source that calls the program's functions, in another process. prefix:
    trusted source that runs before the test, such as a prompt with helper functions; it may end in the head of an
    unfinished function. entry_points: the functions of the program that the test calls; if empty, all names that the
    test uses and that neither the test, the prefix nor Python defines. A program that lacks one of them fails.
    """

    program: str
    test: str
    entry_points: tuple[str, ...] = ()
    prefix: str = ""


@dataclass(frozen=True)
class Limits:
    """The resources of one program. It is one process with at most `answerer.MAX_THREADS` threads, whose stacks are
    part of its memory. With limits only, and not started by root, the threads count together with the user's processes,
    so that it usually cannot start any."""

    timeout_seconds: float = 10.0  # wall clock, from the start of the program
    memory_mib: int = 512  # address space of the program, and the same for its tests
    file_mib: int = 16  # size of one file
    disk_mib: int = 64  # size of all files, if the machine can isolate them
    output_kib: int = 1024


@dataclass(frozen=True)
class ProgramOutcome:
    """The outcome of a program. Status "passed": only the tests report it; "not judged": the test or the machine
    failed, not the program. `output`: the end of what the program printed."""

    status: Status
    reason: str = ""
    output: str = ""


Isolation = Literal["namespaces", "limits"]

PACKAGE = Path(__file__).resolve().parent
ROOT = PACKAGE.parents[2]  # the folder that holds the package specbench
SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/etc/ld.so.cache")
FIRST_USER, NUM_USERS = 60578, 128  # user ids that no system assigns
NOT_ISOLATED = (
    "programs run with limits only, because this machine allows no user namespaces: they can reach {files}, that "
    "user's other processes, and the disk and /dev/shm (the size of one file is limited, their number is not, nor "
    "what programs mount in namespaces if they can create some)"
)
FILES = "the files that their user may read or write"
ALL_FILES = "all files of this machine for reading, the files that their user may write"  # see `_unprivileged`


@cache
def strongest(works: Callable[[Isolation], bool]) -> Isolation:
    """Returns the strongest isolation in which programs run. Warns once if it is incomplete. `works`: runs a test
    program."""
    if works("namespaces"):
        return "namespaces"
    warnings.warn(not_isolated(), UserWarning, stacklevel=2)
    return "limits"


def not_isolated() -> str:
    """Returns the warning about what programs can reach on this machine with limits only."""
    reads_all = os.getuid() == 0 and _unprivileged(FIRST_USER)["reads_all"]
    return NOT_ISOLATED.format(files=ALL_FILES if reads_all else FILES)


def isolation_settings(isolation: Isolation, folder: str) -> dict[str, object]:
    """Returns the fields of a job by which the tester isolates itself and the program. `readable`: the paths that a
    program needs: the system's libraries, the interpreter, and this package."""
    interpreter = [sys.prefix, sys.base_prefix, sys.exec_prefix, sys.base_exec_prefix]
    wanted = {*SYSTEM, *interpreter, *(os.path.realpath(path) for path in interpreter), str(PACKAGE)}
    readable = sorted(path for path in wanted if not path.startswith("/usr/") and os.path.lexists(path))
    user = FIRST_USER + os.getpid() % NUM_USERS if os.getuid() == 0 else None
    inner = None
    if user is not None:
        inner = {"id": 1000, "reads_all": False} if isolation == "namespaces" else _unprivileged(user)
    return {
        "isolation": isolation, "readable": readable, "outer_user": user, "user": inner, "root": str(ROOT),
        "folder": folder,
    }  # fmt: skip


def _unprivileged(user: int) -> dict[str, object]:
    """Returns another user for root's programs. It may read all files if it could not read the interpreter
    otherwise."""
    paths = [Path(path).resolve() for path in (sys.executable, sys.prefix, sys.base_prefix, PACKAGE)]
    folders = {parent for path in paths for parent in path.parents}
    return {"id": user, "reads_all": not all(folder.stat().st_mode & 1 for folder in folders)}


START_SECONDS = 60.0  # the most that the interpreters of a sandbox take to start, on a busy machine
TAIL_BYTES = 2000
MAX_SHOWN = 300  # characters of a message of the system
MAX_REPORT_BYTES = 2**16  # the tester writes at most 1000 characters and a few numbers


def run_program(job: ProgramTest, limits: Limits, isolated_by: Isolation | None = None) -> ProgramOutcome:
    """Runs a program with the strongest isolation of this machine, or with `isolated_by`, to test that isolation.
    Whatever the program does, the result is an outcome and not an exception."""
    chosen = isolated_by or strongest(_works)
    if chosen == "namespaces":
        return _run_in("/tmp", job, limits, chosen)  # which is private there
    try:
        folder = tempfile.mkdtemp()
        try:
            outcome = _run_in(folder, job, limits, chosen)
        finally:
            left = remove_tree(folder)
    except OSError as error:
        return ProgramOutcome("not judged", f"the sandbox did not start: {error.strerror or error}")
    if left:
        return ProgramOutcome("failed", f"the program left files that cannot be removed: {left}", outcome.output)
    return outcome


TESTER = (
    "import sys; sys.path.insert(0, {root!r}); from specbench.tasks.sandbox.inside.tester import main; "
    "del sys.path[0]; main({report})"
)


def _run_in(folder: str, job: ProgramTest, limits: Limits, isolation: Isolation) -> ProgramOutcome:
    with ExitStack() as stack:
        try:
            settings = isolation_settings(isolation, folder)
            user = settings["outer_user"]
            if isolation == "limits" and isinstance(user, int):
                os.chown(folder, user, user)
            report, report_end = os.pipe()
            stack.callback(os.close, report)
            code = TESTER.format(root=str(ROOT), report=report_end)
            with os.fdopen(report_end, "wb"):  # closes it here, so that the report ends with the tester
                process = subprocess.Popen(
                    [sys.executable, "-I", "-X", "utf8", "-c", code], env={}, stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE, stderr=subprocess.STDOUT, pass_fds=(report_end,), start_new_session=True,
                )  # fmt: skip
        except OSError as error:  # the machine has no process, file descriptor or disk space left
            return ProgramOutcome("not judged", f"the sandbox did not start: {error.strerror or error}")
        watch = _ProgramWatch(process, report, limits, has_namespace=isolation != "limits")
        stack.callback(watch.end)
        assert process.stdin is not None
        with suppress(BrokenPipeError), process.stdin as stdin:
            stdin.write(json.dumps({**asdict(job), "limits": asdict(limits), **settings}).encode())
        try:
            status, reason = watch.follow()
        except ValueError:
            status, reason = "failed", "the program wrote into its report"
        return ProgramOutcome(status, reason, watch.output.decode("utf-8", "replace"))


def remove_tree(folder: str) -> str:
    """Removes a folder that a program filled, by the system's tools: they remove folders that are nested deeper than
    Python recurses, and follow no link inside. Returns why something is left, "" if nothing is."""
    if os.getuid():  # root may list a folder of any mode
        subprocess.run(["chmod", "-R", "u+rwx", "--", folder], capture_output=True)
    removed = subprocess.run(["rm", "-rf", "--", folder], capture_output=True, text=True, errors="replace")
    return removed.stderr.strip()[-MAX_SHOWN:] if removed.returncode else ""


def _works(candidate: Isolation) -> bool:
    job = ProgramTest(program="def add(a, b):\n    return a + b\n", test="assert add(1, 2) == 3", entry_points=("add",))
    return run_program(job, Limits(), candidate).status == "passed"


@dataclass
class _ProgramWatch:
    """Watches one run: its output, its report, its time."""

    process: subprocess.Popen[bytes]
    report_fd: int
    limits: Limits
    has_namespace: bool  # whether its processes have a namespace, which ends with the tester
    report: bytes = b""
    output: bytes = b""
    num_output_bytes: int = 0
    program_pid: int | None = None

    def follow(self) -> tuple[Status, str]:
        """Reads until the tester closes its report, or the run must be stopped. Returns the outcome and its reason.
        Raises ValueError for a report that the tester does not write."""
        assert self.process.stdout is not None
        deadline = time.monotonic() + START_SECONDS
        with selectors.DefaultSelector() as selector:
            selector.register(self.report_fd, selectors.EVENT_READ)
            selector.register(self.process.stdout, selectors.EVENT_READ)
            while (remaining := deadline - time.monotonic()) > 0:
                for key, _ in selector.select(remaining):
                    content = os.read(key.fd, 2**16)
                    if key.fd != self.report_fd:
                        self._keep(content)
                        if not content:
                            selector.unregister(key.fileobj)
                    elif content:
                        self.report += content
                    else:  # read the last output of the program
                        os.set_blocking(self.process.stdout.fileno(), False)
                        with suppress(BlockingIOError):
                            self._keep(os.read(self.process.stdout.fileno(), 2**20))
                        return self._verdict()
                if self.num_output_bytes > self.limits.output_kib * 1024:
                    return "printed too much", f"more than {self.limits.output_kib} KiB"
                if self.program_pid is None and (reports := self._reports()):
                    self.program_pid = reports[0].get("pid")
                    deadline = time.monotonic() + self.limits.timeout_seconds
                if len(self.report) > MAX_REPORT_BYTES:
                    raise ValueError
        if self.program_pid is None:
            return self._verdict()
        return "timed out", f"ran longer than {self.limits.timeout_seconds:g} seconds"

    def _verdict(self) -> tuple[Status, str]:
        last = {} if not (reports := self._reports()) else reports[-1]
        if "status" in last:
            return last["status"], str(last.get("reason"))
        if self.program_pid is not None:
            return "failed", "the program ended its sandbox"
        return "not judged", "the sandbox did not start"

    def _reports(self) -> list[dict[str, Any]]:
        """Returns the complete lines of the report. Raises ValueError for lines that the tester does not write: with
        limits only, a program of its user may write some."""
        found = []
        for line in self.report.split(b"\n")[:-1]:
            try:
                report = json.loads(line)
            except RecursionError as error:
                raise ValueError from error
            if not isinstance(report, dict) or not (
                report.get("status") in get_args(Status) or report.get("pid") in range(2, 2**31)
            ):
                raise ValueError
            found.append(report)
        return found

    def _keep(self, content: bytes) -> None:
        self.num_output_bytes += len(content)
        self.output = (self.output + content)[-TAIL_BYTES:]

    def end(self) -> None:
        """Kills all processes of the run. A program has one process, which leads its own session."""
        if self.program_pid is not None and not self.has_namespace:
            with suppress(OSError):  # it has ended, or is another user's: a program may write into its report
                if os.getsid(self.program_pid) == self.program_pid:
                    os.kill(self.program_pid, signal.SIGKILL)
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        if self.process.stdout:
            self.process.stdout.close()


_allowed = False


def allow(allowed: bool = True) -> None:
    """Allows or forbids the execution of programs in this process (`--allow-code-execution`)."""
    global _allowed
    _allowed = allowed


def allowed() -> bool:
    return _allowed
