"""What is asked about the answers of a run."""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from specbench.judge.cache import request_of
from specbench.judge.prompts import Turn, messages
from specbench.judge.settings import JudgeSettings
from specbench.running.records import Key, Record, record_key

if TYPE_CHECKING:
    from specbench.running.plan import Cell

JudgementKey = tuple[Key, str]  # of a record, and a method of it
Request = dict[str, Any]


class Question(NamedTuple):
    """What the user of a conversation says in each turn, and whether the judge is shown the right answers."""

    turns: Sequence[str]
    judge_sees_reference: bool = False


Questions = Mapping[tuple[str, str, int], Question]  # by task, subset and example


def questions_of(cells: "Iterable[Cell]") -> Questions:
    """What the examples of a run ask."""
    return {
        (cell.task.name, cell.subset, example.index): Question(example.turns, example.judge_sees_reference)
        for cell in cells
        for example in cell.data.examples
    }


def requests_of(
    records: Iterable[Record], questions: Questions, settings: JudgeSettings
) -> dict[JudgementKey, Request]:
    """What is asked about every answer: the conversation up to it, with the method's own answers, as the records hold
    them; where the judge is shown the right ones, also these, if a record has a text for its reference."""
    by_key = {record_key(record): record for record in records}
    found: dict[JudgementKey, Request] = {}
    for key, record in by_key.items():
        task, subset, example, repeat, turn = key
        question = questions[task, subset, example]
        so_far = [by_key[task, subset, example, repeat, number] for number in range(turn + 1)]
        for method in record["methods"]:
            turns = [
                Turn(text, part["methods"][method]["text"], _reference(part) if question.judge_sees_reference else None)
                for text, part in zip(question.turns, so_far, strict=False)
            ]
            found[key, method] = request_of(settings, messages(turns))
    return found


def _reference(record: Record) -> str | None:
    """The right answer as one text; several, any of which is right, one below the other. Tests of code are none."""
    reference = record.get("reference")
    texts = [reference] if isinstance(reference, str) else reference if isinstance(reference, list) else []
    return "\n\n".join(text for text in texts if text.strip()) or None
