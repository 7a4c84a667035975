"""A server with the OpenAI interface that continues prompts in the target's place (P3 App. F.2)."""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from specbench.api_key import KEY_VARIABLE
from specbench.completions import Completions, RequestFailed, check_url
from specbench.errors import ConfigError

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
        check_url(self.base_url, SETTING)

    def answers(self, questions: Sequence[Question]) -> Iterator[list[tuple[int, dict[str, Any]]]]:
        """The places of questions with the answers, {"text", "ended"}, batch after batch."""
        assert self._client is not None
        with ThreadPoolExecutor(CONCURRENCY) as pool:
            for start in range(0, len(questions), 4 * CONCURRENCY):
                some = questions[start : start + 4 * CONCURRENCY]
                yield list(enumerate(pool.map(self._answer, some), start))

    @cached_property
    def _client(self) -> Completions:
        return Completions(self.base_url, SETTING, TIMEOUT_SECONDS, self.num_retries)

    def _answer(self, question: Question) -> dict[str, Any]:
        options: dict[str, Any] = {
            "model": self.model, "temperature": question.temperature, "max_tokens": question.max_tokens,
            "seed": question.seed,
        }  # fmt: skip
        try:
            if question.chat:
                messages = [{"role": "user", "content": question.prompt}]
                reply = self._client.ask("chat/completions", {"messages": messages, **options})
            else:
                reply = self._client.ask("completions", {"prompt": question.prompt, **options})
        except RequestFailed as error:
            raise ConfigError(f"{SETTING} = '{self.base_url}': {self._said(error)}; answers so far are kept") from None
        return {"text": reply.text, "ended": reply.finish_reason == "stop"}

    def _said(self, error: RequestFailed) -> str:
        if error.status == 401:
            return f"refuses the key in {KEY_VARIABLE}: set it to one of this server's"
        if error.status == 404:
            return f"has no model '{self.model}', or no completions there: check finetune.server.model and the URL"
        return f"does not answer: {error}"
