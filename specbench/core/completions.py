"""A client for servers with OpenAI's API. Requests have a deadline, replies have a maximum size, and the API key is
removed from all replies."""

import asyncio
import base64
import html
import json
import logging
import os
import random
import re
import ssl
import threading
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Annotated, Any, NamedTuple
from urllib.parse import urlsplit

import httpx2
from pydantic import BaseModel, BeforeValidator, ConfigDict, FailFast, Field, ValidationInfo
from pydantic.dataclasses import dataclass

from specbench.core.console import say, stderr
from specbench.core.environment import require
from specbench.core.errors import ConfigError

KEY_VARIABLE = "OPENAI_API_KEY"
LEAST_SECRET = 8  # characters
HIDDEN = "(key)"
GAP = r"[\s\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202f\u2060-\u2064\ufeff]{0,8}"  # between two characters of a key


class ApiKey:
    """An API key from the environment.

    A key with fewer than 8 characters is not hidden: it is a placeholder for a server without keys ("EMPTY", "1"), and
    hiding it could remove a rating from a reply. A longer key is hidden in any case, even if white space splits it, or
    if it is escaped for JSON, URLs or HTML, or base64-encoded. Other encodings are not covered: the server knows the
    key anyway.
    """

    def __init__(self, text: str) -> None:
        self.value = text  # for the client that sends it
        self._pattern = re.compile("|".join(_forms(text)), re.IGNORECASE) if len(text) >= LEAST_SECRET else None

    @classmethod
    def from_environment(cls, setting: str, variable: str) -> "ApiKey":
        """Returns the key in an environment variable. Raises ConfigError, which begins with `setting`, without one."""
        text = os.environ.get(variable, "").strip()
        if not text:
            raise ConfigError(f"{setting}: {variable} is not set: export the key (any text for a server without keys)")
        if not (text.isascii() and text.isprintable()):
            raise ConfigError(
                f"{setting}: {variable} has a character that no key has (not ASCII, or a control character): "
                "copy it again"
            )
        return cls(text)

    def hide(self, text: str) -> str:
        """Returns a text without the key, and without lone surrogates, which no file can hold."""
        text = text.encode("utf-8", "replace").decode()
        return self._pattern.sub(HIDDEN, text) if self._pattern else text


def _forms(key: str) -> Iterator[str]:
    """Yields regular expressions for the ways in which programs write a key."""
    yield GAP.join(map(_character, key))
    for num_before in range(3):  # base64 depends on the number of bytes before the key, modulo 3
        text = base64.b64encode(bytes(num_before) + key.encode()).decode().rstrip("=")
        end = None if (num_before + len(key)) % 3 == 0 else -1  # the last character depends on what follows
        text = text[(0, 2, 3)[num_before] : end]
        yield GAP.join({"+": "[+-]", "/": "[/_]"}.get(character, character) for character in text)


def _character(character: str) -> str:
    code = ord(character)
    digits = f"{ord(character):02x}"
    plain = f"{re.escape(html.escape(character))}|{re.escape(character)}"
    return rf"(?:\\{{0,4}}(?:{plain}|u00{digits}|x{digits})|%{digits}|&#(?:0{{0,4}}{code}|x0{{0,4}}{code:x});)"


MOST_BYTES = 2 * 2**20  # of a reply's body; a judge's reply has a few thousand
MOST_SHOWN = 200  # characters of a server's message
NO_CREDIT = "insufficient_quota"  # error code with status 429 that waiting does not resolve
MAX_WAIT_SECONDS = 60.0  # before another attempt, even if the server asks for more
Count = Annotated[int, Field(ge=0, lt=10**7, strict=True)]  # at most 7 digits, fewer than a hidden key has characters


@dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class Reply:
    """A model's reply. The server reports the token counts and the finish reason; they are None if it does not.

    Raises ValueError (pydantic's ValidationError) for invalid values.
    """

    text: str
    num_prompt_tokens: Count | None
    num_reply_tokens: Count | None
    finish_reason: Annotated[str, Field(pattern=r"^[ -~]{0,40}$")] | None = None


class RequestFailed(Exception):
    """A request got no usable reply. The message is one printable line without the key.

    `status`: HTTP status of the reply, None without a reply. `may_pass`: whether the same request may succeed later.
    `code`: the server's error code. `retry_after`: seconds that the server asks to wait, by default 0.
    """

    def __init__(
        self, message: str, status: int | None, may_pass: bool, code: str | None = None, retry_after: float = 0.0
    ) -> None:
        super().__init__(message)
        self.status, self.may_pass, self.code, self.retry_after = status, may_pass, code, retry_after


class Completions:
    """A client of the server at `url`. It is thread-safe. `setting`: the option that errors name.

    Raises ConfigError if the environment has no key, or openai is not installed.
    """

    def __init__(
        self, url: str, setting: str, timeout_seconds: float, num_retries: int, backoff_seconds: float = 1.0
    ) -> None:
        require("openai", setting)
        self._url = url.rstrip("/")
        self._setting = setting
        self._key = ApiKey.from_environment(setting, KEY_VARIABLE)
        self._timeout_seconds = timeout_seconds
        self._num_retries = num_retries
        self._backoff_seconds = backoff_seconds
        self._warned = threading.Lock()  # held once the user was warned
        self.stopped = threading.Event()
        # At lower levels these log headers, in which a server may echo the key.
        for name in ("openai", "httpx2", "httpcore2"):
            if (logger := logging.getLogger(name)).level < logging.WARNING:  # setting it makes all loggers slower
                logger.setLevel(logging.WARNING)

    def ask(self, path: str, request: Mapping[str, object]) -> Reply:
        """Returns the reply to a request to a path such as `chat/completions`. Repeats failed requests that may succeed
        later, until `stopped` is set.

        An attempt takes at most `timeout_seconds`. Prints a line before the first repetition without a reply. Raises
        RequestFailed.
        """
        for attempt in range(self._num_retries + 1):
            try:
                return self._attempt(path, request)
            except RequestFailed as error:
                if not error.may_pass or attempt == self._num_retries:
                    raise
                if error.status is None and self._warned.acquire(blocking=False):
                    seconds = self._backoff_seconds * (2**self._num_retries - 1)
                    problem = f"{self._setting} at {self._url}: no reply ({error})"
                    say(
                        stderr,
                        f"{problem}: retrying each request up to {self._num_retries} times, for about {seconds:.0f} s",
                    )
                wait = self._backoff_seconds * 2**attempt * random.uniform(0.75, 1.25)
                if self.stopped.wait(min(MAX_WAIT_SECONDS, max(wait, error.retry_after))):
                    raise
        raise AssertionError

    def _attempt(self, path: str, request: Mapping[str, object]) -> Reply:
        import httpx2
        import openai

        try:
            answer = asyncio.run(self._post(path, request))
        except TimeoutError:
            raise RequestFailed(f"timed out: no whole reply within {self._timeout_seconds:g} s", None, True) from None
        except (openai.OpenAIError, httpx2.HTTPError, Unbounded, OSError, ImportError, ValueError) as error:
            raise self._no_answer(error) from None
        if answer.status >= 300:
            raise self._refusal(answer)
        try:
            completion = _Completion.model_validate(json.loads(answer.body), context=self._key)
            choice = completion.choices[0]
            usage = completion.usage or _Usage()
            if choice.message is None and choice.text is None:
                raise ValueError("neither a message nor a text")
            text = choice.message.content if choice.message else choice.text
            reason = choice.finish_reason and re.sub(r"[^ -~]", "?", choice.finish_reason)[:40]
            return Reply(text or "", usage.prompt_tokens, usage.completion_tokens, reason)
        except (ValueError, RecursionError):
            raise RequestFailed("the answer is not a completion: check the URL", answer.status, False) from None

    async def _post(self, path: str, request: Mapping[str, object]) -> "_Answer":
        """Sends a request and reads its whole reply. Raises the client's errors if there is no reply."""
        import httpx2
        import openai

        async with asyncio.timeout(self._timeout_seconds), BoundedClient(MOST_BYTES) as http_client:
            client = openai.AsyncOpenAI(
                api_key=self._key.value, base_url=self._url, timeout=None, max_retries=0, http_client=http_client
            )
            try:
                reply = await client.post(f"/{path}", cast_to=httpx2.Response, body=dict(request))
            except openai.APIStatusError as error:
                reply = error.response
        return _Answer(reply.status_code, dict(reply.headers), reply.content.decode("utf-8", "replace"))

    def _no_answer(self, error: Exception) -> RequestFailed:
        """Returns the error for a request without a complete reply. An invalid address or proxy is not worth a
        retry."""
        cause = error.__cause__ if isinstance(error.__cause__, Exception) else error
        if isinstance(cause, Unbounded):
            return RequestFailed(f"{cause.status}: {cause}", cause.status, _may_pass(cause.status))
        import httpx2

        may_pass = isinstance(cause, (httpx2.HTTPError, OSError))
        return RequestFailed(self._line(f"{type(cause).__name__}: {cause}"), None, may_pass)

    def _refusal(self, answer: "_Answer") -> RequestFailed:
        """Returns the error for a status other than success."""
        try:
            content = json.loads(answer.body)
        except (ValueError, RecursionError):
            content = answer.body
        error = content.get("error", content) if isinstance(content, dict) else content
        fields = error if isinstance(error, dict) else {}
        texts = [error, fields.get("message"), fields.get("detail"), answer.body]
        message, code = next(text for text in texts if isinstance(text, str)), fields.get("code")
        if answer.status < 400:
            place = answer.headers.get("location", "nowhere")
            message = f"redirects to {place}, which is not followed: give that URL if you trust it"
        may_pass = _may_pass(answer.status) and code != NO_CREDIT
        line = f"{answer.status}: {self._line(message) or 'no message'}"
        return RequestFailed(line, answer.status, may_pass, code, answer.retry_after)

    def _line(self, message: str) -> str:
        """Returns one printable line without the key."""
        text = "".join(each if each.isprintable() else " " for each in self._key.hide(message))
        return " ".join(text.split())[:MOST_SHOWN]


class _Answer(NamedTuple):
    status: int
    headers: Mapping[str, str]
    body: str

    @property
    def retry_after(self) -> float:
        try:
            seconds = float(self.headers.get("retry-after", 0))
        except ValueError:  # a date
            return 0.0
        return seconds if seconds > 0 else 0.0  # also 0 for NaN


def _may_pass(status: int) -> bool:
    """Returns whether the same request may succeed later."""
    return status >= 500 or status in (408, 409, 429)


def _without_key(value: Any, info: ValidationInfo[ApiKey]) -> Any:
    return info.context.hide(value) if isinstance(value, str) else value


Text = Annotated[str, BeforeValidator(_without_key)]  # the type of every text that is read from a reply


class _Message(BaseModel):
    content: Text | None = None


class _Choice(BaseModel):
    """A choice of a reply. Chats have a message, other completions a text."""

    message: _Message | None = None
    text: Text | None = None
    finish_reason: Text | None = None


class _Usage(BaseModel):
    prompt_tokens: Count | None = None
    completion_tokens: Count | None = None


class _Completion(BaseModel):
    choices: Annotated[list[_Choice], Field(min_length=1, max_length=100), FailFast()]
    usage: _Usage | None = None


def check_url(url: str, setting: str) -> None:
    """Raises ConfigError, which begins with `setting`, for an invalid server address or one with secrets."""
    if "@" in url or "?" in url:  # these would be in every log of a request
        raise ConfigError(f"{setting}: has a user or a query: remove it, and set {KEY_VARIABLE}")
    try:
        parts = urlsplit(url)
        is_address = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # unclosed brackets, or a port that is not a number or too large
        is_address = False
    if not is_address:
        raise ConfigError(f"{setting} {url}: not a URL: write it as http://localhost:8000/v1")


KEPT_HEADERS = (b"location", b"retry-after")  # others, such as a charset, would change the decoding of the body


class Unbounded(Exception):
    """A reply was refused before it was read completely. `status`: its HTTP status."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class BoundedClient(httpx2.AsyncClient):
    """An HTTP client that reads at most `max_bytes` of a body, and sends no prompt to another server by a redirect."""

    def __init__(self, max_bytes: int) -> None:
        super().__init__(timeout=None, verify=_tls(), follow_redirects=False)
        self._max_bytes = max_bytes

    async def send(self, request: httpx2.Request, **options: Any) -> httpx2.Response:
        """Returns the response with its whole body. Raises Unbounded and the errors of httpx2."""
        request.headers["Accept-Encoding"] = "identity"
        options |= {"stream": True, "follow_redirects": False}
        response = await super().send(request, **options)
        try:
            body = await self._read(response)
        finally:
            await response.aclose()
        headers = [(name, value) for name, value in response.headers.raw if name.lower() in KEPT_HEADERS]
        return httpx2.Response(response.status_code, headers=headers, content=body, request=request)

    async def _read(self, response: httpx2.Response) -> bytes:
        status, body = response.status_code, bytearray()
        if response.headers.get("content-encoding", "identity").lower() != "identity":
            raise Unbounded("the reply is compressed, although this was not requested", status)
        async for part in response.aiter_raw():
            body += part
            if len(body) > self._max_bytes:
                raise Unbounded(f"the reply has more than {self._max_bytes:,} bytes", status)
        return bytes(body)


@cache
def _tls() -> ssl.SSLContext:
    """Returns the trusted certificates, cached because loading them takes longer than a request."""
    return httpx2.create_ssl_context()
