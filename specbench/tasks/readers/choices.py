"""Multiple choice: the layouts in which CommonsenseQA and MMLU are published, as the hub has them."""

from collections.abc import Callable
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
    """Rows of cais/mmlu; csv files with a column for each of the four choices and the answer as a number or a letter.

    `is_first` marks the first row that is read: in the few-shot examples it carries the heading.
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
    """0 to 3 of such a number or of a letter A to D; ConfigError for anything else."""
    text = str(answer).strip().upper()
    if text in tuple(LETTERS):
        return LETTERS.index(text)
    if text in ("0", "1", "2", "3"):
        return int(text)
    raise ConfigError(f"column 'answer' = {answer!r}: must be a letter A to D or a number 0 to 3: correct the row")
