"""Requests to a server: one connection and one time limit for each, no retries, and a time stamp for each read."""

import json
from collections.abc import Generator, Mapping
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from time import perf_counter
from typing import Any
from urllib.parse import urlsplit

from specbench.core.errors import ConfigError
from specbench.served.events import EventReader

MAX_BYTES = 64 * 2**20  # of an answer
READ_BYTES = 2**16  # of a read at most


@dataclass(frozen=True)
class Client:
    """The address of a server. `name`: the server's name in messages. `timeout_seconds`: the limit of one request."""

    name: str
    url: str
    timeout_seconds: float

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
        connection = self._connection()
        reader = EventReader()
        try:
            connection.connect()
            start = perf_counter()
            response = self._response(connection, "POST", path, body)
            if response.status != 200:
                raise self.error(f"refuses the request to {path} with status {response.status}: {_shown(response)}")
            num_bytes = 0
            while not reader.is_done and (content := response.read1(READ_BYTES)):
                seconds = perf_counter() - start
                num_bytes += len(content)
                if seconds > self.timeout_seconds or num_bytes > MAX_BYTES:
                    raise self.error(
                        f"has not finished its answer after {seconds:.0f} s and {num_bytes} bytes: set timeout_seconds "
                        "higher, or a smaller generation.max_new_tokens"
                    )
                for event in reader.feed(content):
                    yield seconds, self._event(event)
        except (OSError, HTTPException) as error:
            raise self._failed(path, error) from error
        finally:
            connection.close()

    def error(self, problem: str) -> ConfigError:
        """Returns an error that names the server."""
        return ConfigError(f"server '{self.name}' ({self.url}) {problem}")

    def _event(self, text: str) -> dict[str, Any]:
        try:
            event = json.loads(text)
        except ValueError as error:
            raise self.error(f"sent an event that is not JSON: {text[:80]!r}") from error
        if not isinstance(event, dict):
            raise self.error(f"sent an event that is no mapping: {text[:80]!r}")
        if event.get("error"):
            raise self.error(f"reports an error in mid-answer: {str(event['error'])[:200]}")
        return event

    def _page(self, method: str, path: str, body: Mapping[str, Any] | None) -> str | None:
        connection = self._connection()
        try:
            response = self._response(connection, method, path, body)
            text = response.read(MAX_BYTES).decode("utf-8", "replace")
            return text if response.status == 200 else None
        except (OSError, HTTPException) as error:
            raise self._failed(path, error) from error
        finally:
            connection.close()

    def _connection(self) -> HTTPConnection:
        parts = urlsplit(self.url)
        kind = HTTPSConnection if parts.scheme == "https" else HTTPConnection
        return kind(parts.hostname or "", parts.port, timeout=self.timeout_seconds)

    def _response(
        self, connection: HTTPConnection, method: str, path: str, body: Mapping[str, Any] | None
    ) -> HTTPResponse:
        content = None if body is None else json.dumps(body).encode()
        connection.request(method, urlsplit(self.url).path + path, content, {"Content-Type": "application/json"})
        return connection.getresponse()

    def _failed(self, path: str, error: Exception) -> ConfigError:
        if isinstance(error, TimeoutError):
            return self.error(f"did not answer {path} within {self.timeout_seconds:g} s: set timeout_seconds higher")
        if isinstance(error, ConnectionRefusedError):
            return self.error("does not listen: start it, or correct its url")
        return self.error(f"closed the connection ({type(error).__name__}: {error}): see the server's log")


def _shown(response: HTTPResponse) -> str:
    """Returns the beginning of an error page."""
    return response.read(2000).decode("utf-8", "replace")[:300]
