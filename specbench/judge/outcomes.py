"""What a judge has said: in rows and in one line."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from specbench.completions import Reply
from specbench.judge.requests import JudgementKey
from specbench.judge.settings import JudgeSettings
from specbench.results.quality import JUDGED
from specbench.running.records import Record, record_key


@dataclass(frozen=True)
class Judgement:
    """A judge's rating of one answer, 1 … 10; `score` is None where there is none, and `problem` says why."""

    score: float | None
    problem: str | None
    reply: Reply | None
    request: str  # digest; answers that are the same text share one
    was_cached: bool


def summary(judgements: Collection[Judgement], settings: JudgeSettings) -> str:
    """What was paid for now, and what could not be judged, in one line."""
    paid = {each.request: each.reply for each in judgements if each.reply and not each.was_cached}.values()
    num_prompt_tokens = sum(reply.num_prompt_tokens or 0 for reply in paid)
    num_reply_tokens = sum(reply.num_reply_tokens or 0 for reply in paid)
    costs = [settings.cost(reply.num_prompt_tokens, reply.num_reply_tokens) for reply in paid]
    known = [cost for cost in costs if cost is not None]
    cost = f"${sum(known):.4f}" if len(known) == len(costs) else "unknown cost (give --judge-prices)"
    missing = [each.problem for each in judgements if each.score is None]
    text = f"judged {len(judgements) - len(missing)} of {len(judgements)} answers; {len(paid)} new replies, "
    text += f"{num_prompt_tokens} prompt and {num_reply_tokens} reply tokens, {cost}"
    return text + (f"; {len(missing)} without a score, the first because {missing[0]}" if missing else "")


def with_judgements(records: Iterable[Record], judgements: Mapping[JudgementKey, Judgement]) -> list[Record]:
    """The records, in whose `scores` every answer has the metric `judge_score`; the given ones stay as they are."""
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
