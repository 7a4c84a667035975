"""A serving engine: what it takes in a request, and what it tells in its answers and on its pages."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from pydantic import ConfigDict
from pydantic.dataclasses import dataclass as checked_dataclass

from specbench.core import bounded
from specbench.decoding.sampling import Sampling
from specbench.served.acceptance import Acceptance, if_whole

Page = Callable[[str], str | None]  # path → text, None for an absent page
Event = Mapping[str, Any]


@checked_dataclass(frozen=True, config=ConfigDict(strict=True))
class Piece:
    """What one event of an answer tells; None and "" where it tells nothing. Raises ValueError for wrong types.

    `token_ids`: the new ones; None for engines that send text only. `finish`: eos, stop or length. `num_prompt_tokens`,
    `num_new_tokens`: the server's own counts. `num_cached`: prompt tokens that the server had in its cache.
    `seconds`, `decode_seconds`: the server's own time for the answer so far, with the prompt and without. `num_held`:
    new tokens before these whose ids the engine does not send, since they are parts of a character.
    """

    token_ids: tuple[int, ...] | None = None
    text: str = ""
    finish: str | None = None
    num_prompt_tokens: int | None = None
    num_new_tokens: int | None = None
    num_cached: int | None = None
    seconds: float | None = None
    decode_seconds: float | None = None
    num_held: int = 0


@dataclass(frozen=True)
class Counters:
    """The sums over all answers since the server was started; None where its page does not have them.

    `per_position`: the accepted tokens at each position of the draft. `num_running`: requests that run or wait now.
    """

    num_drafts: int | None = None
    num_drafted: int | None = None
    num_accepted: int | None = None
    per_position: tuple[int, ...] = ()
    num_running: int | None = None


LogProbs = dict[int, float]  # of the most probable tokens, by id
SAMPLE = re.compile(r"^([a-zA-Z_:][\w:]*)(?:\{(.*)\})? ([-+\d.eE]+|NaN|[-+]?Inf)", re.MULTILINE)
POSITION = re.compile(r'\b(?:token_)?position="(\d+)"')


class Engine:
    """An engine that speaks OpenAI's completions protocol; others replace what is different.

    `metrics_path`: the page of its counters. `counter_names`: the names there of the fields of Counters. `remembers`:
    speculation methods whose drafters learn from one request to the next. `tells_at_end`: whether the counts of an
    answer come with its last event, so that the stream must be read to its end. `remedy`: the flag that makes the
    server tell acceptance. `max_stops`: the number of stop strings that a request may have; None for any. The client
    finds the others itself, and the server writes on after them.
    """

    name: ClassVar[str]
    path: ClassVar[str] = "/v1/completions"
    tokenize_path: ClassVar[str | None] = None
    metrics_path: ClassVar[str | None] = "/metrics"
    counter_names: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    remembers: ClassVar[frozenset[str]] = frozenset()
    tells_at_end: ClassVar[bool] = True
    max_stops: ClassVar[int | None] = None
    remedy: ClassVar[str] = "this engine does not tell it"
    num_top: ClassVar[int] = 20  # tokens whose log-probabilities are asked for: vLLM's own limit

    def version(self, page: Page) -> str | None:
        """Returns the version of a server of this engine; None for a server of another one."""
        return "of unknown version" if page("/v1/models") else None

    def settings(self, page: Page) -> dict[str, Any]:
        """Returns what the server tells of its configuration: nothing that another start of it would change."""
        return {"model": model_of(page)}

    def speculates(self, page: Page) -> bool | None:
        """Returns whether the server was started with speculation; None if it does not tell."""
        return None

    def request(
        self, prompt_ids: list[int], sampling: Sampling, max_new_tokens: int, seed: int, stop: Sequence[str], model: str
    ) -> dict[str, Any]:
        """Returns the body of a request for a stream."""
        stops = {"stop": list(stop[: self.max_stops])} if stop else {}
        drawn = {"top_p": sampling.top_p or 1.0, "seed": seed % 2**31}
        return {
            "model": model, "prompt": prompt_ids, "max_tokens": max_new_tokens, "temperature": sampling.temperature,
            "stream": True, "stream_options": {"include_usage": True}, **drawn, **stops,
        }  # fmt: skip

    def scoring_request(self, prompt_ids: list[int], num_tokens: int, model: str) -> dict[str, Any] | None:
        """Returns the body of a request without a stream: greedy tokens, each with the log-probabilities of the
        `num_top` most probable ones. None for an engine that does not tell them with ids."""
        return None

    def log_probs(self, answer: Event) -> list[LogProbs]:
        """Returns the log-probabilities at each token of the answer to such a request."""
        raise NotImplementedError

    def read(self, event: Event, num_before: int) -> Piece:
        """Returns what an event tells. Usage may stand in an event of its own, or beside the last choice.

        `num_before`: number of tokens that the events before it had.
        """
        choice: Event = next(iter(event.get("choices") or ()), {})
        usage = event.get("usage") or {}
        ids = choice.get("token_ids")
        reason = choice.get("finish_reason")
        return Piece(
            token_ids=None if ids is None else tuple(ids), text=choice.get("text") or "",
            finish=None if reason is None else str(reason), num_prompt_tokens=usage.get("prompt_tokens"),
            num_new_tokens=usage.get("completion_tokens"),
            num_cached=(usage.get("prompt_tokens_details") or {}).get("cached_tokens"),
        )  # fmt: skip

    def whole_ids(self, answer: Event) -> tuple[int, ...]:
        """Returns all ids of an answer without a stream, for an engine that holds some back in streams."""
        return ()

    def acceptance(self, events: Sequence[Event], num_draft_tokens: int) -> Acceptance | None:
        """Returns the acceptance of an answer by its events; None if they do not tell it."""
        return None

    def counters(self, text: str) -> Counters:
        """Returns the counters on the page of metrics. A counter that the page lacks has not counted anything yet, if
        the page has others of this engine; `num_running`, which is no counter, is then unknown. Several series of a
        counter, one for each engine process, are added."""
        sums: dict[str, float] = {}
        positions: dict[int, float] = {}
        for name, labels, value in SAMPLE.findall(text):
            sums[name] = sums.get(name, 0.0) + float(value)
            place = POSITION.search(labels)
            if place and name in self.counter_names.get("per_position", ()):
                positions[int(place[1])] = positions.get(int(place[1]), 0.0) + float(value)
        if not any(name in sums for names in self.counter_names.values() for name in names):
            return Counters()
        found = {
            field: int(sum(sums.get(name, 0.0) for name in names))
            for field, names in self.counter_names.items()
            if field != "per_position" and (field != "num_running" or any(name in sums for name in names))
        }
        return Counters(**found, per_position=tuple(int(positions[place]) for place in sorted(positions)))


def counted_between(before: Counters, after: Counters, num_draft_tokens: int) -> Acceptance | None:
    """Returns the acceptance of the answers between two readings of the counters; None if they are unknown, or if one
    fell, since the server was then started again.

    The judged tokens, Σ (accepted + 1) without the passes that accepted the whole draft, follow if every pass drafted
    `num_draft_tokens` tokens.
    """
    names = ("num_drafts", "num_drafted", "num_accepted")
    drafts, drafted, accepted = (_growth(getattr(before, name), getattr(after, name)) for name in names)
    fell = before.num_drafts is not None and drafts is None  # TensorRT-LLM does not count drafts
    if drafted is None or accepted is None or fell:
        return None
    judged = None
    if drafts is not None and len(after.per_position) == num_draft_tokens > 0:
        judged = drafts + accepted - after.per_position[-1] + sum(before.per_position[-1:])
    return if_whole(Acceptance("counters", drafts, drafted, accepted, judged), num_draft_tokens)


def _growth(before: int | None, after: int | None) -> int | None:
    return None if before is None or after is None or after < before else after - before


def json_page(page: Page, path: str) -> Any:
    """Returns the value of a page in JSON; None for an absent page and for one that is not JSON."""
    try:
        return bounded.json_value(page(path) or "null", strict=False)
    except ValueError:
        return None


def json_mapping(page: Page, path: str) -> dict[str, Any]:
    """Returns the mapping of a page in JSON; an empty one for any other page."""
    found = json_page(page, path)
    return found if isinstance(found, dict) else {}


def models_of(page: Page) -> list[dict[str, Any]]:
    """Returns what an OpenAI-compatible server tells of its models; nothing if it names none."""
    return list(json_mapping(page, "/v1/models").get("data") or ())


def model_of(page: Page) -> str:
    """Returns the name of the first model of a server; "default" if it names none."""
    return str(next((each.get("id") for each in models_of(page)), "default"))


def is_owned_by(page: Page, owner: str) -> bool:
    """Returns whether a model of a server names its engine as its owner."""
    return any(owner in str(each.get("owned_by")).lower() for each in models_of(page))


def counters_of(prefix: str, *running: str) -> dict[str, tuple[str, ...]]:
    """Returns the names of the fields of Counters on the page of an engine that calls its counters as vLLM does."""
    names = {
        "num_drafts": "drafts", "num_drafted": "draft_tokens", "num_accepted": "accepted_tokens",
        "per_position": "accepted_tokens_per_pos",
    }  # fmt: skip
    counters = {
        field: tuple(f"{prefix}:spec_decode_num_{name}{end}" for end in ("_total", "")) for field, name in names.items()
    }
    return {**counters, "num_running": tuple(f"{prefix}:{name}" for name in running)}
