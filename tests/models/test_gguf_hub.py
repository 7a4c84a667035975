"""GGUF files of a hub: a server on this machine that answers the hub's library as the hub does."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from urllib.parse import unquote

import pytest

from specbench.core.values import WHOLE, file_digest
from tests.support import gguf_files

COMMIT = "0123456789abcdef0123456789abcdef01234567"
FIND = (
    "import sys; from specbench.models.gguf.files import find_gguf\n"
    "from specbench.core.errors import ConfigError\n"
    "try:\n    found = find_gguf(*sys.argv[1:])\n"
    "except ConfigError as error:\n    print(error); sys.exit(2)\n"
    "print(found.identity, *found.paths)"
)


class Hub(ThreadingHTTPServer):
    """Serves one repository, the files of a folder, as org/tiny. `fetched`: the names of files that were read."""

    daemon_threads = True

    def __init__(self, folder: Path) -> None:
        super().__init__(("127.0.0.1", 0), Answer)
        self.folder, self.fetched = folder, list[str]()

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Answer(BaseHTTPRequestHandler):
    server: Hub

    def do_HEAD(self) -> None:
        self.answer(has_body=False)

    def do_GET(self) -> None:
        self.answer(has_body=True)

    def answer(self, has_body: bool) -> None:
        path = unquote(self.path.partition("?")[0])
        kind, content = "application/octet-stream", b""
        if path.startswith("/api/models/org/tiny"):
            names = sorted(each.relative_to(self.server.folder).as_posix() for each in self.server.folder.rglob("*.*"))
            listed = {"id": "org/tiny", "sha": COMMIT, "siblings": [{"rfilename": name} for name in names]}
            kind, content = "application/json", json.dumps(listed).encode()
        elif path.startswith("/org/tiny/resolve/"):
            name = path.removeprefix("/org/tiny/resolve/").partition("/")[2]
            content = (self.server.folder / name).read_bytes()
            self.server.fetched += [name] * has_body
        self.send_response(200 if content else 404)
        for header, value in (("Content-Type", kind), ("Content-Length", str(len(content))), ("X-Repo-Commit", COMMIT),
                              ("ETag", f'"{hash(path):x}"')):  # fmt: skip
            self.send_header(header, value)
        self.end_headers()
        if has_body:
            self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Hub]:
    folder = tmp_path / "repository"
    (folder / "parts").mkdir(parents=True)
    shutil.copy(gguf_files.embedded("drafter"), folder / "tiny-Q4_K_M.gguf")
    (folder / "tiny-Q8_0.gguf").write_bytes(b"GGUF")
    for part in gguf_files.split(gguf_files.embedded("drafter"), tmp_path):
        shutil.copy(part, folder / "parts" / part.name.replace("model", "tiny-F32"))
    (folder / "mmproj-tiny-F16.gguf").write_bytes(b"GGUF")
    server = Hub(folder)
    Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()


def find(hub: Hub, cache: Path, *given: str, is_offline: bool = False) -> tuple[int, str]:
    """In a process of its own, since the hub's library reads its environment when it is imported."""
    environment = {
        **os.environ, "HF_ENDPOINT": hub.address, "HF_HOME": str(cache), "HF_HUB_OFFLINE": str(int(is_offline)),
        "HF_HUB_DISABLE_XET": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1", "NO_PROXY": "127.0.0.1",
    }  # fmt: skip
    environment.pop("HF_HUB_CACHE", None)
    done = subprocess.run(
        [sys.executable, "-c", FIND, *given], env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode in (0, 2), done.stderr
    return done.returncode, done.stdout.strip()


def test_a_quantization_is_fetched_alone_and_found_again_without_the_hub(hub: Hub, tmp_path: Path) -> None:
    code, found = find(hub, tmp_path / "cache", "org/tiny:Q4_K_M")
    assert code == 0 and hub.fetched == ["tiny-Q4_K_M.gguf"], "no other quantization"
    assert found.startswith(f"sha256-{file_digest(hub.folder / 'tiny-Q4_K_M.gguf', WHOLE)} ")
    again = find(hub, tmp_path / "cache", "hf.co/org/tiny:Q4_K_M", is_offline=True)
    assert again == (0, found) and len(hub.fetched) == 1
    code, said = find(hub, tmp_path / "cache", "org/tiny:Q8_0", is_offline=True)
    assert code == 2 and "org/tiny:Q8_0" in said and "\n" not in said


def test_all_parts_of_a_model_are_fetched(hub: Hub, tmp_path: Path) -> None:
    code, found = find(hub, tmp_path / "cache", "org/tiny:F32", COMMIT)
    parts = sorted(each.relative_to(hub.folder).as_posix() for each in (hub.folder / "parts").iterdir())
    assert code == 0 and sorted(hub.fetched) == parts and len(found.split()) == 1 + len(parts) > 2
    code, said = find(hub, tmp_path / "cache", "org/tiny:Q5_0")
    assert code == 2 and "the repository has no such file" in said and "tiny-Q4_K_M.gguf" in said
