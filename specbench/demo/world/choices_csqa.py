"""Questions of everyday life in the manner of CommonsenseQA: five options, a reason, and the letter."""

from random import Random
from typing import Any

from specbench.demo.world import choices
from specbench.demo.world.texts import example_of

KINDS = (choices.place, choices.place, choices.kind, choices.use, choices.opposite)


def weights() -> dict[str, float]:
    """One subset."""
    return {"default": 1.0}


def draw(subset: str, held_out: bool, random: Random) -> dict[str, Any]:
    """One random row in the layout of tau/commonsense_qa."""
    while (question := random.choice(KINDS)(4, random)).is_held_out != held_out:
        pass
    options, right = question.shuffled(random)
    letter = choices.LETTERS[right]
    return {"subset": subset, "question": question.text, "question_concept": question.concept,
            "choices": {"label": list(choices.LETTERS), "text": options}, "answerKey": letter,
            "_completion": f"{question.why} Therefore, the answer is {letter}.",
            "_key": f"{question.text} {sorted(options)}"}  # fmt: skip


def example(row: dict[str, Any]) -> tuple[str, ...]:
    """The prompt exactly as `tasks/csqa.yaml` renders it, and the reason with the letter."""
    return example_of("csqa", row)
