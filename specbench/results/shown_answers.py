"""The answers of a recorded run, one prompt at a time: why an answer got its score.

Records hold a digest of each prompt and not its text, which may be private and as large as all else. The prompts are
rendered again from the task, its data and the target's tokenizer, and are shown only if they have the digest.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from specbench.core.console import counted
from specbench.core.errors import ConfigError, nearest
from specbench.models.causal_lm import split_precision
from specbench.results.conditions import BASELINE
from specbench.results.recorded_prompts import Group, ModelLoader, prompts_of
from specbench.results.row import ALL, Row
from specbench.results.runs import RecordedRun
from specbench.running.records import Generation, Key, Record, record_key
from specbench.running.samples import ShownPrompt

NOT_TEXTS = ("finish", "problem", "decoded_by", "route")  # keys of a generation with a word instead of a text


@dataclass(frozen=True)
class ShownAnswer:
    """A method's answer. `texts`: the answer's texts by key (`text`, and others such as the reasoning before it).
    `reasons`: what its scorer says about it: `problem`, and the parts of `outcome`."""

    method: str
    score: float | None
    scores: dict[str, float | None]
    finish: str
    num_tokens: int
    texts: dict[str, str]
    reasons: dict[str, str]

    @classmethod
    def of(cls, method: str, generation: Generation) -> "ShownAnswer":
        texts = {key: value for key, value in generation.items() if isinstance(value, str) and key not in NOT_TEXTS}
        problem = {"problem": generation["problem"]} if generation.get("problem") else {}
        return cls(
            method, generation["score"], dict(generation.get("scores", {})), generation["finish"],
            len(generation["token_ids"]), texts, {**problem, **generation.get("outcome", {})},
        )  # fmt: skip

    @property
    def heading(self) -> str:
        scores = self.scores or {"score": self.score}
        shown = ", ".join(f"{name} {'–' if value is None else f'{value:g}'}" for name, value in scores.items())
        return f"{self.method}: {shown}; {counted(self.num_tokens, 'token')}, ended by {self.finish}"


@dataclass(frozen=True)
class ShownRecord:
    """A recorded prompt with the answers of AR and the methods. `prompt`: None if it could not be rendered again.
    `prompt_tokens`: the number of its tokens for AR; in later turns, methods have their own earlier answers in it."""

    task: str
    subset: str
    id: str
    repeat: int
    turn: int
    prompt_tokens: int
    prompt: ShownPrompt | None
    reference: Any
    answers: tuple[ShownAnswer, ...]

    @classmethod
    def of(cls, record: Record, methods: Collection[str], prompt: ShownPrompt | None = None) -> "ShownRecord":
        answers = tuple(ShownAnswer.of(name, own) for name, own in record["methods"].items() if name in methods)
        return cls(
            record["task"], record["subset"], str(record["id"]), record["repeat"], record.get("turn", 0),
            record.get("prompt_tokens", 0), prompt, record["reference"], answers,
        )  # fmt: skip

    @property
    def heading(self) -> str:
        repeat = f", repeat {self.repeat}" if self.repeat else ""
        return f"{self.task}/{self.subset} example {self.id}{f', turn {self.turn + 1}' if self.turn else ''}{repeat}"

    def lines(self) -> Iterator[str]:
        """Yields the record as lines for a terminal."""
        yield self.heading
        if self.prompt is None:
            yield f"prompt, {counted(self.prompt_tokens, 'token')}: not shown"
        else:
            yield from self.prompt.lines(with_ids=False)
        yield f"reference: {self.reference}"
        for answer in self.answers:
            yield answer.heading
            for name, text in answer.texts.items():
                yield f"{name}:\n{text}" if len(answer.texts) > 1 else text
            yield from (f"{name}: {text}" for name, text in answer.reasons.items())


@dataclass(frozen=True)
class Selection:
    """The records to show. `subsets`, `examples` (ids), `methods`: all if empty. `only_wrong`: those in which an answer
    has no score, or one below 1. `limit`: at most so many; None: all."""

    subsets: tuple[str, ...] = ()
    examples: tuple[str, ...] = ()
    methods: tuple[str, ...] = ()
    only_wrong: bool = False
    limit: int | None = None


@dataclass(frozen=True)
class ShownRun:
    """The chosen records of a run. `num_matching`: how many match, with those beyond the limit. `problems`: why prompts
    are not shown."""

    records: tuple[ShownRecord, ...]
    num_matching: int
    problems: tuple[str, ...]


def shown_run(
    run: RecordedRun, selection: Selection, data: str | None = None, trust_remote_code: bool = False
) -> ShownRun:
    """Returns the chosen records of a finished run with their prompts. `data`: see `prompts_of`. Raises ConfigError for
    a name that no record has."""
    rows = {(row.task_name, row.subset): row for row in run.rows_of(BASELINE) if row.subset != ALL and not row.level}
    records = [record for row in rows.values() for record in run.records_of_row(row)]
    known: dict[str, tuple[Sequence[str], Callable[[Record], Collection[str]]]] = {
        "--subset": (selection.subsets, lambda record: [record["subset"]]),
        "--example": (selection.examples, lambda record: [str(record["id"])]),
        "--method": (selection.methods, lambda record: record["methods"]),
    }
    for option, (wanted, names_of) in known.items():
        names = dict.fromkeys(name for record in records for name in names_of(record))
        for name in wanted:
            if name not in names:
                raise ConfigError(f"{option} {name}: no record of '{run.path}' has it: {nearest(name, names)}")
        records = [record for record in records if not wanted or set(wanted) & set(names_of(record))]
    methods = selection.methods or tuple(run.methods)
    if selection.only_wrong:
        records = [record for record in records if any(map(_is_wrong, _chosen(record, methods)))]
    chosen = list(islice(records, selection.limit))
    prompts, problems = _prompts(run, rows, chosen, data, trust_remote_code)
    shown = tuple(ShownRecord.of(record, methods, prompts.get(record_key(record))) for record in chosen)
    return ShownRun(shown, len(records), tuple(problems))


def _chosen(record: Record, methods: Sequence[str]) -> list[Generation]:
    return [own for name, own in record["methods"].items() if name in methods]


def _is_wrong(generation: Generation) -> bool:
    return generation["score"] is None or generation["score"] < 1


def _prompts(
    run: RecordedRun, rows: Mapping[Group, Row], records: Sequence[Record], data: str | None, trust_remote_code: bool
) -> tuple[dict[Key, ShownPrompt], list[str]]:
    """Returns the prompts of records as AR read them, and a line for each subset whose prompts cannot be rendered."""
    found: dict[Key, ShownPrompt] = {}
    problems = []
    for group in dict.fromkeys((record["task"], record["subset"]) for record in records):
        row, own = rows[group], [record for record in records if (record["task"], record["subset"]) == group]
        loader = ModelLoader("cpu", *split_precision(row.dtype), trust_remote_code=trust_remote_code, weights=False)
        try:
            target = loader.load(row.target, row.target_revision)
            budgets = {name for record in own for name in record.get("budgets", {})} - {target.name}
            keys = {group: [record_key(record) for record in own]}
            others = [loader.load(name) for name in budgets]
            for key, prompt in prompts_of(run, rows, keys, target, others, data).items():
                found[key] = ShownPrompt.of(target, list(prompt.prompt_ids))
        except ConfigError as error:  # the data or the tokenizer are not here, or have changed
            problems.append(f"prompts of {'/'.join(group)} are not shown: {error}")
    return found, problems
