"""Questions in the manner of MMLU, of three of its subjects: four options, answered by a letter alone."""

from functools import cache
from random import Random
from typing import Any

from specbench.embedded.world.choices import questions
from specbench.embedded.world.math import mgsm
from specbench.embedded.world.texts import example_of

EXEMPLAR_SEED, EXEMPLAR_ANSWERS = 3, (1, 3, 0, 2, 1)
SUBJECTS = {
    "miscellaneous": (questions.kind, questions.odd, questions.use, questions.opposite),
    "high_school_geography": (questions.capital, questions.capital, questions.country, questions.odd_country),
    "elementary_mathematics": (),
}


def weights() -> dict[str, float]:
    """The shares of the subjects that the world knows."""
    return {"miscellaneous": 1.0, "high_school_geography": 0.8, "elementary_mathematics": 0.6}


def draw(subset: str, held_out: bool, random: Random) -> dict[str, Any]:
    """One random row in the layout of cais/mmlu."""
    if subset == "elementary_mathematics":
        question = _sum(held_out, random)
    else:
        question = questions.draw(SUBJECTS[subset], 3, held_out, random, shown() if held_out else ())
    options, right = question.shuffled(random)
    return {"subset": subset, "question": question.text, "subject": subset, "choices": options, "answer": right,
            "_completion": questions.LETTERS[right], "_key": question.text}  # fmt: skip


def _sum(held_out: bool, random: Random) -> questions.Question:
    """A sum or difference of a pair of numbers that the word problems train on, or of one that they hold out."""
    while True:
        first, second = random.randint(11, 49), random.randint(2, 9)
        if mgsm.is_held_out_pair(first, second) == held_out:
            break
    sign, result = random.choice((("+", first + second), ("-", first - second)))
    near = [result + by for by in range(-4, 5) if by and result + by >= 0]
    wrong = tuple(str(other) for other in random.sample(near, 3))
    why = f"{first} {sign} {second} = {result}."
    return questions.Question(f"What is {first} {sign} {second}?", sign, str(result), wrong, why)


def exemplars() -> list[dict[str, Any]]:
    """The rows of the bundled dev split, five different questions of each subject; the first of a subject carries the
    heading."""
    random = Random(EXEMPLAR_SEED)
    rows: list[dict[str, Any]] = []
    for subset in weights():
        for number, answer in enumerate(EXEMPLAR_ANSWERS):
            asked = {row["question"] for row in rows}
            while (row := draw(subset, False, random))["answer"] != answer or row["question"] in asked:
                pass
            public = {key: value for key, value in row.items() if not key.startswith("_")}
            rows.append({**public, "id": f"{subset}-dev-{number}", "is_first": number == 0})
    return rows


@cache
def shown() -> frozenset[str]:
    """The questions of the exemplars, which no held-out row asks."""
    return frozenset(row["question"] for row in exemplars())


def example(row: dict[str, Any]) -> tuple[str, ...]:
    """The prompt exactly as `tasks/mmlu.yaml` renders it, and the letter."""
    return example_of("mmlu", row)
