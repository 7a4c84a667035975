"""Prompts: templates filled with rows, and the few-shot examples before them."""

import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import islice
from pathlib import Path
from typing import Any, Literal

from specbench.core.digests import text_digest
from specbench.core.errors import ConfigError, nearest
from specbench.specs import templates
from specbench.specs.task import DatasetSpec, FewshotSpec, TaskSpec
from specbench.tasks.local_files import Row
from specbench.tasks.scoring.contract import Reference, reference_texts
from specbench.tasks.sources import open_source, rows_of


def turns_of(task: TaskSpec, row: Row, place: str) -> Iterator[Row]:
    """Yields the row once per turn, with `turn` and `turn_index`; for a task of one turn, the row itself.

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
                f"asks {{% if row.{column} %}}"
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
    """Returns the error for a row on which a template fails."""
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


def reference_of(task: TaskSpec, row: Row, place: str) -> Reference | None:
    """Returns the reference of one turn: a text, texts by name, or a list of texts any of which is right. Returns None
    for a row without one: the value is null, NaN, blank, or an empty list.

    Raises ConfigError naming `place` if a column is missing or has another type.
    """
    if task.references:
        return _listed(task.references, row, place)
    parts = {key: _rendered(task, key, template, row, place) for key, template in task.reference_templates().items()}
    if not parts or None in parts.values() or not any(text and text.strip() for text in parts.values()):
        return None
    if isinstance(task.reference, str):
        return parts["reference"]
    return {key.removeprefix("reference."): text for key, text in parts.items() if text is not None}


def _rendered(task: TaskSpec, key: str, template: str, row: Row, place: str) -> str | None:
    """Returns the filled template; None if a value that it always needs is empty."""
    needed = templates.always_used(template, "row") & set(row)
    if any(templates.is_empty(row[column]) or row[column] == [] for column in needed):
        return None
    try:
        return templates.render(template, row, task.vars)
    except templates.NullValue:
        return None
    except Exception as error:  # a template is a program: it may fail in any way
        raise template_error(task, key, template, place, row, error) from error


def _listed(column: str, row: Row, place: str) -> list[str] | None:
    """Returns the texts of the column; with several turns, those of the turn, if there are any."""
    if column not in row:
        raise ConfigError(
            f"{place}: no column '{column}', which lists the references: {nearest(column, map(str, row))}: add it"
        )
    value = row[column]
    if "turn_index" in row and isinstance(value, list):
        value = value[row["turn_index"]] if row["turn_index"] < len(value) else None
    values = value if isinstance(value, list) else [value]
    if not all(templates.is_empty(one) or _is_plain(one) for one in values):
        raise ConfigError(f"{place}: column '{column}' must be a list of texts: correct it")
    return [str(one) for one in values if not templates.is_empty(one)] or None


def _is_plain(value: Any) -> bool:
    return isinstance(value, (str, int, float)) and not isinstance(value, bool)


LONG_ANSWER = 80  # characters: a text of this length does not answer several questions
SHOWN = 5  # places in an error message


@dataclass(frozen=True)
class FewshotInfo:
    """The few-shot examples as a leaderboard row records them (`results.row.RowShots`). `checked`: whether every
    measured row could be compared with them."""

    num: int = 0
    source: Literal["task", "hub", "local", "sample"] | None = None
    location: str | None = None
    digest: str | None = None
    checked: bool = True


NO_SHOTS = FewshotInfo()


@dataclass(frozen=True)
class FewshotPrefix:
    """`prefix`: the text before every prompt. `asked`: the questions of the few-shot examples."""

    prefix: str = ""
    asked: frozenset[str] = frozenset()
    fewshot: FewshotInfo = NO_SHOTS

    def check(self, task: TaskSpec, rows: Sequence[tuple[str, Row]]) -> None:
        """Raises ConfigError if rows repeat a question of the prefix, even with their options in another order, or have
        an answer of LONG_ANSWER characters or more that is in the prefix."""
        if not self.asked:
            return
        found = [place for place, row in rows if self._repeats_example(task, row, place)]
        if found:
            others = [place.rpartition(", ")[2] for place in found[1 : SHOWN + 1]]
            more = f" (and {len(found) - 1} more of {len(rows)}: {', '.join(others)}{', …' * (len(found) > SHOWN + 1)})"
            raise ConfigError(
                f"{found[0]}{more if others else ''}: the row is one of the few-shot examples before its prompt: take "
                "them from another split (fewshot.split, fewshot.local.files), fewer of them (fewshot.num_shots), or "
                "leave the row out"
            )

    def _repeats_example(self, task: TaskSpec, row: Row, place: str) -> bool:
        if question(task, row, place) in self.asked:
            return True
        reference = reference_of(task, next(turns_of(task, row, place)), place)
        answers = map(normalized_value, [] if reference is None else reference_texts(reference))
        return any(len(answer) >= LONG_ANSWER and answer in self._plain_prefix for answer in answers)

    @cached_property
    def _plain_prefix(self) -> str:
        return normalized_value(self.prefix)


def question(task: TaskSpec, row: Row, place: str) -> str:
    """Returns the question of the first turn of a row: the `fewshot.question_column`, or all columns of the prompt, or
    else the prompt. Questions that differ only in blanks, case, the width of letters and the order of lists (of
    options) are equal."""
    row = next(turns_of(task, row, place))
    prompt = render(task, "prompt", task.prompt, place, row)
    column = task.fewshot and task.fewshot.question_column
    if column and column not in row:
        raise ConfigError(
            f"{place}: no column '{column}', which fewshot.question_column names: {nearest(column, map(str, row))}: "
            "correct it"
        )
    columns = [column] if column else sorted(templates.used(task.prompt, "row"))
    return normalized_value([row.get(name) for name in columns] or prompt)


def normalized_value(value: Any) -> str:
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        return repr(sorted(map(normalized_value, value)))
    return " ".join(unicodedata.normalize("NFKC", str(value)).casefold().split())


def load_fewshot(task: TaskSpec, subset: str, data: str) -> FewshotPrefix:
    """Returns the few-shot examples of a subset, from the place of its rows. `data`: "sample", "hub", a folder or a
    file."""
    chosen = task.subset(subset)
    spec = chosen.fewshot
    if spec is None or spec.num_shots == 0:
        return FewshotPrefix()
    if spec.rows:
        own = [(f"fewshot.rows, row {n}", row) for n, row in enumerate(spec.rows, start=1)]
        return _prefix_of(chosen, spec, own, "task", task.name)
    place = _with_fewshot_places(task, chosen, spec, data)
    source = open_source(place, subset, data, num_subsets=1)
    rows = list(islice(rows_of(place, source), spec.num_shots))
    if len(rows) < spec.num_shots:
        raise ConfigError(
            f"{source.location}: holds {len(rows)} few-shot examples, fewshot.num_shots asks {spec.num_shots}: lower it"
        )
    return _prefix_of(chosen, spec, rows, source.kind, source.location)


@cache
def sample_prefix(task_json: str, subset: str | None) -> str:
    """Returns the text before the prompts of a task on its bundled sample. `task_json`: the task, merged with its
    subset."""
    task = TaskSpec.model_validate_json(task_json)
    name = subset or "default"
    return load_fewshot(task.model_copy(update={"subsets": {name: {}} if subset else {}}), name, "sample").prefix


def fewshot_dataset(task: TaskSpec, subset: str) -> DatasetSpec | None:
    """Returns the place of a subset's few-shot examples on the hub; None if they are not taken from there."""
    chosen = task.subset(subset)
    spec = chosen.fewshot
    if spec is None or spec.num_shots == 0 or spec.rows:
        return None
    return _with_fewshot_places(task, chosen, spec, "hub").dataset


def _with_fewshot_places(task: TaskSpec, chosen: TaskSpec, spec: FewshotSpec, data: str) -> TaskSpec:
    """Returns the task with the places of its few-shot examples instead of its rows. Raises ConfigError if there are
    none."""
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
    dataset = chosen.dataset and chosen.dataset.model_copy(update={**changes, **every_row})
    places = {"dataset": dataset, "local": spec.local or chosen.local, "sample": spec.sample, "fewshot": None}
    return chosen.model_copy(update={**places, "subsets": {name: {} for name in task.subsets}})


def _prefix_of(
    task: TaskSpec, spec: FewshotSpec, rows: list[tuple[str, Row]], source: Literal["task", "hub", "local", "sample"],
    location: str,
) -> FewshotPrefix:  # fmt: skip
    texts = [render(task, "fewshot.example", spec.example, place, row) for place, row in rows[: spec.num_shots]]
    asked = frozenset(question(task, row, place) for place, row in rows[: spec.num_shots])
    prefix = "".join(text + spec.separator for text in texts)
    return FewshotPrefix(prefix, asked, FewshotInfo(spec.num_shots, source, location, text_digest(prefix)))
