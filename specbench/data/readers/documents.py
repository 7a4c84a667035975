"""Readers of long documents: SCROLLS, whose inputs begin with the question, and QMSum as it was first published."""

import re
from collections.abc import Callable
from typing import Any

from specbench.data.local import Row
from specbench.errors import ConfigError
from specbench.registry import READERS

LETTERS = "ABCD"
FINAL = {"text", "references"}


@READERS.register("scrolls_summary")
def scrolls_summary() -> Callable[[Row], Row | list[Row]]:
    """SCROLLS without a question: the whole input is the text."""
    return _first_of_each(lambda row: {"text": row["input"]})


@READERS.register("scrolls")
def scrolls() -> Callable[[Row], Row | list[Row]]:
    """SCROLLS with a question, which ends at the first empty line of the input."""
    return _first_of_each(_question_first)


@READERS.register("scrolls_choice")
def scrolls_choice() -> Callable[[Row], Row | list[Row]]:
    """QuALITY: behind the question come four answers, "(A) …" to "(D) …"; the right one is given by its text."""
    return _first_of_each(_with_options)


@READERS.register("scrolls_meetings")
def scrolls_meetings() -> Callable[[Row], Row | list[Row]]:
    """QMSum in SCROLLS' layout or in its own: a meeting with several queries, a row for each of which is made."""
    read = _first_of_each(_question_first)
    return lambda row: _queries(row) if "meeting_transcripts" in row else read(row)


def _first_of_each(split: Callable[[Row], Row]) -> Callable[[Row], Row | list[Row]]:
    """A reader that splits the input; SCROLLS repeats a row for every further right answer: the first one stands."""
    seen: set[str] = set()

    def read(row: Row) -> Row | list[Row]:
        if row.keys() >= FINAL:
            return row
        for column in ("id", "input"):
            if not isinstance(row.get(column), str):
                raise ConfigError(f"column '{column}' must be a text: SCROLLS rows have id, pid, input and output")
        if row["id"] in seen:
            return []
        seen.add(row["id"])
        output = row.get("output")
        return {"id": row.get("pid") or row["id"], "references": [output] if output else []} | split(row)

    return read


def _question_first(row: Row) -> Row:
    question, _, text = row["input"].partition("\n\n")
    if not text.strip():
        raise ConfigError("column 'input' holds no empty line, which must end the question: correct it")
    return {"question": question.strip(), "text": text}


def _with_options(row: Row) -> Row:
    split = _question_first(row)
    end = split["text"].find("\n\n", max(split["text"].find("(D)"), 0))
    _, *options = re.split(r" *\([A-D]\) *", split["text"][: max(end, 0)])
    options = [" ".join(option.split()) for option in options]
    if len(options) != len(LETTERS):
        raise ConfigError(f"column 'input' holds {len(options)} answers where (A) to (D) are due: correct it")
    answer = " ".join((row.get("output") or "").split())
    if answer and answer not in options:
        raise ConfigError(f"column 'output': '{answer[:60]}' is none of the four answers: correct it")
    letter = LETTERS[options.index(answer)] if answer else ""
    return {**split, "text": split["text"][end:].strip(), "options": options, "letter": letter}


def _queries(row: Row) -> list[Row]:
    text = "\n".join(f"{line['speaker']}: {line['content']}" for line in row["meeting_transcripts"])
    asked: list[dict[str, Any]] = [*row.get("general_query_list", []), *row.get("specific_query_list", [])]
    return [{"question": one["query"], "text": text, "references": [one["answer"]]} for one in asked]
