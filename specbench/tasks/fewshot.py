"""The worked examples before a prompt: where they are taken from, and what they look like."""

import hashlib
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import islice
from pathlib import Path
from typing import Any, Literal

from specbench.core.errors import ConfigError, nearest
from specbench.specs import templates
from specbench.specs.task import DatasetSpec, FewshotSpec, TaskSpec
from specbench.tasks.local_files import Row
from specbench.tasks.rendering import reference_of, render, turns_of
from specbench.tasks.scoring.contract import Reference
from specbench.tasks.sources import open_source, rows_of

LONG_ANSWER = 80  # characters: so long a text is no phrase that answers several questions
SHOWN = 5  # places in an error


@dataclass(frozen=True)
class Worked:
    """What a row tells of the worked examples before its prompts (`results.row.Shots`). `checked`: whether all that is
    measured could be told from them."""

    num: int = 0
    source: Literal["task", "hub", "local", "sample"] | None = None
    location: str | None = None
    digest: str | None = None
    checked: bool = True


NONE = Worked()


@dataclass(frozen=True)
class Shots:
    """`prefix`: the text before every prompt. `asked`: the questions of the worked examples."""

    prefix: str = ""
    asked: frozenset[str] = frozenset()
    worked: Worked = NONE

    def check(self, task: TaskSpec, rows: Sequence[tuple[str, Row]]) -> None:
        """Raise ConfigError where rows ask what stands before their prompt, even with their options in another order,
        or have an answer of LONG_ANSWER characters or more that stands there."""
        if not self.asked:
            return
        found = [place for place, row in rows if self._is_asked(task, row, place)]
        if found:
            others = [place.rpartition(", ")[2] for place in found[1 : SHOWN + 1]]
            more = f" (and {len(found) - 1} more of {len(rows)}: {', '.join(others)}{', …' * (len(found) > SHOWN + 1)})"
            raise ConfigError(
                f"{found[0]}{more if others else ''}: the row is one of the few-shot examples before its prompt: take "
                "them from another split (fewshot.split, fewshot.local.files), fewer of them (fewshot.num_shots), or "
                "leave the row out"
            )

    def _is_asked(self, task: TaskSpec, row: Row, place: str) -> bool:
        if question(task, row, place) in self.asked:
            return True
        answers = _texts(reference_of(task, next(turns_of(task, row, place)), place))
        return any(len(answer) >= LONG_ANSWER and answer in self._plain_prefix for answer in answers)

    @cached_property
    def _plain_prefix(self) -> str:
        return plain(self.prefix)


def question(task: TaskSpec, row: Row, place: str) -> str:
    """What a row asks: the column `fewshot.same`, or all that the prompt needs, or else the prompt; the first turn's.
    Two that differ in blanks, case, the width of letters and the order of lists (of options) only are the same."""
    row = next(turns_of(task, row, place))
    prompt = render(task, "prompt", task.prompt, place, row)
    column = task.fewshot and task.fewshot.same
    if column and column not in row:
        raise ConfigError(
            f"{place}: no column '{column}', which fewshot.same names: {nearest(column, map(str, row))}: correct it"
        )
    columns = [column] if column else sorted(templates.used(task.prompt, "row"))
    return plain([row.get(name) for name in columns] or prompt)


def plain(value: Any) -> str:
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        return repr(sorted(map(plain, value)))
    return " ".join(unicodedata.normalize("NFKC", str(value)).casefold().split())


def _texts(reference: Reference | None) -> list[str]:
    """What a reference holds, each plain."""
    if reference is None:
        return []
    if isinstance(reference, Mapping):
        return [plain(text) for text in reference.values()]
    return [plain(text) for text in ([reference] if isinstance(reference, str) else reference)]


def load_shots(task: TaskSpec, subset: str, data: str) -> Shots:
    """The worked examples of a subset, from beside its rows. `data`: "sample", "hub", or a folder or a file."""
    chosen = task.subset(subset)
    spec = chosen.fewshot
    if spec is None or spec.num_shots == 0:
        return Shots()
    if spec.rows:
        own = [(f"fewshot.rows, row {n}", row) for n, row in enumerate(spec.rows, start=1)]
        return _shots(chosen, spec, own, "task", task.name)
    place = _beside(task, chosen, spec, data)
    source = open_source(place, subset, data, num_subsets=1)
    rows = list(islice(rows_of(place, source), spec.num_shots))
    if len(rows) < spec.num_shots:
        raise ConfigError(
            f"{source.location}: holds {len(rows)} few-shot examples, fewshot.num_shots asks {spec.num_shots}: lower it"
        )
    return _shots(chosen, spec, rows, source.kind, source.location)


@cache
def sample_prefix(task_json: str, subset: str | None) -> str:
    """The text before the prompts of a task on its bundled sample. `task_json`: the task, merged with its subset."""
    task = TaskSpec.model_validate_json(task_json)
    name = subset or "default"
    return load_shots(task.model_copy(update={"subsets": {name: {}} if subset else {}}), name, "sample").prefix


def hub_place(task: TaskSpec, subset: str) -> DatasetSpec | None:
    """Where the worked examples of a subset are on the hub; None when they are not taken from there."""
    chosen = task.subset(subset)
    spec = chosen.fewshot
    if spec is None or spec.num_shots == 0 or spec.rows:
        return None
    return _beside(task, chosen, spec, "hub").dataset


def _beside(task: TaskSpec, chosen: TaskSpec, spec: FewshotSpec, data: str) -> TaskSpec:
    """The task with the places of its worked examples instead of its rows. Raises ConfigError where there is none."""
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


def _shots(
    task: TaskSpec, spec: FewshotSpec, rows: list[tuple[str, Row]], source: Literal["task", "hub", "local", "sample"],
    location: str,
) -> Shots:  # fmt: skip
    texts = [render(task, "fewshot.example", spec.example, place, row) for place, row in rows[: spec.num_shots]]
    asked = frozenset(question(task, row, place) for place, row in rows[: spec.num_shots])
    prefix = "".join(text + spec.separator for text in texts)
    digest = hashlib.sha256(prefix.encode("utf-8", "surrogatepass")).hexdigest()[:12]
    return Shots(prefix, asked, Worked(spec.num_shots, source, location, digest))
