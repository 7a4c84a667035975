"""Readers of MT-bench and Spec-Bench: one file of questions in turns, each with a category.

A row becomes `id`, `category`, `turns`, and `references`: for every turn a text or a list of texts any of which is
right, or None. Rows of other groups are skipped; a row of an unknown category is an error, because no subset would hold
it.
"""

import re
from collections.abc import Callable
from functools import partial
from typing import Any

from specbench.core.errors import ConfigError, nearest
from specbench.core.registry import READERS
from specbench.specs import templates
from specbench.tasks.local_files import Row

CATEGORIES = ("writing", "roleplay", "reasoning", "math", "coding", "extraction", "stem", "humanities")
LANGUAGE_PAIRS = ("deen", "fren", "ruen", "jaen", "zhen")  # of Multilingual Spec-Bench
GROUPS = {"mt_bench": CATEGORIES} | {
    group: (group,) for group in ("translation", "summarization", "qa", "math_reasoning", "rag", *LANGUAGE_PAIRS)
}
KNOWN = tuple(category for categories in GROUPS.values() for category in categories)
FINAL_NUMBER = re.compile(r"####\s*(\S+)\s*$")


def conversations(categories: tuple[str, ...]) -> Callable[[Row], Row | list[Row]]:
    """Returns a reader of the rows of some categories."""

    def read(row: Row) -> Row | list[Row]:
        if templates.is_empty(row.get("category")):
            raise ConfigError("no column 'category', which names the group of the row: add it")
        if row["category"] not in KNOWN:
            raise ConfigError(
                f"column 'category' = '{row['category']}' is none: {nearest(str(row['category']), KNOWN)}"
            )
        if row["category"] not in categories:
            return []
        if "references" in row:
            return {**row, "references": _each_turn(row, "references")}
        number = row.get("question_id")
        identity = row.get("id") if number is None else number
        references = [_final(one) if isinstance(one, str) else one for one in _each_turn(row, "reference")]
        return {"id": identity, "category": row["category"], "turns": row["turns"], "references": references}

    return read


def _each_turn(row: Row, column: str) -> list[Any]:
    """Returns a reference for every turn. Several texts for a single turn are alternatives."""
    given, turns = row.get(column), row.get("turns")
    if given is None:
        return []
    if not isinstance(given, list):
        raise ConfigError(f"column '{column}' must list a reference for each turn, not a {type(given).__name__}")
    num_turns = len(turns) if isinstance(turns, list) else len(given)
    if num_turns == 1 and len(given) > 1:
        return [given]
    if len(given) > num_turns > 0:
        raise ConfigError(f"column '{column}' lists {len(given)} references for {num_turns} turns: correct it")
    return given


def _final(text: str) -> str | None:
    """Returns the number behind #### of a worked sum (GSM8K), else the text."""
    number = FINAL_NUMBER.search(text)
    return number[1] if number else text or None


for _group, _categories in GROUPS.items():
    READERS.register(_group if _group == "mt_bench" else f"spec_bench_{_group}")(partial(conversations, _categories))
for _category in CATEGORIES:
    READERS.register(f"mt_bench_{_category}")(partial(conversations, (_category,)))
