"""A judge's ratings of the answers in a run's records, the file of the ratings, and the judge's options."""

import json
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from msgspec.structs import replace
from pydantic import BaseModel, Field
from rich.console import Console

from specbench.core import bounded
from specbench.core.completions import KEY_VARIABLE, NO_CREDIT, Completions, Reply, RequestFailed, check_url
from specbench.core.console import counted, say, stdout
from specbench.core.errors import ConfigError
from specbench.core.files import write_atomically, writing
from specbench.core.progress import ProgressBar
from specbench.records.records import Record
from specbench.specs import yaml_files
from specbench.specs.components import build
from specbench.tasks.judge import JUDGED, JUDGEMENTS_FILE
from specbench.tasks.judge.requests import (
    HIGHEST,
    LOWEST,
    NUMBER,
    JudgedSubset,
    JudgementKey,
    JudgeRequest,
    JudgeSettings,
    JudgeTemplate,
    Questions,
    ReplyCache,
    digest,
    index_examples,
    make_requests,
    parse_rating,
    rating_pattern,
)

MANY_FAILURES = 5  # consecutive failures after which no further request is sent
FATAL: dict[int | str | None, str] = {  # statuses and codes that every request would get, with the remedy
    401: f"the server refuses the key in {KEY_VARIABLE}: set it to one of this server's",
    403: f"the key in {KEY_VARIABLE} may not use this model: choose another model or key",
    404: "the server has no such model, or no chat completions there: check the model and --judge-base-url",
    NO_CREDIT: "the account has no credit left: add some; replies so far are kept",
}


class JudgeClient:
    """A judge for several threads. Raises ConfigError if the environment has no key."""

    def __init__(self, settings: JudgeSettings) -> None:
        self._settings = settings
        self._cache = ReplyCache(settings.cache)
        self._num_failures = 0
        self._server = Completions(
            settings.url, f"--judge {settings.model}", settings.timeout_seconds, settings.num_retries,
            settings.backoff_seconds,
        )  # fmt: skip
        self.stopped = self._server.stopped

    def ask(self, request: JudgeRequest) -> Reply | str:
        """Returns the judge's reply and stores it in the cache; if there is no reply, returns the reason. Raises
        ConfigError for a failure that every request would meet; no other request is sent then. A refusal because of a
        request's content does not count as a failure of the server."""
        if self.stopped.is_set():
            return "the judge was not asked"
        if self._num_failures >= MANY_FAILURES:
            return "the judge was not asked: too many earlier requests failed"
        try:
            reply = self._server.ask("chat/completions", {key: value for key, value in request.items() if key != "url"})
            self._num_failures = 0
            self._cache.put(request, reply)
        except RequestFailed as error:
            remedy = FATAL.get(error.code) or FATAL.get(error.status)
            is_redirect = error.status is not None and 300 <= error.status < 400
            if remedy or is_redirect:
                self.stopped.set()
                problem = f"{error.status}: {remedy}" if remedy else str(error)
                raise ConfigError(f"--judge {self._settings.model} at {self._settings.url}: {problem}") from None
            is_refusal = error.status is not None and error.status >= 400 and not error.may_pass
            self._num_failures = 0 if is_refusal else self._num_failures + 1
            return f"the judge did not reply: {error}"
        except ConfigError:
            self.stopped.set()
            raise
        return reply


REMEDY = "delete the file, and give --judge again for new ratings (paid replies are in the cache)"


class Judgement(BaseModel, strict=True):
    """A judge's rating of one answer: a line of judgements.jsonl. `score`: 1 … 10; None if there is none, for the
    reason in `problem`. `request`: its digest; equal answers share one."""

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
    problem: str | None = None
    reply: str | None = None
    prompt_tokens: int | None = None
    reply_tokens: int | None = None
    cached: bool = False
    cost_usd: float | None = None
    template: JudgeTemplate | None = None

    @property
    def key(self) -> JudgementKey:
        return (self.task, self.subset, self.example, self.repeat, self.turn), self.method

    @property
    def settings(self) -> JudgeSettings:
        return JudgeSettings(self.judge, self.url, template=self.template)


def judge_records(
    records: Iterable[Record], questions: Questions, settings: JudgeSettings, console: Console
) -> dict[JudgementKey, Judgement]:
    """Asks the judge to rate every answer; cached replies are not requested again. Prints progress and cost on
    `console`. Raises ConfigError if no request can succeed (no key, a wrong key, no such model). If a single request
    fails, its answers have no score."""
    # 1. What is asked, and how many answers try to rate themselves.
    records = list(records)
    requests, new, cached, counts = _look_up(records, questions, settings)
    say(console, f"judge {settings.model}: {counts}")
    answers = {(each.key, name): part.answer for each in records for name, part in each.methods.items()}
    pattern = rating_pattern(settings.rating_form)
    num_forged = sum(pattern.search(answer) is not None for answer in answers.values())
    if num_forged:
        shown = settings.rating_form.replace(NUMBER, "(10)")
        has = "has a rating" if num_forged == 1 else "have ratings"
        say(console, f"{counted(num_forged, 'answer')} {has} in its text, shown to the judge as {shown}")
    # 2. The replies, and the rating in each.
    replies = {**cached, **(_ask(new, settings, console) if new else {})}
    judgements = {}
    for key, request in requests.items():
        (task, subset, example, repeat, turn), method = key
        name = digest(request)
        score = None
        answer = replies[name]
        problem = answer if isinstance(answer, str) else None
        reply = Reply("", None, None) if isinstance(answer, str) else answer
        if problem is None:
            written = "\n".join(answers[(*key[0][:4], number), method] for number in range(turn + 1))
            score = parse_rating(reply.text, written, settings.rating_form)
        if score is None and problem is None:
            if reply.finish_reason == "length":
                problem = f"the judge's reply was cut at {settings.max_tokens} tokens, before a rating"
            elif not reply.text.strip():
                reason = f" (finish_reason {reply.finish_reason})" if reply.finish_reason else ""
                problem = f"the judge's reply is empty{reason}"
            else:
                outside = " from 1 to 10 outside of reasoning and quotations" if pattern.search(reply.text) else ""
                problem = f"the judge's reply holds no {settings.rating_form.replace(NUMBER, 'rating')}{outside}"
            problem += f" (kept in {ReplyCache(settings.cache).path(request)}: delete it to ask again)"
        judgements[key] = Judgement(
            task=task, subset=subset, example=example, repeat=repeat, turn=turn, method=method, judge=settings.model,
            url=settings.url, score=score, request=name, problem=problem,
            reply=None if isinstance(answer, str) else reply.text, prompt_tokens=reply.num_prompt_tokens,
            reply_tokens=reply.num_reply_tokens, cached=name in cached, template=settings.template,
            cost_usd=settings.cost(reply.num_prompt_tokens, reply.num_reply_tokens),
        )  # fmt: skip
    # 3. What was paid for, and what has no score.
    paid = {each.request: each for each in judgements.values() if each.reply is not None and not each.cached}.values()
    costs = [each.cost_usd for each in paid if each.cost_usd is not None]
    cost = f"${sum(costs):.4f}" if len(costs) == len(paid) else "unknown cost (give --judge-prices)"
    missing = [each.problem for each in judgements.values() if each.score is None]
    why = f"; {len(missing)} without a score; the first reason: {missing[0]}" if missing else ""
    num_prompt = sum(each.prompt_tokens or 0 for each in paid)
    num_reply = sum(each.reply_tokens or 0 for each in paid)
    paid_for = f"{len(paid)} new replies, {num_prompt} prompt and {num_reply} reply tokens, {cost}"
    say(console, f"judged {len(judgements) - len(missing)} of {len(judgements)} answers; {paid_for}{why}")
    return judgements


def _look_up(
    records: Iterable[Record], questions: Questions, settings: JudgeSettings
) -> tuple[dict[JudgementKey, JudgeRequest], dict[str, JudgeRequest], dict[str, Reply], str]:
    """Returns all requests; by digest, those without a cached reply, and the cached replies; and their numbers."""
    requests = make_requests(records, questions, settings)
    different = {digest(request): request for request in requests.values()}
    cache = ReplyCache(settings.cache)
    cached = {name: reply for name, request in different.items() if (reply := cache.get(request)) is not None}
    counts = f"{counted(len(requests), 'answer')}, {len(different)} of them different, {len(cached)} judged before"
    return requests, {name: each for name, each in different.items() if name not in cached}, cached, counts


def _ask(requests: Mapping[str, JudgeRequest], settings: JudgeSettings, console: Console) -> dict[str, Reply | str]:
    client = JudgeClient(settings)
    replies: dict[str, Reply | str] = {}
    with (
        ProgressBar(console, "judging", len(requests)) as bar,
        ThreadPoolExecutor(settings.concurrency) as pool,
    ):
        futures = {name: pool.submit(client.ask, request) for name, request in requests.items()}
        try:
            for name, future in futures.items():
                replies[name] = future.result()
                bar.update("judging", len(replies), f"judged {len(replies)} of {len(requests)} different answers")
            return replies
        except BaseException:  # also an interrupt: running requests finish, and no other starts
            client.stopped.set()
            pool.shutdown(wait=False, cancel_futures=True)
            raise


Ratings = Mapping[JudgementKey, float | None]  # by record and method


def rated_record(record: Record, ratings: Ratings) -> Record:
    """Returns a copy of a record in which every answer has the metric `judge_score`, which may be None."""
    methods = {
        name: replace(each, scores={**each.scores, JUDGED: ratings.get((record.key, name))})
        for name, each in record.methods.items()
    }
    return replace(record, methods=methods)


def recorded_ratings(
    records: Iterable[Record], subsets: Iterable[JudgedSubset], folder: Path, console: Console
) -> tuple[Ratings, str | None]:
    """Returns the ratings of exactly the same requests in judgements.jsonl, and the signature of the judge; None if
    there are no such ratings. If the file has several judges, the last one counts. Raises ConfigError for a damaged
    file."""
    path = folder / JUDGEMENTS_FILE
    lines = _read_lines(path)
    if not lines:
        return {}, None
    settings = lines[-1].settings
    score_by_request = {line.request: line.score for line in lines}
    requests = make_requests(records, index_examples(subsets), settings)
    scores = {key: score_by_request.get(digest(request)) for key, request in requests.items()}
    num_rated = sum(score is not None for score in scores.values())
    if not num_rated:
        return {}, None
    rest = "" if num_rated == len(scores) else f"; --judge {settings.model} rates the others"
    say(console, f"{num_rated} of {len(scores)} answers have ratings of {settings.model} from {path}{rest}")
    return scores, settings.signature


def read_ratings(folder: Path, signature: str) -> Ratings:
    """Returns the ratings by the judge with this signature. Raises ConfigError for a damaged file."""
    lines = _read_lines(folder / JUDGEMENTS_FILE)
    return {line.key: line.score for line in lines if line.settings.signature == signature}


def write_judgements(path: Path, judgements: Mapping[JudgementKey, Judgement], settings: JudgeSettings) -> None:
    """Writes one JSON line for each answer and judge. Lines of other answers or judges in the file are kept. Raises
    ConfigError if the file is damaged or the disk is not writable."""
    other_judgements = [
        line
        for line in _read_lines(path)
        if line.key not in judgements or line.settings.signature != settings.signature
    ]
    lines = [json.dumps(line.model_dump(), ensure_ascii=False) for line in (*other_judgements, *judgements.values())]
    with writing(path, "free the disk or fix the permissions"):
        write_atomically(path, "".join(f"{line}\n" for line in lines))


def _read_lines(path: Path) -> list[Judgement]:
    if not path.exists():
        return []
    lines = []
    for number, text in enumerate(bounded.read_text(path, REMEDY, 4 * bounded.MAX_BYTES).split("\n"), start=1):
        if not text.strip():
            continue
        value = bounded.parse_json(text, path, REMEDY, number, strict=False)
        prefix = f"{path}, line {number}: "
        lines.append(build(Judgement, value, prefix, remedy=REMEDY))
        check_url(lines[-1].url, f"{prefix}url")
    return lines


BYTES_PER_TOKEN = 4  # in English; a rough estimate for other languages
NUM_REPLY_TOKENS = 200  # a short explanation and a rating


def show_requests(records: Iterable[Record], questions: Questions, settings: JudgeSettings, console: Console) -> None:
    """Prints every request that would be sent, and their number, tokens and cost. It needs no key."""
    _, new, _, counts = _look_up(records, questions, settings)
    num_tokens = 0
    for number, request in enumerate(new.values(), start=1):
        say(console, f"─── request {number} of {len(new)}: {request['model']} at {request['url']}")
        for message in request["messages"]:
            say(console, f"{message['role']}: {message['content']}")
            num_tokens += len(message["content"].encode()) // BYTES_PER_TOKEN
    cost = settings.cost(num_tokens, NUM_REPLY_TOKENS * len(new))
    price = "unknown cost (give --judge-prices)" if cost is None else f"about ${cost:.4f}"
    tokens = f"about {num_tokens} prompt tokens and {NUM_REPLY_TOKENS * len(new)} reply tokens"
    say(console, f"{counts}: {len(new)} requests with {tokens}, {price}; nothing was sent")


@dataclass(frozen=True)
class Judging:
    """The judge of a run's answers. A dry run prints the requests and sends none."""

    settings: JudgeSettings
    is_dry_run: bool

    def check(self) -> None:
        """Raises ConfigError if the judge cannot be used, before anything is measured."""
        if not self.is_dry_run:
            JudgeClient(self.settings)

    def judge(
        self, records: Iterable[Record], subsets: Iterable[JudgedSubset], folder: Path, console: Console
    ) -> Ratings:
        """Returns the ratings, and writes them into the folder. Raises ConfigError
        if the judge replied to no request."""
        judgements = judge_records(records, index_examples(subsets), self.settings, console)
        if judgements and all(judgement.reply is None for judgement in judgements.values()):
            raise ConfigError(
                f"--judge {self.settings.model} at {self.settings.url}: rated 0 of {len(judgements)} answers: check "
                "--judge-base-url and the server, and repeat the command: what was measured is kept"
            )
        write_judgements(folder / JUDGEMENTS_FILE, judgements, self.settings)
        return {key: judgement.score for key, judgement in judgements.items()}

    def show(self, records: Iterable[Record], subsets: Iterable[JudgedSubset]) -> None:
        """Prints the requests that would be sent."""
        show_requests(records, index_examples(subsets), self.settings, stdout)


def make_judging(
    model: str | None, base_url: str | None, prices: str | None, is_dry_run: bool, template: Path | None = None
) -> Judging | None:
    """Returns the requested judge; None without `--judge`. Raises ConfigError for other judge options without it, and
    for a template that cannot be read."""
    if model is None:
        options = {"base-url": base_url, "prices": prices, "dry-run": is_dry_run or None, "template": template}
        for option, value in options.items():
            if value is not None:
                raise ConfigError(f"--judge-{option}: has no effect without --judge MODEL: name the judge")
        return None
    prompt = None if template is None else build(JudgeTemplate, yaml_files.read(template), f"{template}: ")
    if prices is None:
        return Judging(JudgeSettings(model, base_url, template=prompt), is_dry_run)
    try:
        prompt_price, reply_price = map(float, prices.split(","))
    except ValueError as error:
        raise ConfigError(f"--judge-prices {prices}: not two numbers: write them as 2.5,10") from error
    return Judging(JudgeSettings(model, base_url, (prompt_price, reply_price), template=prompt), is_dry_run)
