"""Leaves private texts out of records: what models wrote becomes digests.

A text becomes "sha256:" and its digest, and token ids become as many numbers that follow each other from one that their
digest gives. So lengths stay, and answers are equal exactly if they were, but what their content says (loops, the
language of an answer) is gone, and whoever reads the records cannot tell where the digests come from.
"""

import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from specbench.core.values import WHOLE, bytes_digest, text_digest
from specbench.records.generation import Generation
from specbench.results.row import Row

MARK = "sha256:"
FIRST_BELOW = 2**30  # so that an answer of as many tokens ends within 31 bits
# What rows say of the content of answers, so that digests cannot confirm it.
CONTENT_METRICS = ("language_share", "share_looping", "share_in_loops", "_without_loops")
CONTENT_WARNINGS = ("loops", "past_end")


def digest_of_text(text: str) -> str:
    return text if text.startswith(MARK) and len(text) == len(MARK) + WHOLE else f"{MARK}{text_digest(text, WHOLE)}"


def digest_ids(token_ids: list[int]) -> list[int]:
    """Returns as many ids that are equal for equal ids only, but for one pair in a billion."""
    whole = bytes_digest([np.asarray(token_ids, dtype="<i4").tobytes()], WHOLE)
    first = int(whole[:8], 16) % FIRST_BELOW
    return list(range(first, first + len(token_ids)))


def without_texts(record: dict[str, Any]) -> dict[str, Any]:
    """Returns a line of records.jsonl without texts, references and token ids."""
    return {
        **record, "reference": _digests(record.get("reference")),
        "methods": {name: _without(each) for name, each in record["methods"].items()},
    }  # fmt: skip


def window_without_texts(window: dict[str, Any]) -> dict[str, Any]:
    """Returns a line of load.jsonl without token ids."""
    methods = {
        name: [{**answer, "token_ids": digest_ids(answer["token_ids"])} for answer in answers]
        for name, answers in window["methods"].items()
    }
    return {**window, "methods": methods}


def _digests(reference: Any) -> Any:
    """Returns a reference as digests, as many as it has parts."""
    if reference is None:
        return None
    if isinstance(reference, list):
        return [_digests(each) for each in reference]
    return digest_of_text(reference if isinstance(reference, str) else json.dumps(reference, sort_keys=True))


def _without(generation: Mapping[str, Any]) -> dict[str, Any]:
    made = {name: value for name, value in generation.items() if name != "drafted"}
    made |= {"token_ids": digest_ids(generation["token_ids"]), "text": digest_of_text(generation["text"])}
    if generation.get("answer") is not None:
        made["answer"] = digest_of_text(generation["answer"])
    if "outcome" in generation:  # a program's own messages
        made["outcome"] = {name: text for name, text in generation["outcome"].items() if name == "status"}
    return made


def is_left_out(generation: Generation) -> bool:
    """Returns whether the text of a generation is a digest."""
    return generation.text.startswith(MARK) and len(generation.text) == len(MARK) + WHOLE


def without_content(row: Row) -> Row:
    """Returns a row without what depends on what answers say."""
    metrics = {name: each for name, each in row.metrics.items() if not any(part in name for part in CONTENT_METRICS)}
    kept = tuple(each for each in row.warnings if each.code not in CONTENT_WARNINGS)
    return row.model_copy(update={"metrics": metrics, "warnings": kept})
