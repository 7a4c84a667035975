"""A server that answers as the Hugging Face hub does, for a dataset in a local folder; the real clients talk to it."""

import base64
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha1
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class Handler(BaseHTTPRequestHandler):
    """`server` has the folder, the name of the dataset, the requests so far, an answer for all of them, if any, the
    former names of the dataset (`renamed`: old name → new name), and answers for other datasets (`refused`)."""

    protocol_version = "HTTP/1.1"
    server: Any

    def do_HEAD(self) -> None:
        self.answer()

    def do_GET(self) -> None:
        self.answer()

    def do_POST(self) -> None:
        if self.headers.get("Transfer-Encoding") == "chunked":
            self.body = b""
            while size := int(self.rfile.readline(), 16):
                self.body += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
        else:
            self.body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.answer()

    def answer(self) -> None:
        path = unquote(urlsplit(self.path).path)
        self.server.requests.append(f"{self.command} {path}")
        for old, new in self.server.renamed.items():  # as the hub does for a renamed dataset
            if f"datasets/{old}/" in f"{path}/":
                self.send(307, b"", {"Location": self.path.replace(old, new, 1)})
                return
        for name, (status, headers) in self.server.refused.items():
            if f"datasets/{name}/" in f"{path}/":
                self.send(status, b"{}", headers)
                return
        api, files = f"/api/datasets/{self.server.name}", f"/datasets/{self.server.name}/resolve/"
        if path == "/api/repos/create":
            self.send_json({"url": f"{self.server.url}/datasets/{self.server.name}"})
        elif path.startswith(f"{api}/preupload/"):
            names = [file["path"] for file in json.loads(self.body)["files"]]
            self.send_json({"files": [{"path": n, "uploadMode": "regular", "shouldIgnore": False} for n in names]})
        elif path.startswith(f"{api}/commit/"):
            self.take_commit([json.loads(line) for line in self.body.splitlines()])
        elif self.server.refusal is not None:
            status, headers = self.server.refusal
            self.send(status, b"{}", headers)
        elif path.startswith(files):
            self.send_file(path.removeprefix(files).partition("/")[2])
        elif path == api or path.startswith(f"{api}/revision/"):
            siblings = [{"rfilename": name, "size": file.stat().st_size} for name, file in self.files().items()]
            self.send_json({"_id": "1", "id": self.server.name, "sha": COMMIT, "siblings": siblings, "tags": []})
        elif path.startswith(f"{api}/tree/"):
            self.send_json(self.listing(path.removeprefix(f"{api}/tree/").partition("/")[2]))
        elif path.startswith(f"{api}/paths-info/"):
            wanted = json.loads(self.body)["paths"]
            self.send_json([self.entry(name) for name in self.files() if name in wanted])
        else:
            self.send(404, b"{}", {"X-Error-Code": "EntryNotFound"})

    def take_commit(self, parts: list[dict[str, Any]]) -> None:
        """Writes the files of a commit. `server.before_commit` may change files first: the commit then comes too
        late."""
        if self.server.before_commit is not None:
            change, self.server.before_commit = self.server.before_commit, None
            change()
            self.send(412, b"{}", {})
            return
        assert parts[0]["value"]["parentCommit"] == COMMIT
        for part in parts[1:]:
            path = self.server.folder / part["value"]["path"]
            path.write_bytes(base64.b64decode(part["value"]["content"]))
        url = f"{self.server.url}/datasets/{self.server.name}/commit/{COMMIT}"
        self.send_json({"commitUrl": url, "commitOid": COMMIT, "commitMessage": "", "hookOutput": "", "success": True})

    def files(self) -> dict[str, Path]:
        folder: Path = self.server.folder
        return {path.relative_to(folder).as_posix(): path for path in sorted(folder.rglob("*")) if path.is_file()}

    def listing(self, folder: str) -> list[dict[str, Any]]:
        """What lies directly in a folder."""
        names = [name for name in self.files() if name.startswith(folder + "/" if folder else "")]
        depth = folder.count("/") + 1 if folder else 0
        inner = sorted({"/".join(name.split("/")[: depth + 1]) for name in names if name.count("/") > depth})
        folders = [{"type": "directory", "path": name, "oid": "0" * 40, "size": 0} for name in inner]
        return folders + [self.entry(name) for name in names if name.count("/") == depth]

    def entry(self, name: str) -> dict[str, Any]:
        content = self.files()[name].read_bytes()
        return {"type": "file", "path": name, "size": len(content), "oid": sha1(content).hexdigest()}

    def send_file(self, name: str) -> None:
        file = self.files().get(name)
        if file is None:
            self.send(404, b"{}", {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": COMMIT})
            return
        content = file.read_bytes()
        headers = {"ETag": f'"{sha1(content).hexdigest()}"', "X-Repo-Commit": COMMIT, "Accept-Ranges": "bytes"}
        span = self.headers.get("Range")
        if span and span != "bytes=0-":
            start, _, end = span.removeprefix("bytes=").partition("-")
            part = content[int(start) : int(end) + 1 if end else None]
            headers["Content-Range"] = f"bytes {start}-{int(start) + len(part) - 1}/{len(content)}"
            self.send(206, part, headers)
        else:
            self.send(200, content, headers)

    def send_json(self, value: Any) -> None:
        self.send(200, json.dumps(value).encode(), {"Content-Type": "application/json"})

    def send(self, status: int, content: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for key, value in {**headers, "Content-Length": str(len(content))}.items():
            self.send_header(key, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def log_message(self, *_: Any) -> None:
        pass


@contextmanager
def serving(folder: Path, name: str) -> Iterator[Any]:
    """The server, with `url` and `requests`."""
    server: Any = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.folder, server.name, server.requests, server.refusal = folder, name, [], None
    server.renamed, server.refused, server.before_commit = {}, {}, None
    server.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()


WORKER = """
import contextlib, io, json, sys
from specbench.specs.catalogue import load_task
from specbench.cli import main
from specbench.tasks.examples import load_examples
from specbench.core.errors import ConfigError

def load(path, subset):
    data = load_examples(load_task(path), subset, data="hub", use_sample=False, limit=None)
    return [data.location, data.revision, [example.prompt for example in data.examples]]

for line in sys.stdin:
    kind, *arguments = json.loads(line)
    out, err, answer = io.StringIO(), io.StringIO(), None
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            if kind == "load":
                answer = load(*arguments)
            else:
                sys.argv = ["specbench", kind, *arguments]
                main()
        except ConfigError as error:
            answer = str(error)
        except SystemExit as stop:
            answer = stop.code
    print(json.dumps([answer, out.getvalue(), err.getvalue()]), flush=True)
"""


class Worker:
    """A process of its own, as the hub's clients read their settings once."""

    def __init__(self, settings: dict[str, str]) -> None:
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(
            [sys.executable, "-c", WORKER], env={**os.environ, **settings}, stdin=pipe, stdout=pipe, text=True
        )

    def ask(self, *job: str) -> Any:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(json.dumps(job) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def close(self) -> None:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.close()
        self.process.wait()
        self.process.stdout.close()
