"""Servers that a run starts: ready before anything is measured, logged, and ended whatever happens."""

import io
import json
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from specbench.core import progress
from specbench.core.errors import ConfigError
from specbench.integrations.served import guard
from specbench.integrations.served.client import Client
from specbench.integrations.served.models import serving, start_servers
from specbench.integrations.served.server import StartedServers
from specbench.running.execute import RunOutcome, execute
from specbench.running.request import Request
from specbench.specs.run import StartSpec, read_servers
from specbench.specs.run_options import RunOptions

ROOT = Path(__file__).parents[2]
PROGRAM = """
import subprocess, sys
from tests.support.scripted_server import SD, Script, Server
child = subprocess.Popen(["sleep", "600"])
print("child", child.pid, flush=True)
Server(Script("vllm", passes=SD if sys.argv[2] == "sd" else ()), int(sys.argv[1])).serve_forever()
"""


@pytest.fixture(autouse=True)
def _temporary_folders_are_of_the_test(tmp_path, monkeypatch) -> None:
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def write_file(
    folder: Path, programs: dict[str, str] | None = None, keys: dict[str, Any] | None = None, **start: Any
) -> Path:
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
    content = {"tokenizer": "embedded:target", "memory": "same KV", "servers": servers, **(keys or {})}
    path.write_text(json.dumps(content))
    return path


def run(folder: Path, file: Path, limit: int = 1, task: str = "mgsm", subset: str = "en") -> RunOutcome:
    options = RunOptions(subsets=(subset,), limit=limit)
    request = Request([task], [], options, "", output=folder / "run", servers=file)
    with serving() as load:
        return execute(request, Console(file=io.StringIO()), load)


def lives(process: int) -> bool:
    """Returns whether a process runs; one that only waits to be reaped does not."""
    with suppress(OSError):
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def wait_until_gone(process: int) -> None:
    deadline = time.monotonic() + 60  # on a busy machine
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
        assert not Client(name, server["url"], 1.0).is_reachable()


@pytest.mark.parametrize(
    ("program", "start", "message"),
    [
        (
            "import sys; sys.exit('no GPU')",
            {},
            r"server 'draft' .* ended with exit code 1 before .* ends with: …no GPU",
        ),
        (
            "import time; time.sleep(60)",
            {"timeout_seconds": 0.4},
            r"server 'draft' .* is not ready after 0.4 s: set start",
        ),
    ],
)
def test_a_server_that_does_not_start_is_one_line_and_the_other_is_ended(tmp_path, program, start, message) -> None:
    file = write_file(tmp_path, {"draft": program}, **start)
    with pytest.raises(ConfigError, match=message) as caught:
        run(tmp_path, file)
    assert "\n" not in str(caught.value)
    assert not Client("ar", json.loads(file.read_text())["servers"]["ar"]["url"], 1.0).is_reachable()


def test_a_run_says_which_server_it_waits_for(tmp_path) -> None:
    said: list[str] = []
    started = SimpleNamespace(
        start=lambda client, start: None, end_all=lambda: None,
        wait=lambda client, start: said.append(progress._activities[-1].text),
    )  # fmt: skip
    start_servers(["ar"], read_servers(write_file(tmp_path)), started)  # type: ignore[arg-type]
    assert said == ["waiting for server 'ar' to start"]


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


ENDLESS = r"""
import sys, time
from http.server import BaseHTTPRequestHandler, HTTPServer
class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.wfile.write(b"HTTP/1.1 200 OK\r\n\r\n")
        while True:
            BODY
HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


@pytest.mark.parametrize("body", ["self.wfile.write(b' '); time.sleep(0.1)", "time.sleep(1000)"])
def test_the_time_limit_of_a_start_holds_whatever_its_page_does(tmp_path, body) -> None:
    """The time limit of a request is longer."""
    with StartedServers() as started:
        client = Client("ar", f"http://127.0.0.1:{free_port()}", 600.0)
        command = (sys.executable, "-c", ENDLESS.replace("BODY", body), client.url.rpartition(":")[2])
        spec = StartSpec(command=command, timeout_seconds=0.4)
        started.start(client, spec)
        with pytest.raises(ConfigError, match=r"server 'ar' .* is not ready after 0.4 s: set start"):
            started.wait(client, spec)


DAEMON = """
import os, subprocess, time
if os.fork() == 0:  # a daemon: a session of its own, and a parent that has ended
    os.setsid()
    if os.fork() == 0:
        with open({pid!r} + ".new", "w") as file:
            file.write(str(os.getpid()))
        os.rename({pid!r} + ".new", {pid!r})
        signal.signal(15, signal.SIG_IGN) if {stubborn} else None
        time.sleep(600)
    os._exit(0)
time.sleep(600)
"""


def start_and_wait(folder: Path, program: str) -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)  # which a job in the background of a script ignores
    guard.GRACE_SECONDS = 0.5
    with StartedServers() as started:
        client = Client("ar", f"http://127.0.0.1:{free_port()}", 1.0)
        started.start(client, StartSpec(command=(sys.executable, "-c", program)))
        time.sleep(600)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="subreapers")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_run_that_is_stopped_leaves_no_process(tmp_path, monkeypatch, number) -> None:
    """The server has a child in a session of its own; with SIGTERM, one that ignores it."""
    short = tmp_path / "guard.py"
    short.write_text(Path(guard.__file__).read_text().replace("GRACE_SECONDS = 10.0", "GRACE_SECONDS = 0.5"))
    monkeypatch.setattr(guard, "__file__", str(short))
    pid = tmp_path / "pid"
    program = "import signal\n" + DAEMON.format(pid=str(pid), stubborn=number == signal.SIGTERM)
    process = multiprocessing.get_context("fork").Process(target=start_and_wait, args=(tmp_path, program))
    process.start()
    assert process.pid is not None
    deadline = time.monotonic() + 60  # on a busy machine
    while not pid.exists():
        assert time.monotonic() < deadline
        time.sleep(0.02)
    os.kill(process.pid, number)
    process.join(20)
    wait_until_gone(int(pid.read_text()))


def test_a_log_keeps_its_begin_and_its_end(tmp_path) -> None:
    short, log = tmp_path / "guard.py", tmp_path / "server.log"
    short.write_text(Path(guard.__file__).read_text().replace("MAX_LOG_BYTES = 16 * 2**20", "MAX_LOG_BYTES = 4000"))
    program = "import sys\nfor number in range(29_999): print(number)\nsys.stdout.flush()\nsys.exit('the reason')"
    with log.open("a+b") as file:
        command = [sys.executable, str(short), sys.executable, "-c", program]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=file, stderr=file) as process:
            code = process.wait()
    text = log.read_text()
    assert code == 1 and len(text) < 4000 + guard.READ_BYTES
    assert text.startswith("0\n1\n2\n") and guard.CUT.decode() in text and text.endswith("29998\nthe reason\n")


TURNS_PROGRAM = """
import os, sys
from tests.support.scripted_server import SD, Script, Server
with open(sys.argv[3], "a") as file:
    print("start", sys.argv[2], file=file)
others = [line.split()[1] for line in open(sys.argv[3]) if line.startswith("pid")]
states = {pid: f"/proc/{pid}/stat" for pid in others}
alive = [pid for pid, file in states.items() if os.path.exists(file) and "Z" not in open(file).read().split()]
with open(sys.argv[3], "a") as file:
    print("alive", *alive, file=file)
    print("pid", os.getpid(), file=file)
script = Script("vllm", passes=SD if sys.argv[2] == "sd" else (), fail_after=2 if FAILS else None)
Server(script, int(sys.argv[1])).serve_forever()
"""


def write_turns(folder: Path, turns: int, *, fails: bool = False, **keys: Any) -> Path:
    """Writes a servers file whose servers note when they are started, and what else is alive then."""
    programs = {name: TURNS_PROGRAM.replace("FAILS", str(fails and name == "draft")) for name in ("ar", "draft")}
    file = write_file(folder, programs, {"turns": turns, **keys})
    content = json.loads(file.read_text())
    for server in content["servers"].values():
        server["start"]["command"].append(str(folder / "notes"))
        server["url"] = content["servers"]["ar"]["url"]  # of one GPU, the port may be the same too
        server["start"]["command"][3] = server["url"].rpartition(":")[2]
    file.write_text(json.dumps(content))
    return file


def starts(folder: Path) -> list[str]:
    """Returns the servers in the order in which they were started. No other one may be alive then."""
    lines = (folder / "notes").read_text().splitlines()
    assert {line for line in lines if line.startswith("alive")} == {"alive"}
    return [line.split()[1] for line in lines if line.startswith("start")]


def test_by_turns_one_server_is_up_at_a_time(tmp_path) -> None:
    rows = run(tmp_path, write_turns(tmp_path, 2), limit=4).rows
    assert starts(tmp_path) == ["ar", "sd", "ar", "sd", "ar"]  # two to be looked at, then A B, B A
    records = [json.loads(line) for line in (tmp_path / "run/records.jsonl").read_text().splitlines()]
    assert [record["part"] for record in records] == [0, 0, 1, 1]
    assert [record["order"][0] for record in records] == ["ar", "ar", "draft", "draft"]
    assert all(record["methods"][name]["warm_up"]["blocks"] for record in records for name in ("ar", "draft"))
    (row,) = [row for row in rows if row.method_name == "draft"]
    assert row.served is not None and row.served.turns == 2
    assert next(each.text for each in row.warnings if each.code == "few_turns").endswith("set turns to 5 or more")


@pytest.mark.slow
def test_turns_are_resumed_with_the_answer_after_the_last_one(tmp_path) -> None:
    with pytest.raises(ConfigError, match=r"server 'draft' .* reports an error in the middle of an answer"):
        run(tmp_path, write_turns(tmp_path, 2, fails=True), limit=4)
    answers = (tmp_path / "run/turns.jsonl").read_text().splitlines()
    assert [json.loads(line)["method"] for line in answers] == ["ar", "ar"]
    (tmp_path / "notes").unlink()
    run(tmp_path, write_turns(tmp_path, 2), limit=4)
    assert (tmp_path / "run/turns.jsonl").read_text().splitlines()[:2] == answers
    assert starts(tmp_path) == ["ar", "sd", "ar"]  # looked at; then B of the first part and of the second, then A


@pytest.mark.slow
def test_a_conversation_and_a_load_are_measured_by_turns(tmp_path) -> None:
    keys = {"load": {"concurrency": [2], "windows": 2, "requests": 2}}
    rows = run(tmp_path, write_turns(tmp_path, 2, **keys), limit=2, task="mt_bench", subset="math").rows
    records = [json.loads(line) for line in (tmp_path / "run/records.jsonl").read_text().splitlines()]
    assert {record["turn"] for record in records} == {0, 1}
    assert [row.level for row in rows] == ["", "", "concurrency 2", "concurrency 2"]
    starts(tmp_path)


def test_turns_need_the_start_of_every_server(tmp_path) -> None:
    file = write_turns(tmp_path, 2)
    content = json.loads(file.read_text())
    del content["servers"]["draft"]["start"]
    file.write_text(json.dumps(content))
    with pytest.raises(ConfigError, match=r"servers.draft.start: is missing, but with turns"):
        run(tmp_path, file)
