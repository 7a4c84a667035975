"""Requests to a judge: its settings, the request for each answer of a run, the cache of replies, and the client."""

import hashlib
import json
import math
import os
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from specbench.core import bounded
from specbench.core.completions import KEY_VARIABLE, NO_CREDIT, Completions, Reply, RequestFailed, check_url
from specbench.core.errors import ConfigError
from specbench.core.files import write_atomically
from specbench.core.records import Key, Record, record_key
from specbench.specs.task import TaskSpec
from specbench.tasks.examples import TaskData
from specbench.tasks.judge.prompts import Message, Turn, messages

URL_VARIABLE = "OPENAI_BASE_URL"
DEFAULT_URL = "https://api.openai.com/v1"


def default_cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "specbench" / "judge"


@dataclass(frozen=True)
class JudgeSettings:
    """The settings of a judge. `base_url`: any server with OpenAI's chat completions; None: that of OPENAI_BASE_URL,
    else OpenAI's. `prices`: US dollars per million tokens of the prompt and of the reply; None: unknown, and so is the
    cost.

    Raises ConfigError for an invalid value.
    """

    model: str
    base_url: str | None = None
    prices: tuple[float, float] | None = None
    max_tokens: int = 2048  # of a reply, as FastChat's judge has it
    concurrency: int = 4
    timeout_seconds: float = 120.0  # of one attempt, from the connection to the last byte
    num_retries: int = 6
    backoff_seconds: float = 1.0  # before the first retry; doubled from one to the next
    cache: Path = field(default_factory=default_cache)

    def __post_init__(self) -> None:
        if not self.model.strip():
            raise ConfigError("--judge: no model is named: give one that the server has, such as --judge gpt-4o")
        check_url(self.url, "--judge-base-url")
        if self.prices is not None and not all(0 <= price < math.inf for price in self.prices):
            raise ConfigError(f"--judge-prices {self.prices[0]:g},{self.prices[1]:g}: must be finite and not negative")
        if min(self.concurrency, self.timeout_seconds) <= 0 or self.num_retries < 0:
            raise ConfigError("--judge: concurrency and time-out must be positive, retries not negative")

    @property
    def url(self) -> str:
        return (self.base_url or os.environ.get(URL_VARIABLE) or DEFAULT_URL).rstrip("/")

    @property
    def signature(self) -> str:
        """Returns how ratings were made, for rows; it holds no secret."""
        return f"{self.model} at {self.url}, MT-bench single answer, temperature 0"

    def cost(self, num_prompt_tokens: int | None, num_reply_tokens: int | None) -> float | None:
        """Returns US dollars, None if the price or a count is unknown."""
        if self.prices is None or num_prompt_tokens is None or num_reply_tokens is None:
            return None
        return (num_prompt_tokens * self.prices[0] + num_reply_tokens * self.prices[1]) / 1e6


TEMPERATURE = 0.0


def request_of(settings: JudgeSettings, messages: Sequence[Message]) -> dict[str, Any]:
    """Returns all that a reply depends on, without secrets."""
    return {
        "url": settings.url, "model": settings.model, "temperature": TEMPERATURE,
        "max_tokens": settings.max_tokens, "messages": list(messages),
    }  # fmt: skip


def digest(request: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(request, sort_keys=True).encode()).hexdigest()


class ReplyCache:
    """One file per reply, written atomically: a killed process leaves a complete file or none."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def get(self, request: Mapping[str, Any]) -> Reply | None:
        """Returns the reply to a request; None if there is none, or its file is damaged."""
        try:
            content = bounded.read_json(self.path(request), "delete it", strict=False)
            reply = Reply(**content["reply"])
            return reply if content["request"] == request else None
        except (ConfigError, ValueError, KeyError, TypeError):
            return None

    def put(self, request: Mapping[str, Any], reply: Reply) -> None:
        """Stores a reply. Raises ConfigError if the disk is not writable."""
        text = json.dumps({"request": request, "reply": asdict(reply)}, ensure_ascii=False, indent=1)
        try:
            write_atomically(self.path(request), text)
        except OSError as error:
            raise ConfigError(
                f"{self.folder}: cannot store the judge's replies there ({error.strerror or error}): free the disk, "
                "fix the permissions, or set XDG_CACHE_HOME to another folder"
            ) from error

    def path(self, request: Mapping[str, Any]) -> Path:
        """Returns the file of the reply to a request."""
        name = digest(request)
        return self.folder / name[:2] / f"{name}.json"


JudgementKey = tuple[Key, str]  # of a record, and a method of it
Request = dict[str, Any]


class JudgeQuestion(NamedTuple):
    """The user's messages of a conversation, and whether the judge is shown the references."""

    turns: Sequence[str]
    judge_sees_reference: bool = False


Questions = Mapping[tuple[str, str, int], JudgeQuestion]  # by task, subset and example


class JudgedCell(Protocol):
    """A subset of a task with its examples, such as a cell of a run."""

    @property
    def task(self) -> TaskSpec: ...

    @property
    def subset(self) -> str: ...

    @property
    def data(self) -> TaskData: ...


def questions_of(cells: Iterable[JudgedCell]) -> Questions:
    """Returns the questions of a run's examples."""
    return {
        (cell.task.name, cell.subset, example.index): JudgeQuestion(example.turns, example.judge_sees_reference)
        for cell in cells
        for example in cell.data.examples
    }


def requests_of(
    records: Iterable[Record], questions: Questions, settings: JudgeSettings
) -> dict[JudgementKey, Request]:
    """Returns the request for every answer: the conversation up to it, with the method's own answers from the records.
    If the judge is shown references, it includes those that are texts."""
    by_key = {record_key(record): record for record in records}
    found: dict[JudgementKey, Request] = {}
    for key, record in by_key.items():
        task, subset, example, repeat, turn = key
        question = questions[task, subset, example]
        so_far = [by_key[task, subset, example, repeat, number] for number in range(turn + 1)]
        for method in record["methods"]:
            turns = [
                Turn(text, part["methods"][method]["text"], _reference(part) if question.judge_sees_reference else None)
                for text, part in zip(question.turns, so_far, strict=False)
            ]
            found[key, method] = request_of(settings, messages(turns))
    return found


def _reference(record: Record) -> str | None:
    """Returns the reference as one text; alternatives are separated by an empty line. Tests of code are no
    reference."""
    reference = record.get("reference")
    texts = [reference] if isinstance(reference, str) else reference if isinstance(reference, list) else []
    return "\n\n".join(text for text in texts if text.strip()) or None


MANY_FAILURES = 5  # consecutive failures after which the server is not asked any more
FATAL = {  # statuses that every request would meet, with the remedy
    401: f"the server refuses the key in {KEY_VARIABLE}: set it to one of this server's",
    403: f"the key in {KEY_VARIABLE} may not use this model: choose another model or key",
    404: "the server has no such model, or no chat completions there: check the model and --judge-base-url",
}


class NoReply(Exception):
    """A request that failed, and why."""


class JudgeClient:
    """A judge that several threads use. Raises ConfigError if the environment has no key."""

    def __init__(self, settings: JudgeSettings) -> None:
        self._settings = settings
        self._server = Completions(
            settings.url, f"--judge {settings.model}", settings.timeout_seconds, settings.num_retries,
            settings.backoff_seconds,
        )  # fmt: skip
        self._num_failures = 0

    @property
    def stopped(self) -> threading.Event:
        """Returns the event that stops all further requests once it is set."""
        return self._server.stopped

    def ask(self, request: Mapping[str, Any]) -> Reply:
        """Returns the judge's reply. Raises NoReply if only this request fails, ConfigError for a failure of every
        request.

        A request that the server refuses because of its content says nothing about the others.
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
        """Raises ConfigError for an error that every request of the run would meet."""
        reason = f"{error.status}: {FATAL[error.status]}" if error.status in FATAL else None
        if error.code == NO_CREDIT:
            reason = f"{error.status}: the account has no credit left: add some; replies so far are kept"
        if error.is_redirect:
            reason = str(error)
        if reason:
            raise ConfigError(f"--judge {self._settings.model} at {self._settings.url}: {reason}")
