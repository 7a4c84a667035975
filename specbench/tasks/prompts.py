"""Prompts: templates filled with rows, and the few-shot examples before them."""

import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import islice
from pathlib import Path
from typing import Any, Literal

from specbench.core.errors import ConfigError, nearest
from specbench.core.values import text_digest
from specbench.specs import templates
from specbench.specs.task import DatasetSpec, FewshotSpec, TaskSpec
from specbench.tasks.local_files import Row
from specbench.tasks.scoring.contract import Reference, reference_texts
from specbench.tasks.sources import open_source, read_task_rows


def split_turns(task: TaskSpec, row: Row, place: str) -> Iterator[Row]:
    """Yields the row once per turn, with the columns `turn` and `turn_index`; unchanged if the task has no turns.

    Raises ConfigError naming `place` if the column of the turns is not a list of texts.
    """
    if task.turns is None:
        yield row
        return
    turns = row.get(task.turns)
    if task.turns not in row:
        raise ConfigError(
            f"{place}: no column '{task.turns}', which lists the turns: {nearest(task.turns, map(str, row))}: add it"
        )
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
        raise template_error(task, key, template, place, row, error) from error
    if not text.strip():
        columns = sorted(templates.used(template, "row") & set(row))
        raise ConfigError(f"{place}: the {key} comes out empty: fill in {', '.join(columns)}")
    return text


def template_error(task: TaskSpec, key: str, template: str, place: str, row: Row, error: Exception) -> ConfigError:
    """Returns the error to raise if a template fails on a row."""
    missing = sorted(name for name in templates.used(template, "row") if row.get(name) is None)
    if not missing:
        reason = ": ".join(filter(None, (type(error).__name__, str(error))))
        return ConfigError(f"{place}: the {key} of task '{task.name}' fails: {reason}: correct the template or the row")
    if missing[0] in row:
        return ConfigError(f"{place}: column '{missing[0]}' is empty, which the {key} needs: fill it in")
    return ConfigError(
        f"{place}: no column '{missing[0]}', which the {key} needs: {nearest(missing[0], map(str, row))}: "
        "rename or add it"
    )


def read_reference(task: TaskSpec, row: Row, place: str) -> Reference | None:
    """Returns the reference of one turn: a text, texts by name, or a list of texts any of which is right. Returns None
    if the value is null, NaN, blank, or an empty list.

    Raises ConfigError naming `place` if a column is missing or has another type.
    """
    if task.references:
        return _listed_references(task.references, row, place)
    by_key = task.reference_templates().items()
    parts = {key: _render_if_given(task, key, template, row, place) for key, template in by_key}
    if not parts or None in parts.values() or not any(text and text.strip() for text in parts.values()):
        return None
    if isinstance(task.reference, str):
        return parts["reference"]
    return {key.removeprefix("reference."): text for key, text in parts.items() if text is not None}


def _render_if_given(task: TaskSpec, key: str, template: str, row: Row, place: str) -> str | None:
    """Returns the filled template; None if a value that the template always uses is empty."""
    needed = templates.always_used(template, "row") & set(row)
    if any(templates.is_empty(row[column]) or row[column] == [] for column in needed):
        return None
    try:
        return templates.render(template, row, task.vars)
    except templates.NullValue:
        return None
    except Exception as error:  # a template is a program: it may fail in any way
        raise template_error(task, key, template, place, row, error) from error


def _listed_references(column: str, row: Row, place: str) -> list[str] | None:
    """Returns the texts of a column; in a conversation those for the turn. None if there are none."""
    if column not in row:
        raise ConfigError(
            f"{place}: no column '{column}', which lists the references: {nearest(column, map(str, row))}: add it"
        )
    value = row[column]
    if "turn_index" in row and isinstance(value, list):
        value = value[row["turn_index"]] if row["turn_index"] < len(value) else None
    values = value if isinstance(value, list) else [value]
    given = [value for value in values if not templates.is_empty(value)]
    if not all(isinstance(value, (str, int, float)) and not isinstance(value, bool) for value in given):
        raise ConfigError(f"{place}: column '{column}' must be a list of texts: correct it")
    return [str(value) for value in given] or None


LONG_ANSWER = 80  # characters: a text of this length is not the answer to two questions
NUM_SHOWN = 5  # places in an error message


@dataclass(frozen=True)
class FewshotInfo:
    """The few-shot examples as a leaderboard row records them (`results.row.RowShots`). `checked`: whether all measured
    rows were checked against them."""

    num: int = 0
    source: Literal["task", "hub", "local", "sample"] | None = None
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

    def check(self, task: TaskSpec, rows: Sequence[tuple[str, Row]]) -> None:
        """Raises ConfigError if a row is one of the few-shot examples: it has the same question (also with its options
        in another order), or its answer is in the prefix and has LONG_ANSWER characters or more."""
        if not self.questions:
            return
        found = [place for place, row in rows if self._repeats_example(task, row, place)]
        if found:
            others = [place.rpartition(", ")[2] for place in found[1 : NUM_SHOWN + 1]]
            ending = ", …" if len(found) > NUM_SHOWN + 1 else ""
            more = f" (and {len(found) - 1} more of {len(rows)}: {', '.join(others)}{ending})"
            raise ConfigError(
                f"{found[0]}{more if others else ''}: the row is one of the few-shot examples before its prompt: take "
                "them from another split (fewshot.split, fewshot.local.files), fewer of them (fewshot.num_shots), or "
                "leave the row out"
            )

    def _repeats_example(self, task: TaskSpec, row: Row, place: str) -> bool:
        if normalized_question(task, row, place) in self.questions:
            return True
        reference = read_reference(task, next(split_turns(task, row, place)), place)
        answers = map(normalize_value, [] if reference is None else reference_texts(reference))
        return any(len(answer) >= LONG_ANSWER and answer in self._normalized_prefix for answer in answers)

    @cached_property
    def _normalized_prefix(self) -> str:
        return normalize_value(self.prefix)


def normalized_question(task: TaskSpec, row: Row, place: str) -> str:
    """Returns the question of the first turn of a row: the column `fewshot.question_column`; without that key, all
    columns that the prompt uses; if it uses none, the prompt. Blanks, case, the width of letters and the order of lists
    (of options) do not matter."""
    row = next(split_turns(task, row, place))
    prompt = render(task, "prompt", task.prompt, place, row)
    column = task.fewshot and task.fewshot.question_column
    if column and column not in row:
        raise ConfigError(
            f"{place}: no column '{column}', which fewshot.question_column names: {nearest(column, map(str, row))}: "
            "correct it"
        )
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
    if spec.rows:
        task_rows = [(f"fewshot.rows, row {n}", row) for n, row in enumerate(spec.rows, start=1)]
        return _make_prefix(merged, spec, task_rows, "task", task.name)
    shots_task = _fewshot_task(task, merged, spec, data)
    source = open_source(shots_task, subset, data, num_subsets=1)
    rows = list(islice(read_task_rows(shots_task, source), spec.num_shots))
    if len(rows) < spec.num_shots:
        raise ConfigError(
            f"{source.location}: holds {len(rows)} few-shot examples, but fewshot.num_shots = {spec.num_shots}: lower "
            "it"
        )
    return _make_prefix(merged, spec, rows, source.kind, source.location)


@cache
def sample_prefix(task_json: str, subset: str | None) -> str:
    """Returns the few-shot text before the prompts of a bundled sample. `task_json`: the task, merged with its
    subset."""
    task = TaskSpec.model_validate_json(task_json)
    name = subset or "default"
    return load_fewshot(task.model_copy(update={"subsets": {name: {}} if subset else {}}), name, "sample").prefix


def fewshot_dataset(task: TaskSpec, subset: str) -> DatasetSpec | None:
    """Returns where a subset's few-shot examples are on the hub; None if they are not taken from there."""
    merged = task.subset(subset)
    spec = merged.fewshot
    if spec is None or spec.num_shots == 0 or spec.rows:
        return None
    return _fewshot_task(task, merged, spec, "hub").dataset


def _fewshot_task(task: TaskSpec, merged: TaskSpec, spec: FewshotSpec, data: str) -> TaskSpec:
    """Returns a copy of the task whose rows are its few-shot examples. Raises ConfigError if `data` has none."""
    problem = None
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
    changes = {key: value for key, value in (("split", spec.split), ("data_files", spec.data_files)) if value}
    every_row = {"first_rows": None, "last_rows": None}
    dataset = merged.dataset and merged.dataset.model_copy(update={**changes, **every_row})
    places = {"dataset": dataset, "local": spec.local or merged.local, "sample": spec.sample, "fewshot": None}
    return merged.model_copy(update={**places, "subsets": {name: {} for name in task.subsets}})


def _make_prefix(
    task: TaskSpec, spec: FewshotSpec, rows: list[tuple[str, Row]], source: Literal["task", "hub", "local", "sample"],
    location: str,
) -> FewshotPrefix:  # fmt: skip
    texts = [render(task, "fewshot.example", spec.example, place, row) for place, row in rows[: spec.num_shots]]
    questions = frozenset(normalized_question(task, row, place) for place, row in rows[: spec.num_shots])
    prefix = "".join(text + spec.separator for text in texts)
    return FewshotPrefix(prefix, questions, FewshotInfo(spec.num_shots, source, location, text_digest(prefix)))
