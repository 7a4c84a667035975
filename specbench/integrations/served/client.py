"""Requests to a server. Each has its own connection and time limit and is never retried; each read has a time stamp."""

import json
import re
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
READ_BYTES = 2**16  # maximum size of one read


@dataclass(frozen=True)
class Client:
    """The address of a server. `name`: its name in messages. `timeout_seconds`: the limit of one request. `key`: is
    sent with each request and removed from messages."""

    name: str
    url: str
    timeout_seconds: float
    key: ApiKey | None = field(default=None, repr=False)

    def listens(self) -> bool:
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
        """Yields (seconds since the request was sent, event) for each event of an answer.

        Raises ConfigError for a refused request, a broken connection, an error within the stream, and an answer that
        takes longer than the limit. The connection is closed when the caller stops reading.
        """
        reader, num_bytes = EventReader(), 0
        with self._connected(path) as connection:
            start = perf_counter()
            response = self._response(connection, path, body)
            if response.status != 200:
                page = response.read(2000).decode("utf-8", "replace")[:300]
                raise self.error(f"refuses the request to {path} with status {response.status}: {page}")
            while not reader.is_done and num_bytes <= MAX_BYTES and (content := response.read1(READ_BYTES)):
                seconds = perf_counter() - start
                num_bytes += len(content)
                for text in reader.feed(content):
                    if perf_counter() - start > self.timeout_seconds:  # many events of one read
                        raise self._late(path)
                    with self.reading():
                        event = bounded.json_value(text, strict=False)
                    if not isinstance(event, dict):
                        raise self.error(f"sent an event that is not a mapping: {text[:80]!r}")
                    if event.get("error"):
                        raise self.error(f"reports an error in the middle of an answer: {str(event['error'])[:200]}")
                    yield seconds, event
        if num_bytes > MAX_BYTES:
            raise self.error(f"sent more than {MAX_BYTES:,} bytes for one answer: see the server's log")

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
        parts, has_expired, start = urlsplit(self.url), threading.Event(), perf_counter()
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


LINE_END = re.compile(rb"\r\n|\n|\r(?!$)")  # a final \r may be the first half of \r\n


class EventReader:
    """Collects bytes and returns the data of complete events. The event [DONE] sets `is_done`."""

    def __init__(self) -> None:
        self.is_done = False
        self._rest: list[bytes] = []  # of a line that is not complete
        self._data: list[str] = []

    def feed(self, content: bytes) -> list[str]:
        """Returns the data of the events that these bytes complete, without [DONE], comments and other fields."""
        self._rest.append(content)
        if not LINE_END.search(b"".join(self._rest[-2:])):  # so that a long line is joined once
            return []
        *lines, rest = LINE_END.split(b"".join(self._rest))
        self._rest = [rest]
        found: list[str] = []
        for line in lines:
            field, _, value = line.decode("utf-8", "replace").partition(":")
            if field in ("data", "error"):  # llama.cpp sends `error: {…}`
                self._data.append(value.removeprefix(" "))
            elif not line and self._data:
                text = "\n".join(self._data)
                self._data = []
                if text.strip() == "[DONE]":
                    self.is_done = True
                else:
                    found.append(text)
        return found
