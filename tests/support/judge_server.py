"""A judge of the tests' own: a real server on this machine."""

import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

KEY = "sk-a-key-that-nobody-may-see-0815"
PAGES = {"html": b"<html>hello</html>", "half": b'{"choices": ['}  # that are not chat completions


class Server(ThreadingHTTPServer):
    """Answers by what stands in a request; `plan` maps a text to the replies that requests with it get in turn: a
    status with a body, or a body; the last is repeated."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.requests: list[dict[str, Any]] = []
        self.plan: dict[str, list[tuple[int, str]]] = {}
        self.finish_reason = "stop"
        self.num_running = self.most_running = 0
        self.delay_seconds = 0.0
        self.key = KEY
        self.lock = threading.Lock()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/v1"

    def next_reply(self, request: dict[str, Any]) -> tuple[int, str]:
        with self.lock:
            self.requests.append(request)
            for text, replies in self.plan.items():
                if text in request["messages"][1]["content"]:
                    return replies.pop(0) if len(replies) > 1 else replies[0]
        return 200, "Rating: [[7]]"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that no longer waits is part of these tests."""


class Handler(BaseHTTPRequestHandler):
    server: Server
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        server = self.server
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with server.lock:
            server.num_running += 1
            server.most_running = max(server.most_running, server.num_running)
        time.sleep(server.delay_seconds)
        status, text = server.next_reply({**request, "path": self.path})
        if self.headers["Authorization"] != f"Bearer {server.key}":
            status, text = 401, f"Incorrect API key provided: {self.headers['Authorization'].removeprefix('Bearer ')}"
        if text == "slow":
            time.sleep(1.0)
        message = {"role": "assistant", "content": text}
        body: dict[str, Any] = {
            "id": "1", "object": "chat.completion", "created": 1, "model": request["model"],
            "choices": [{"index": 0, "message": message, "finish_reason": server.finish_reason}],
            "usage": {"prompt_tokens": 100, "completion_tokens": 20, "total_tokens": 120},
        }  # fmt: skip
        if status != 200:
            body = {"error": {"message": text, "code": text if text == "insufficient_quota" else None}}
        content = PAGES.get(text, json.dumps(body).encode())
        with server.lock:
            server.num_running -= 1
        self.send_response(status)
        self.send_header("Content-Type", "text/html" if text == "html" else "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:
        """Quiet."""


@pytest.fixture(name="server")
def serving(monkeypatch) -> Iterator[Server]:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with Server() as found:
        threading.Thread(target=found.serve_forever, args=(0.02,), daemon=True).start()
        yield found
        found.shutdown()
