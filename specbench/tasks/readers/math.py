"""Multilingual word problems: MGSM, mCoT's training rows, its published answers to MGSM, and MSVAMP as mCoT has it."""

from collections.abc import Callable
from functools import partial

from specbench.core.errors import ConfigError
from specbench.core.registry import READERS
from specbench.tasks.local_files import Row

LANGUAGES = {"bn": "bengali", "de": "german", "en": "english", "es": "spanish", "fr": "french", "ja": "japanese",
             "ru": "russian", "sw": "swahili", "te": "telugu", "th": "thai", "zh": "chinese"}  # fmt: skip


@READERS.register("mgsm")
def mgsm() -> Callable[[Row], Row]:
    """Rows of juletxara/mgsm as they are: its files have no header, so that one under other names would be a row."""

    def read(row: Row) -> Row:
        answer = row.get("answer_number")
        if isinstance(answer, str) and answer.strip() and not any(char.isdigit() for char in answer):
            raise ConfigError(
                f"column 'answer_number' = {answer[:60]!r} holds no number: correct the row, or, where it is a header, "
                "delete it or name the columns question and answer_number"
            )
        return row

    return read


def mcot(language: str) -> Callable[[Row], Row | list[Row]]:
    """Rows of one language of laihuiyuan/mCoT-MATH, told apart by `lang-id` (a code or a name); rows without it are of
    the language. A question that stands in mCoT's prompt already is taken out of it.
    """

    def read(row: Row) -> Row | list[Row]:
        if str(row.get("lang-id") or language).lower() not in (language, LANGUAGES[language]):
            return []
        question = row["question"]
        if question.startswith("Question:\n") and "\nAnswer:\n" in question:
            question = question.removeprefix("Question:\n").rpartition("\nAnswer:\n")[0]
        return {**row, "question": question}

    return read


for _language in LANGUAGES:
    READERS.register(f"mcot_{_language}")(partial(mcot, _language))


@READERS.register("msvamp")
def msvamp() -> Callable[[Row], Row]:
    """Rows of Mathoctopus/MSVAMP, and those with the columns question and answer."""

    def read(row: Row) -> Row:
        return row if "m_query" in row else {**row, "m_query": row["question"], "response": row["answer"]}

    return read
