"""The examples of a task: its rows made into prompts."""

from dataclasses import dataclass
from itertools import islice
from typing import Literal

from specbench.core.errors import ConfigError
from specbench.specs import templates
from specbench.specs.task import TaskSpec
from specbench.tasks.local_files import Row
from specbench.tasks.prompts import NO_SHOTS, FewshotInfo, load_fewshot, reference_of, render, sample_prefix, turns_of
from specbench.tasks.scoring.contract import Reference
from specbench.tasks.sources import NoRows, Source, open_source, rows_of


@dataclass(frozen=True)
class Example:
    """The prompts of one row: its `turns` in order, and for each the right answer, or None if there is none.

    index: counts the examples of its subset from 0. id: the row's own, else the index. truncated_tokens: the tokens of
    the target that the first turn lost because it was too long. judge_sees_reference: whether a judge of the answers is
    shown the references.
    """

    index: int
    id: str
    turns: tuple[str, ...]
    references: tuple[Reference | None, ...]
    truncated_tokens: int = 0
    judge_sees_reference: bool = False

    @property
    def prompt(self) -> str:
        """Returns the first turn, which follows no answer."""
        return self.turns[0]

    @property
    def reference(self) -> Reference | None:
        return self.references[0]


@dataclass(frozen=True)
class TaskData:
    """Examples and their origin. `revision`: the commit on the hub; for files the digest of their bytes. `num_rows`: of
    the subset in the bundled sample; None for other data."""

    source: Literal["hub", "local", "sample"]
    location: str
    revision: str | None
    examples: tuple[Example, ...]
    fewshot: FewshotInfo = NO_SHOTS
    num_rows: int | None = None


def load_examples(
    task: TaskSpec, subset: str, *, data: str | None, use_sample: bool, limit: int | None, num_subsets: int = 1
) -> TaskData:
    """Returns the first `limit` examples of a subset.

    data: "hub", "sample", a folder or a file; None: the bundled sample if `use_sample`, else the hub. num_subsets: how
    many subsets the run takes from the same data, so that one file without a `subset` column is not measured under
    several names. Raises ConfigError for anything wrong with the data.
    """
    chosen = task.subset(subset)
    make_examples = chosen.scorer.features.examples if chosen.scorer is not None else None
    if make_examples is not None and chosen.scorer is not None:  # a task of another harness
        made: TaskData = make_examples(data=data, limit=limit, **chosen.scorer.options)
        return made
    place = data or ("sample" if use_sample else "hub")
    return examples_from(task, subset, open_source(task, subset, place, num_subsets), place, limit)


def examples_from(task: TaskSpec, subset: str, source: Source, place: str, limit: int | None) -> TaskData:
    """Returns the first `limit` examples that the rows of a source make. `place`: where few-shot examples come from."""
    chosen = task.subset(subset)
    shots = load_fewshot(task, subset, place)
    found = source.limited(rows_of(chosen, source))
    rows = list(islice(found, limit))
    num_rows = len(rows) + sum(1 for _ in found) if source.kind == "sample" else None
    examples = tuple(_example(chosen, index, *pair, shots.prefix) for index, pair in enumerate(rows))
    shots.check(chosen, rows)
    if not examples:
        raise NoRows(f"{source.location}: no rows are left of subset '{subset}': check the data and the reader")
    return TaskData(source.kind, source.location, source.revision, examples, shots.fewshot, num_rows)


def prompts_of(task: TaskSpec, row: Row) -> tuple[str, ...]:
    """Returns the prompts of a row of the bundled sample, one per turn, with the few-shot examples before the first.

    `task` is merged with its subset; the row's column `subset` selects the few-shot examples.
    """
    turns = _turns(task, row, "row")
    prefix = sample_prefix(task.model_dump_json(), row.get("subset")) if task.fewshot else ""
    return (prefix + turns[0], *turns[1:])


def _turns(task: TaskSpec, row: Row, place: str) -> tuple[str, ...]:
    return tuple(render(task, "prompt", task.prompt, place, turn) for turn in turns_of(task, row, place))


def _example(task: TaskSpec, index: int, place: str, row: Row, prefix: str) -> Example:
    turns = _turns(task, row, place)
    references = tuple(reference_of(task, turn, place) for turn in turns_of(task, row, place))
    identity = str(index if row.get("id") is None else row["id"])
    if templates.SURROGATE.search(identity):
        raise ConfigError(f"{place}: the id is not valid Unicode (half of a surrogate pair): correct it")
    if task.judge_reference_categories and "category" not in row:
        raise ConfigError(f"{place}: no column 'category', which judge_reference_categories needs: add it")
    sees = row.get("category") in task.judge_reference_categories
    return Example(index, identity, (prefix + turns[0], *turns[1:]), references, judge_sees_reference=sees)
