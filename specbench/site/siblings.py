"""The rows of the other subsets of a run: what the bars of a row's page show."""

import json
from collections.abc import Iterable, Sequence

from specbench.results.row import RESULT_FIELDS, Row
from specbench.site.entries import Entry

OF_SUBSET = {"subset", "language", "n", "data_location", "data_revision", "num_draft_tokens"}


def siblings(entries: Iterable[Entry]) -> dict[str, Sequence[Entry]]:
    """By digest the rows of the same command, task and method, the one over all subsets last."""
    families: dict[str, list[Entry]] = {}
    for entry in entries:
        families.setdefault(_family(entry.row), []).append(entry)
    for family in families.values():
        family.sort(key=lambda entry: entry.row.subset == "all")
    return {entry.digest: family for family in families.values() for entry in family}


def _family(row: Row) -> str:
    same = row.model_dump(mode="json", exclude={*RESULT_FIELDS, *OF_SUBSET})
    same["options"].pop("taken", None)  # of routes: which of them the subset's language took
    return json.dumps([same, row.command], sort_keys=True)
