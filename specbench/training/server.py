"""A server with the OpenAI interface that continues prompts in the target's place (P3 App. F.2)."""

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from typing import Any
from urllib.parse import urlsplit

from specbench.errors import ConfigError
from specbench.judge.settings import KEY_VARIABLE

SETTING = "finetune.server.base_url"
CONCURRENCY = 8
TIMEOUT_SECONDS = 600.0


@dataclass(frozen=True)
class Question:
    """What is asked, and nothing secret: `prompt` is a user's text where `chat` is set, else a text to continue."""

    prompt: str
    chat: bool
    temperature: float
    max_tokens: int
    seed: int


@dataclass(frozen=True)
class Server:
    """Asks several questions at a time. The key comes from the environment, and is in nothing that this gives back.

    Raises ConfigError for what is no address, for a missing key, and where the server fails for good.
    """

    base_url: str
    model: str
    num_retries: int = 6

    def __post_init__(self) -> None:
        parts = urlsplit(self.base_url)
        if "@" in self.base_url or "?" in self.base_url:
            raise ConfigError(f"{SETTING}: has a user or a query: leave them out, and set {KEY_VARIABLE}")
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError(f"{SETTING} = '{self.base_url}': no URL: write it as http://localhost:8000/v1")

    def answers(self, questions: Sequence[Question]) -> Iterator[list[tuple[int, dict[str, Any]]]]:
        """The places of questions with the answers, {"text", "ended"}, batch after batch."""
        assert self._client is not None
        with ThreadPoolExecutor(CONCURRENCY) as pool:
            for start in range(0, len(questions), 4 * CONCURRENCY):
                some = questions[start : start + 4 * CONCURRENCY]
                yield list(enumerate(pool.map(self._answer, some), start))

    @cached_property
    def _key(self) -> str:
        key = os.environ.get(KEY_VARIABLE, "").strip()
        if not key:
            raise ConfigError(
                f"{SETTING}: {KEY_VARIABLE} is not set: export the key (any text for a server without one)"
            )
        return key

    @cached_property
    def _client(self) -> Any:
        import openai

        return openai.OpenAI(
            api_key=self._key, base_url=self.base_url, timeout=TIMEOUT_SECONDS, max_retries=self.num_retries
        )

    def _answer(self, question: Question) -> dict[str, Any]:
        import openai

        options: dict[str, Any] = {
            "model": self.model, "temperature": question.temperature, "max_tokens": question.max_tokens,
            "seed": question.seed,
        }  # fmt: skip
        try:
            if question.chat:
                messages: Any = [{"role": "user", "content": question.prompt}]
                choice: Any = self._client.chat.completions.create(messages=messages, **options).choices[0]
                text = choice.message.content
            else:
                choice = self._client.completions.create(prompt=question.prompt, **options).choices[0]
                text = choice.text
        except openai.APIError as error:
            raise ConfigError(f"{SETTING} = '{self.base_url}': {self._said(error)}; answers so far are kept") from None
        except (AttributeError, IndexError, TypeError):
            raise ConfigError(f"{SETTING} = '{self.base_url}': its reply is no completion: check the URL") from None
        return {"text": text or "", "ended": choice.finish_reason == "stop"}

    def _said(self, error: Any) -> str:
        status = getattr(error, "status_code", None)
        if status == 401:
            return f"refuses the key in {KEY_VARIABLE}: set it to one of this server's"
        if status == 404:
            return f"has no model '{self.model}', or no completions there: check finetune.server.model and the URL"
        text = " ".join(str(error).split()).replace(self._key, "(key)")[:200]
        return f"does not answer: {text}"
