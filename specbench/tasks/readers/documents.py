"""Readers of documents: SCROLLS (a question, then the text), QMSum in its own layout, and parallel texts."""

import re
from collections.abc import Callable
from typing import Any

from specbench.core.errors import ConfigError
from specbench.specs import templates
from specbench.specs.components import equal_codes
from specbench.tasks.local_files import Row
from specbench.tasks.readers import row_reader

LETTERS = "ABCD"
FINAL = {"text", "references"}


def read_scrolls(row: Row, split: Callable[[Row], Row]) -> Row | list[Row]:
    """Reads a row of SCROLLS. `split`: returns the columns that are read from its input."""
    if "meeting_transcripts" in row:  # a meeting in QMSum's own layout, with several queries
        text = "\n".join(f"{line['speaker']}: {line['content']}" for line in row["meeting_transcripts"])
        queries: list[Row] = [*row.get("general_query_list", []), *row.get("specific_query_list", [])]
        return [{"question": each["query"], "text": text, "references": [each["answer"]]} for each in queries]
    if row.keys() >= FINAL:
        return row
    for column in ("id", "input"):
        if not isinstance(row.get(column), str):
            raise ConfigError(f"column '{column}' must be a text: SCROLLS rows have id, pid, input and output")
    outputs = list(dict.fromkeys(_outputs(row)))
    return {"id": row.get("pid") or row["id"], "references": outputs} | split({**row, "output": outputs})


def join_answers(row: Row, following: Row) -> Row | None:
    """Returns two rows with the same id as one row, whose `output` lists the texts of both; else None. SCROLLS repeats
    a row for each of its right answers."""
    if "input" not in row or row.get("id") is None or row["id"] != following.get("id"):
        return None
    if row["input"] != following.get("input"):
        raise ConfigError(f"column 'id' = '{row['id']}': the row before has the same id but another input: correct it")
    return {**row, "output": [*_outputs(row), *_outputs(following)]}


def _outputs(row: Row) -> list[str]:
    output = row.get("output")
    given: list[Any] = output if isinstance(output, list) else [output]
    return [text for text in given if not templates.is_empty(text)]


def _question_first(row: Row) -> Row:
    question, _, text = row["input"].partition("\n\n")
    if not text.strip():
        raise ConfigError("column 'input' holds no empty line, which must end the question: correct it")
    return {"question": question.strip(), "text": text}


def _with_options(row: Row) -> Row:
    split = _question_first(row)
    end = split["text"].find("\n\n", max(split["text"].find("(D)"), 0))
    # They follow "(A)" to "(D)" at the beginnings of lines; if these are not four, anywhere.
    splits = [
        re.split(marker, split["text"][: max(end, 0)])[1:] for marker in (r"(?m)^ *\([A-D]\) *", r" *\([A-D]\) *")
    ]
    found = next((parts for parts in splits if len(parts) == len(LETTERS)), splits[-1])
    options = [" ".join(option.split()) for option in found]
    if len(options) != len(LETTERS):
        raise ConfigError(f"column 'input' holds {len(options)} answers where (A) to (D) are expected: correct it")
    answers = {" ".join(output.split()) for output in row["output"]}
    right = [letter for letter, option in zip(LETTERS, options, strict=True) if option in answers]
    if answers and len(right) != 1:
        shown = " / ".join(sorted(answers))[:60]
        raise ConfigError(f"column 'output': '{shown}' is {len(right) or 'none'} of the four answers: correct it")
    letter = right[0] if right else ""
    return {**split, "text": split["text"][end:].strip(), "options": options, "letter": letter}


@row_reader("scrolls_summary", join=join_answers)
def scrolls_summary(row: Row) -> Row | list[Row]:
    """SCROLLS without a question: the whole input is the text."""
    return read_scrolls(row, lambda row: {"text": row["input"]})


@row_reader("scrolls", join=join_answers)
def scrolls(row: Row) -> Row | list[Row]:
    """SCROLLS with a question, which ends at the first empty line of the input."""
    return read_scrolls(row, _question_first)


@row_reader("scrolls_choice", join=join_answers)
def scrolls_choice(row: Row) -> Row | list[Row]:
    """QuALITY: four answers, "(A) …" to "(D) …", follow the question; the right one is given by its text."""
    return read_scrolls(row, _with_options)


@row_reader("scrolls_meetings", join=join_answers)
def scrolls_meetings(row: Row) -> Row | list[Row]:
    """QMSum in SCROLLS' layout or in its own: a meeting with several queries becomes one row for each query."""
    return read_scrolls(row, _question_first)


# Column names of published files in lower case → language code.
LANGUAGE_CODES = {
    "english": "en", "german": "de", "french": "fr", "russian": "ru", "chinese": "zh", "japanese": "ja",
    "spanish": "es", "amharic": "amh", "berber": "ber", "cherokee": "chr", "guarani": "grn", "hawaiian": "haw",
    "igbo": "ibo", "nepali": "npi", "occitan": "oci", "quechua": "que", "yoruba": "yor", "tamazight": "zgh",
}  # fmt: skip
LANGUAGES = frozenset(LANGUAGE_CODES.values())
CODE = re.compile("[a-z]{2,3}")


class Translations(dict[str, object]):
    """Texts by the code of their language, which the other code of ISO 639-1 and -3 finds too (grn: gn)."""

    def __missing__(self, code: str) -> Any:
        return next(self[other] for other in equal_codes(code)[1:] if other in self.keys())


@row_reader("translation")
def translation(row: Row) -> Row:
    """Rows with `translation` (language → text). Columns named after languages ("de", "German") become `translation`;
    other columns stay. Blanks around texts are removed; a text that is null, NaN or blank becomes null."""
    if "translation" in row:
        others, texts = row, row["translation"]
        if not isinstance(texts, dict):
            raise ConfigError(
                f"column 'translation' must map languages to texts, but is of type {type(texts).__name__}"
            )
    else:
        codes = {column: LANGUAGE_CODES.get(column.strip().lower(), column) for column in row}
        languages = [column for column, code in codes.items() if not LANGUAGES.isdisjoint(equal_codes(code))]
        if len(languages) < 2:  # else a column such as `id` or `no` would be a language
            is_pair = len(row) == 2 and all(CODE.fullmatch(column) for column in row)
            languages = [column for column, code in codes.items() if is_pair or len(equal_codes(code)) > 1]
        others = {column: row[column] for column in row if column not in languages}
        texts = {codes[column]: row[column] for column in languages}
        if len(texts) < 2:
            raise ConfigError(
                f"has the columns {', '.join(row)}: name two of them after their languages, such as en and de, or give "
                "one column 'translation'"
            )
    for language, text in texts.items():
        if not isinstance(text, str) and not templates.is_empty(text):
            raise ConfigError(
                f"the text in language '{language}' is of type {type(text).__name__}, {text!r:.60}: correct it"
            )
    stripped = {language: None if templates.is_empty(text) else text.strip() for language, text in texts.items()}
    return {**others, "translation": Translations(stripped)}
