"""Questions of everyday life in the manner of CommonsenseQA: five options, a reason, and the letter."""

from functools import cache
from random import Random
from typing import Any

from specbench.embedded.world.choices import questions
from specbench.embedded.world.texts import example_of
from specbench.specs.catalogue import load_task

KINDS = (questions.place, questions.place, questions.kind, questions.use, questions.opposite)


def weights() -> dict[str, float]:
    """One subset."""
    return {"default": 1.0}


@cache
def shown() -> frozenset[str]:
    """The questions of the exemplars, which no held-out row asks."""
    fewshot = load_task("csqa").fewshot
    return frozenset(row["question"] for row in fewshot.rows) if fewshot and fewshot.rows else frozenset()


def draw(subset: str, held_out: bool, random: Random) -> dict[str, Any]:
    """One random row in the layout of tau/commonsense_qa."""
    question = questions.draw(KINDS, 4, held_out, random, shown() if held_out else ())
    options, right = question.shuffled(random)
    letter = questions.LETTERS[right]
    return {"subset": subset, "question": question.text, "question_concept": question.concept,
            "choices": {"label": list(questions.LETTERS), "text": options}, "answerKey": letter,
            "_completion": f"{question.why} Therefore, the answer is {letter}.",
            "_key": question.text}  # fmt: skip


def example(row: dict[str, Any]) -> tuple[str, ...]:
    """The prompt exactly as `tasks/csqa.yaml` renders it, and the reason with the letter."""
    return example_of("csqa", row)
