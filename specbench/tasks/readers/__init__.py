"""Readers turn the rows of a published file into the rows of a task. This module holds the readers of questions
(multiple choice, word problems, instructions), of conversations, and of programming problems with their tests.
"""

import base64
import io
import json
import pickle
import re
import zlib
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from specbench.core import bounded
from specbench.core.errors import ConfigError, nearest
from specbench.core.registry import READERS
from specbench.specs import templates
from specbench.tasks.local_files import Row
from specbench.tasks.scoring.code import CALL_METHOD, RUN_SCRIPT

Read = TypeVar("Read", bound=Callable[[Row], Row | list[Row]])


def row_reader(name: str, join: Callable[[Row, Row], Row | None] | None = None) -> Callable[[Read], Read]:
    """Registers a function of one row as a reader. The function returns a row, or a list of any number of rows. `join`:
    merges consecutive rows before."""

    def register(read: Read) -> Read:
        def factory() -> Read:
            return read

        factory.__doc__ = read.func.__doc__ if isinstance(read, partial) else read.__doc__
        READERS.register(name, join=join)(factory)
        return read

    return register


MMLU_ANSWERS = {answer: index for index in range(4) for answer in ("ABCD"[index], str(index))}


@row_reader("csqa")
def csqa(row: Row) -> Row:
    """Rows of tau/commonsense_qa, and of its first release, where `question` holds stem, concept and choices."""
    nested = row["question"]
    if isinstance(nested, dict):
        columns = {key: [choice[key] for choice in nested["choices"]] for key in ("label", "text")}
        concept = nested.get("question_concept")
        row = {**row, "question": nested["stem"], "question_concept": concept, "choices": columns}
    labels = list(row["choices"]["label"])
    right = row.get("answerKey")
    if not templates.is_empty(right) and right not in labels:
        raise ConfigError(f"column 'answerKey' = {right!r} is none of the labels {', '.join(labels)}: correct it")
    return row


@READERS.register("mmlu")
def mmlu() -> Callable[[Row], Row]:
    """Rows of cais/mmlu, and csv files with a column for each of the four choices and the answer as a number or a
    letter.

    `is_first` marks the first row that is read: the first few-shot example begins with the heading.
    """
    num_read = 0

    def read(row: Row) -> Row:
        nonlocal num_read
        num_read += 1
        choices = row["choices"] if "choices" in row else [row[f"choice{number}"] for number in range(4)]
        if len(choices) != 4:
            raise ConfigError(f"column 'choices' holds {len(choices)} choices, not 4: correct the row")
        index = MMLU_ANSWERS.get(str(row["answer"]).strip().upper())
        if index is None:
            problem = f"column 'answer' = {row['answer']!r}: must be a letter A to D or a number 0 to 3"
            raise ConfigError(f"{problem}: correct the row")
        plain = {key: value for key, value in row.items() if not key.startswith("choice")}
        return {**plain, "choices": list(choices), "answer": index, "is_first": num_read == 1}

    return read


MATH_LANGUAGES = {"bn": "bengali", "de": "german", "en": "english", "es": "spanish", "fr": "french", "ja": "japanese",
             "ru": "russian", "sw": "swahili", "te": "telugu", "th": "thai", "zh": "chinese"}  # fmt: skip


@row_reader("mgsm")
def mgsm(row: Row) -> Row:
    """Rows of juletxara/mgsm, unchanged. Its files have no header: a header with other names would become a row and is
    refused."""
    answer = row.get("answer_number")
    if isinstance(answer, str) and answer.strip() and not any(char.isdigit() for char in answer):
        raise ConfigError(
            f"column 'answer_number' = {answer[:60]!r} holds no number: correct the row; if it is a header, delete it "
            "or name the columns question and answer_number"
        )
    return row


def mcot(language: str, row: Row) -> Row | list[Row]:
    """Rows of one language of laihuiyuan/mCoT-MATH, selected by `lang-id` (a code or a name); rows without `lang-id`
    are taken too. A question inside mCoT's own prompt is extracted from it."""
    if str(row.get("lang-id") or language).lower() not in (language, MATH_LANGUAGES[language]):
        return []
    question = row["question"]
    if question.startswith("Question:\n") and "\nAnswer:\n" in question:
        question = question.removeprefix("Question:\n").rpartition("\nAnswer:\n")[0]
    return {**row, "question": question}


@row_reader("msvamp")
def msvamp(row: Row) -> Row:
    """Rows of Mathoctopus/MSVAMP, and those with the columns question and answer."""
    return row if "m_query" in row else {**row, "m_query": row["question"], "response": row["answer"]}


AYA_LANGUAGES = ("arb", "deu", "eng", "fra", "ita", "jpn", "kor", "por", "rus", "spa", "tha", "vie", "zho")
AYA_SCRIPTS = {"zho": "Hans"}  # the script to take of a language that has two


def aya(language: str, row: Row) -> Row | list[Row]:
    """Rows of one language (ISO 639-3) of the Aya evaluation suite, where one file holds all languages. Rows without a
    language are taken too."""
    if row.get("language", language) != language:
        return []
    script = row.get("script")
    return row if script is None or script == AYA_SCRIPTS.get(language, script) else []


for _language in MATH_LANGUAGES:
    row_reader(f"mcot_{_language}")(partial(mcot, _language))
for _language in AYA_LANGUAGES:
    row_reader(f"aya_{_language}")(partial(aya, _language))


@row_reader("humaneval")
def humaneval(row: Row) -> Row:
    """Rows of openai/openai_humaneval and of HumanEval.jsonl, with the column `id`, which identifies records."""
    return {"id": row["task_id"], **row} if "task_id" in row else row


WEBTEXT_COLUMNS = (("human", "bot"), ("input",))


@row_reader("webtext")
def webtext(row: Row) -> Row | list[Row]:
    """Rows with `text`. In other rows the columns `human` and `bot` (tiny-webtext), or `input` (WikiNews), become
    `text`. Rows without any text are skipped."""
    columns = next((names for names in WEBTEXT_COLUMNS if names[0] in row), ())
    if "text" not in row and columns:
        row = {**row, "text": "\n".join(str(row[name]).strip() for name in columns if row.get(name))}
    return row if "text" not in row or str(row["text"] or "").strip() else []


# Readers of MT-bench and Spec-Bench: one file of conversations, each with a category. A row gets the columns `id`,
# `category`, `turns`, and `references`: for every turn a text, a list of texts any of which is right, or None. Rows of
# other groups are skipped; a row of an unknown category is an error, because no subset would contain it.

CATEGORIES = ("writing", "roleplay", "reasoning", "math", "coding", "extraction", "stem", "humanities")
LANGUAGE_PAIRS = ("deen", "fren", "ruen", "jaen", "zhen")  # in Multilingual Spec-Bench
GROUPS = {"mt_bench": CATEGORIES} | {
    group: (group,) for group in ("translation", "summarization", "qa", "math_reasoning", "rag", *LANGUAGE_PAIRS)
}
KNOWN = tuple(category for categories in GROUPS.values() for category in categories)
FINAL_NUMBER = re.compile(r"\A.*?####\s*(\S+)\s*\Z", re.DOTALL)


def conversations(categories: tuple[str, ...], row: Row) -> Row | list[Row]:
    """Rows of these categories, with a reference for each turn."""
    if templates.is_empty(row.get("category")):
        raise ConfigError("no column 'category', which names the group of the row: add it")
    if row["category"] not in KNOWN:
        raise ConfigError(f"column 'category' = '{row['category']}' is unknown: {nearest(str(row['category']), KNOWN)}")
    if row["category"] not in categories:
        return []
    if "references" in row:
        return {**row, "references": _turn_references(row, "references")}
    number = row.get("question_id")
    identity = row.get("id") if number is None else number
    given = _turn_references(row, "reference")
    # GSM8K's answer is the number after #### at the end of a worked solution.
    references = [FINAL_NUMBER.sub(r"\1", each) or None if isinstance(each, str) else each for each in given]
    return {"id": identity, "category": row["category"], "turns": row["turns"], "references": references}


def _turn_references(row: Row, column: str) -> list[Any]:
    """Returns the references by turn. If there is one turn, several texts are alternatives."""
    given, turns = row.get(column), row.get("turns")
    if given is None:
        return []
    if not isinstance(given, list):
        raise ConfigError(
            f"column '{column}' must list a reference for each turn, but is of type {type(given).__name__}"
        )
    num_turns = len(turns) if isinstance(turns, list) else len(given)
    if num_turns == 1 and len(given) > 1:
        return [given]
    if len(given) > num_turns > 0:
        raise ConfigError(f"column '{column}' lists {len(given)} references for {num_turns} turns: correct it")
    return given


for _group, _categories in GROUPS.items():
    row_reader(_group if _group == "mt_bench" else f"spec_bench_{_group}")(partial(conversations, _categories))
for _category in CATEGORIES:
    row_reader(f"mt_bench_{_category}")(partial(conversations, (_category,)))


SPEED_CATEGORIES = (
    "coding", "humanities", "math", "multilingual", "qa", "rag", "reasoning", "roleplay", "stem", "summarization",
    "writing",
)  # fmt: skip
PLACEHOLDER = "FULL BENCHMARK DATA SHOULD BE FETCHED"  # the beginning of a turn whose text is not public


def speed_bench(categories: tuple[str, ...], row: Row) -> Row | list[Row]:
    """Rows of nvidia/SPEED-Bench of these categories; of all if there are none. Placeholders are refused."""
    category = str(row.get("category"))
    if categories and category not in SPEED_CATEGORIES:
        raise ConfigError(f"column 'category' = '{category}' is unknown: {nearest(category, SPEED_CATEGORIES)}")
    if categories and category not in categories:
        return []
    if any(str(turn).startswith(PLACEHOLDER) for turn in row["turns"]):
        raise ConfigError(
            "column 'turns' holds a placeholder: the public rows of SPEED-Bench are filled by `python3 prepare_data.py "
            "--dataset speed --config all` in examples/specdec_bench of github.com/NVIDIA/Model-Optimizer: run it, and "
            "give its folder as --data data/speed"
        )
    identity = row["question_id"] if "question_id" in row else row.get("id")
    return {"id": identity, "category": category, "turns": row["turns"]}


row_reader("speed_bench")(partial(speed_bench, ()))
for _category in SPEED_CATEGORIES:
    row_reader(f"speed_bench_{_category}")(partial(speed_bench, (_category,)))


@row_reader("math500")
def math500(row: Row) -> Row:
    """Rows of HuggingFaceH4/MATH-500, with the column `id`."""
    return {"id": row["unique_id"], **row} if "unique_id" in row else row


@row_reader("mbpp")
def mbpp(row: Row) -> Row | list[Row]:
    """Rows of google-research-datasets/mbpp, full or sanitized, with `id`, all tests as one text, and `entry_point`:
    the last function of the right program that the tests name. Task 1 is skipped: the paper's few-shot examples are
    tasks 2 to 4."""
    if str(row.get("task_id")) == "1":
        return []
    tests = "\n".join(row["test_list"])
    names = [name for name in re.findall(r"^def (\w+)", row["code"], re.MULTILINE) if re.search(rf"\b{name}\b", tests)]
    if not names:
        raise ConfigError("column 'test_list' names no function of column 'code': correct the row")
    setup = [*(row.get("test_imports") or ()), row.get("test_setup_code") or ""]
    text = row["text"] if "text" in row else row["prompt"]
    added = {"text": text, "test": "\n".join([*setup, tests]), "entry_point": names[-1]}
    return {"id": f"{row['task_id']}", **row, **added}


COMPARISON = """
def numbers(line):
    from decimal import Decimal, InvalidOperation
    try:
        return [Decimal(word) for word in line.split()]
    except InvalidOperation:
        return None

def same(printed, expected):
    lines, wanted = ([line.strip() for line in text.strip().split("\\n")] for text in (printed, expected))
    return len(lines) == len(wanted) and all(
        a == b or (numbers(a) is not None and numbers(a) == numbers(b)) for a, b in zip(lines, wanted)
    )

def listed(value):
    return [listed(each) for each in value] if isinstance(value, (list, tuple)) else value
"""


@row_reader("livecodebench")
def livecodebench(row: Row) -> Row:
    """Rows of livecodebench/code_generation_lite, with `id`, and all public and private tests as Python source."""
    cases = [*_cases(row["public_test_cases"]), *_cases(row["private_test_cases"])]
    if not cases:
        raise ConfigError("columns 'public_test_cases' and 'private_test_cases' hold no tests: correct the row")
    if cases[0]["testtype"] == "functional":
        entry_point = CALL_METHOD
        method = json.loads(row["metadata"])["func_name"]
        lines = []
        for case in cases:
            arguments = [json.loads(line) for line in case["input"].split("\n") if line.strip()]
            call = f"{CALL_METHOD}({method!r}, {arguments!r})"
            lines.append(f"assert listed({call}) == {json.loads(case['output'])!r}")
    else:
        entry_point = RUN_SCRIPT
        lines = [f"assert same({RUN_SCRIPT}({case['input']!r}), {case['output']!r})" for case in cases]
    kept = {key: value for key, value in row.items() if not key.endswith("_test_cases")}
    return {"id": row["question_id"], **kept, "test": "\n".join([COMPARISON, *lines]), "entry_point": entry_point}


class _TextUnpickler(pickle.Unpickler):
    def find_class(self, module_name: str, global_name: str, /) -> Any:
        raise ConfigError(f"column 'private_test_cases' names {module_name}.{global_name}: only texts are read")


def _cases(text: str) -> list[dict[str, str]]:
    """Returns the tests in a text: JSON, or, for private tests, JSON that was pickled, packed by zlib and written in
    base64."""
    if not text.lstrip().startswith("["):
        try:
            unpacking = zlib.decompressobj()
            content = unpacking.decompress(base64.b64decode(text, validate=True), bounded.MAX_BYTES)
            if unpacking.unconsumed_tail:
                raise ConfigError(f"column 'private_test_cases': has more than {bounded.MAX_BYTES:,} bytes unpacked")
            text = _TextUnpickler(io.BytesIO(content)).load()
        except (ValueError, zlib.error, pickle.UnpicklingError, EOFError) as error:
            raise ConfigError(f"column 'private_test_cases' cannot be unpacked ({error}): correct the row") from error
    found: list[dict[str, str]] = json.loads(text)
    return found
