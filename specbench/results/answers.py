"""What rows need of an answer: its counts, sums and times, without tokens, texts, steps and passes.

A run may have more records than memory, while the rows over all subsets need every answer of a method. So each record
is read once, and only these numbers stay.
"""

from array import array
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from functools import lru_cache
from itertools import zip_longest
from typing import Any, Protocol, Self

import msgspec
import numpy as np
from numpy.typing import NDArray

from specbench.core.values import bytes_digest
from specbench.records.columns import PassTimes, Steps
from specbench.records.generation import External, Score, WarmUpRecord
from specbench.records.loops import count_loop_tokens
from specbench.records.records import Generation, Key, Record
from specbench.records.store import RecordStore
from specbench.results.latency import token_gaps
from specbench.tasks.judge import JUDGED
from specbench.tasks.scoring import language_of

BASELINE = "ar"


NONE = np.zeros(0)
NO_STEPS, NO_PASSES = np.zeros((0, 4), dtype=np.int64), np.zeros((2, 0))
MOST_KEPT = 2**15  # answers, of a few kB each


class Answer(msgspec.Struct, kw_only=True, gc=False):
    """One method's answer to one prompt.

    A pair is a sum and the number of its terms, or what the name says of both. Fields without a comment are those of
    `Generation` and `Record`.
    """

    # 1. The record.
    key: Key = ("", "", 0, 0, 0)
    prompt: str = ""
    process: str | None = None
    part: int | None = None
    measured_at: float | None = None
    prompt_tokens: int | None = None
    truncated_tokens: int = 0
    num_references: int = 0  # 0: there is none
    reference_digest: str = ""
    prompt_ids_digest: str | None = None
    # 2. Identities, to compare answers.
    tokens_digest: str
    steps_digest: str
    text_digest: str
    # 3. Counts.
    finish: str
    route: str | None
    is_tree: bool
    is_external: bool
    is_served: bool
    is_drafted_alone: bool
    num_new_tokens: int
    num_loop_tokens: int  # that repeat themselves (records.loops)
    num_timed_tokens: int
    num_steps: int
    num_drafted: int
    num_draft_levels: int
    num_verified: int
    num_accepted: int
    num_emitted: int
    target_passes: int | None
    emitted_by_passes: tuple[int, int]  # emitted tokens and the target passes that emitted them; (0, 0): unknown
    accepted_of_verified: tuple[int, int | None]  # of chains; None: a server does not report it
    accepted_by_step: Sequence[int]  # element k: the steps that accepted k tokens
    first_tokens: tuple[int, int]  # the steps that drafted, and those that accepted the first draft token
    overlap: tuple[float, int]
    divergence: tuple[float, int]
    draw_overlap: tuple[float, int] | None
    # 4. Times and consumption.
    ttft_seconds: float | None
    draft_prefill_seconds: float | None
    decode_seconds: float
    pass_seconds: float  # of both models
    target_seconds: float
    draft_passes: NDArray[np.float64]  # the seconds of each
    token_passes: NDArray[np.float64]  # the baseline's passes over one token
    rule_seconds: float | None
    tokenizer_seconds: float | None
    cpu_wait_seconds: float | None
    cpu_joules: float | None
    gpu_joules: float | None
    peak_host_bytes: int | None
    peak_device_bytes: int | None
    warm_up: WarmUpRecord | None
    step_kinds: NDArray[np.int64]  # [n, 4] of chains: drafted, accepted, emitted tokens, and the number of such steps
    token_gaps: NDArray[np.float64]  # of a server: see `latency.token_gaps`
    passes_by_width: NDArray[np.float64]  # [2, most + 1] of chains: seconds and number of the target's passes
    # 5. Draft trees.
    passes_by_length: Mapping[int, tuple[float, int]]  # by the power of two up to which the length reaches
    tree_ranks: Sequence[tuple[int, int]]
    level_chances: Sequence[tuple[float, float, int]]  # by level: sums under the rule and at best, and their terms
    # 6. The scores.
    score: Score
    scores: Mapping[str, Score]
    statistics: Mapping[str, Sequence[float]]
    problem: str | None
    status: str | None  # of a program
    reasoning_tokens: int
    reasoning_closed: bool
    in_language: float | None = None  # 1 or 0; None: unknown
    external: External | None = None  # without events
    left_out_own: bool | None = None

    @classmethod
    def of(
        cls, generation: Generation, decodes_with: str = "target", record: Record | None = None,
        language: str | None = None, is_baseline: bool = False,
    ) -> Self:  # fmt: skip
        """Returns the numbers of a generation, with each pass under the model that ran it: the decode loop lists all
        passes of a model that decodes alone under the target.

        `decodes_with`: the method's; for "random" the generation names the model in `decoded_by`. `language`: the code
        of the language that the text is tested for. Raises ValueError for a generation without `decoded_by`.
        """
        g, steps, total = generation, generation.steps, generation.steps.total
        decoder = g.decoded_by if decodes_with == "random" else decodes_with
        if decoder is None:
            raise ValueError("has no decoded_by, the model that decoded this query")
        is_alone = g.is_drafted_alone or decoder == "drafter"
        target, draft = ((), g.passes.target.seconds) if is_alone else (g.passes.target.seconds, g.passes.draft.seconds)
        target_passes = 0 if is_alone and g.external is None else g.target_passes
        external, gaps = g.external, NONE
        if external is not None and external.events:
            gaps = np.array(token_gaps(external.events))
            external = msgspec.structs.replace(external, events=[])
        of_record: dict[str, Any] = {}
        if record is not None:
            reference = record.reference
            of_record = {
                "key": record.key, "prompt": record.prompt, "process": record.process, "part": record.part,
                "measured_at": record.measured_at, "prompt_tokens": record.prompt_tokens,
                "prompt_ids_digest": record.prompt_ids_digest,
                "reference_digest": bytes_digest([msgspec.json.encode(reference)]),
                "truncated_tokens": record.truncated_tokens,
                "num_references": len(reference) if isinstance(reference, list) else int(bool(reference)),
            }  # fmt: skip
        if g.truncated_tokens is not None:
            of_record["truncated_tokens"] = g.truncated_tokens
        drafting = steps.drafted > 0
        return cls(
            **of_record,
            tokens_digest=bytes_digest([g.token_ids.tobytes()], 32),
            steps_digest=bytes_digest([steps.counts.tobytes()], 32),
            text_digest=bytes_digest([g.text.encode("utf-8", "surrogatepass")], 32),
            finish=g.finish, route=g.route, is_tree=g.is_tree, is_external=g.is_external, is_served=g.is_served,
            is_drafted_alone=is_alone, num_new_tokens=g.num_new_tokens, num_loop_tokens=loop_tokens_of(g),
            num_timed_tokens=g.num_timed_tokens,
            num_steps=len(steps), num_drafted=g.num_drafted, num_draft_levels=total.drafted,
            num_verified=total.verified, num_accepted=total.accepted, num_emitted=total.emitted,
            target_passes=target_passes, emitted_by_passes=_emitted_by_passes(g, target_passes),
            accepted_of_verified=(0, 0) if g.is_tree else _accepted_of_verified(g),
            accepted_by_step=array("i", np.bincount(steps.accepted).tolist()),
            first_tokens=(int(drafting.sum()), int((steps.accepted[drafting] > 0).sum())),
            overlap=_sum(None if g.is_tree else g.positions.get("overlap")),
            divergence=_sum(None if g.is_tree else g.positions.get("divergence")),
            draw_overlap=None if g.draw_overlap is None else (sum(g.draw_overlap), len(g.draw_overlap)),
            ttft_seconds=g.ttft_seconds, draft_prefill_seconds=g.draft_prefill_seconds,
            decode_seconds=g.decode_seconds, token_gaps=gaps,
            pass_seconds=sum(draft, sum(target)), target_seconds=sum(target),
            draft_passes=np.array(draft) if draft else NONE,
            token_passes=_token_passes(g.passes.target) if is_baseline else NONE,
            rule_seconds=g.rule_seconds, tokenizer_seconds=g.tokenizer_seconds,
            cpu_wait_seconds=g.cpu_wait_seconds, cpu_joules=g.cpu_joules, gpu_joules=g.gpu_joules,
            peak_host_bytes=g.peak_host_bytes, peak_device_bytes=g.peak_device_bytes,
            warm_up=g.warm_up,
            step_kinds=NO_STEPS if g.is_tree or is_alone else _step_kinds(steps),
            passes_by_width=NO_PASSES if g.is_tree or is_alone else _passes_by_width(g.passes.target),
            passes_by_length=_passes_by_length(g) if g.is_tree and not is_alone else {},
            tree_ranks=g.tree_ranks or (), level_chances=_level_chances(g), score=g.score, scores=g.scores,
            statistics=g.statistics, problem=g.problem, status=g.outcome.get("status"),
            reasoning_tokens=g.reasoning_tokens, reasoning_closed=g.reasoning_closed,
            in_language=None if language is None else _is_in_language(g.answer, language), external=external,
            left_out_own=g.left_out_own,
        )  # fmt: skip

    @property
    def task(self) -> str:
        return self.key[0]

    @property
    def subset(self) -> str:
        return self.key[1]

    @property
    def example(self) -> int:
        return self.key[2]

    @property
    def repeat(self) -> int:
        return self.key[3]

    @property
    def turn(self) -> int:
        return self.key[4]

    @property
    def seconds(self) -> float:
        """From the request to the last token."""
        return (self.ttft_seconds or 0.0) + self.decode_seconds

    @property
    def reported(self) -> External:
        """What a server or an external decoder reported besides the answer."""
        assert self.external is not None
        return self.external


def loop_tokens_of(g: Generation) -> int:
    return count_loop_tokens(g.token_ids[:-1] if g.finish == "eos" else g.token_ids)


def _token_passes(passes: PassTimes) -> NDArray[np.float64]:
    return np.array(passes.seconds)[np.array(passes.query_lengths) == 1] if passes else NONE


BASE = 2**10  # above every count of a step


def _step_kinds(steps: Steps) -> NDArray[np.int64]:
    if not steps:
        return NO_STEPS
    drafted, _, accepted, emitted = steps.counts.T.astype(np.int64)
    codes, number = np.unique((drafted * BASE + accepted) * BASE + emitted, return_counts=True)
    return np.column_stack([codes // BASE**2, codes // BASE % BASE, codes % BASE, number])


def _passes_by_width(passes: PassTimes) -> NDArray[np.float64]:
    if not passes:
        return NO_PASSES
    widths = np.array(passes.query_lengths)
    return np.stack([np.bincount(widths, weights=np.array(passes.seconds)), np.bincount(widths)])


def _sum(values: Sequence[float] | None) -> tuple[float, int]:
    """Returns the sum of the known values and their number."""
    total = sum(values or ())
    if total == total:
        return total, len(values or ())
    known = [value for value in values or () if value == value]
    return sum(known), len(known)


def _emitted_by_passes(g: Generation, num_passes: int | None) -> tuple[int, int]:
    """If the steps are known, a prefill that emits a token by itself is left out with its token. The prefill of a
    server always emits one."""
    if not num_passes:
        return 0, 0
    if g.is_served:
        return g.num_new_tokens - 1, num_passes - 1
    if g.is_external and (not g.steps or num_passes == len(g.steps)):
        return g.num_new_tokens, num_passes
    return g.num_emitted, len(g.steps)


def _accepted_of_verified(g: Generation) -> tuple[int, int | None]:
    if g.steps or g.external is None:
        return g.num_accepted, g.num_verified
    drafted, verified, accepted = g.external.totals or (0, 0, 0)
    accepted, verified = g.external.kept or (accepted, verified)  # absent from records of earlier versions
    return (accepted, verified) if drafted else (0, 0)


def _passes_by_length(g: Generation) -> dict[int, tuple[float, int]]:
    found: dict[int, tuple[float, int]] = {}
    for length, seconds in g.passes.target:
        most = 1 << (length - 1).bit_length()
        known, number = found.get(most, (0.0, 0))
        found[most] = known + seconds, number + 1
    return found


def _level_chances(g: Generation) -> list[tuple[float, float, int]]:
    levels = [[pair for pair in level if pair is not None] for level in zip_longest(*(g.tree_samples or ()))]
    return [(sum(pair[0] for pair in level), sum(pair[1] for pair in level), len(level)) for level in levels]


@lru_cache(maxsize=2**10)  # methods mostly write AR's text
def _is_in_language(text: str, code: str) -> float:
    return float(language_of(text, code) == code)


def answers_of(
    records: Iterable[Record], method: str, decodes_with: str = "target", languages: Mapping[str, str | None] = {},
) -> list[Answer]:  # fmt: skip
    """Returns a method's answers. `languages`: by subset the code that texts are tested for. Raises ValueError, which
    names the record."""
    found = []
    for record in records:
        try:
            generation = record.methods[method]
            language = languages.get(record.subset)
            found.append(Answer.of(generation, decodes_with, record, language, is_baseline=method == BASELINE))
        except ValueError as error:
            raise ValueError(f"record of {record.name}: {method}: {error}") from error
    return found


def prompt_of(key: Key) -> Key:
    """Returns the key of the first turn of the first answer to a prompt."""
    return (*key[:3], 0, 0)


Ratings = Mapping[tuple[Key, str], float | None]  # of a judge, by record and method
Languages = Mapping[str, Mapping[str, str | None]]  # the code that texts are tested for, by task and subset


class RunAnswers:
    """The answers of a run by task and method, from one pass over its records.

    Of a run with more than MOST_KEPT answers, memory holds AR's and those of the two methods that were asked for last;
    they are read again from `records`. `decodes_with`: of each method. `problems`: how often answers have no score, by
    task and reason. `looping`: the prompts to which some method, AR included, gave an answer with a loop.
    """

    def __init__(
        self, decodes_with: Mapping[str, str], languages: Languages, records: RecordStore | None = None
    ) -> None:
        self.records = records
        self.problems: Counter[tuple[str, str]] = Counter()
        self.looping: set[Key] = set()  # turn and repeat 0
        self._decodes_with, self._languages = decodes_with, languages
        self._answers: dict[tuple[str, str], dict[Key, Answer]] = {}
        self._num_kept = 0
        self._ratings: Ratings | None = None
        for record in records.values() if records is not None else ():
            self.add(record)

    def add(self, record: Record) -> None:
        """Raises ValueError, which names the record, for a generation that does not tell which model decoded it."""
        for method, generation in record.methods.items():
            self.problems.update([(record.task, generation.problem)] if generation.problem else [])
            if method == BASELINE or self._num_kept <= MOST_KEPT:
                num_loop_tokens = self._keep(record, method).num_loop_tokens
                self._num_kept += 1
            else:
                num_loop_tokens = loop_tokens_of(generation)
            if num_loop_tokens:
                self.looping.add(prompt_of(record.key))
        if self._num_kept > MOST_KEPT:
            self._answers = {place: each for place, each in self._answers.items() if place[1] == BASELINE}

    def _keep(self, record: Record, method: str) -> Answer:
        (answer,) = answers_of([record], method, self._decodes_with[method], self._languages.get(record.task, {}))
        self._answers.setdefault((record.task, method), {})[record.key] = answer
        return answer

    def keys(self, task: str) -> list[Key]:
        """Returns the keys of a task's records."""
        return list(self._answers.get((task, BASELINE), ()))

    def of(self, keys: Sequence[Key], method: str) -> list[Answer]:
        """Returns a method's answers. Raises KeyError for a record or a method that the run does not have."""
        places = {(key[0], method) for key in keys}
        if self._num_kept > MOST_KEPT and not places <= self._answers.keys():
            assert self.records is not None
            for place in [place for place in self._answers if place[1] != BASELINE][:-1]:
                del self._answers[place]
            tasks = {task for task, _ in places}
            for record in self.records.only([key for key in self.records if key[0] in tasks], (method,)).values():
                self._keep(record, method)
        found = [self._answers[key[0], method][key] for key in keys]
        if self._ratings is None:
            return found
        return [
            msgspec.structs.replace(each, scores={**each.scores, JUDGED: self._ratings.get((each.key, method))})
            for each in found
        ]

    def with_ratings(self, ratings: Ratings) -> "RunAnswers":
        """Returns the same answers with a judge's rating each, which may be None."""
        rated = copy(self)
        rated._ratings = ratings
        return rated


Columns = list[list[float]]  # two columns for each side, [num_answers]


class Timed(Protocol):
    """What the speed of an answer needs of it."""

    @property
    def num_timed_tokens(self) -> int: ...
    @property
    def decode_seconds(self) -> float: ...


def speed_columns(sides: Sequence[Sequence[Timed]]) -> Columns:
    """Returns tokens and seconds of each side. An answer of one token has no speed, so both columns are 0 for it on
    every side, and all sides cover the same answers."""
    timed = [min(a.num_timed_tokens for a in each) > 0 for each in zip(*sides, strict=True)]
    return [
        [float(value * keep) for value, keep in zip(column, timed, strict=True)]
        for side in sides for column in ([a.num_timed_tokens for a in side], [a.decode_seconds for a in side])
    ]  # fmt: skip


def end_to_end_columns(sides: Sequence[Sequence[Answer]]) -> Columns:
    """Returns tokens and seconds of each side, from the request to the last token. Answers of one token count, too."""
    return [column for side in sides for column in ([float(a.num_new_tokens) for a in side], [a.seconds for a in side])]


def length_columns(sides: Sequence[Sequence[Answer]]) -> Columns:
    """Returns emitted tokens and target passes of each side. An answer without a pass has no tokens per pass, so both
    columns are 0 for it on every side."""
    known = [min(a.emitted_by_passes[1] for a in each) > 0 for each in zip(*sides, strict=True)]
    return [
        [float(a.emitted_by_passes[part] * keep) for a, keep in zip(side, known, strict=True)]
        for side in sides for part in (0, 1)
    ]  # fmt: skip


def verified_tokens(own: Sequence[Answer]) -> tuple[list[int], list[int]]:
    """Returns the accepted and the verified tokens of each answer. Both are 0 for draft trees, whose number of verified
    tokens depends on the order of siblings. All are 0 if a server reports an answer without its verified tokens, since
    the other answers may then be a biased choice."""
    counts = [a.accepted_of_verified for a in own]
    is_known = None not in (verified for _, verified in counts)
    return [accepted * is_known for accepted, _ in counts], [(verified or 0) * is_known for _, verified in counts]


def acceptance_rates(own: Sequence[Answer]) -> list[float | None]:
    """Returns accepted ÷ verified tokens of each answer; None for draft trees, and if none was verified."""
    return [accepted / verified if verified else None for accepted, verified in zip(*verified_tokens(own), strict=True)]


def with_same_history(own: Sequence[Answer], baseline: Sequence[Answer]) -> list[tuple[Answer, Answer]]:
    """Returns the pairs of answers before which the method and AR had the same conversation: equal texts in all earlier
    turns."""
    pairs = list(zip(own, baseline, strict=True))
    other = {a.key for a, b in pairs if a.text_digest != b.text_digest}
    return [(a, b) for a, b in pairs if not any((*a.key[:4], earlier) in other for earlier in range(a.turn))]


def different_answers(own: Sequence[Answer], baseline: Sequence[Answer]) -> list[Key]:
    """Returns the keys of the answers that differ from AR's after the same conversation."""
    return [a.key for a, b in with_same_history(own, baseline) if a.tokens_digest != b.tokens_digest]
