"""Readers of MT-bench and Spec-Bench: one file of questions in turns, each of a category.

A row becomes `id`, `category`, `turns`, and `references`: for every turn a text or a list of texts any of which is
right, or None. Rows of another group are left out.
"""

import re
from collections.abc import Callable
from functools import partial
from typing import Any

from specbench.data.local import Row
from specbench.errors import ConfigError
from specbench.registry import READERS

CATEGORIES = ("writing", "roleplay", "reasoning", "math", "coding", "extraction", "stem", "humanities")
GROUPS = {"mt_bench": CATEGORIES} | {
    group: (group,) for group in ("translation", "summarization", "qa", "math_reasoning", "rag", "deen", "zhen")
}
FINAL_NUMBER = re.compile(r"####\s*(\S+)\s*$")


def conversations(categories: tuple[str, ...]) -> Callable[[Row], Row | list[Row]]:
    """A reader of the rows of some categories."""

    def read(row: Row) -> Row | list[Row]:
        if row.get("category", categories[0]) not in categories:
            return []
        if "references" in row:
            return row
        number = row.get("question_id")
        identity = row.get("id") if number is None else number
        return {"id": identity, "category": row.get("category"), "turns": row["turns"], "references": _references(row)}

    return read


def _references(row: Row) -> list[Any]:
    """A reference for every turn. Of a worked sum (GSM8K) the number behind #### counts."""
    given = row.get("reference")
    if given is None:
        return []
    if not isinstance(given, list):
        raise ConfigError(f"column 'reference' must list a reference for each turn, not a {type(given).__name__}")
    return [_final(one) if isinstance(one, str) else one for one in given]


def _final(text: str) -> str | None:
    number = FINAL_NUMBER.search(text)
    return number[1] if number else text or None


for _group, _categories in GROUPS.items():
    READERS.register(_group if _group == "mt_bench" else f"spec_bench_{_group}")(partial(conversations, _categories))
for _category in CATEGORIES:
    READERS.register(f"mt_bench_{_category}")(partial(conversations, (_category,)))
