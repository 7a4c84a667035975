"""Asks a judge over the network, again where that may help."""

import threading
from collections.abc import Mapping
from typing import Any

from specbench.core.completions import KEY_VARIABLE, NO_CREDIT, Completions, Reply, RequestFailed
from specbench.core.errors import ConfigError
from specbench.tasks.judge.requests import JudgeSettings

MANY_FAILURES = 5  # of the server, one after the other: it is not asked any more
FATAL = {  # what would be the same for every request, and what to do
    401: f"the server refuses the key in {KEY_VARIABLE}: set it to one of this server's",
    403: f"the key in {KEY_VARIABLE} may not use this model: choose another model or key",
    404: "the server has no such model, or no chat completions there: check the model and --judge-base-url",
}


class NoReply(Exception):
    """A request that was given up, and why."""


class Client:
    """A judge that several threads ask. Raises ConfigError where the environment has no key."""

    def __init__(self, settings: JudgeSettings) -> None:
        self._settings = settings
        self._server = Completions(
            settings.url, f"--judge {settings.model}", settings.timeout_seconds, settings.num_retries,
            settings.backoff_seconds,
        )  # fmt: skip
        self._num_failures = 0

    @property
    def stopped(self) -> threading.Event:
        """Set it to have nothing asked any more."""
        return self._server.stopped

    def ask(self, request: Mapping[str, Any]) -> Reply:
        """The judge's reply. Raises NoReply for this request alone, ConfigError for what every request would meet.

        A request that the server refuses for what is in it says nothing about the others.
        """
        if self.stopped.is_set():
            raise NoReply("the judge was not asked")
        if self._num_failures >= MANY_FAILURES:
            raise NoReply("the judge was not asked: too many requests before failed")
        try:
            asked = {name: value for name, value in request.items() if name != "url"}
            reply = self._server.ask("chat/completions", asked)
        except RequestFailed as error:
            self._check(error)
            is_refusal = error.status is not None and error.status >= 400 and not error.may_pass
            self._num_failures = 0 if is_refusal else self._num_failures + 1
            raise NoReply(f"the judge did not reply: {error}") from None
        self._num_failures = 0
        return reply

    def _check(self, error: RequestFailed) -> None:
        """Raise ConfigError for what no request of the run would survive."""
        reason = f"{error.status}: {FATAL[error.status]}" if error.status in FATAL else None
        if error.code == NO_CREDIT:
            reason = f"{error.status}: the account has no credit left: add some; replies so far are kept"
        if error.is_redirect:
            reason = str(error)
        if reason:
            raise ConfigError(f"--judge {self._settings.model} at {self._settings.url}: {reason}")
