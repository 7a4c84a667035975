"""The examples of a task: its rows made into prompts."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Literal, TypeVar

from specbench.core.errors import ConfigError
from specbench.specs import templates
from specbench.specs.task import TaskSpec
from specbench.tasks.local_files import Row
from specbench.tasks.prompts import (
    NO_SHOTS,
    FewshotInfo,
    load_fewshot,
    read_reference,
    render,
    sample_prefix,
    split_turns,
)
from specbench.tasks.scoring.contract import Reference
from specbench.tasks.sources import NoRows, Source, open_source, read_task_rows

AnyExample = TypeVar("AnyExample")


@dataclass(frozen=True)
class Example:
    """The prompts of one row. `turns`: the prompts in order; `references`: a right answer for each turn, or None.

    index: the number of the example in its subset, from 0. id: the row's `id`, else the index. truncated_tokens: how
    many target tokens were cut from the first turn because it was too long. judge_sees_reference: whether a judge of
    the answers sees the references.
    """

    index: int
    id: str
    turns: tuple[str, ...]
    references: tuple[Reference | None, ...]
    truncated_tokens: int = 0
    judge_sees_reference: bool = False

    @property
    def prompt(self) -> str:
        """Returns the first turn."""
        return self.turns[0]

    @property
    def reference(self) -> Reference | None:
        return self.references[0]


@dataclass(frozen=True)
class TaskData:
    """Examples and their origin. `revision`: the commit on the hub, or the digest of the files' bytes. `num_rows`: the
    number of rows of the subset in the bundled sample; None for other data."""

    source: Literal["hub", "local", "sample"]
    location: str
    revision: str | None
    examples: tuple[Example, ...]
    fewshot: FewshotInfo = NO_SHOTS
    num_rows: int | None = None


def load_examples(
    task: TaskSpec, subset: str, *, data: str | None, use_sample: bool, limit: int | float | None, num_subsets: int = 1
) -> TaskData:
    """Returns the first `limit` examples of a subset; a limit below 1 is a share of them.

    data: "hub", "sample", a folder or a file; None: the bundled sample if `use_sample`, else the hub. num_subsets: how
    many subsets the run takes from the same data; if there are several, a file without a `subset` column is refused.
    Raises ConfigError for anything wrong with the data.
    """
    merged = task.subset(subset)
    load_own_examples = merged.scorer.features.examples if merged.scorer is not None else None
    if load_own_examples is not None and merged.scorer is not None:  # a task of another harness
        loaded: TaskData = load_own_examples(data=data, limit=max_examples(limit), **merged.scorer.options)
        return replace(loaded, examples=tuple(take_first(loaded.examples, limit)))
    place = data or ("sample" if use_sample else "hub")
    return make_examples(task, subset, open_source(task, subset, place, num_subsets), place, limit)


def make_examples(task: TaskSpec, subset: str, source: Source, place: str, limit: int | float | None) -> TaskData:
    """Returns the first `limit` examples made from the rows of a source. `place`: where few-shot examples come from."""
    merged = task.subset(subset)
    shots = load_fewshot(task, subset, place)
    task_rows = source.limit_rows(read_task_rows(merged, source))
    rows = list(islice(task_rows, max_examples(limit)))
    num_rows = len(rows) + sum(1 for _ in task_rows) if source.kind == "sample" else None
    first_rows = take_first(rows, limit)
    examples = tuple(_make_example(merged, index, *pair, shots.prefix) for index, pair in enumerate(first_rows))
    shots.check(merged, first_rows)
    if not examples:
        raise NoRows(f"{source.location}: no rows are left of subset '{subset}': check the data and the reader")
    return TaskData(source.kind, source.location, source.revision, examples, shots.fewshot, num_rows)


def max_examples(limit: int | float | None) -> int | None:
    """Returns the number of examples to read for a limit; None if all must be read, also for a share."""
    return None if limit is None or limit < 1 else int(limit)


def take_first(examples: Sequence[AnyExample], limit: int | float | None) -> Sequence[AnyExample]:
    """Returns the first `limit` examples, or this share of them, rounded up."""
    num = max_examples(limit)
    return examples[: math.ceil(limit * len(examples)) if limit is not None and num is None else num]


def sample_prompts(task: TaskSpec, row: Row) -> tuple[str, ...]:
    """Returns the prompts of a row of the bundled sample, one per turn, with the few-shot examples before the first.

    `task`: merged with its subset. The row's column `subset` selects the few-shot examples.
    """
    turns = _render_turns(task, row, "row")
    prefix = sample_prefix(task.model_dump_json(), row.get("subset")) if task.fewshot else ""
    return (prefix + turns[0], *turns[1:])


def _render_turns(task: TaskSpec, row: Row, place: str) -> tuple[str, ...]:
    return tuple(render(task, "prompt", task.prompt, place, turn) for turn in split_turns(task, row, place))


def _make_example(task: TaskSpec, index: int, place: str, row: Row, prefix: str) -> Example:
    turns = _render_turns(task, row, place)
    references = tuple(read_reference(task, turn, place) for turn in split_turns(task, row, place))
    identity = str(index if row.get("id") is None else row["id"])
    if templates.SURROGATE.search(identity):
        raise ConfigError(f"{place}: the id is not valid Unicode (half of a surrogate pair): correct it")
    if task.judge_reference_categories and "category" not in row:
        raise ConfigError(f"{place}: no column 'category', which judge_reference_categories needs: add it")
    sees_reference = row.get("category") in task.judge_reference_categories
    return Example(index, identity, (prefix + turns[0], *turns[1:]), references, judge_sees_reference=sees_reference)
