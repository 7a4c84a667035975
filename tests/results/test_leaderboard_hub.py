"""Leaderboards pushed to a dataset repository and pulled from it, through the real client, to a server of our own."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from specbench.results.leaderboard import load, write
from specbench.results.row import Row
from tests.support.hub_server import COMMIT, Worker, serving
from tests.support.rows import row

NAME = "someone/board"


@pytest.fixture(scope="module")
def worker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Any, Worker]]:
    home = tmp_path_factory.mktemp("home")
    with serving(home, NAME) as hub:
        settings = {"HF_HOME": str(home), "HF_ENDPOINT": hub.url, "HF_HUB_DISABLE_XET": "1", "HF_TOKEN": ""}
        made = Worker({**settings, "HF_HUB_OFFLINE": "0", "HF_HUB_DISABLE_PROGRESS_BARS": "1"})
        yield hub, made
        made.close()


class Client:
    def __init__(self, folder: Path, worker: tuple[Any, Worker]) -> None:
        self.folder = folder
        self.hub, self.worker = worker
        self.hub.folder, self.hub.refused, self.hub.before_commit = folder / "hub", {}, None
        self.hub.folder.mkdir()
        self.remote = self.hub.folder / "board.json"

    def rows(self, name: str, *rows: Row) -> str:
        write(self.folder / name, rows)
        return str(self.folder / name)

    def leaderboard(self, *words: str) -> tuple[int, str, str]:
        code, out, err = self.worker.ask("leaderboard", *words)
        return code, out, err


@pytest.fixture
def client(tmp_path: Path, worker: tuple[Any, Worker]) -> Client:
    return Client(tmp_path, worker)


def test_rows_are_pushed_and_pulled(client: Client) -> None:
    first = client.rows("board.json", row(method="sd@1", run="runs/one"), row(method="fsd@1"))
    code, out, err = client.leaderboard("push", first, "--to", NAME)
    assert code == 0, err
    assert out.splitlines()[0] == f"{NAME}/board.json: 2 rows added, 0 replaced, 0 there already; it has 2"
    assert out.splitlines()[1].endswith(f"/commit/{COMMIT}")
    assert [each.run for each in load(client.remote)] == [None, None], "places on this machine stay here"
    other = client.rows("mine.json", row(method="ngram@1"), row(method="sd@1"))
    code, out, err = client.leaderboard("push", other, "--to", NAME, "--name", "board.json")
    assert code == 0 and "1 row added" in out, err
    code, out, err = client.leaderboard(
        "pull", NAME, "--leaderboard", str(client.folder / "pulled.json"), "--name", "board.json"
    )
    assert code == 0 and f"3 rows added, 0 replaced, 0 there already; it has 3, from commit {COMMIT[:12]}" in out, err
    assert {each.method for each in load(client.folder / "pulled.json")} == {"sd@1", "fsd@1", "ngram@1"}


def test_a_push_that_comes_second_keeps_the_rows_of_the_first(client: Client) -> None:
    own = client.rows("board.json", row(method="sd@1"))
    client.hub.before_commit = lambda: write(client.remote, [row(method="fsd@1")])
    code, out, err = client.leaderboard("push", own, "--to", NAME)
    assert code == 0 and "1 row added, 0 replaced, 0 there already; it has 2" in out, err
    assert {each.method for each in load(client.remote)} == {"sd@1", "fsd@1"}


def test_rows_of_another_machine_are_refused(client: Client) -> None:
    write(client.remote, [row(method="fsd@1", device="another machine")])
    before = client.remote.read_bytes()
    code, _, err = client.leaderboard("push", client.rows("board.json", row(method="sd@1")), "--to", NAME)
    assert code == 2 and "another machine" in err and client.remote.read_bytes() == before


@pytest.mark.parametrize(
    ("content", "expected"),
    [(None, "has no file"), ("{", f"{NAME}/board.json, line 1: not valid JSON"), ("[]", "not a leaderboard")],
)
def test_what_cannot_be_pulled_is_one_line(client: Client, content: str | None, expected: str) -> None:
    if content is not None:
        client.remote.write_text(content)
    code, _, err = client.leaderboard("pull", NAME, "--leaderboard", str(client.folder / "board.json"))
    assert code == 2 and expected in err and len(err.strip().splitlines()) == 1
    assert not (client.folder / "board.json").exists()


def test_a_refusal_of_the_hub_is_one_line(client: Client) -> None:
    client.hub.refused = {NAME: (401, {"X-Error-Code": "RepoNotFound"})}
    file = client.rows("board.json", row(method="sd@1"))
    for words in (("push", file, "--to", NAME), ("pull", NAME, "--leaderboard", file)):
        code, _, err = client.leaderboard(*words)
        assert code == 2 and "log in (hf auth login, or HF_TOKEN)" in err and len(err.strip().splitlines()) == 1


def test_a_broken_file_is_not_pushed(client: Client) -> None:
    path = client.rows("board.json", row(method="sd@1"))
    content = json.loads(Path(path).read_text())
    content["rows"][0]["seed"] += 1
    Path(path).write_text(json.dumps(content))
    client.hub.requests.clear()
    code, _, err = client.leaderboard("push", path, "--to", NAME)
    assert code == 2 and "edited by hand" in err and client.hub.requests == []
