"""What is asked of the sandbox, and what comes of it."""

from dataclasses import dataclass
from typing import Literal

Status = Literal["passed", "failed", "timed out", "printed too much", "not judged"]
ENDED = ("timed out", "printed too much")  # by a limit: nobody knows whether the program is right


@dataclass(frozen=True)
class Job:
    """A program and its tests.

    `program` is the answer's whole source. `test` is run in another process, after `prefix` (trusted source whose
    names the tests use: a prompt with helper functions; it may end in the head of an unfinished function), and calls
    the functions `entry_points` of the program; empty: all names that the test uses and that neither it, the prefix nor
    Python defines. A program that lacks one of them fails.
    """

    program: str
    test: str
    entry_points: tuple[str, ...] = ()
    prefix: str = ""


@dataclass(frozen=True)
class Limits:
    """What one program may use. It is one process with one thread."""

    timeout_seconds: float = 10.0  # wall clock, from when the program starts
    memory_mib: int = 512  # address space, of the program and of its tests each
    file_mib: int = 16  # size of one file
    disk_mib: int = 64  # of all files, where the machine can isolate them
    output_kib: int = 1024


@dataclass(frozen=True)
class Outcome:
    """`passed` is said by the tests alone. `not judged`: the fault is the test's or the machine's, not the program's.
    `output`: the end of what the program printed."""

    status: Status
    reason: str = ""
    output: str = ""
