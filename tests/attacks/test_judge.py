"""What the server of a judge sends, and what somebody writes into its files."""

import json
import os
import re
import resource
import shutil
import time
from collections.abc import Callable, Iterator
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from specbench.core import bounded, completions
from specbench.core.errors import ConfigError
from specbench.tasks.examples import Example
from specbench.tasks.judge import JUDGEMENTS_FILE
from specbench.tasks.judge.judgements import judge_records, read_ratings, write_judgements
from specbench.tasks.judge.requests import JudgeSettings
from specbench.training import teacher as training
from tests.attacks.hostile_server import KEY, HostileServer, filled, forms, holds_key, running
from tests.support.read_yaml import read_yaml
from tests.support.records import generation, record

HERE = Path(__file__).parent
REPLIES = read_yaml(HERE / "judge_replies.yaml")
FILES = read_yaml(HERE / "judge_files.yaml")
RECORD = record({"ar": generation(text="x")})
QUESTIONS = {("t", "en", 0): Example(0, "0", ("Why?",), (None,))}
TIMEOUT_SECONDS = 0.4
GENEROUS_SECONDS = 10.0
GENEROUS_KILOBYTES = 400_000
SOCKET_BYTES = 16 * 2**20  # more than the system holds between two sockets


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


@pytest.fixture(scope="module")
def servers() -> Iterator[tuple[HostileServer, HostileServer]]:
    """The server of the judge, and another, which nothing should reach."""
    with running() as server, running() as other:
        yield server, other


def settings_of(server: HostileServer, folder: Path, **changes: Any) -> JudgeSettings:
    # A connection in the time-out is a matter of milliseconds; attacks that do not wait need more on a busy machine.
    waits = "drip" in server.attack or server.attack.get("endless") == "hints"
    seconds = TIMEOUT_SECONDS if waits else GENEROUS_SECONDS
    chosen: dict[str, Any] = {
        "timeout_seconds": seconds,
        "num_retries": server.attack.get("retries", 0),
        "backoff_seconds": 0.01,
        **changes,
    }
    return JudgeSettings("m", server.address + "/v1", cache=folder / "cache", **chosen)


def judged(settings: JudgeSettings, folder: Path) -> tuple[float | None, list[str]]:
    """The score, and every line that is printed."""
    told = StringIO()
    console = Console(file=told, width=10**6, markup=False, emoji=False, highlight=False)
    try:
        found = judge_records([RECORD], QUESTIONS, settings, console)
    except ConfigError as error:
        return None, [*told.getvalue().splitlines(), f"error: {error}"]
    write_judgements(folder / JUDGEMENTS_FILE, found, settings)
    (judgement,) = found.values()
    return judgement.score, told.getvalue().split("\n")[:-1]


def trained(settings: JudgeSettings, monkeypatch: pytest.MonkeyPatch) -> str:
    """What the other user of the client, training on a server's answers, prints or keeps."""
    monkeypatch.setattr(training, "TIMEOUT_SECONDS", settings.timeout_seconds)
    asked = [training.ServerQuestion("why?", True, 0.0, 4, 0)]
    try:
        ((answer,),) = training.CompletionServer(settings.url, "m", num_retries=0).answers(asked)
    except ConfigError as error:
        assert str(error).isprintable()
        return str(error)
    return json.dumps(answer)


def peak_kilobytes() -> int:
    """The most memory that this process has had so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def written(folder: Path) -> str:
    return "\n".join(str(path) + path.read_text(encoding="utf-8") for path in folder.rglob("*") if path.is_file())


@pytest.mark.parametrize("attack", REPLIES, ids=lambda attack: attack["name"])
def test_a_reply(
    attack: dict[str, Any],
    servers: tuple[HostileServer, HostileServer],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("DEBUG")
    monkeypatch.setattr(completions, "MAX_WAIT_SECONDS", 0.05)
    start, peak = time.monotonic(), peak_kilobytes()
    server, other = servers
    server.play(attack, other.address)
    settings = settings_of(server, tmp_path)
    score, lines = judged(settings, tmp_path)
    text = trained(settings, monkeypatch)
    assert server.num_requests == 2 + attack.get("retries", 0) and other.num_requests == 0, "nothing goes elsewhere"
    if attack.get("endless") != "hints":
        assert server.num_bytes < 2 * (completions.MOST_BYTES + SOCKET_BYTES)
    assert time.monotonic() - start < GENEROUS_SECONDS
    assert peak_kilobytes() - peak < GENEROUS_KILOBYTES
    assert score == attack.get("score")
    assert len(lines) == 2 and all(line.isprintable() and len(line) < 1000 for line in lines), lines
    assert lines[-1].startswith("error: ") == ("fatal" in attack)
    says = str(attack.get("fatal", attack.get("says", "judged 1 of 1")))
    assert re.search(says, lines[-1]), lines[-1]
    everything = "\n".join([*lines, text, written(tmp_path), caplog.text])
    assert not holds_key(everything)


@pytest.mark.parametrize("form", forms(KEY))
def test_a_form_of_the_key_would_be_found(form: str) -> None:
    """The control: without it, the attacks above would hold for a client that hides nothing."""
    assert holds_key(f"before {forms(KEY)[form]} after") and not holds_key("before (key) after")


@pytest.fixture(scope="module")
def asked(servers: tuple[HostileServer, HostileServer], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a judge that has asked a good server once."""
    folder = tmp_path_factory.mktemp("asked")
    servers[0].play({})
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OPENAI_API_KEY", KEY)
        patch.setenv("NO_PROXY", "127.0.0.1")
        assert judged(settings_of(servers[0], folder), folder)[0] == 7
    return folder


@pytest.fixture
def kept(
    tmp_path: Path, servers: tuple[HostileServer, HostileServer], asked: Path
) -> tuple[HostileServer, JudgeSettings, Path]:
    """A good server, a judge that has asked it once, and the file of its reply."""
    server, _ = servers
    server.play({})
    shutil.copytree(asked, tmp_path, dirs_exist_ok=True)
    settings = settings_of(server, tmp_path)
    (path,) = settings.cache.rglob("*.json")
    return server, settings, path


@pytest.mark.parametrize("attack", FILES["cache"], ids=lambda attack: attack["name"])
def test_a_file_of_the_cache(attack: dict[str, Any], kept: Any, tmp_path: Path) -> None:
    server, settings, path = kept
    request = json.loads(path.read_text())["request"]
    text = attack["text"] if "text" in attack else json.dumps({"request": request, "reply": attack["reply"]})
    path.write_bytes(filled(text, ""))
    assert judged(settings, tmp_path)[0] == 7 and server.num_requests == 1
    assert judged(settings, tmp_path)[0] == 7 and server.num_requests == 1, "the file is a good one again"


def a_link(path: Path) -> None:
    (path.parent / "elsewhere").write_text("precious")
    path.symlink_to("elsewhere")


def a_huge_file(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(bounded.MAX_BYTES + 1)


@pytest.mark.parametrize("make", [a_link, os.mkfifo, a_huge_file, lambda path: path.symlink_to("/dev/zero")])
def test_no_file_in_the_cache(make: Callable[[Path], None], kept: Any, tmp_path: Path) -> None:
    server, settings, path = kept
    path.unlink()
    make(path)
    assert judged(settings, tmp_path)[0] == 7 and server.num_requests == 1
    assert path.is_file() and not path.is_symlink()
    assert make is not a_link or (path.parent / "elsewhere").read_text() == "precious"


def test_a_folder_in_the_place_of_a_reply(kept: Any, tmp_path: Path) -> None:
    _, settings, path = kept
    path.unlink()
    path.mkdir()
    score, lines = judged(settings, tmp_path)
    assert score is None and "cannot be written" in lines[-1]


@pytest.mark.parametrize("attack", FILES["judgements"], ids=lambda attack: attack["name"])
def test_judgements_edited_by_hand(attack: dict[str, Any], kept: Any, tmp_path: Path) -> None:
    _, settings, _ = kept
    path = tmp_path / JUDGEMENTS_FILE
    line = {**json.loads(path.read_text()), **attack.get("with", {})}
    before = filled(attack.get("text", json.dumps(line)), "")
    path.write_bytes(before)
    for use in (lambda: read_ratings(tmp_path, settings.signature), lambda: write_judgements(path, {}, settings)):
        with pytest.raises(ConfigError) as raised:
            use()
        said = str(raised.value)
        assert said.startswith(f"{path}") and "line 1: " in said and attack["says"] in said
        assert said.isprintable() and len(said) < 1000, said
    assert path.read_bytes() == before


@pytest.mark.parametrize("make", [os.mkfifo, Path.mkdir, lambda path: path.symlink_to("/dev/zero")])
def test_no_file_in_the_place_of_judgements(make: Callable[[Path], None], tmp_path: Path) -> None:
    make(tmp_path / JUDGEMENTS_FILE)
    with pytest.raises(ConfigError, match="cannot be read"):
        read_ratings(tmp_path, "m")
