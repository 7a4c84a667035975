"""Multilingual word problems: mCoT's training rows, its published answers to MGSM, and MSVAMP as mCoT has it."""

from collections.abc import Callable
from functools import partial

from specbench.data.local import Row
from specbench.registry import READERS

LANGUAGES = {"bn": "bengali", "de": "german", "en": "english", "es": "spanish", "fr": "french", "ja": "japanese",
             "ru": "russian", "sw": "swahili", "te": "telugu", "th": "thai", "zh": "chinese"}  # fmt: skip


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
