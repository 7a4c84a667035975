"""How a judge is asked."""

import math
import os
from dataclasses import dataclass, field
from pathlib import Path

from specbench.completions import check_url
from specbench.errors import ConfigError

URL_VARIABLE = "OPENAI_BASE_URL"
DEFAULT_URL = "https://api.openai.com/v1"


def default_cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "specbench" / "judge"


@dataclass(frozen=True)
class JudgeSettings:
    """`base_url`: any server that speaks OpenAI's chat completions; None: that of OPENAI_BASE_URL, else OpenAI's.
    `prices`: US dollars per million tokens of the prompt and of the reply; None: unknown, and so is the cost.

    Raises ConfigError for a value that cannot be.
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
        """How ratings were made, for rows: nothing in it is secret."""
        return f"{self.model} at {self.url}, MT-bench single answer, temperature 0"

    def cost(self, num_prompt_tokens: int | None, num_reply_tokens: int | None) -> float | None:
        """US dollars, or None where the price or a count is unknown."""
        if self.prices is None or num_prompt_tokens is None or num_reply_tokens is None:
            return None
        return (num_prompt_tokens * self.prices[0] + num_reply_tokens * self.prices[1]) / 1e6
