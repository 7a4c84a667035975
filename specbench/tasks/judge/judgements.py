"""A judge's rating of every answer in the records of a run, and the file of the ratings."""

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, Field, ValidationError
from rich.console import Console
from rich.progress import Progress

from specbench.core import bounded
from specbench.core.completions import Reply, check_url
from specbench.core.console import say
from specbench.core.errors import ConfigError
from specbench.core.files import write_atomically
from specbench.core.records import Key, Record, record_key
from specbench.core.registry import first_problem
from specbench.tasks.judge import JUDGED
from specbench.tasks.judge.prompts import HIGHEST, LOWEST, rating
from specbench.tasks.judge.requests import (
    JudgeClient,
    JudgedCell,
    JudgementKey,
    JudgeSettings,
    NoReply,
    Questions,
    ReplyCache,
    Request,
    digest,
    questions_of,
    requests_of,
)


@dataclass(frozen=True)
class Judgement:
    """A judge's rating of one answer, 1 … 10; `score` is None if there is none, and `problem` says why."""

    score: float | None
    problem: str | None
    reply: Reply | None
    request: str  # digest; equal answers share one
    was_cached: bool


def summary(judgements: Collection[Judgement], settings: JudgeSettings) -> str:
    """Returns one line: new replies, their cost, and the answers that could not be judged."""
    paid = {each.request: each.reply for each in judgements if each.reply and not each.was_cached}.values()
    num_prompt_tokens = sum(reply.num_prompt_tokens or 0 for reply in paid)
    num_reply_tokens = sum(reply.num_reply_tokens or 0 for reply in paid)
    costs = [settings.cost(reply.num_prompt_tokens, reply.num_reply_tokens) for reply in paid]
    known = [cost for cost in costs if cost is not None]
    cost = f"${sum(known):.4f}" if len(known) == len(costs) else "unknown cost (give --judge-prices)"
    missing = [each.problem for each in judgements if each.score is None]
    text = f"judged {len(judgements) - len(missing)} of {len(judgements)} answers; {len(paid)} new replies, "
    text += f"{num_prompt_tokens} prompt and {num_reply_tokens} reply tokens, {cost}"
    return text + (f"; {len(missing)} without a score; the first reason: {missing[0]}" if missing else "")


def with_judgements(records: Iterable[Record], judgements: Mapping[JudgementKey, Judgement]) -> list[Record]:
    """Returns copies of the records in which every answer has the metric `judge_score`."""
    return [
        {
            **record,
            "methods": {
                method: _with_score(generation, judgements[record_key(record), method])
                for method, generation in record["methods"].items()
            },
        }
        for record in records
    ]


def _with_score(generation: Mapping[str, Any], judgement: Judgement) -> dict[str, Any]:
    return {**generation, "scores": {**generation.get("scores", {}), JUDGED: judgement.score}}


def judge_records(
    records: Iterable[Record], questions: Questions, settings: JudgeSettings, console: Console
) -> dict[JudgementKey, Judgement]:
    """Has every answer rated; cached replies are not requested again. Prints progress and cost on `console`.

    Raises ConfigError if no request can succeed (no key, a wrong one, no such model). A request that fails alone leaves
    its answers without a score.
    """
    requests = requests_of(records, questions, settings)
    different = {digest(request): request for request in requests.values()}
    cache = ReplyCache(settings.cache)
    replies: dict[str, Reply | str] = {}
    for name, request in different.items():
        if (reply := cache.get(request)) is not None:
            replies[name] = reply
    cached = set(replies)
    console.print(
        f"judge {settings.model}: {len(requests)} answers, {len(different)} of them different, "
        f"{len(cached)} judged before",
        soft_wrap=True,
    )
    replies |= _ask({name: request for name, request in different.items() if name not in cached}, settings, console)
    judgements = {
        name: _judgement(request, replies[name], name in cached, cache.path(request))
        for name, request in different.items()
    }
    found = {key: judgements[digest(request)] for key, request in requests.items()}
    console.print(summary(found.values(), settings), soft_wrap=True)
    return found


def _judgement(request: Request, reply: Reply | str, was_cached: bool, path: Path) -> Judgement:
    if isinstance(reply, str):
        return Judgement(None, reply, None, digest(request), was_cached)
    score, problem = rating(reply.text), None
    if score is None:
        problem = f"{_unusable(reply, request['max_tokens'])} (kept in {path}: delete it to ask again)"
    return Judgement(score, problem, reply, digest(request), was_cached)


def _unusable(reply: Reply, max_tokens: int) -> str:
    """Returns why a reply has no rating."""
    if reply.finish_reason == "length":
        return f"the judge's reply was cut at {max_tokens} tokens, before a rating"
    if not reply.text.strip():
        ending = f" (finish_reason {reply.finish_reason})" if reply.finish_reason else ""
        return f"the judge's reply is empty{ending}"
    return "the judge's reply holds no single [[rating]] from 1 to 10"


def _ask(requests: Mapping[str, Request], settings: JudgeSettings, console: Console) -> dict[str, Reply | str]:
    """Returns the reply or the problem of each request. A reply is cached before the next request is made."""
    if not requests:
        return {}
    client, cache = JudgeClient(settings), ReplyCache(settings.cache)

    def ask(request: Request) -> Reply | str:
        try:
            reply = client.ask(request)
            cache.put(request, reply)
        except NoReply as error:
            return str(error)
        except ConfigError:
            client.stopped.set()
            raise
        return reply

    with (
        Progress(console=console, transient=True, disable=not console.is_terminal) as progress,
        ThreadPoolExecutor(settings.concurrency) as pool,
    ):
        bar = progress.add_task("judging", total=len(requests))
        futures = {name: pool.submit(ask, request) for name, request in requests.items()}
        try:
            found = {}
            for name, future in futures.items():
                found[name] = future.result()
                progress.advance(bar)
        except BaseException:  # also an interrupt: running requests finish, and no other starts
            client.stopped.set()
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return found


FILE = "judgements.jsonl"
REMEDY = "delete the file, and give --judge again for new ones (what was paid for is in the cache)"
Rated = tuple[list[Record], str | None]  # the records, and the signature of the judge whose ratings they have


class JudgementLine(BaseModel, extra="allow", strict=True):
    """The fields of a line of the file that are read again; other fields are kept."""

    task: str
    subset: str
    example: int
    repeat: int
    turn: int
    method: str
    judge: Annotated[str, Field(pattern=r"\S")]
    url: Annotated[str, Field(min_length=1)]
    score: Annotated[float, Field(ge=LOWEST, le=HIGHEST)] | None
    request: str

    @property
    def key(self) -> JudgementKey:
        return (self.task, self.subset, self.example, self.repeat, self.turn), self.method

    @property
    def settings(self) -> JudgeSettings:
        return JudgeSettings(self.judge, self.url)

    @property
    def identity(self) -> tuple[JudgementKey, str, str]:
        return self.key, self.judge, self.url


def with_recorded(records: list[Record], cells: Iterable[JudgedCell], folder: Path, console: Console) -> Rated:
    """Returns the records with the ratings that judgements.jsonl holds for exactly the same requests, and the signature
    of the judge. Of several judges the last one counts.

    Raises ConfigError for a damaged file.
    """
    path = folder / FILE
    lines = _read_lines(path)
    if not lines:
        return records, None
    settings = lines[-1].settings
    scores = {line.request: line.score for line in lines}
    names = {key: digest(each) for key, each in requests_of(records, questions_of(cells), settings).items()}
    found = {key: Judgement(scores.get(name), None, None, name, True) for key, name in names.items()}
    num_rated = sum(each.score is not None for each in found.values())
    if not num_rated:
        return records, None
    rest = "" if num_rated == len(found) else f"; --judge {settings.model} rates the others"
    say(console, f"{num_rated} of {len(found)} answers have ratings of {settings.model} from {path}{rest}")
    return with_judgements(records, found), settings.signature


def ratings(folder: Path, signature: str, records: Sequence[Record]) -> dict[JudgementKey, Judgement]:
    """Returns the ratings of the judge with this signature for the answers of the records; the score is None for
    answers that it has not rated."""
    found = {line.key: line.score for line in _read_lines(folder / FILE) if line.settings.signature == signature}
    return {
        (record_key(record), method): Judgement(found.get((record_key(record), method)), None, None, "", True)
        for record in records
        for method in record["methods"]
    }


def write_judgements(path: Path, judgements: Mapping[JudgementKey, Judgement], settings: JudgeSettings) -> None:
    """Writes one JSON line for each answer and judge, after those of other answers or other judges in the file.

    Raises ConfigError if the file is damaged or the disk is not writable.
    """
    new = [_line_of(*key, judgement, settings) for key, judgement in judgements.items()]
    replaced = {line.identity for line in new}
    kept = [line for line in _read_lines(path) if line.identity not in replaced]
    text = "".join(json.dumps(line.model_dump(), ensure_ascii=False) + "\n" for line in kept + new)
    try:
        write_atomically(path, text)
    except OSError as error:
        raise ConfigError(f"{path}: cannot write the judgements ({error.strerror or error})") from error


def _line_of(key: Key, method: str, judgement: Judgement, settings: JudgeSettings) -> JudgementLine:
    task, subset, example, repeat, turn = key
    reply = judgement.reply or Reply("", None, None)
    rest = {
        "problem": judgement.problem, "reply": judgement.reply and reply.text,
        "prompt_tokens": reply.num_prompt_tokens, "reply_tokens": reply.num_reply_tokens,
        "cached": judgement.was_cached, "cost_usd": settings.cost(reply.num_prompt_tokens, reply.num_reply_tokens),
    }  # fmt: skip
    return JudgementLine(
        task=task, subset=subset, example=example, repeat=repeat, turn=turn, method=method, judge=settings.model,
        url=settings.url, score=judgement.score, request=judgement.request, **rest,
    )  # fmt: skip


def _read_lines(path: Path) -> list[JudgementLine]:
    """Returns the lines of the file, none if there is no file. Raises ConfigError for a file with any other line."""
    if not path.exists():
        return []
    lines = []
    for number, text in enumerate(bounded.read_text(path, REMEDY, 4 * bounded.MAX_BYTES).split("\n"), start=1):
        if not text.strip():
            continue
        value = bounded.parse_json(text, path, REMEDY, number, strict=False)
        try:
            lines.append(JudgementLine.model_validate(value))
            check_url(lines[-1].url, "url")
        except (ValidationError, ConfigError) as error:
            said = first_problem(error, JudgementLine, remedy="") if isinstance(error, ValidationError) else str(error)
            raise ConfigError(f"{path}: cannot read the ratings (line {number}: {said}): {REMEDY}") from error
    return lines
