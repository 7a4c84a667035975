"""A server that sends what an entry of judge_replies.yaml says, byte for byte."""

import base64
import contextlib
import gzip
import html
import json
import re
import socket
import socketserver
import struct
import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any

KEY = "sk-A-key+that/nobody-may=see-0815"
HEAD = b"HTTP/1.1 200 OK\r\n"
PART = b"x" * 65536
ENDLESS = {  # what comes once, and what comes again and again
    "body": (b"", b" " * 65536),
    "chunks": (HEAD + b"Transfer-Encoding: chunked\r\n\r\n", b"10000\r\n" + PART + b"\r\n"),
    "header": (HEAD + b"X-A: ", PART),
    "headers": (HEAD, b"X-A: b\r\n" * 1000),
    "hints": (b"", b"HTTP/1.1 103 Early Hints\r\n\r\n" * 100),
}
DRIP_SECONDS = 0.02


def forms(key: str) -> dict[str, str]:
    """A key as programs write it."""
    unicode = "".join(f"\\u{ord(each):04X}" for each in key)
    coded = {
        f"base64 {number}": base64.b64encode(bytes(number) + key.encode() + b" is").decode() for number in range(3)
    }
    return {
        **coded, "base64": coded["base64 0"], "upper": key.upper(), "json": unicode,
        "json in json": unicode.replace("\\", "\\\\"), "url": "".join(f"%{ord(each):02x}" for each in key),
        "html": "".join(f"&#{ord(each)};" for each in key), "split": " ".join(key), "lines": "\\n".join(key),
        "invisible": "\\u200b".join(key),
    }  # fmt: skip


def filled(text: str, other: str) -> bytes:
    """The text with the key, the other server's address and what is repeated in it."""
    for name, form in forms(KEY).items():
        text = text.replace(f"{{KEY:{name}}}", form)
    text = text.replace("{KEY}", KEY).replace("{OTHER}", other)
    return re.sub(r"<<(\d+) (.+?)>>", lambda found: int(found[1]) * found[2], text, flags=re.DOTALL).encode()


def body_of(attack: Mapping[str, Any], other: str) -> bytes:
    """The body of the reply: a good one with the parts of the attack, unless the attack has a whole one."""
    message = {"role": "assistant", "content": attack.get("content", "Rating: [[7]]")}
    usage = attack.get("usage", {"prompt_tokens": 100, "completion_tokens": 20})
    good = {"choices": [{"message": message, "finish_reason": attack.get("finish_reason", "stop")}], "usage": usage}
    if "bytes" in attack:
        return bytes(attack["bytes"])
    body = filled(attack["text"] if "text" in attack else json.dumps(attack.get("body", good)), other)
    return gzip.compress(body) if attack.get("gzip") else body


def head_of(attack: Mapping[str, Any], length: int, other: str) -> bytes:
    status = str(attack.get("status", 200))
    headers = {"Content-Length": length, **attack.get("headers", {})}
    if attack.get("gzip"):
        headers["Content-Encoding"] = "gzip"
    lines = [f"HTTP/1.1 {status if ' ' in status else f'{status} x'}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return filled("\r\n".join(lines) + "\r\n\r\n", other)


def parts_of(attack: Mapping[str, Any], other: str) -> Iterator[bytes]:
    """What is sent, in turn."""
    if kind := attack.get("endless"):
        first, again = ENDLESS[kind]
        yield first or (head_of(attack, 10**12, other) if kind == "body" else b"")
        while True:
            yield again
            time.sleep(DRIP_SECONDS if kind == "hints" else 0)  # a client may spend all its time on hints
    if kind := attack.get("drip"):
        yield {"header": HEAD + b"X-A: ", "body": head_of(attack, 10**6, other), "nothing": b""}[kind]
        while True:
            time.sleep(DRIP_SECONDS)
            yield b"" if kind == "nothing" else b" "
    if "raw" in attack:
        yield filled(attack["raw"], other)
    else:
        body = body_of(attack, other)
        yield head_of(attack, len(body), other)
        yield b"" if attack.get("status") == 204 else body


class HostileServer(socketserver.ThreadingTCPServer):
    """Sends what `attack` says; counts its requests and the bytes that it could send."""

    daemon_threads = True
    request_queue_size = 50

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.play({})

    def play(self, attack: Mapping[str, Any], other: str = "") -> None:
        """Begin an attack; `other` is the address of another server."""
        self.attack, self.other = attack, other
        self.num_requests = self.num_bytes = 0

    @property
    def address(self) -> str:
        return f"{self.attack.get('scheme', 'http')}://127.0.0.1:{self.server_address[1]}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that no longer reads is what is wanted."""


class _Handler(socketserver.BaseRequestHandler):
    server: HostileServer
    request: socket.socket

    def handle(self) -> None:
        server, received = self.server, b""
        server.num_requests += 1
        self.request.settimeout(5)
        while server.attack.get("scheme") != "https" and not received.endswith(b"}"):  # the end of the request's JSON
            received += self.request.recv(65536)
        attack = server.attack
        for part in parts_of(attack, server.other):
            self.request.sendall(part)
            server.num_bytes += len(part)
        if attack.get("reset"):
            self.request.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.request.close()


@contextlib.contextmanager
def running() -> Iterator[HostileServer]:
    with HostileServer() as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield server
        server.shutdown()


def holds_key(text: str) -> bool:
    """Whether a text holds the key in a form that a person or a program could read."""
    plain = html.unescape(re.sub(r"%([0-9a-f]{2})", lambda found: chr(int(found[1], 16)), text, flags=re.IGNORECASE))
    plain = re.sub(r"\\+u([0-9a-f]{4})", lambda found: chr(int(found[1], 16)), plain, flags=re.IGNORECASE)
    plain = re.sub(r"\\+n|[^!-~]", "", plain)
    coded = [run[start:] for run in re.findall(r"[A-Za-z0-9+/]{12,}", text) for start in range(4)]
    decoded = [base64.b64decode(run[: len(run) // 4 * 4]) for run in coded]
    return KEY.lower() in plain.lower() or any(KEY.encode()[2:-2] in each for each in decoded)
