"""What a model was asked and what it answered, as terminals and pages show it. Needs no torch."""

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple

from specbench.core.console import counted
from specbench.core.errors import ConfigError, nearest
from specbench.core.values import text_digest
from specbench.models.near_ties import first_difference
from specbench.records.records import Generation, Key, Record
from specbench.results.answers import BASELINE
from specbench.results.metric_format import score_of_answer
from specbench.results.row import ALL, Row
from specbench.results.runs import RecordedRun
from specbench.tasks.scoring import Scorer, explained, make_scorer

NOT_TEXTS = ("finish", "problem", "decoded_by", "route")  # keys of a generation with a word instead of a text


@dataclass(frozen=True)
class ShownPrompt:
    """A prompt as a model reads it. `text`: all tokens as text, special ones too; some tokenizers change case or
    blanks, so it may differ from the text that was given to them."""

    text: str
    ids: list[int]

    @classmethod
    def of(cls, tokenizer: Any, ids: list[int]) -> "ShownPrompt":
        return cls(tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False), ids)

    def lines(self, with_ids: bool = True) -> Iterator[str]:
        yield f"prompt, {counted(len(self.ids), 'token')}:"
        yield self.text
        yield ""  # without a chat template, nothing else marks the end of the prompt
        if with_ids:
            yield f"ids: {' '.join(map(str, self.ids))}"


@dataclass(frozen=True)
class ShownAnswer:
    """A method's answer. `texts`: the answer's texts by key (`text`, and others such as the reasoning before it).
    `reasons`: why it got its scores: `problem`, the parts of `outcome`, or as `reason` what its scorer read in it.
    `same_tokens`: the number of first tokens that it shares with AR's answer; None for AR itself. `equals_ar`: whether
    these are all tokens of both."""

    method: str
    score: float | None
    scores: dict[str, float | None]
    finish: str
    num_tokens: int
    texts: dict[str, str]
    reasons: dict[str, str]
    same_tokens: int | None = None
    equals_ar: bool = False

    @classmethod
    def of(
        cls, method: str, generation: Generation, reference: Any, scorer: Scorer | None, plain: Generation | None = None
    ) -> "ShownAnswer":  # fmt: skip
        """`plain`: AR's answer to the same prompt; None for AR itself."""
        texts = {
            key: value for key, value in generation.as_json().items() if isinstance(value, str) and key not in NOT_TEXTS
        }
        reasons = {"problem": generation.problem, **generation.outcome}
        if not generation.reasoning_closed:
            reasons["reason"] = "cut inside its reasoning, so the answer is empty"
        elif scorer is not None and reference is not None and "reason" not in reasons:
            reasons["reason"] = explained(scorer, generation.answer, reference)
        same_tokens = place = None
        if plain is not None:
            place = first_difference(generation.token_ids, plain.token_ids)
            same_tokens = len(generation.token_ids) if place is None else place
        return cls(
            method, generation.score, dict(generation.scores), generation.finish, len(generation.token_ids), texts,
            {name: text for name, text in reasons.items() if text},
            same_tokens, plain is not None and place is None,
        )  # fmt: skip

    @property
    def heading(self) -> str:
        scores = self.scores or {"score": self.score}
        shown = ", ".join(f"{name} {score_of_answer(value, name)}" for name, value in scores.items())
        return f"{self.method}: {shown}; {counted(self.num_tokens, 'token')}, ended by {self.finish}"


class PartedText(NamedTuple):
    """An answer's text: what AR's begins with too, the first word that differs, and the rest. `is_parted`: whether
    there is a difference; an answer may also end where AR's goes on."""

    same: str
    different: str = ""
    rest: str = ""
    is_parted: bool = False


@dataclass(frozen=True)
class ShownRecord:
    """A recorded prompt with the answers of AR and the methods. `prompt`: None if it could not be rendered again.
    `prompt_tokens`: the number of its tokens for AR; in later turns, methods have their own earlier answers in it.
    `language`: the code of the language in which answers are asked for; None if the task names none."""

    task: str
    subset: str
    id: str
    repeat: int
    turn: int
    prompt_tokens: int
    prompt: ShownPrompt | None
    reference: Any
    answers: tuple[ShownAnswer, ...]
    language: str | None = None

    @classmethod
    def of(
        cls, record: Record, methods: Collection[str], prompt: ShownPrompt | None = None, scorer: Scorer | None = None,
        language: str | None = None,
    ) -> "ShownRecord":  # fmt: skip
        """Returns a record. `scorer`: that of its task, which says what it read in the answers."""
        plain = record.methods.get(BASELINE)
        answers = tuple(
            ShownAnswer.of(name, own, record.reference, scorer, None if name == BASELINE else plain)
            for name, own in record.methods.items() if name in methods
        )  # fmt: skip
        return cls(
            record.task, record.subset, str(record.id), record.repeat, record.turn, record.prompt_tokens or 0, prompt,
            record.reference, answers, language,
        )  # fmt: skip

    @property
    def heading(self) -> str:
        repeat = f", repeat {self.repeat}" if self.repeat else ""
        return f"{self.place} example {self.id}{f', turn {self.turn + 1}' if self.turn else ''}{repeat}"

    @property
    def place(self) -> str:
        return f"{self.task}/{self.subset}"

    @property
    def anchor(self) -> str:
        return anchor_of(self)

    @property
    def references(self) -> dict[str, str]:
        """The texts of the reference by their names: its parts if it is a mapping, and all texts of a list."""
        if isinstance(self.reference, dict):
            return {f"reference, {name}": str(text).strip("\n") for name, text in self.reference.items()}
        if isinstance(self.reference, list) and len(self.reference) > 1:
            return {f"reference {number}": str(text) for number, text in enumerate(self.reference, 1)}
        only = self.reference[0] if isinstance(self.reference, list) and self.reference else self.reference
        return {"reference": str(only)}

    @property
    def same_as_ar(self) -> tuple[str, ...]:
        """The methods whose answers have exactly AR's tokens, if AR's answer is shown too."""
        has_ar = any(answer.method == BASELINE for answer in self.answers)
        return tuple(answer.method for answer in self.answers if answer.equals_ar and has_ar)

    def parted(self, answer: ShownAnswer, key: str) -> PartedText:
        """Returns a text of an answer at its first difference from AR's text of this key. AR's own text, and one with
        which none compares, has no difference."""
        text = answer.texts[key]
        plain = next((each.texts.get(key) for each in self.answers if each.method == BASELINE), None)
        place = None if answer.method == BASELINE or plain is None else first_difference(text, plain)
        if place is None:
            return PartedText(text)
        word = re.compile(r"\s*\S+|\s+").match(text, place)
        end = place if word is None else word.end()
        return PartedText(text[:place], text[place:end], text[end:], is_parted=True)

    def lines(self) -> Iterator[str]:
        """Yields the record as lines for a terminal."""
        yield self.heading
        if self.prompt is None:
            yield f"prompt, {counted(self.prompt_tokens, 'token')}: not shown"
        else:
            yield from self.prompt.lines(with_ids=False)
        for name, text in self.references.items():
            yield f"{name}:\n{text}" if "\n" in text else f"{name}: {text}"
        for answer in self.answers:
            yield answer.heading
            for name, text in answer.texts.items():
                yield f"{name}:\n{text}" if len(answer.texts) > 1 else text
            yield from (f"{name}: {text}" for name, text in answer.reasons.items())


def anchor_of(record: Record | ShownRecord) -> str:
    """Returns the address of a record within a page."""
    return f"record-{text_digest(f'{record.task}/{record.subset} {record.id} {record.repeat} {record.turn}')}"


@dataclass(frozen=True)
class Selection:
    """The records to show. `subsets`, `examples` (ids), `methods`: all if empty. `only_wrong`: those in which an answer
    has no score, or one below 1. `limit`, `limit_by_subset`: at most so many, in all and of each subset; None: all."""

    subsets: tuple[str, ...] = ()
    examples: tuple[str, ...] = ()
    methods: tuple[str, ...] = ()
    only_wrong: bool = False
    limit: int | None = None
    limit_by_subset: int | None = None


@dataclass(frozen=True)
class ShownRun:
    """The chosen records of a run. `num_matching`: how many match, with those beyond the limit. `problems`: why prompts
    or reasons are not shown."""

    records: tuple[ShownRecord, ...]
    num_matching: int
    problems: tuple[str, ...]


RowsByPlace = Mapping[tuple[str, str], Row]  # a row of a run for each task and subset
# Returns the prompts of records of a run by key, and the reasons why some are not known.
Prompts = Callable[[RecordedRun, RowsByPlace, Sequence[Record]], tuple[Mapping[Key, ShownPrompt], Sequence[str]]]


def no_prompts(
    run: RecordedRun, rows: RowsByPlace, records: Sequence[Record]
) -> tuple[Mapping[Key, ShownPrompt], Sequence[str]]:
    return {}, ()


def shown_run(
    run: RecordedRun, selection: Selection, prompts: Prompts = no_prompts, rows: Sequence[Row] | None = None
) -> ShownRun:
    """Returns the chosen records of a run. `prompts`: makes their prompts
    (`specbench.running.recorded_prompts.rendered_prompts`, which needs torch). `rows`: of the run, whose records are
    shown; by default those in its folder. Raises ConfigError for a name that no record has."""
    by_place: dict[tuple[str, str], Row] = {}
    for row in run.rows if rows is None else rows:
        if row.subset != ALL and not row.level:
            by_place.setdefault((row.task_name, row.subset), row)
    records = [record for row in by_place.values() for record in run.records_of_row(row)]
    known: dict[str, tuple[Sequence[str], Callable[[Record], Collection[str]]]] = {
        "--subset": (selection.subsets, lambda record: [record.subset]),
        "--example": (selection.examples, lambda record: [str(record.id)]),
        "--method": (selection.methods, lambda record: record.methods),
    }
    for option, (wanted, names_of) in known.items():
        names = dict.fromkeys(name for record in records for name in names_of(record))
        for name in wanted:
            if name not in names:
                raise ConfigError(f"{option} {name}: no record of '{run.path}' has it: {nearest(name, names)}")
        records = [record for record in records if not wanted or set(wanted) & set(names_of(record))]
    methods = selection.methods or tuple(run.methods)
    if selection.only_wrong:
        records = [
            record for record in records
            if any((g.score is None or g.score < 1) for name, g in record.methods.items() if name in methods)
        ]  # fmt: skip
    by_subset: dict[tuple[str, str], list[Record]] = {}
    for record in records:
        by_subset.setdefault((record.task, record.subset), []).append(record)
    kept = (record for same in by_subset.values() for record in same[: selection.limit_by_subset])
    chosen = list(islice(kept, selection.limit))
    shown_prompts, reasons = prompts(run, by_place, chosen)
    problems = list(reasons)
    # What the scorers read in the answers.
    scorers: dict[tuple[str, str], Scorer | None] = {}
    try:
        for record in chosen:
            group = record.task, record.subset
            if group not in scorers:
                scorers[group] = make_scorer(run.task_of(by_place[group]).subset(group[1]))
    except ConfigError as error:  # the scorer's package is not here, or has changed
        problems.append(f"what was read in the answers is not shown: {error}")
    shown = tuple(
        ShownRecord.of(
            record, methods, shown_prompts.get(record.key), scorers.get((record.task, record.subset)),
            by_place[record.task, record.subset].language,
        )
        for record in chosen
    )  # fmt: skip
    return ShownRun(shown, len(records), tuple(problems))
