"""What a judge would be asked, and for how much, without asking."""

from collections.abc import Iterable

from rich.console import Console

from specbench.judge.cache import Cache, digest
from specbench.judge.requests import Questions, requests_of
from specbench.judge.settings import JudgeSettings
from specbench.running.records import Record

BYTES_PER_TOKEN = 4  # of English; a rough measure for other languages
NUM_REPLY_TOKENS = 200  # a short explanation and a rating


def show_requests(records: Iterable[Record], questions: Questions, settings: JudgeSettings, console: Console) -> None:
    """Print every request that would be made, then how many there are, their tokens and their cost. Needs no key."""
    requests = requests_of(records, questions, settings)
    different = {digest(request): request for request in requests.values()}
    cache = Cache(settings.cache)
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
