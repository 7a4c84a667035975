"""The judge of a run: its command-line options, and the records with its ratings."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from specbench.core.console import stdout
from specbench.core.errors import ConfigError
from specbench.core.records import Record
from specbench.tasks.judge.judgements import FILE, judge_records, with_judgements, write_judgements
from specbench.tasks.judge.requests import (
    JudgeClient,
    JudgedCell,
    JudgeSettings,
    Questions,
    ReplyCache,
    digest,
    questions_of,
    requests_of,
)

BYTES_PER_TOKEN = 4  # of English; a rough measure for other languages
NUM_REPLY_TOKENS = 200  # a short explanation and a rating


def show_requests(records: Iterable[Record], questions: Questions, settings: JudgeSettings, console: Console) -> None:
    """Prints every request that would be made, their number, their tokens and their cost. It needs no key."""
    requests = requests_of(records, questions, settings)
    different = {digest(request): request for request in requests.values()}
    cache = ReplyCache(settings.cache)
    new = [request for request in different.values() if cache.get(request) is None]
    num_tokens = 0
    for number, request in enumerate(new, start=1):
        console.print(f"─── request {number} of {len(new)}: {request['model']} at {request['url']}")
        for message in request["messages"]:
            console.print(f"{message['role']}: {message['content']}", soft_wrap=True)
            num_tokens += len(message["content"].encode()) // BYTES_PER_TOKEN
    cost = settings.cost(num_tokens, NUM_REPLY_TOKENS * len(new))
    console.print(
        f"{len(requests)} answers, {len(different)} of them different, {len(different) - len(new)} judged before: "
        f"{len(new)} requests with about {num_tokens} prompt tokens and {NUM_REPLY_TOKENS * len(new)} reply tokens, "
        f"{'unknown cost (give --judge-prices)' if cost is None else f'about ${cost:.4f}'}; nothing was sent",
        soft_wrap=True,
    )


@dataclass(frozen=True)
class Judging:
    """The judge of a run's answers. A dry run prints the requests and sends none."""

    settings: JudgeSettings
    is_dry_run: bool

    def check(self) -> None:
        """Raises ConfigError if the judge cannot be used, before anything is measured."""
        if not self.is_dry_run:
            JudgeClient(self.settings)

    def show(self, records: list[Record], cells: Iterable[JudgedCell]) -> None:
        """Prints the requests."""
        show_requests(records, questions_of(cells), self.settings, stdout)

    def judge(self, records: list[Record], cells: Iterable[JudgedCell], folder: Path, console: Console) -> list[Record]:
        """Returns the records with the metric `judge_score`, and writes the ratings beside them.

        Raises ConfigError if the judge has replied to no request.
        """
        found = judge_records(records, questions_of(cells), self.settings, console)
        if found and all(judgement.reply is None for judgement in found.values()):
            raise ConfigError(
                f"--judge {self.settings.model} at {self.settings.url}: has rated none of {len(found)} answers: check "
                "--judge-base-url and the server, and repeat the command: what was measured is kept"
            )
        write_judgements(folder / FILE, found, self.settings)
        return with_judgements(records, found)


def judging_of(model: str | None, base_url: str | None, prices: str | None, is_dry_run: bool) -> Judging | None:
    """Returns the requested judge; None without `--judge`, which its other options need."""
    if model is None:
        for option, value in {"base-url": base_url, "prices": prices, "dry-run": is_dry_run or None}.items():
            if value is not None:
                raise ConfigError(f"--judge-{option}: has no effect without --judge MODEL: name the judge")
        return None
    return Judging(JudgeSettings(model, base_url, _prices(prices)), is_dry_run)


def _prices(text: str | None) -> tuple[float, float] | None:
    if text is None:
        return None
    try:
        of_prompt, of_reply = map(float, text.split(","))
    except ValueError as error:
        raise ConfigError(f"--judge-prices {text}: no two numbers: write them as 2.5,10") from error
    return of_prompt, of_reply
