"""Asks a judge over the network, again where that may help."""

import os
import random
import threading
from collections.abc import Mapping
from typing import Any

from specbench.errors import ConfigError
from specbench.judge.cache import Reply
from specbench.judge.settings import KEY_VARIABLE, JudgeSettings

MAX_WAIT_SECONDS = 60.0
MANY_FAILURES = 5  # of the server, one after the other: it is not asked any more
LEAST_SECRET = 8  # characters; a shorter key is no secret, but one of a server that wants any
FATAL = {  # what would be the same for every request, and what to do
    401: f"the server refuses the key in {KEY_VARIABLE}: set it to one of this server's",
    403: f"the key in {KEY_VARIABLE} may not use this model: choose another model or key",
    404: "the server has no such model, or no chat completions there: check the model and --judge-base-url",
}


class NoReply(Exception):
    """A request that was given up, and why."""


class Client:
    """One connection for all threads. The key is read from the environment, and is in nothing that this gives back."""

    def __init__(self, settings: JudgeSettings) -> None:
        import openai

        self._openai = openai
        self._settings = settings
        self._key = os.environ.get(KEY_VARIABLE, "").strip()
        if not self._key:
            raise ConfigError(
                f"--judge {settings.model}: {KEY_VARIABLE} is not set: export the key (any text for a server without)"
            )
        if not (self._key.isascii() and self._key.isprintable()):
            raise ConfigError(
                f"{KEY_VARIABLE}: holds a character that no key has (not ASCII, or a control character): copy it again"
            )
        self._client = openai.OpenAI(
            api_key=self._key, base_url=settings.url, timeout=settings.timeout_seconds, max_retries=0
        )
        self._num_failures = 0
        self.stopped = threading.Event()

    def ask(self, request: Mapping[str, Any]) -> Reply:
        """The judge's reply. Raises NoReply for this request alone, ConfigError for what every request would meet.

        A request that the server refuses for what is in it says nothing about the others.
        """
        for attempt in range(self._settings.num_retries + 1):
            if self.stopped.is_set():
                raise NoReply("the judge was not asked")
            if self._num_failures >= MANY_FAILURES:
                raise NoReply("the judge was not asked: too many requests before failed")
            try:
                reply = self._post(request)
            except NoReply:
                self._num_failures += 1
                raise
            except self._openai.APIError as error:
                wait = self._wait_seconds(error, attempt)
                if wait is None:
                    self._num_failures = 0
                    raise NoReply(self._said(error)) from None
                if attempt == self._settings.num_retries:
                    self._num_failures += 1
                    raise NoReply(self._said(error)) from None
                self.stopped.wait(wait)
            else:
                self._num_failures = 0
                return reply
        raise AssertionError

    def _post(self, request: Mapping[str, Any]) -> Reply:
        asked = {name: value for name, value in request.items() if name != "url"}
        try:
            completion: Any = self._client.chat.completions.create(**asked)
            choice, usage = completion.choices[0], completion.usage
            text = (choice.message.content or "").encode("utf-8", "replace").decode()  # half of a surrogate pair
            counts = (getattr(usage, "prompt_tokens", None), getattr(usage, "completion_tokens", None))
        except (AttributeError, IndexError, TypeError, ValueError):  # a page, or no JSON
            raise NoReply("the server's reply is no chat completion: check --judge-base-url") from None
        return Reply(self._without_key(text), *counts, getattr(choice, "finish_reason", None))

    def _wait_seconds(self, error: Any, attempt: int) -> float | None:
        """How long to wait before another attempt; None where it would fail the same way.

        Raises ConfigError for what no request of the run would survive.
        """
        status: int | None = getattr(error, "status_code", None)
        if status in FATAL or getattr(error, "code", None) == "insufficient_quota":
            reason = FATAL.get(status or 0, "the account has no credit left: add some; replies so far are kept")
            raise ConfigError(f"--judge {self._settings.model} at {self._settings.url}: {status}: {reason}")
        if status is not None and status < 500 and status not in (408, 409, 429):
            return None
        wait: float = self._settings.backoff_seconds * 2**attempt * random.uniform(0.75, 1.25)
        return min(MAX_WAIT_SECONDS, max(wait, _asked_wait(error)))

    def _said(self, error: Any) -> str:
        status = getattr(error, "status_code", None)
        body = getattr(error, "body", None)
        message = body.get("message") if isinstance(body, dict) else None
        text = self._without_key(" ".join(str(message or error).split()))[:200]
        return f"the judge did not reply: {f'{status}: ' if status else ''}{text}"

    def _without_key(self, text: str) -> str:
        return text.replace(self._key, "(key)") if len(self._key) >= LEAST_SECRET else text


def _asked_wait(error: Any) -> float:
    """The seconds that a server asks to be left alone; 0 where it does not say."""
    headers = getattr(getattr(error, "response", None), "headers", {})
    try:
        return float(headers.get("retry-after", 0))
    except ValueError:  # a date
        return 0.0
