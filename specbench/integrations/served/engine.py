"""A serving engine: the requests that it accepts, and what its answers and pages report."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from pydantic import AfterValidator, ConfigDict, Field
from pydantic.dataclasses import dataclass as checked_dataclass

from specbench.core import bounded
from specbench.core.errors import ConfigError
from specbench.decoding.sampling import Sampling
from specbench.integrations.served.acceptance import MAX_COUNT, Acceptance, from_reached
from specbench.models.vocabulary import Vocabulary

Page = Callable[[str], str | None]  # path → text, None for an absent page
Event = Mapping[str, Any]  # what a server sends, before it is checked; also the answer to a request without a stream
Body = dict[str, object]  # of a request
Settings = dict[str, object]  # which a server reports


def in_utf8(text: str) -> str:
    """Returns a text. Raises ValueError for half of a surrogate pair, which no tokenizer and no file takes."""
    text.encode()
    return text


Count = Annotated[int, Field(ge=0, le=MAX_COUNT)]


@checked_dataclass(frozen=True, config=ConfigDict(strict=True))
class EventContent:
    """The content of one event of an answer; None or "" for what it does not report. Raises ValueError for wrong types,
    for negative or too large counts, and for a text with half of a surrogate pair.

    `token_ids`: the new tokens; None for engines that send only text. `reasoning`: text that the server parted from the
    answer. `finish`: eos, stop or length.
    `num_prompt_tokens`, `num_new_tokens`: the server's own counts. `num_cached`: prompt tokens in the server's cache.
    `seconds`, `decode_seconds`: the server's own time for the answer so far, with and without the prompt.
    `impossible_time`: what it reports instead, if that cannot be a time. `num_held`: new tokens before `token_ids`
    whose ids the engine does not send, since they are parts of a character.
    """

    token_ids: tuple[int, ...] | None = None
    text: Annotated[str, AfterValidator(in_utf8)] = ""
    reasoning: Annotated[str, AfterValidator(in_utf8)] = ""
    finish: str | None = None
    num_prompt_tokens: Count | None = None
    num_new_tokens: Count | None = None
    num_cached: Count | None = None
    seconds: float | None = None
    decode_seconds: float | None = None
    impossible_time: str | None = None
    num_held: int = 0


@dataclass(frozen=True)
class Counters:
    """The sums over all answers since the server was started; None for those that its page lacks.

    `per_position`: accepted tokens at each position of the draft. `num_running`: requests that run or wait now.
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
    """An engine with OpenAI's completions protocol; subclasses override what differs.

    `metrics_path`: the page of its counters. `counter_names`: the names on that page of the fields of Counters.
    `learning_methods`: speculation methods whose drafters learn from one request to the next. `reports_at_end`: whether
    the counts of an answer come with its last event, so that the stream must be read to its end. `takes_top_k`: whether
    requests may limit the tokens that are drawn from. `remedy`: the flag that makes the server report acceptance.
    `max_stops`: the maximum number of stop strings in a request; None for no limit. The client looks for the other
    strings itself, and the server does not stop at them. `sends_text`: whether a request has the text of the prompt as
    a chat message, which the server puts into its own template, in the place of token ids.
    """

    name: ClassVar[str]
    path: ClassVar[str] = "/v1/completions"
    tokenize_path: ClassVar[str | None] = None
    metrics_path: ClassVar[str | None] = "/metrics"
    counter_names: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    learning_methods: ClassVar[frozenset[str]] = frozenset()
    reports_at_end: ClassVar[bool] = True
    takes_top_k: ClassVar[bool] = True
    max_stops: ClassVar[int | None] = None
    sends_text: ClassVar[bool] = False
    remedy: ClassVar[str] = "this engine does not report it"
    num_logprobs: ClassVar[int] = 20  # tokens per position whose log-probabilities are requested: vLLM's limit

    def version(self, page: Page) -> str | None:
        """Returns the version of a server of this engine; None for a server of another engine."""
        return "of unknown version" if page("/v1/models") else None

    def settings(self, page: Page) -> Settings:
        """Returns the configuration that the server reports, without values that a restart would change."""
        return {"model": first_model_name(page)}

    def context(self, settings: Mapping[str, object]) -> int | None:
        """Returns the maximum tokens of a prompt with its answer, from `settings`; None if they lack it."""
        found = settings.get("context") or settings.get("context_length")
        return found if isinstance(found, int) and found > 0 else None

    def speculates(self, page: Page) -> bool | None:
        """Returns whether the server was started with speculation; None if it does not report that."""
        return None

    def request(
        self, prompt_ids: list[int], sampling: Sampling, max_new_tokens: int, seed: int, stop: Sequence[str], model: str
    ) -> Body:
        """Returns the body of a request for a stream."""
        stops = {"stop": list(stop[: self.max_stops])} if stop else {}
        drawn = {"top_p": sampling.top_p or 1.0, "seed": seed % 2**31}
        return {
            "model": model, "prompt": prompt_ids, "max_tokens": max_new_tokens, "temperature": sampling.temperature,
            "stream": True, "stream_options": {"include_usage": True}, **drawn, **stops,
        }  # fmt: skip

    def scoring_request(self, prompt_ids: list[int], num_tokens: int, model: str) -> Body | None:
        """Returns the body of a request without a stream for greedy tokens, each with the log-probabilities of the
        `num_logprobs` most probable tokens. None for an engine that does not report them with ids."""
        return None

    def log_probs(self, answer: Event) -> list[LogProbs]:
        """Returns the log-probabilities at each token of the answer to a scoring request."""
        raise NotImplementedError

    def read(self, event: Event, num_before: int) -> EventContent:
        """Returns the content of an event. The usage may be in an event of its own or in the last choice's event.

        `num_before`: number of tokens in the events before this one.
        """
        choice: Event = next(iter(event.get("choices") or ()), {})
        usage = event.get("usage") or {}
        ids = choice.get("token_ids")
        reason = choice.get("finish_reason")
        return EventContent(
            token_ids=None if ids is None else tuple(ids), text=choice.get("text") or "",
            reasoning=choice.get("reasoning_content") or choice.get("reasoning") or "",
            finish=None if reason is None else str(reason), num_prompt_tokens=usage.get("prompt_tokens"),
            num_new_tokens=usage.get("completion_tokens"),
            num_cached=(usage.get("prompt_tokens_details") or {}).get("cached_tokens"),
        )  # fmt: skip

    def all_ids(self, answer: Event) -> tuple[int, ...]:
        """Returns all ids of an answer without a stream, for an engine that holds some back in streams."""
        return ()

    def acceptance(self, events: Sequence[Event], num_draft_tokens: int) -> Acceptance | None:
        """Returns the acceptance that the events of an answer report; None if they do not. Raises Impossible for counts
        that cannot be true."""
        return None

    def counters(self, text: str) -> Counters:
        """Returns the counters on a metrics page. If the page has some counters of this engine, those that it lacks are
        0, and `num_running`, which is not a counter, is unknown. The series of several engine processes are added."""
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


def acceptance_between(before: Counters, after: Counters, num_draft_tokens: int) -> Acceptance | None:
    """Returns the acceptance of the answers between two readings of the counters; None if the counters are unknown, or
    if one fell because the server was restarted."""
    names = ("num_drafts", "num_drafted", "num_accepted")
    drafts, drafted, accepted = (_growth(getattr(before, name), getattr(after, name)) for name in names)
    fell = before.num_drafts is not None and drafts is None  # TensorRT-LLM does not count drafts
    if drafted is None or accepted is None or fell:
        return None
    reached = None
    if drafts is not None and len(after.per_position) == num_draft_tokens > 0:
        earlier = before.per_position or (0,) * num_draft_tokens
        reached = tuple(now - then for now, then in zip(after.per_position, earlier, strict=True))
    return from_reached("counters", drafts, drafted, accepted, reached, num_draft_tokens)


def _growth(before: int | None, after: int | None) -> int | None:
    return None if before is None or after is None or after < before else after - before


def read_generate_event(event: Event, new_ids: Sequence[int]) -> EventContent:
    """Returns the content of an event of the path /generate, which SGLang and LMDeploy share, given its new ids."""
    info = event.get("meta_info") or {}
    reason = info.get("finish_reason")
    return EventContent(
        token_ids=tuple(new_ids), text=event.get("text") or "",
        finish=None if reason is None else str(reason.get("type") if isinstance(reason, dict) else reason),
        num_prompt_tokens=info.get("prompt_tokens"), num_new_tokens=info.get("completion_tokens") if reason else None,
        num_cached=info.get("cached_tokens"),
    )  # fmt: skip


def json_page(page: Page, path: str) -> Any:
    """Returns the value of a JSON page; None for an absent page and for one that is not JSON."""
    try:
        return bounded.json_value(page(path) or "null", strict=False)
    except ValueError:
        return None


def json_mapping(page: Page, path: str) -> Event:
    """Returns the mapping of a JSON page; an empty one for any other page."""
    found = json_page(page, path)
    return found if isinstance(found, dict) else {}


def models_of(page: Page) -> list[Event]:
    return list(json_mapping(page, "/v1/models").get("data") or ())


def first_model_name(page: Page) -> str:
    """Returns the name of the first model that a server lists; "default" if it lists none."""
    return str(next((each.get("id") for each in models_of(page)), "default"))


def is_owned_by(page: Page, owner: str) -> bool:
    """Returns whether `owner` is part of the owner's name of one of a server's models."""
    return any(owner in str(each.get("owned_by")).lower() for each in models_of(page))


def version_if_owned(page: Page, owner: str) -> str | None:
    """Returns the version that a server tells, if its models belong to `owner`."""
    version = json_mapping(page, "/version").get("version") if is_owned_by(page, owner) else None
    return None if version is None else str(version)


def vllm_counter_names(prefix: str, *running: str) -> dict[str, tuple[str, ...]]:
    """Returns `Engine.counter_names` for an engine that names its counters like vLLM, with its own prefix."""
    names = {
        "num_drafts": "drafts", "num_drafted": "draft_tokens", "num_accepted": "accepted_tokens",
        "per_position": "accepted_tokens_per_pos",
    }  # fmt: skip
    counters = {
        field: tuple(f"{prefix}:spec_decode_num_{name}{end}" for end in ("_total", "")) for field, name in names.items()
    }
    return {**counters, "num_running": tuple(f"{prefix}:{name}" for name in running)}


MAX_HELD = 3  # maximum tokens of an incomplete character: a character has at most four bytes


MAX_HELD_BYTES = 64  # that all held tokens of an event write


def held_ids(text: str, last: int, number: int, vocabulary: Vocabulary) -> tuple[int, ...]:
    """Returns the ids of the `number` tokens before `last`; together they write `text`.

    There may be several ways to split the bytes: the tokenizer's own is preferred, then the one with the longest tokens
    first. Raises ConfigError if there is none, and for a text of more than MAX_HELD_BYTES.
    """
    written, end = text.encode(), vocabulary.to_bytes([last])
    rest = written.removesuffix(end)
    if written.endswith(end) and number <= len(rest) <= MAX_HELD_BYTES:
        own = tuple(vocabulary.encode(text))[:number]
        if len(own) == number and vocabulary.to_bytes(own) == rest and set(own) <= set(vocabulary.id_of.values()):
            return own
        # starts[n]: the places from which n tokens write the bytes up to their end.
        starts = [{len(rest)}]
        for _ in range(number):
            starts.append(
                {at for at in range(len(rest)) if any(rest[at:stop] in vocabulary.id_of for stop in starts[-1])}
            )
        at, found = 0, list[int]()
        while 0 in starts[number] and len(found) < number:
            stop = max(
                stop for stop in starts[number - len(found) - 1] if stop > at and rest[at:stop] in vocabulary.id_of
            )
            found.append(vocabulary.id_of[rest[at:stop]])
            at = stop
        if len(found) == number:
            return tuple(found)
    raise ConfigError(f"held back the ids of {number} tokens, and its text {text[:40]!r} does not determine them")
