"""The records of a run → a judge's rating of every answer."""

from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from rich.console import Console
from rich.progress import Progress

from specbench.completions import Reply
from specbench.errors import ConfigError
from specbench.judge.cache import Cache, digest
from specbench.judge.client import Client, NoReply
from specbench.judge.outcomes import Judgement, summary
from specbench.judge.prompts import rating
from specbench.judge.requests import JudgementKey, Questions, Request, requests_of
from specbench.judge.settings import JudgeSettings
from specbench.running.records import Record


def judge_records(
    records: Iterable[Record], questions: Questions, settings: JudgeSettings, console: Console
) -> dict[JudgementKey, Judgement]:
    """Have every answer rated; what the cache holds is not asked again. Progress and cost go to `console`.

    Raises ConfigError in one line where no request can succeed (no key, a wrong one, no such model). A request that
    fails alone leaves its answers without a score.
    """
    requests = requests_of(records, questions, settings)
    different = {digest(request): request for request in requests.values()}
    cache = Cache(settings.cache)
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
        problem = f"{_unusable(reply, request['max_tokens'])} (kept in {path}: delete it to have that asked again)"
    return Judgement(score, problem, reply, digest(request), was_cached)


def _unusable(reply: Reply, max_tokens: int) -> str:
    """Why a reply has no rating."""
    if reply.finish_reason == "length":
        return f"the judge's reply was cut at {max_tokens} tokens, before a rating"
    if not reply.text.strip():
        ending = f" (finish_reason {reply.finish_reason})" if reply.finish_reason else ""
        return f"the judge's reply is empty{ending}"
    return "the judge's reply holds no single [[rating]] from 1 to 10"


def _ask(requests: Mapping[str, Request], settings: JudgeSettings, console: Console) -> dict[str, Reply | str]:
    """Reply or problem for each request. A reply is in the cache before the next request is made."""
    if not requests:
        return {}
    client, cache = Client(settings), Cache(settings.cache)

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
        except BaseException:  # also an interrupt: what is under way is awaited, and nothing else begun
            client.stopped.set()
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return found
