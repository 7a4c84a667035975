"""The guard against contamination: none of the worked examples before a prompt is among the measured rows."""

import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from specbench.data.local import Row
from specbench.data.references import reference_of
from specbench.data.rendering import render, turns_of
from specbench.errors import ConfigError, nearest
from specbench.scoring.contract import Reference
from specbench.specs import TaskSpec, templates

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
