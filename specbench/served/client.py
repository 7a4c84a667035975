"""Requests to a server: one connection and one time limit for each, no retries, and a time stamp for each read."""

import json
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from socket import SHUT_RDWR, create_connection, socket
from threading import Event, Timer
from time import perf_counter
from typing import Any
from urllib.parse import urlsplit

from specbench.core import bounded
from specbench.core.completions import ApiKey
from specbench.core.errors import ConfigError
from specbench.served.events import EventReader

MAX_BYTES = 64 * 2**20  # of an answer
READ_BYTES = 2**16  # of a read at most


@dataclass(frozen=True)
class Client:
    """The address of a server. `name`: the server's name in messages. `timeout_seconds`: the limit of one request.
    `key`: sent with each request, and removed from messages."""

    name: str
    url: str
    timeout_seconds: float
    key: ApiKey | None = field(default=None, repr=False)

    def listens(self) -> bool:
        """Returns whether a program takes connections at the address."""
        parts = urlsplit(self.url)
        port = parts.port or (443 if parts.scheme == "https" else 80)
        try:
            create_connection((parts.hostname or "", port), self.timeout_seconds).close()
        except OSError:
            return False
        return True

    def get(self, path: str) -> str | None:
        """Returns the text of a page; None if the server has no such page."""
        return self._page("GET", path, None)

    def post(self, path: str, body: Mapping[str, Any]) -> str | None:
        """Returns the text of the answer to a request without a stream; None if the server has no such page."""
        return self._page("POST", path, body)

    def stream(self, path: str, body: Mapping[str, Any]) -> Generator[tuple[float, dict[str, Any]]]:
        """Yields the events of an answer, each with the seconds since the request was sent.

        Raises ConfigError for a refused request, a connection that breaks, an error in mid-stream, and an answer that
        takes longer than the limit. The connection is closed when the caller stops reading.
        """
        reader, num_bytes = EventReader(), 0
        with self._connected(path) as connection:
            start = perf_counter()
            response = self._response(connection, "POST", path, body)
            if response.status != 200:
                raise self.error(f"refuses the request to {path} with status {response.status}: {_shown(response)}")
            while not reader.is_done and num_bytes <= MAX_BYTES and (content := response.read1(READ_BYTES)):
                seconds = perf_counter() - start
                num_bytes += len(content)
                for event in reader.feed(content):
                    yield seconds, self._event(event)
        if num_bytes > MAX_BYTES:
            raise self.error(f"sent more than {MAX_BYTES:,} bytes for one answer: see the server's log")

    def error(self, problem: str) -> ConfigError:
        """Returns an error that names the server."""
        return ConfigError(f"server '{self.name}' ({self.url}) {self.key.hide(problem) if self.key else problem}")

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Turns an exception for an answer of another form into a ConfigError."""
        try:
            yield
        except (TypeError, KeyError, AttributeError, ValueError, IndexError, OverflowError) as error:
            text = " ".join(str(error).split())[:120]
            raise self.error(
                f"sent an answer of another form than its engine's ({type(error).__name__}: {text})"
            ) from error

    def _event(self, text: str) -> dict[str, Any]:
        with self.reading():
            event = bounded.json_value(text, strict=False)
        if not isinstance(event, dict):
            raise self.error(f"sent an event that is no mapping: {text[:80]!r}")
        if event.get("error"):
            raise self.error(f"reports an error in mid-answer: {str(event['error'])[:200]}")
        return event

    def _page(self, method: str, path: str, body: Mapping[str, Any] | None) -> str | None:
        with self._connected(path) as connection:
            response = self._response(connection, method, path, body)
            text = response.read(MAX_BYTES).decode("utf-8", "replace")
            return text if response.status == 200 else None

    @contextmanager
    def _connected(self, path: str) -> Iterator[HTTPConnection]:
        """Opens a connection, and shuts it down at the time limit, however slowly the server sends."""
        parts, has_expired = urlsplit(self.url), Event()
        kind = HTTPSConnection if parts.scheme == "https" else HTTPConnection
        connection = kind(parts.hostname or "", parts.port, timeout=self.timeout_seconds)

        def expire(opened: socket) -> None:
            has_expired.set()
            with suppress(OSError):
                opened.shutdown(SHUT_RDWR)

        timer = None
        try:
            connection.connect()
            timer = Timer(self.timeout_seconds, expire, [connection.sock])
            timer.daemon = True
            timer.start()
            yield connection
        except (OSError, HTTPException) as error:
            if isinstance(error, TimeoutError) or has_expired.is_set():
                raise self._late(path) from error
            raise self._failed(error) from error
        finally:
            if timer is not None:
                timer.cancel()
            connection.close()
        if has_expired.is_set():
            raise self._late(path)

    def _response(
        self, connection: HTTPConnection, method: str, path: str, body: Mapping[str, Any] | None
    ) -> HTTPResponse:
        content = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"}
        if self.key is not None:
            headers["Authorization"] = f"Bearer {self.key.value}"
        connection.request(method, urlsplit(self.url).path + path, content, headers)
        return connection.getresponse()

    def _late(self, path: str) -> ConfigError:
        return self.error(
            f"has not answered {path} in full within {self.timeout_seconds:g} s: set timeout_seconds higher, or a "
            "smaller generation.max_new_tokens"
        )

    def _failed(self, error: Exception) -> ConfigError:
        if isinstance(error, ConnectionRefusedError):
            return self.error("does not listen: start it, or correct its url")
        return self.error(f"closed the connection ({type(error).__name__}: {error}): see the server's log")


def _shown(response: HTTPResponse) -> str:
    """Returns the beginning of an error page."""
    return response.read(2000).decode("utf-8", "replace")[:300]
