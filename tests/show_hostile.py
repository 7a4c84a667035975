"""Programs that mean harm, what they try, and what came of it: `python tests/show_hostile.py` prints the table."""

import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from specbench.sandbox.isolation import Isolation, strongest
from specbench.sandbox.job import Job, Limits, Outcome
from specbench.sandbox.run import _works, run_program

WIDTH = 140  # columns where the output is no terminal
LIMITS = Limits(timeout_seconds=2, memory_mib=128)
TEST = "assert add(1, 2) == 3\nassert add(5, 5) == 10\n"
SECRET = "kept-from-programs-7351"
WRONG = "def add(a, b): return a - b\n"

FORGERIES = {
    "exits 0 early": "import os; os._exit(0)",
    "exits 0 in a call": "import os\ndef add(a, b): os._exit(0)",
    "raises SystemExit(0)": "import sys\ndef add(a, b): sys.exit(0)",
    "exits 0 at exit": WRONG + "import atexit, os; atexit.register(lambda: os._exit(0))",
    "prints the pass mark": WRONG + """
import json, os
for mark in ('{"status": "passed", "reason": ""}', "passed", "ok"):
    print(mark)
    for fd in range(64):
        try: os.write(fd, mark.encode() + b"\\n")
        except OSError: pass
""",
    "replaces the checker": WRONG + """
import builtins, sys
def check(*arguments): return None
class AssertionError(Exception): pass
builtins.AssertionError = AssertionError
builtins.exec = builtins.compile = lambda *a, **k: None
for name in list(sys.modules):
    module = sys.modules[name]
    for attribute in ("receive", "send", "decode", "encode", "main", "_answer"):
        if hasattr(module, attribute): setattr(module, attribute, lambda *a, **k: {"value": 3})
for frame in sys._current_frames().values():
    while frame:
        frame.f_globals.update(TEST="", test="", names={}, check=check)
        frame = frame.f_back
""",
    "equals everything": """
class Same(int):
    def __eq__(self, other): return True
    def __ne__(self, other): return False
    def __hash__(self): return 0
def add(a, b): return Same(0)
""",
    "answers with an object": "class Any:\n    def __eq__(self, other): return True\ndef add(a, b): return Any()",
    "writes false messages": WRONG + """
import os
for fd in range(64):
    try: os.write(fd, (2**31).to_bytes(4) + b"passed")
    except OSError: pass
""",
    "reads its tester's memory": WRONG + """
import os
parent = os.getppid()
open(f"/proc/{parent}/mem", "r+b").read(1)
""",
    "writes to its tester's pipes": WRONG + """
import os
parent = os.getppid()
for fd in os.listdir(f"/proc/{parent}/fd"):
    with open(f"/proc/{parent}/fd/{fd}", "wb") as pipe: pipe.write(b'{"status": "passed", "reason": ""}\\n')
""",
    "traces its tester": WRONG + """
import ctypes, os
assert ctypes.CDLL(None).ptrace(16, os.getppid(), 0, 0) == 0, "refused"
""",
}  # fmt: skip

# Forgeries of a test that does not say which function it is about: (program, prefix, test).
HELPED = "def same(a, b):\n    return a == b\n\ndef add(a, b):\n"
BUILTINS = """
assert abs(add(1, 2) - 3) < 1
assert sorted([add(2, 0), add(0, 1)]) == [1, 2]
assert all([add(1, 1) == 2])
"""
NAMELESS = {
    "defines built-ins": (
        "def add(a, b): return 9\ndef abs(a): return 0\ndef sorted(a): return [1, 2]\ndef all(a): return True",
        "", BUILTINS,
    ),
    "defines the prefix's helper": (
        HELPED + "    return 9\n\ndef same(a, b): return True\n", HELPED, "assert same(add(1, 2), 3)"
    ),
    "defines the test's helper": (
        "def add(a, b): return 9\ndef check(f): return True", "", "def check(f):\n    assert f(1, 2) == 3\n\ncheck(add)"
    ),
    "defines the exception": (
        "def add(a, b): return 9\ndef AssertionError(*a): return None\ndef print(*a): return None", "",
        "assert add(1, 2) == 3"
    ),
    "defines nothing": ("", "", TEST),
    "defines nothing of the prefix": ("pass", HELPED.rpartition("def add")[0], TEST),
    "defines a class": ("class add(int):\n    def __new__(cls, a, b): return a + b", "", TEST),
    "names no function": ("add = 3", "", TEST),
}  # fmt: skip

ATTACKS = {
    "loops for ever": "def add(a, b):\n    while True: pass",
    "loops for ever when loaded": "while True: pass",
    "sleeps for ever": "import time\ndef add(a, b): time.sleep(1000)",
    "starts processes (fork bomb)": """
import os, time
num_started = 0
def add(a, b):
    global num_started
    for _ in range(200):
        try:
            if os.fork() == 0: time.sleep(30); os._exit(0)
            num_started += 1
        except OSError: pass
    raise RuntimeError(f"started {num_started} processes")
""",
    "starts threads": """
import threading, time
def add(a, b):
    for _ in range(200): threading.Thread(target=time.sleep, args=(30,), daemon=True).start()
    raise RuntimeError("started 200 threads")
""",
    "takes memory (balloon)": "def add(a, b):\n    kept = []\n    while True: kept.append(bytearray(2**24))",
    "recurses for ever": "def add(a, b): return add(a, b)",
    "reads the home folder": "def add(a, b): raise RuntimeError(open({secret!r}).read())",
    "writes to the home folder": "def add(a, b): open({secret!r} + '.added', 'w').write('here'); return 0",
    "reads the environment": "import os\ndef add(a, b): raise RuntimeError(str(dict(os.environ)))",
    "kills its parent": """
import os, signal
def add(a, b):
    for pid in (os.getppid(), 1):
        try: os.kill(pid, signal.SIGKILL)
        except OSError: pass
    return 0
""",
    "kills a process of its user": """
import os, signal
def add(a, b):
    os.kill({victim}, signal.SIGKILL)
    return 0
""",
    "opens a socket": """
import socket
def add(a, b): socket.create_connection(("127.0.0.1", {port}), 1).sendall(b"here"); return 0
""",
    "writes 10 GB": """
def add(a, b):
    with open("big", "wb", 0) as file:
        for _ in range(10 * 1024): file.write(bytes(2**20))
    return 0
""",
    "writes many files": """
import glob, os
def add(a, b):
    try:
        for number in range(12):
            with open(f"part{{number}}", "wb", 0) as file:
                for _ in range(15): file.write(bytes(2**20))
    except OSError: pass
    raise RuntimeError(f"wrote {{sum(map(os.path.getsize, glob.glob('part*'))) >> 20}} MiB")
""",
    "prints a million lines": "def add(a, b):\n    for number in range(10**6): print('line', number)\n    return 0",
    "mounts in namespaces of its own": """
import ctypes
def add(a, b):
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(0x10000000 | 0x20000) or libc.mount(b"tmpfs", b"/tmp", b"tmpfs", 0, None):
        raise OSError(ctypes.get_errno(), "refused")
    raise RuntimeError("mounted")
""",
    "keeps memory that is mapped nowhere": """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
libc.shmat.restype = ctypes.c_void_p
files, removals = [], []
def shared(size):
    number = libc.shmget(0, size, 0o600)
    address = libc.shmat(number, None, 0)
    if address == 2**64 - 1: raise OSError("refused")
    ctypes.memset(ctypes.c_void_p(address), 1, size)
    libc.shmdt(ctypes.c_void_p(address))
    removals.append((libc.shmctl, number))
def in_file(size):
    files.append(os.memfd_create("file"))
    os.write(files[-1], bytes(size))
def queued(size):
    number, content = libc.msgget(0, 0o600), ctypes.create_string_buffer(b"1" * size)
    if libc.msgsnd(number, content, size - 8, 0): raise OSError("refused")
    removals.append((libc.msgctl, number))
def add(a, b):
    done = []
    for keep, size in ((shared, 2**24), (in_file, 2**23), (queued, 2**13)):
        try:
            for _ in range(20): keep(size)
            done.append(keep.__name__)
        except OSError: pass
    for remove, number in removals: remove(number, 0, None)
    raise RuntimeError(f"left memory: {{done}}" if done else "refused")
""",
}


@dataclass
class World:
    """What the programs go for: a file in a home folder, a server, another process; and what happened to them."""

    secret: Path
    port: int
    victim: subprocess.Popen[bytes]
    heard: list[bytes]

    def harm(self, outcome: Outcome, seconds: float) -> str:
        """What a program achieved, "" for nothing."""
        said = outcome.reason + outcome.output
        happened = {
            "passed": outcome.status == "passed",
            "read the file": SECRET in said,
            "wrote a file": self.secret.with_name(self.secret.name + ".added").exists(),
            "killed another process": self.victim.poll() is not None,
            "reached the server": bool(self.heard),
            "saw the environment": "PATH" in said,
            "ran on": seconds > 60,
            **{text: text in said for text in ("started 200 processes", "started 200 threads", "mounted")},
            "left memory": "left memory" in said,
            "filled the disk": "wrote 180 MiB" in said,
        }
        return ", ".join(text for text, true in happened.items() if true)


@contextmanager
def world() -> Iterator[World]:
    with tempfile.TemporaryDirectory() as home, socket.create_server(("127.0.0.1", 0)) as server:
        os.chmod(home, 0o777)  # what keeps a program out is the sandbox, not the user that it runs as
        secret, heard = Path(home) / "secret", list[bytes]()
        secret.write_text(SECRET)

        def listen() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                heard.append(b"connected")
                connection.close()

        threading.Thread(target=listen, daemon=True).start()
        with subprocess.Popen(["sleep", "600"]) as victim:
            try:
                yield World(secret, server.getsockname()[1], victim, heard)
            finally:
                victim.kill()
                server.shutdown(socket.SHUT_RDWR)


def attempt(source: str, isolation: Isolation, limits: Limits = LIMITS) -> tuple[Outcome, str]:
    """Run a program of ATTACKS or FORGERIES; its outcome, and the harm it did."""
    with world() as place:
        if source in ATTACKS.values() and "{" in source and 'f"started' not in source:
            source = source.format(secret=str(place.secret), port=place.port, victim=place.victim.pid)
        begin = time.monotonic()
        outcome = run_program(Job(source, TEST, ("add",)), limits, isolation)
        time.sleep(0.05)  # a server hears of a connection a moment later
        return outcome, place.harm(outcome, time.monotonic() - begin)


def table(isolation: Isolation) -> Table:
    """A line per program: how it ended, whether it was kept in, and what was said of it."""
    made = Table("program", "status", "contained", "seconds", "what was said", title=isolation, box=box.SIMPLE_HEAD,
                 pad_edge=False, collapse_padding=True)  # fmt: skip
    for name, source in {**ATTACKS, **FORGERIES}.items():
        begin = time.monotonic()
        outcome, harm = attempt(source, isolation)
        seconds = f"{time.monotonic() - begin:.2f}"
        said = outcome.reason.splitlines()[0][:70]
        made.add_row(*map(Text, (name, outcome.status, f"NO: {harm}" if harm else "yes", seconds, said)))
    return made


def main() -> None:
    chosen: list[Isolation] = [strongest(_works)]
    console = Console(width=None if sys.stdout.isatty() else WIDTH)
    for isolation in dict.fromkeys([*chosen, *(name for name in get_args(Isolation) if name in sys.argv[1:])]):
        console.print(table(isolation))


if __name__ == "__main__":
    main()
