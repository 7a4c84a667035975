"""Servers that a run starts: ready before anything is measured, logged, and ended whatever happens."""

import io
import json
import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from specbench.core.errors import ConfigError
from specbench.results.execute import execute
from specbench.running.request import Request
from specbench.served import guard
from specbench.served.client import Client
from specbench.served.models import serving
from specbench.specs.run_options import RunOptions

ROOT = Path(__file__).parents[1]
PROGRAM = """
import subprocess, sys
from tests.scripted_server import SD, Script, Server
child = subprocess.Popen(["sleep", "600"])
print("child", child.pid, flush=True)
Server(Script("vllm", passes=SD if sys.argv[2] == "sd" else ()), int(sys.argv[1])).serve_forever()
"""


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def write_file(folder: Path, programs: dict[str, str] | None = None, **start: Any) -> Path:
    """Writes a servers file; the server of each name runs its own program, else PROGRAM."""
    servers = {}
    for name, kind in (("ar", "ar"), ("draft", "sd")):
        port = free_port()
        command = [sys.executable, "-c", (programs or {}).get(name, PROGRAM), str(port), kind]
        servers[name] = {
            "url": f"http://127.0.0.1:{port}",
            "speculation": "none" if name == "ar" else {"method": "draft_model", "num_draft_tokens": 3},
            "start": {"command": command, "environment": {"PYTHONPATH": str(ROOT)}, **(start if name != "ar" else {})},
        }  # fmt: skip
    path = folder / "servers.yaml"
    path.write_text(json.dumps({"tokenizer": "embedded:target", "memory": "same KV", "servers": servers}))
    return path


def run(folder: Path, file: Path) -> None:
    options = RunOptions(subsets=("en",), limit=1)
    request = Request(["mgsm"], [], options, "", output=folder / "run", servers=file)
    with serving() as load:
        execute(request, Console(file=io.StringIO()), load)


def lives(process: int) -> bool:
    """Returns whether a process runs; one that only waits to be reaped does not."""
    with suppress(OSError):
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def wait_until_gone(process: int) -> None:
    deadline = time.monotonic() + 20
    while lives(process):
        assert time.monotonic() < deadline, f"{process} lives"
        time.sleep(0.05)


def child_in(log: Path) -> int:
    return int(log.read_text().partition("child ")[2].split()[0])


def test_servers_are_started_logged_and_ended(tmp_path) -> None:
    file = write_file(tmp_path)
    run(tmp_path, file)
    assert len((tmp_path / "run/records.jsonl").read_text().splitlines()) == 1
    for name, server in json.loads(file.read_text())["servers"].items():
        wait_until_gone(child_in(tmp_path / f"run/server-{name}.log"))
        assert not Client(name, server["url"], 1.0).listens()


@pytest.mark.parametrize(
    ("program", "start", "message"),
    [
        (
            "import sys; sys.exit('no GPU')",
            {},
            r"server 'draft' .* ended with exit code 1 before .* ends with: …no GPU",
        ),
        ("import time; time.sleep(60)", {"timeout_seconds": 1}, r"server 'draft' .* is not ready after 1 s: set start"),
    ],
)
def test_a_server_that_does_not_start_is_one_line_and_the_other_is_ended(tmp_path, program, start, message) -> None:
    file = write_file(tmp_path, {"draft": program}, **start)
    with pytest.raises(ConfigError, match=message) as caught:
        run(tmp_path, file)
    assert "\n" not in str(caught.value)
    assert not Client("ar", json.loads(file.read_text())["servers"]["ar"]["url"], 1.0).listens()


def test_a_command_that_does_not_exist_is_named(tmp_path) -> None:
    file = write_file(tmp_path)
    content = json.loads(file.read_text())
    content["servers"]["ar"]["start"]["command"] = ["no-such-program"]
    file.write_text(json.dumps(content))
    with pytest.raises(ConfigError, match=r"server 'ar' .* exit code 127 .*no-such-program: No such file or directory"):
        run(tmp_path, file)


def test_a_server_that_runs_already_is_not_started_again(tmp_path) -> None:
    file = write_file(tmp_path)
    port = int(json.loads(file.read_text())["servers"]["draft"]["url"].rpartition(":")[2])
    with socket.create_server(("127.0.0.1", port)), pytest.raises(ConfigError, match=r"'draft' .* answers already"):
        run(tmp_path, file)


@pytest.mark.skipif(sys.platform == "win32", reason="process groups")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_killed_run_ends_its_servers(tmp_path, number) -> None:
    """The parent of the guard is killed: the guard ends the server, also one that ignores SIGTERM, and its child."""
    program = "import signal, subprocess, time; signal.signal(15, signal.SIG_IGN); " * (number == signal.SIGTERM)
    program += "import subprocess, time; print(subprocess.Popen(['sleep', '600']).pid, flush=True); time.sleep(600)"
    parent = (
        "import subprocess, sys, time; guard = subprocess.Popen([sys.executable, sys.argv[1], sys.executable, '-c', "
        "sys.argv[2]], stdin=subprocess.PIPE, start_new_session=True); time.sleep(600)"
    )
    short = tmp_path / "guard.py"
    short.write_text(Path(guard.__file__).read_text().replace("GRACE_SECONDS = 10.0", "GRACE_SECONDS = 0.5"))
    process = subprocess.Popen([sys.executable, "-c", parent, str(short), program], stdout=subprocess.PIPE)
    assert process.stdout is not None
    child = int(process.stdout.readline())
    assert lives(child)
    os.kill(process.pid, number)
    process.wait()
    wait_until_gone(child)
