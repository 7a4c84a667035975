"""Readers of short questions: multiple choice, word problems, instructions and programs, in their published layouts."""

from collections.abc import Callable
from functools import partial
from typing import Any

from specbench.core.errors import ConfigError
from specbench.core.registry import READERS
from specbench.specs import templates
from specbench.tasks.local_files import Row

LETTERS = "ABCD"


@READERS.register("csqa")
def csqa() -> Callable[[Row], Row]:
    """Rows of tau/commonsense_qa, and those of the first release, whose `question` holds stem, concept and choices."""

    def read(row: Row) -> Row:
        made = flat(row)
        labels, right = list(made["choices"]["label"]), made.get("answerKey")
        if not templates.is_empty(right) and right not in labels:
            raise ConfigError(f"column 'answerKey' = {right!r} is none of the labels {', '.join(labels)}: correct it")
        return made

    def flat(row: Row) -> Row:
        nested = row["question"]
        if not isinstance(nested, dict):
            return row
        columns = {key: [choice[key] for choice in nested["choices"]] for key in ("label", "text")}
        concept = nested.get("question_concept")
        return {**row, "question": nested["stem"], "question_concept": concept, "choices": columns}

    return read


@READERS.register("mmlu")
def mmlu() -> Callable[[Row], Row]:
    """Rows of cais/mmlu, and csv files with a column for each of the four choices and the answer as a number or a
    letter.

    `is_first` marks the first row that is read: among the few-shot examples it has the heading.
    """
    num_read = 0

    def read(row: Row) -> Row:
        nonlocal num_read
        num_read += 1
        choices = row["choices"] if "choices" in row else [row[f"choice{number}"] for number in range(4)]
        if len(choices) != 4:
            raise ConfigError(f"column 'choices' holds {len(choices)} choices, not 4: correct the row")
        plain = {key: value for key, value in row.items() if not key.startswith("choice")}
        return {**plain, "choices": list(choices), "answer": _index(row["answer"]), "is_first": num_read == 1}

    return read


def _index(answer: Any) -> int:
    """Returns 0 to 3 for such a number or for a letter A to D. Raises ConfigError for anything else."""
    text = str(answer).strip().upper()
    if text in tuple(LETTERS):
        return LETTERS.index(text)
    if text in ("0", "1", "2", "3"):
        return int(text)
    raise ConfigError(f"column 'answer' = {answer!r}: must be a letter A to D or a number 0 to 3: correct the row")


MATH_LANGUAGES = {"bn": "bengali", "de": "german", "en": "english", "es": "spanish", "fr": "french", "ja": "japanese",
             "ru": "russian", "sw": "swahili", "te": "telugu", "th": "thai", "zh": "chinese"}  # fmt: skip


@READERS.register("mgsm")
def mgsm() -> Callable[[Row], Row]:
    """Rows of juletxara/mgsm, unchanged. Its files have no header: a header with other names would become a row and is
    refused."""

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
    """Rows of one language of laihuiyuan/mCoT-MATH, selected by `lang-id` (a code or a name); rows without it belong to
    the language. A question inside mCoT's own prompt is extracted from it."""

    def read(row: Row) -> Row | list[Row]:
        if str(row.get("lang-id") or language).lower() not in (language, MATH_LANGUAGES[language]):
            return []
        question = row["question"]
        if question.startswith("Question:\n") and "\nAnswer:\n" in question:
            question = question.removeprefix("Question:\n").rpartition("\nAnswer:\n")[0]
        return {**row, "question": question}

    return read


for _language in MATH_LANGUAGES:
    READERS.register(f"mcot_{_language}")(partial(mcot, _language))


@READERS.register("msvamp")
def msvamp() -> Callable[[Row], Row]:
    """Rows of Mathoctopus/MSVAMP, and those with the columns question and answer."""

    def read(row: Row) -> Row:
        return row if "m_query" in row else {**row, "m_query": row["question"], "response": row["answer"]}

    return read


AYA_LANGUAGES = ("arb", "deu", "eng", "fra", "ita", "jpn", "kor", "por", "rus", "spa", "tha", "vie", "zho")
AYA_SCRIPTS = {"zho": "Hans"}  # of languages with two scripts in the suite


def aya(language: str) -> Callable[[Row], Row | list[Row]]:
    """The rows of one language (ISO 639-3) of the Aya evaluation suite, one file of which holds all languages; and rows
    without a language."""

    def read(row: Row) -> Row | list[Row]:
        if row.get("language", language) != language:
            return []
        script = row.get("script")
        return row if script is None or script == AYA_SCRIPTS.get(language, script) else []

    return read


for _language in AYA_LANGUAGES:
    READERS.register(f"aya_{_language}")(partial(aya, _language))


@READERS.register("humaneval")
def humaneval() -> Callable[[Row], Row]:
    """Rows of openai/openai_humaneval and of HumanEval.jsonl, with the column `id`, which identifies records."""
    return lambda row: {"id": row["task_id"], **row} if "task_id" in row else row


WEBTEXT_COLUMNS = (("human", "bot"), ("input",))


@READERS.register("webtext")
def webtext() -> Callable[[Row], Row | list[Row]]:
    """Rows with `text`, unchanged; of others the columns `human` and `bot` (tiny-webtext), or `input` (WikiNews),
    become the text. Rows without any text are skipped."""
    return _webtext_row


def _webtext_row(row: Row) -> Row | list[Row]:
    columns = next((names for names in WEBTEXT_COLUMNS if names[0] in row), ())
    if "text" not in row and columns:
        row = {**row, "text": "\n".join(str(row[name]).strip() for name in columns if row.get(name))}
    return row if "text" not in row or str(row["text"] or "").strip() else []
