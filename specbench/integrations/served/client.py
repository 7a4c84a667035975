"""Requests to a server. Each has its own connection and time limit and is never retried; each read has a time stamp."""

import json
import threading
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from http.client import (
    BadStatusLine,
    HTTPConnection,
    HTTPException,
    HTTPResponse,
    HTTPSConnection,
    RemoteDisconnected,
)
from socket import SHUT_RDWR, create_connection, gaierror, socket
from ssl import SSLContext, SSLError, SSLSocket, create_default_context
from time import perf_counter
from urllib.parse import urlsplit

from specbench.core import bounded
from specbench.core.completions import ApiKey
from specbench.core.errors import ConfigError
from specbench.integrations.served.engine import Body, Event

MAX_BYTES = 64 * 2**20  # maximum size of an answer
MAX_LINE_BYTES = 4 * 2**20
READ_BYTES = 2**16  # maximum size of one read


@dataclass(frozen=True)
class Client:
    """The address of a server. `name`: its name in messages. `timeout_seconds`: the limit of one request. `key`: is
    sent with each request and removed from messages."""

    name: str
    url: str
    timeout_seconds: float
    key: ApiKey | None = field(default=None, repr=False)

    def is_reachable(self) -> bool:
        parts = urlsplit(self.url)
        port = parts.port or (443 if parts.scheme == "https" else 80)
        try:
            create_connection((parts.hostname or "", port), self.timeout_seconds).close()
        except OSError:
            return False
        return True

    def get(self, path: str, body: Body | None = None) -> str | None:
        """Returns the text of a page, or with a body the answer to a request; None if the server has no such page."""
        with self._connected(path) as connection:
            response = self._response(connection, path, body)
            text = response.read(MAX_BYTES).decode("utf-8", "replace")
            return text if response.status == 200 else None

    def stream(self, path: str, body: Body) -> Generator[tuple[float, Event]]:
        """Yields (seconds from sending the request to the read of the event's end, event) for each event of an answer.

        Raises ConfigError for a refused request, a broken connection, an error within the stream, and an answer that
        takes longer than the limit. The connection is closed when the caller stops reading.
        """
        num_bytes, rest, data = 0, b"", list[str]()  # of a line and of an event that are not complete
        with self._connected(path) as connection:
            start = perf_counter()
            response = self._response(connection, path, body)
            if response.status != 200:
                page = response.read(2000).decode("utf-8", "replace")[:300]
                raise self.error(f"refuses the request to {path} with status {response.status}: {page}")
            while content := response.read1(READ_BYTES):
                seconds = perf_counter() - start
                num_bytes += len(content)
                *lines, rest = (rest + content).split(b"\n")
                if num_bytes > MAX_BYTES or len(rest) > MAX_LINE_BYTES:
                    raise self.error(f"sent {num_bytes:,} bytes of one answer, without an end: see the server's log")
                for line in lines:
                    if perf_counter() - start > self.timeout_seconds:  # many events of one read
                        raise self._late(path)
                    name, _, value = line.decode("utf-8", "replace").partition(":")
                    if name in ("data", "error"):  # llama.cpp sends `error: {…}`
                        data.append(value.strip())
                    if line.strip() or not data:  # an empty line ends an event
                        continue
                    text, data = "\n".join(data), []
                    if text == "[DONE]":
                        return
                    with self.reading():
                        event = bounded.json_value(text, strict=False)
                    if not isinstance(event, dict):
                        raise self.error(f"sent an event that is not a mapping: {text[:80]!r}")
                    if event.get("error"):
                        raise self.error(f"reports an error in the middle of an answer: {str(event['error'])[:200]}")
                    yield seconds, event

    def error(self, problem: str) -> ConfigError:
        return ConfigError(f"server '{self.name}' ({self.url}) {self.key.hide(problem) if self.key else problem}")

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Turns exceptions from reading an answer, which then has an unexpected format, into a ConfigError."""
        try:
            yield
        except (TypeError, KeyError, AttributeError, ValueError, IndexError, OverflowError) as error:
            text = " ".join(str(error).split())[:120]
            raise self.error(
                f"sent an answer whose format is not that of its engine ({type(error).__name__}: {text})"
            ) from error

    @contextmanager
    def _connected(self, path: str) -> Iterator[HTTPConnection]:
        """Opens a connection and shuts it down at the time limit, whatever the server is doing, from the handshake of
        TLS to the last byte."""
        parts = urlsplit(self.url)
        has_expired = threading.Event()
        start = perf_counter()
        kind = HTTPSConnection if parts.scheme == "https" else HTTPConnection
        connection = kind(parts.hostname or "", parts.port, timeout=self.timeout_seconds)

        def expire(opened: socket) -> None:
            has_expired.set()
            with suppress(OSError):
                socket.shutdown(opened, SHUT_RDWR)  # that of a TLS socket also drops what other threads use

        timer = None
        try:
            opened = create_connection((connection.host, connection.port), self.timeout_seconds)
            if parts.scheme == "https":
                opened = _tls().wrap_socket(opened, server_hostname=connection.host, do_handshake_on_connect=False)
            connection.sock = opened
            timer = threading.Timer(max(0.0, start + self.timeout_seconds - perf_counter()), expire, [opened])
            timer.daemon = True
            timer.start()
            if isinstance(opened, SSLSocket):
                opened.do_handshake()
            yield connection
        except (OSError, HTTPException) as error:
            if isinstance(error, TimeoutError) or has_expired.is_set():
                raise self._late(path) from error
            if isinstance(error, ConnectionRefusedError):
                raise self.error("connection refused: start it, or correct its url") from error
            if isinstance(error, gaierror):
                raise self.error(f"has no address ({error.strerror}): correct its url") from error
            if isinstance(error, BadStatusLine | SSLError) and not isinstance(error, RemoteDisconnected):
                shown = " ".join(str(error).split())[:80]
                problem = f"does not speak {parts.scheme.upper()} ({type(error).__name__}: {shown}): correct its url"
                raise self.error(problem) from error
            problem = f"closed the connection ({type(error).__name__}: {error}): see the server's log"
            raise self.error(problem) from error
        finally:
            if timer is not None:
                timer.cancel()
            connection.close()
        if has_expired.is_set():
            raise self._late(path)

    def _response(self, connection: HTTPConnection, path: str, body: Body | None) -> HTTPResponse:
        content = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"}
        if self.key is not None:
            headers["Authorization"] = f"Bearer {self.key.value}"
        connection.request("GET" if body is None else "POST", urlsplit(self.url).path + path, content, headers)
        return connection.getresponse()

    def _late(self, path: str) -> ConfigError:
        return self.error(
            f"timed out after {self.timeout_seconds:g} s at {path}: set timeout_seconds higher, or a smaller "
            "generation.max_new_tokens"
        )


@cache
def _tls() -> SSLContext:
    """Returns the trusted certificates, cached because loading them takes longer than a request."""
    return create_default_context()
