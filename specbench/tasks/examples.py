"""The examples of a task: its rows made into prompts and right answers, and the few-shot examples before them."""

import math
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, Literal, TypeVar

from specbench.core.errors import ConfigError, nearest
from specbench.core.values import text_digest
from specbench.specs import templates
from specbench.specs.task import TaskSpec
from specbench.tasks.local_files import Row
from specbench.tasks.scoring import Reference
from specbench.tasks.sources import Kind, NoRows, Source, open_source, read_task_rows

AnyExample = TypeVar("AnyExample")


def split_turns(task: TaskSpec, row: Row, place: str) -> Iterator[Row]:
    """Yields the row once per turn, with the columns `turn` and `turn_index`; unchanged if the task has no turns.
    Raises ConfigError naming `place` if the column of the turns is not a list of texts."""
    if task.turns is None:
        yield row
        return
    if task.turns not in row:
        raise _no_column(place, task.turns, row, "which lists the turns")
    turns = row[task.turns]
    if not isinstance(turns, list) or not turns or not all(isinstance(t, str) and t.strip() for t in turns):
        raise ConfigError(f"{place}: column '{task.turns}' must be a list of texts, one per turn: correct it")
    for number, turn in enumerate(turns):
        yield {**row, "turn": turn, "turn_index": number}


def render(task: TaskSpec, key: str, template: str, place: str, row: Row) -> str:
    """Returns the filled template. Raises ConfigError naming file, row and column if the row does not fit."""
    for column in sorted(templates.always_used(template, "row") & set(row)):
        if templates.is_empty(row[column]):
            raise ConfigError(
                f"{place}: column '{column}' is empty, which the {key} needs: fill it in, or write a template that "
                f"tests {{% if row.{column} %}}"
            )
    try:
        text = templates.render(template, row, task.vars)
    except Exception as error:  # a template is a program: it may fail in any way
        raise _template_error(task, key, template, place, row, error) from error
    if not text.strip():
        columns = sorted(templates.used(template, "row") & set(row))
        raise ConfigError(f"{place}: the {key} comes out empty: fill in {', '.join(columns)}")
    return text


def _template_error(task: TaskSpec, key: str, template: str, place: str, row: Row, error: Exception) -> ConfigError:
    missing = sorted(name for name in templates.used(template, "row") if row.get(name) is None)
    if not missing:
        reason = ": ".join(filter(None, (type(error).__name__, str(error))))
        used = sorted(templates.used(template, "vars") & set(task.vars))
        given = ", ".join(f"vars.{name} = {task.vars[name]!r:.60}" for name in used)
        return ConfigError(
            f"{place}: the {key} of task '{task.name}' fails{given and f' ({given})'}: {reason}: correct the template, "
            "the row or the vars (--set vars.NAME=VALUE)"
        )
    if missing[0] in row:
        return ConfigError(f"{place}: column '{missing[0]}' is empty, which the {key} needs: fill it in")
    return _no_column(place, missing[0], row, f"which the {key} needs", "rename or add it")


def _no_column(place: str, column: str, row: Row, use: str, remedy: str = "add it") -> ConfigError:
    return ConfigError(f"{place}: no column '{column}', {use}: {nearest(column, map(str, row))}: {remedy}")


def read_reference(task: TaskSpec, row: Row, place: str) -> Reference | None:
    """Returns the reference of one turn: a text, texts by name, or a list of texts any of which is right. Returns None
    if the value is null, NaN, blank, or an empty list. Raises ConfigError naming `place` if a column is missing or has
    another type."""
    # 1. A column lists them; in a conversation, those of each turn.
    if column := task.references:
        if column not in row:
            raise _no_column(place, column, row, "which lists the references")
        value = row[column]
        if "turn_index" in row and isinstance(value, list):
            value = value[row["turn_index"]] if row["turn_index"] < len(value) else None
        values = value if isinstance(value, list) else [value]
        given = [value for value in values if not templates.is_empty(value)]
        if not all(isinstance(value, (str, int, float)) and not isinstance(value, bool) for value in given):
            raise ConfigError(f"{place}: column '{column}' must be a list of texts: correct it")
        return [str(value) for value in given] or None
    # 2. Templates make them.
    parts: dict[str, str] = {}
    for key, template in task.reference_templates().items():
        needed = templates.always_used(template, "row") & set(row)
        if any(templates.is_empty(row[column]) or row[column] == [] for column in needed):
            return None
        try:
            parts[key.removeprefix("reference.")] = templates.render(template, row, task.vars)
        except templates.NullValue:
            return None
        except Exception as error:  # a template is a program: it may fail in any way
            raise _template_error(task, key, template, place, row, error) from error
    if not any(text.strip() for text in parts.values()):
        return None
    return parts["reference"] if isinstance(task.reference, str) else parts


@dataclass(frozen=True)
class FewshotInfo:
    """The few-shot examples as a leaderboard row records them (`results.row.RowShots`). `checked`: whether all measured
    rows were checked against them."""

    num: int = 0
    source: Kind | Literal["task"] | None = None
    location: str | None = None
    digest: str | None = None
    checked: bool = True


NO_SHOTS = FewshotInfo()


@dataclass(frozen=True)
class FewshotPrefix:
    """The few-shot examples before every prompt. `prefix`: their text; `questions`: their normalized questions."""

    prefix: str = ""
    questions: frozenset[str] = frozenset()
    fewshot: FewshotInfo = NO_SHOTS


def normalized_question(task: TaskSpec, row: Row, place: str) -> str:
    """Returns the question of the first turn of a row: the column `fewshot.question_column`; without that key, all
    columns that the prompt uses; if it uses none, the prompt. Blanks, case, the width of letters and the order of lists
    (of options) do not matter."""
    row = next(split_turns(task, row, place))
    prompt = render(task, "prompt", task.prompt, place, row)
    column = task.fewshot and task.fewshot.question_column
    if column and column not in row:
        raise _no_column(place, column, row, "which fewshot.question_column names", "correct it")
    columns = [column] if column else sorted(templates.used(task.prompt, "row"))
    return normalize_value([row.get(name) for name in columns] or prompt)


def normalize_value(value: Any) -> str:
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        return repr(sorted(map(normalize_value, value)))
    return " ".join(unicodedata.normalize("NFKC", str(value)).casefold().split())


def load_fewshot(task: TaskSpec, subset: str, data: str) -> FewshotPrefix:
    """Returns the few-shot examples of a subset, taken from the same data as its rows. `data`: "sample", "hub", a
    folder or a file."""
    merged = task.subset(subset)
    spec = merged.fewshot
    if spec is None or spec.num_shots == 0:
        return FewshotPrefix()
    origin: tuple[Kind | Literal["task"], str] = "task", task.name
    shots = [(f"fewshot.rows, row {n}", row) for n, row in enumerate(spec.rows[: spec.num_shots], start=1)]
    if (shots_task := fewshot_task(task, subset, data)) is not None:
        source = open_source(shots_task, subset, data, num_subsets=1)
        origin = source.kind, source.location
        shots = list(islice(read_task_rows(shots_task, source), spec.num_shots))
    if len(shots) < spec.num_shots:
        problem = f"holds {len(shots)} few-shot examples, but fewshot.num_shots = {spec.num_shots}"
        raise ConfigError(f"{origin[1]}: {problem}: lower it")
    texts = [render(merged, "fewshot.example", spec.example, place, row) for place, row in shots]
    questions = frozenset(normalized_question(merged, row, place) for place, row in shots)
    prefix = "".join(text + spec.separator for text in texts)
    return FewshotPrefix(prefix, questions, FewshotInfo(spec.num_shots, *origin, text_digest(prefix)))


def fewshot_task(task: TaskSpec, subset: str, data: str) -> TaskSpec | None:
    """Returns a copy of the task whose rows are a subset's few-shot examples; None if the task itself gives them, or
    has none. Raises ConfigError if `data` has none."""
    merged = task.subset(subset)
    problem = None
    spec = merged.fewshot
    if spec is None or spec.num_shots == 0 or spec.rows:
        return None
    if data == "sample":
        problem = None if spec.sample else "have no bundled sample (fewshot.sample)"
    elif data == "hub":
        problem = None if spec.split or spec.data_files else "have no split on the hub (fewshot.split)"
    elif Path(data).is_file():
        problem = "are not in the one file that --data names: give the folder that holds both"
    elif spec.local is None:
        problem = "have no local files (fewshot.local.files)"
    if problem:
        raise ConfigError(
            f"task '{task.name}': its few-shot examples {problem}, write fewshot.rows, or leave them out with "
            "--set fewshot.num_shots=0"
        )
    changes: dict[str, object] = {"first_rows": None, "last_rows": None}
    changes |= {key: value for key, value in (("split", spec.split), ("data_files", spec.data_files)) if value}
    dataset = merged.dataset and merged.dataset.model_copy(update=changes)
    places = {"dataset": dataset, "local": spec.local or merged.local, "sample": spec.sample, "fewshot": None}
    return merged.model_copy(update={**places, "subsets": {name: {} for name in task.subsets}})


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
    number of rows of the subset in the data; None if it was not counted."""

    source: Kind
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
    scorer = task.subset(subset).scorer
    if scorer is not None and scorer.features.examples is not None:  # a task of another harness
        loaded: TaskData = scorer.features.examples(data=data, limit=max_examples(limit), **scorer.options)
        return replace(loaded, examples=tuple(take_first(loaded.examples, limit)))
    place = data or ("sample" if use_sample else "hub")
    return make_examples(task, subset, open_source(task, subset, place, num_subsets), place, limit)


def make_examples(task: TaskSpec, subset: str, source: Source, place: str, limit: int | float | None) -> TaskData:
    """Returns the first `limit` examples made from the rows of a source. `place`: where few-shot examples come from."""
    merged = task.subset(subset)
    shots = load_fewshot(task, subset, place)
    # 1. The first rows, none of which may be an example before its own prompt.
    task_rows = source.limit_rows(read_task_rows(merged, source))
    read = list(islice(task_rows, max_examples(limit)))
    num_left = None if source.is_streamed and len(read) == max_examples(limit) else count_rows(task_rows)
    rows = take_first(read, limit)
    asked = [(place, normalized_question(merged, row, place)) for place, row in rows if shots.questions]
    repeated = [place for place, question in asked if question in shots.questions]
    if repeated:
        more = f" (and {len(repeated) - 1} more of {len(rows)})" if len(repeated) > 1 else ""
        raise ConfigError(
            f"{repeated[0]}{more}: the row is one of the few-shot examples before its prompt: take them from another "
            "split (fewshot.split, fewshot.local.files), fewer of them (fewshot.num_shots), or leave the row out"
        )
    # 2. Their prompts and right answers.
    examples = []
    for index, (place, row) in enumerate(rows):
        first, *others = render_turns(merged, row, place)
        references = tuple(read_reference(merged, turn, place) for turn in split_turns(merged, row, place))
        identity = str(index if row.get("id") is None else row["id"])
        if templates.SURROGATE.search(identity):
            raise ConfigError(f"{place}: the id is not valid Unicode (half of a surrogate pair): correct it")
        if merged.judge_reference_categories and "category" not in row:
            raise ConfigError(f"{place}: no column 'category', which judge_reference_categories needs: add it")
        sees_reference = row.get("category") in merged.judge_reference_categories
        turns = shots.prefix + first, *others
        examples.append(Example(index, identity, turns, references, judge_sees_reference=sees_reference))
    if not examples:
        raise NoRows(f"{source.location}: no rows are left of subset '{subset}': check the data and the reader")
    num_rows = None if num_left is None else len(read) + num_left
    return TaskData(source.kind, source.location, source.revision, tuple(examples), shots.fewshot, num_rows)


MOST_COUNTED = 100_000  # rows that are read only to be counted


def count_rows(rows: Iterator[tuple[str, Row]]) -> int | None:
    """Returns the number of the rows; None for more than MOST_COUNTED, and if one cannot be read: it is not measured,
    so that it ends no run."""
    try:
        number = sum(1 for _ in islice(rows, MOST_COUNTED + 1))
    except ConfigError:
        return None
    return number if number <= MOST_COUNTED else None


def max_examples(limit: int | float | None) -> int | None:
    """Returns the number of examples to read for a limit; None if all must be read, also for a share."""
    return None if limit is None or limit < 1 else int(limit)


def take_first(examples: Sequence[AnyExample], limit: int | float | None) -> Sequence[AnyExample]:
    """Returns the first `limit` examples, or this share of them, rounded up."""
    num = max_examples(limit)
    return examples[: math.ceil(limit * len(examples)) if limit is not None and num is None else num]


def render_turns(task: TaskSpec, row: Row, place: str) -> tuple[str, ...]:
    """Returns the prompt of each turn of a row, without few-shot examples."""
    return tuple(render(task, "prompt", task.prompt, place, turn) for turn in split_turns(task, row, place))
