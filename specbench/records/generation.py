"""The record of an example: one line of records.jsonl, with the generation of every method.

These classes are the only description of the file. Their fields are in the order in which they are written; a field
with its default value is not written unless ALWAYS names it.
"""

import json
import math
import operator
from collections.abc import Iterable, Mapping, Sequence
from sys import intern
from typing import Annotated, Any, ClassVar, Literal, TypeVar

import msgspec
import numpy as np
from msgspec import Meta, Struct, field

from specbench.core import bounded
from specbench.records.columns import Floats, Ints, PassTimes, StepCounts, Steps
from specbench.records.wording import column, problem

Key = tuple[str, str, int, int, int]  # task, subset, example, repeat, turn
Count = Annotated[int, Meta(ge=0)]
Seconds = Annotated[float, Meta(ge=0)]
Finish = Literal["eos", "stop", "length", "context"]
Score = int | float | bool | None  # bool: records of earlier versions, as scorers of plug-ins returned it
Decoded = TypeVar("Decoded")
FINITE = ("ttft_seconds", "draft_prefill_seconds", "decode_seconds", "score", "scores", "rule_seconds",
          "tokenizer_seconds")  # fmt: skip


class Stored(Struct, kw_only=True, gc=False):
    """A part of a line. Keys that later versions write are ignored."""

    ALWAYS: ClassVar[frozenset[str]] = frozenset()

    def as_json(self) -> dict[str, object]:
        """Returns the part as it is written."""
        encoded = {}
        for each in msgspec.structs.fields(type(self)):
            value = getattr(self, each.name)
            if each.required or each.name in self.ALWAYS or value != _default(each):
                encoded[each.encode_name] = _plain(value)
        return encoded


def _default(each: Any) -> Any:
    return each.default if each.default is not msgspec.NODEFAULT else each.default_factory()


def _plain(value: Any) -> Any:
    if isinstance(value, Stored | Steps | PassTimes):
        return value.as_json()
    if isinstance(value, Ints | Floats):
        return value.tolist()
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    return value


class Passes(Stored, kw_only=True):
    """The passes of target and drafter. If one model decodes alone, `target` has those of that model."""

    target: PassTimes
    draft: PassTimes


class External(Stored, kw_only=True):
    """The counts of a decoder with its own loop. From `acceptance_source` on they are those of a server.

    `num_first_tokens`: the number of tokens already generated when the clock of `decode_seconds` started (0: the clock
    started with the prefill). `num_target_passes` includes the prefill; None if unknown.
    `acceptance_source`: steps, histogram, totals or counters; or "none: " and the reason. `totals`: drafted, verified
    and accepted tokens by the server's count, including tokens after the end of the answer. `kept`: accepted and
    verified tokens up to the end, if single steps are unknown. `events`: [seconds since the request, tokens] of each
    read. `cached_tokens`: prompt tokens in the server's cache. `server_seconds`, `server_decode_seconds`: the server's
    own time with and without the prompt; None if it reports none, or one that cannot be, which is `impossible_time`.
    `same_again`: whether the baseline gave the same answer to a second request; None without one. `was_idle`: whether
    every server reported that no request ran when this one was sent; False if one does not report it.
    `answer_seconds`: seconds since the request of the first read with text of the answer proper, behind its reasoning;
    None if it has none, and in records of earlier versions.
    """

    ALWAYS = frozenset(
        {"totals", "kept", "events", "cached_tokens", "server_seconds", "server_decode_seconds", "impossible_time"}
        | {"same_again", "was_idle"}
    )
    num_first_tokens: Count
    num_target_passes: Annotated[int, Meta(ge=1)] | None
    acceptance_source: str | None = None
    totals: tuple[int, int | None, int] | None = None
    kept: tuple[int, int | None] | None = None  # absent from records of earlier versions
    events: list[tuple[float, int]] = field(default_factory=list)
    cached_tokens: int | None = None
    server_seconds: float | None = None
    server_decode_seconds: float | None = None
    impossible_time: str | None = None
    same_again: bool | None = None
    was_idle: bool = False
    answer_seconds: float | None = None

    def as_json(self) -> dict[str, object]:
        whole = super().as_json()
        return whole if self.is_served else {key: whole[key] for key in ("num_first_tokens", "num_target_passes")}

    @property
    def is_served(self) -> bool:
        return self.acceptance_source is not None


class WarmUpRecord(Stored, kw_only=True):
    """A method's warm-up before this process measured the subset. `steady`: null if there were too few blocks to
    tell."""

    blocks: Count
    seconds: Seconds
    steady: bool | None


class Evidence(Stored, kw_only=True):
    """What `specbench tune` records of each step: the draft tokens, the divergence of each verified one, and the tokens
    that the rule would have chosen itself."""

    token_ids: list[list[int]]
    divergence: list[list[float | None]]
    own: list[list[int]] | None


class Generation(Stored, kw_only=True):
    """What one method wrote, with its counts and times. Seconds are wall-clock time.

    `draw_overlap`: union and tli only: (1 − P(end)) · Σ min(p, q given no end), per position at which the drafter drew
    a token, including positions at which it drew the end of the text.
    `draft_confidence`, `draft_entropy`: of each draft token the drafter's probability, and the entropy in nats of the
    distribution that it was drawn from, both at temperature 1 without truncation.
    `tree_*`: draft trees only, whose `steps` count levels of the tree. `tree_nodes`: draft tokens per step.
    `tree_ranks`: by rank among siblings (verified, accepted), the number of nodes on accepted paths that have a child
    of this rank, and of accepted children of this rank; `tree_levels`: the same for each level. `tree_samples`: for
    sampled steps and each level, the chance that a child of the root or of the accepted node is accepted, given the
    tree, and the optimum over lossless rules (`specbench.decoding.tree_acceptance`).
    """

    ALWAYS = frozenset({"rule_seconds", "tokenizer_seconds"})
    token_ids: Ints
    finish: Finish
    steps: Steps
    tree_nodes: Ints | None = None
    tree_ranks: list[tuple[Count, Count]] | None = None
    tree_levels: list[list[tuple[Count, Count]]] | None = None
    tree_samples: list[list[tuple[float, float]]] | None = None
    positions: dict[str, Floats | None]  # per verified draft token: p(x), q(x), Σ min(p, q), the rule's divergence
    draw_overlap: Floats | None = None
    draft_confidence: Floats | None = None  # per draft token, of draft lengths that are asked within drafts
    draft_entropy: Floats | None = None
    passes: Passes
    ttft_seconds: Seconds | None  # null only for external decoders, as the next one
    draft_prefill_seconds: Seconds | None
    decode_seconds: Seconds  # from the first token on
    rule_seconds: Seconds | None = None  # of decode_seconds: verification rules and sampling; unknown if external
    tokenizer_seconds: Seconds | None = None  # of decode_seconds: retokenization and the search for stop strings
    external: External | None = None
    text: str
    parted_answer: str | None = field(name="answer", default=None)  # the text after its reasoning; absent without
    reasoning_tokens: Count = 0
    reasoning_closed: bool = True  # False: the text ends inside its reasoning, and the answer is empty
    score: Score  # of the main metric
    scores: dict[str, Score] = field(default_factory=dict)
    statistics: dict[str, list[int | float]] = field(default_factory=dict)  # of corpus scores
    problem: str | None = None  # the reason why there are no scores
    outcome: dict[str, str] = field(default_factory=dict)
    route: str | None = None  # of a method with routes
    left_out_own: bool | None = None  # whether a memory left out an earlier answer to the prompt; None: no such memory
    decoded_by: Literal["target", "drafter"] | None = None  # the model that decoded alone, if one did
    cpu_wait_seconds: Seconds | None = None  # for which threads were ready to run and waited for a CPU, in all
    cpu_joules: Seconds | None = None  # of the processor packages, prefill included, as the next ones
    gpu_joules: Seconds | None = None  # of the target's GPUs
    peak_host_bytes: Count | None = None  # largest resident memory of the process
    peak_device_bytes: Count | None = None  # largest memory of tensors on the target's CUDA devices
    truncated_tokens: Count | None = None  # later turns only
    warm_up: WarmUpRecord | None = None
    drafted: Evidence | None = None  # only in the runs of `specbench tune`

    def __post_init__(self) -> None:
        times = (self.ttft_seconds, self.draft_prefill_seconds, self.decode_seconds)
        if self.external is None and None in times:
            raise ValueError("ttft_seconds and draft_prefill_seconds may be null only if there is 'external'")
        scores = (self.score, *self.scores.values(), self.rule_seconds, self.tokenizer_seconds)
        if not all(value is None or math.isfinite(value) for value in (*times, *scores)):
            place, value = not_finite({each: getattr(self, each) for each in FINITE}) or ("a time or a score", math.nan)
            raise ValueError(f"{place} = {value}: is not a finite number")
        if not self.token_ids:
            raise ValueError("token_ids: is empty")

    @property
    def answer(self) -> str:
        """The text that scorers, the judge and later turns see. Records of versions that did not part the reasoning
        from it hold the whole text."""
        return self.text if self.parted_answer is None else self.parted_answer

    @property
    def num_new_tokens(self) -> int:
        return len(self.token_ids)

    @property
    def num_timed_tokens(self) -> int:
        """The tokens that decode_seconds covers: all except those that exist when its clock starts. That is one token,
        unless an external decoder reports several first tokens, or none."""
        return self.num_new_tokens - (self.external.num_first_tokens if self.external is not None else 1)

    @property
    def is_tree(self) -> bool:
        return self.tree_nodes is not None

    @property
    def is_external(self) -> bool:
        return self.external is not None

    @property
    def is_served(self) -> bool:
        return self.external is not None and self.external.is_served

    @property
    def reported(self) -> External:
        """What an external decoder or a server reported besides the answer. Raises ValueError for this package's
        loop."""
        if self.external is None:
            raise ValueError("has no 'external': it is not the answer of a server or an external decoder")
        return self.external

    @property
    def is_drafted_alone(self) -> bool:
        """Whether the drafter decoded without the target."""
        return self.decoded_by == "drafter"

    @property
    def num_drafted(self) -> int:
        """The draft tokens; of trees, all nodes."""
        return self.num_draft_levels if self.tree_nodes is None else sum(self.tree_nodes)

    @property
    def num_draft_levels(self) -> int:
        return self.steps.total.drafted

    @property
    def num_verified(self) -> int:
        return self.steps.total.verified

    @property
    def num_accepted(self) -> int:
        return self.steps.total.accepted

    @property
    def num_emitted(self) -> int:
        """The tokens that steps emitted; the first token of the prefill belongs to no step."""
        return self.steps.total.emitted

    @property
    def target_passes(self) -> int | None:
        """The number of target passes with the prefill; None for an external decoder that does not report it."""
        if self.external is not None:
            return self.external.num_target_passes
        return 0 if self.is_drafted_alone else len(self.steps) + 1

    def contradictions(self, num_draft_tokens: int) -> list[str]:
        """Returns what contradicts that every token is emitted once, and that in every step
        emitted - 1 ≤ accepted ≤ verified ≤ drafted. An external decoder may have no steps."""
        problems = []
        steps, total, num_tokens = self.steps, self.steps.total, self.num_new_tokens
        if self.external and (self.external.num_target_passes or len(steps)) < len(steps):
            problems.append(f"{self.external.num_target_passes} target passes for {len(steps)} steps")
        if (len(steps) or not self.is_external) and total.emitted + 1 != num_tokens:
            problems.append(f"{total.emitted} emitted + 1 ≠ {num_tokens} new tokens")
        drafted, verified, accepted, emitted = steps.counts.T
        bad = (drafted > num_draft_tokens) | (drafted < verified) | (verified < accepted) | (accepted < 0)
        bad |= (emitted < 0) | (emitted > accepted + 1)
        problems += [
            f"step {number} has {step.drafted} drafted (of at most {num_draft_tokens}), {step.verified} verified, "
            f"{step.accepted} accepted, {step.emitted} emitted"
            for number in np.flatnonzero(bad).tolist()
            for step in (steps[number],)
        ]
        if self.reasoning_tokens > num_tokens:
            problems.append(f"{self.reasoning_tokens} reasoning_tokens of {num_tokens} new tokens")
        if self.tree_nodes is not None:
            depths = steps.drafted.tolist()
            if len(self.tree_nodes) != len(depths) or any(map(operator.lt, self.tree_nodes, depths)):
                problems.append(f"trees of {self.tree_nodes.tolist()} draft tokens for steps with {depths} levels")
        problems += _rank_problems(self.tree_ranks, total)
        for key, values in self.positions.items():
            if values is not None and len(values) != total.verified:
                problems.append(f"{len(values)} {key} values for {total.verified} verified tokens")
        for key, of_drafts in (("draft_confidence", self.draft_confidence), ("draft_entropy", self.draft_entropy)):
            if of_drafts is not None and len(of_drafts) != total.drafted:
                problems.append(f"{len(of_drafts)} {key} values for {total.drafted} draft tokens")
        draws = self.draw_overlap
        if draws is not None and not total.verified <= len(draws) <= total.emitted:
            problems.append(
                f"{len(draws)} draw_overlap values for {total.verified} verified and {total.emitted} emitted tokens"
            )
        return problems


def _rank_problems(ranks: Sequence[tuple[int, int]] | None, total: StepCounts) -> list[str]:
    """Returns problems of the counts by rank among siblings: every verified level has a first child, and every accepted
    token has one rank."""
    if ranks is None:
        return []
    verified, accepted = [pair[0] for pair in ranks], [pair[1] for pair in ranks]
    is_falling = verified == sorted(verified, reverse=True) and all(map(operator.ge, verified, accepted))
    if is_falling and max(verified, default=0) == total.verified and sum(accepted) == total.accepted:
        return []
    return [f"tree_ranks {ranks} for {total.verified} verified and {total.accepted} accepted tokens"]


class Record(Stored, kw_only=True):
    """The generations of AR and of every method for one turn of one example."""

    ALWAYS = frozenset({"turn", "truncated_tokens"})
    task: str
    subset: str
    example: Count
    id: Any
    repeat: Count
    turn: Count = 0
    process: str | None = None
    measured_at: Seconds | None = None  # Unix time at which the measurement ended
    order: list[str] = field(default_factory=list)  # of measurement
    prompt: str  # digest of the user's texts up to this turn
    prompt_ids_digest: str | None = None  # of AR's prompt, which all methods of its vocabulary read
    prompt_tokens: Count | None = None
    truncated_tokens: Count = 0
    budgets: dict[str, int | None] | None = None  # maximum prompt length in tokens of each model
    reference: Any
    methods: dict[str, Generation]
    part: int | None = None  # of a run whose servers take turns

    def __post_init__(self) -> None:
        bounded.check_depth([self.id, self.reference])

    @property
    def key(self) -> Key:
        """The names, which all records of a run repeat, are one text in memory."""
        return intern(self.task), intern(self.subset), self.example, self.repeat, self.turn

    @property
    def name(self) -> str:
        name = f"task {self.task}, subset {self.subset}, example {self.example}, repeat {self.repeat}"
        return f"{name}, turn {self.turn}" if self.turn else name

    def check(self, methods: Mapping[str, int]) -> None:
        """Raises ValueError for another set of methods and for contradictory counts. `methods`: the methods of the run
        with their num_draft_tokens."""
        if set(self.methods) != set(methods):
            raise ValueError(f"methods: {', '.join(self.methods)}, but the run has {', '.join(methods)}")
        for method, num_draft_tokens in methods.items():
            self.check_counts(method, num_draft_tokens)

    def check_counts(self, method: str, num_draft_tokens: int) -> None:
        """Raises ValueError, with the record's name, for counts of a method that contradict each other."""
        if method not in self.methods:
            raise ValueError(f"record of {self.name}: has no method {method}")
        if problems := self.methods[method].contradictions(num_draft_tokens):
            raise ValueError(f"record of {self.name}: {method}: {'; '.join(problems)}")


def convert(value: object, kind: type[Decoded]) -> Decoded:
    """Returns plain values as a part of a record. Raises ValueError."""
    return msgspec.convert(value, kind, dec_hook=column)


class NotAnObject(ValueError):
    """A line holds JSON, but no object."""


class Decoder:
    """Decodes lines of one kind."""

    def __init__(self, kind: Any) -> None:
        self.kind = kind
        self._fast = msgspec.json.Decoder(kind, dec_hook=column)

    def decode(self, line: bytes, max_characters: int) -> Any:
        """Returns what a line holds. Raises json.JSONDecodeError or UnicodeError for a line that is not JSON,
        OutOfBounds, and ValueError with the place of a value that does not fit."""
        try:
            if len(line) <= SMALL:
                return self._fast.decode(line)
        except (ValueError, RecursionError):
            pass  # read with more care, to name the method and to accept the numbers and texts of earlier versions
        text = line.decode("utf-8", "surrogatepass")
        value = bounded.json_value(text, strict=False, max_characters=max_characters)
        return self._converted(value, self.kind)

    def _converted(self, value: Any, kind: Any, place: str = "") -> Any:
        if not isinstance(value, dict):
            raise NotAnObject
        try:
            return convert(value, kind)
        except ValueError as error:
            methods = value.get("methods")
            if kind is Record and isinstance(methods, dict):
                for name, each in methods.items():
                    self._converted(each, Generation, f"methods.{name}")
            raise ValueError(problem(error, value, kind, place)) from error


SMALL = 2**23  # bytes of a line whose values need no bound of their own


def not_finite(value: Any, place: str = "") -> tuple[str, float] | None:
    """Returns the place of the first NaN or infinite number in a value, such as methods.sd.score, and the number."""
    if isinstance(value, float) and not math.isfinite(value):
        return place, value
    parts: Iterable[tuple[Any, Any]]
    parts = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list | tuple) else ()
    places = (not_finite(part, f"{place}.{name}" if place else str(name)) for name, part in parts)
    return next(filter(None, places), None)


def encode(line: Any) -> bytes:
    """Returns a line without its break. Raises ValueError for a number that JSON does not have."""
    value = line.as_json() if isinstance(line, Stored) else line
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.encode("utf-8", "surrogatepass")
