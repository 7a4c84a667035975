"""What rows need of an answer: its counts, sums and times, without tokens, texts, steps and passes.

A run may have more records than memory, while the rows over all subsets need every answer of a method. So each record
is read once, and only these numbers stay: single ones in memory, the times of passes and other long columns in a
temporary file.
"""

import hashlib
from array import array
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from copy import copy
from functools import lru_cache
from itertools import zip_longest
from sys import intern
from tempfile import SpooledTemporaryFile, gettempdir
from typing import Any, Protocol, Self

import msgspec
import numpy as np
from numpy.typing import NDArray

from specbench.core.files import writing
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
MOST_KEPT = 2**13  # answers in memory, of one or two kB each, besides those that are asked for
MOST_BYTES = 2**20  # of a file that stay in memory
LONG_COLUMNS: Sequence[tuple[str, type[np.generic], tuple[int, ...]]] = (
    ("draft_passes", np.float64, (-1,)), ("token_passes", np.float64, (-1,)), ("step_kinds", np.int64, (-1, 4)),
    ("token_gaps", np.float64, (-1,)), ("passes_by_width", np.float64, (2, -1)),
)  # fmt: skip


class PartFile:
    """Parts of bytes, which are only added and read: in memory up to MOST_BYTES, then in a temporary file, which no
    folder lists."""

    def __init__(self) -> None:
        self._file = SpooledTemporaryFile(MOST_BYTES)  # noqa: SIM115  # closed with the answers
        self._end = 0

    def add(self, part: bytes) -> int:
        """Returns where the part begins. Raises ConfigError for a disk error."""
        with writing(f"temporary folder {gettempdir()}", "free some space, or set TMPDIR to a folder with more"):
            self._file.seek(self._end)
            self._file.write(part)
        start, self._end = self._end, self._end + len(part)
        return start

    def read(self, start: int, size: int = -1) -> bytes:
        self._file.seek(start)
        return self._file.read(size)


class FiledColumns:
    """The long columns of an answer in a file: their sizes in bytes, then their numbers."""

    HEAD = 8 * len(LONG_COLUMNS)
    __slots__ = ("file", "start")

    def __init__(self, file: PartFile, start: int) -> None:
        self.file, self.start = file, start

    @classmethod
    def of(cls, file: PartFile, columns: Sequence[NDArray[Any]]) -> Self:
        sizes = np.array([column.nbytes for column in columns], dtype=np.int64)
        return cls(file, file.add(b"".join([sizes.tobytes(), *(column.tobytes() for column in columns)])))

    def __getitem__(self, place: int) -> NDArray[Any]:
        sizes = np.frombuffer(self.file.read(self.start, self.HEAD), dtype=np.int64)
        _, kind, shape = LONG_COLUMNS[place]
        start = self.start + self.HEAD + int(sizes[:place].sum())
        return np.frombuffer(self.file.read(start, int(sizes[place])), dtype=kind).reshape(shape)


class Answer(msgspec.Struct, kw_only=True, gc=False, array_like=True):
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
    tokens_digest: bytes
    steps_digest: bytes
    text_digest: bytes
    # 3. Counts.
    finish: str
    route: str | None
    is_tree: bool
    is_external: bool
    is_served: bool
    is_drafted_alone: bool
    num_new_tokens: int
    num_loop_tokens: int  # that repeat themselves (records.loops)
    end_passed: tuple[int, int] | None  # the first unused end, and the number of tokens behind it; see `end_passed_by`
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
    rule_seconds: float | None
    tokenizer_seconds: float | None
    cpu_wait_seconds: float | None
    cpu_joules: float | None
    gpu_joules: float | None
    peak_host_bytes: int | None
    peak_device_bytes: int | None
    warm_up: WarmUpRecord | None
    columns: Any  # LONG_COLUMNS as arrays or as FiledColumns; each is a property below
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
        cls, generation: Generation, decodes_with: str = "target", of_record: Mapping[str, Any] = {},
        language: str | None = None, is_baseline: bool = False, unused_ends: Collection[int] = (),
    ) -> Self:  # fmt: skip
        """Returns the numbers of a generation, with each pass under the model that ran it: the decode loop lists all
        passes of a model that decodes alone under the target.

        `decodes_with`: the method's; for "random" the generation names the model in `decoded_by`. `of_record`: the
        fields of `record_fields`. `language`: the code of the language that the text is tested for. `unused_ends`: of
        the target, see `end_passed_by`. Raises ValueError for a generation without `decoded_by`.
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
        if g.truncated_tokens is not None:
            of_record = {**of_record, "truncated_tokens": g.truncated_tokens}
        drafting = steps.drafted > 0
        return cls(
            **of_record,
            tokens_digest=_digest(g.token_ids.tobytes()), steps_digest=_digest(steps.counts.tobytes()),
            text_digest=_digest(g.text.encode("utf-8", "surrogatepass")),
            finish=g.finish, route=g.route, is_tree=g.is_tree, is_external=g.is_external, is_served=g.is_served,
            is_drafted_alone=is_alone, num_new_tokens=g.num_new_tokens, num_loop_tokens=loop_tokens_of(g),
            end_passed=None if is_alone else end_passed_by(g, unused_ends), num_timed_tokens=g.num_timed_tokens,
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
            decode_seconds=g.decode_seconds,
            pass_seconds=sum(draft, sum(target)), target_seconds=sum(target),
            rule_seconds=g.rule_seconds, tokenizer_seconds=g.tokenizer_seconds,
            cpu_wait_seconds=g.cpu_wait_seconds, cpu_joules=g.cpu_joules, gpu_joules=g.gpu_joules,
            peak_host_bytes=g.peak_host_bytes, peak_device_bytes=g.peak_device_bytes,
            warm_up=g.warm_up,
            columns=(
                np.array(draft) if draft else NONE, _token_passes(g.passes.target) if is_baseline else NONE,
                NO_STEPS if g.is_tree or is_alone else _step_kinds(steps), gaps,
                NO_PASSES if g.is_tree or is_alone else _passes_by_width(g.passes.target),
            ),
            passes_by_length=_passes_by_length(g) if g.is_tree and not is_alone else {},
            tree_ranks=g.tree_ranks or (), level_chances=_level_chances(g), score=g.score, scores=g.scores,
            statistics=g.statistics, problem=g.problem, status=g.outcome.get("status"),
            reasoning_tokens=g.reasoning_tokens, reasoning_closed=g.reasoning_closed,
            in_language=None if language is None else _is_in_language(g.answer, language), external=external,
            left_out_own=g.left_out_own,
        )  # fmt: skip

    @property
    def draft_passes(self) -> NDArray[np.float64]:
        """The seconds of each."""
        return self.columns[0]  # type: ignore[no-any-return]

    @property
    def token_passes(self) -> NDArray[np.float64]:
        """The baseline's passes over one token, in seconds."""
        return self.columns[1]  # type: ignore[no-any-return]

    @property
    def step_kinds(self) -> NDArray[np.int64]:
        """[n, 4] of chains: drafted, accepted, emitted tokens, and the number of such steps."""
        return self.columns[2]  # type: ignore[no-any-return]

    @property
    def token_gaps(self) -> NDArray[np.float64]:
        """Of a server: see `latency.token_gaps`."""
        return self.columns[3]  # type: ignore[no-any-return]

    @property
    def passes_by_width(self) -> NDArray[np.float64]:
        """[2, most + 1] of chains: seconds and number of the target's passes."""
        return self.columns[4]  # type: ignore[no-any-return]

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


def _digest(content: bytes) -> bytes:
    return hashlib.sha256(content).digest()[:16]


OF_RECORD = (
    "key", "prompt", "process", "part", "measured_at", "prompt_tokens", "prompt_ids_digest", "reference_digest",
    "num_references",
)  # fmt: skip


def record_fields(record: Record) -> dict[str, Any]:
    """Returns what the answers to a record have in common."""
    reference = record.reference
    return {
        "key": record.key, "prompt": record.prompt,
        "process": None if record.process is None else intern(record.process), "part": record.part,
        "measured_at": record.measured_at, "prompt_tokens": record.prompt_tokens,
        "prompt_ids_digest": record.prompt_ids_digest,
        "reference_digest": bytes_digest([msgspec.json.encode(reference)]),
        "truncated_tokens": record.truncated_tokens,
        "num_references": len(reference) if isinstance(reference, list) else int(bool(reference)),
    }  # fmt: skip


def loop_tokens_of(g: Generation) -> int:
    return count_loop_tokens(g.token_ids[:-1] if g.finish == "eos" else g.token_ids)


def end_passed_by(g: Generation, unused_ends: Collection[int]) -> tuple[int, int] | None:
    """Returns the first token of `unused_ends` before the last token of an answer, and the number of tokens behind it;
    None if there is none. They are special tokens that end texts by their name, but no end tokens of the run."""
    if not unused_ends:
        return None
    ids = np.asarray(g.token_ids)[:-1]
    places = np.flatnonzero(np.isin(ids, list(unused_ends)))
    return (int(ids[places[0]]), len(ids) - int(places[0])) if len(places) else None


def _token_passes(passes: PassTimes) -> NDArray[np.float64]:
    return np.array(passes.seconds)[np.array(passes.query_lengths) == 1] if passes else NONE


def joined(answers: Sequence[Answer], name: str) -> NDArray[np.float64]:
    """Returns the numbers of a long column of all answers, one answer after the other, and holds them once."""
    numbers = bytearray()
    for answer in answers:
        numbers += getattr(answer, name).tobytes()
    return np.frombuffer(numbers, dtype=np.float64)


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
    return [
        _answer(record, record_fields(record), method, decodes_with, languages.get(record.subset)) for record in records
    ]


def _answer(
    record: Record, of_record: Mapping[str, Any], method: str, decodes_with: str, language: str | None,
    unused_ends: Collection[int] = (),
) -> Answer:  # fmt: skip
    try:
        is_baseline = method == BASELINE
        return Answer.of(record.methods[method], decodes_with, of_record, language, is_baseline, unused_ends)
    except ValueError as error:
        raise ValueError(f"record of {record.name}: {method}: {error}") from error


def prompt_of(key: Key) -> Key:
    """Returns the key of the first turn of the first answer to a prompt."""
    return (*key[:3], 0, 0)


Ratings = Mapping[tuple[Key, str], float | None]  # of a judge, by record and method
Languages = Mapping[str, Mapping[str, str | None]]  # the code that texts are tested for, by task and subset


class AnswerFile:
    """A method's answers to a task in files. Their long columns stay there."""

    _encode = msgspec.msgpack.Encoder(
        enc_hook=lambda value: value.start if isinstance(value, FiledColumns) else list(value)
    ).encode
    _decode = msgspec.msgpack.Decoder(Answer).decode

    def __init__(self) -> None:
        self._answers, self._columns = PartFile(), PartFile()

    def file_columns(self, answer: Answer) -> None:
        answer.columns = FiledColumns.of(self._columns, answer.columns)

    def add(self, answer: Answer) -> None:
        """Adds an answer whose columns are in the file."""
        part = self._encode(answer)
        self._answers.add(len(part).to_bytes(8, "little") + part)

    def answers(self) -> Iterator[Answer]:
        content, start = memoryview(self._answers.read(0)), 0
        while start < len(content):
            end = start + 8 + int.from_bytes(content[start : start + 8], "little")
            answer = self._decode(content[start + 8 : end])
            answer.columns = FiledColumns(self._columns, answer.columns)
            yield answer
            start = end


class RunAnswers:
    """The answers of a run by task and method, from one pass over its records.

    Of a run with more than MOST_KEPT answers, memory holds AR's and those of the method that was asked for last; a
    temporary file holds the others. `decodes_with`: of each method. `problems`: how often answers have no score, by
    task and reason. `looping`: the prompts to which some method, AR included, gave an answer with a loop.
    `unused_ends`: see `end_passed_by`.
    """

    def __init__(
        self, decodes_with: Mapping[str, str], languages: Languages, records: RecordStore | None = None,
        unused_ends: Collection[int] = (),
    ) -> None:  # fmt: skip
        self.problems: Counter[tuple[str, str]] = Counter()
        self.looping: set[Key] = set()  # turn and repeat 0
        self._decodes_with, self._languages, self._unused_ends = decodes_with, languages, unused_ends
        self._answers: dict[tuple[str, str], dict[Key, Answer]] = {}
        self._files: dict[tuple[str, str], AnswerFile] = {}
        self._num_answers = 0
        self._ratings: Ratings | None = None
        for record in records.values() if records is not None else ():
            self.add(record)

    def add(self, record: Record) -> None:
        """Raises ValueError, which names the record, for a generation that does not tell which model decoded it."""
        of_record = record_fields(record)
        language = self._languages.get(record.task, {}).get(record.subset)
        for method, generation in record.methods.items():
            self.problems.update([(record.task, generation.problem)] if generation.problem else [])
            answer = _answer(record, of_record, method, self._decodes_with[method], language, self._unused_ends)
            if answer.num_loop_tokens:
                self.looping.add(prompt_of(answer.key))
            self._keep((answer.task, method), answer)

    def _keep(self, place: tuple[str, str], answer: Answer) -> None:
        if place not in self._files:
            self._files[place] = AnswerFile()
        self._files[place].file_columns(answer)
        self._num_answers += 1
        if self._num_answers == MOST_KEPT + 1:
            for other in [other for other in self._answers if other[1] != BASELINE]:
                for each in self._answers.pop(other).values():
                    self._files[other].add(each)
        if place[1] == BASELINE or self._num_answers <= MOST_KEPT:
            self._answers.setdefault(place, {})[answer.key] = answer
        else:
            self._files[place].add(answer)
            self._answers.pop(place, None)  # it is read again

    def keys(self, task: str) -> list[Key]:
        """Returns the keys of a task's records."""
        return list(self._answers.get((task, BASELINE), ()))

    def of(self, keys: Sequence[Key], method: str) -> list[Answer]:
        """Returns a method's answers. Raises KeyError for a record or a method that the run does not have."""
        places = dict.fromkeys((key[0], method) for key in keys)
        if absent := [place for place in places if place in self._files and place not in self._answers]:
            for place in [place for place in self._answers if place[1] != BASELINE and place not in places]:
                del self._answers[place]
            for place in absent:
                self._answers[place] = self._read(place)
        found = [self._answers[key[0], method][key] for key in keys]
        if self._ratings is None:
            return found
        return [
            msgspec.structs.replace(each, scores={**each.scores, JUDGED: self._ratings.get((each.key, method))})
            for each in found
        ]

    def _read(self, place: tuple[str, str]) -> dict[Key, Answer]:
        """Reads answers from their file. What AR's answers have, too, is in memory once."""
        baseline, found = self._answers[place[0], BASELINE], {}
        for answer in self._files[place].answers():
            known = baseline[answer.key]
            for name in OF_RECORD:
                setattr(answer, name, getattr(known, name))
            found[answer.key] = answer
        return found

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
