"""Questions in the manner of MMLU, of three of its subjects: four options, answered by a letter alone."""

from random import Random
from typing import Any

from specbench.demo.world import choices, math
from specbench.demo.world.texts import example_of

EXEMPLAR_SEED, EXEMPLAR_ANSWERS = 3, (1, 3, 0, 2, 1)
SUBJECTS = {
    "miscellaneous": (choices.kind, choices.odd, choices.use, choices.opposite),
    "high_school_geography": (choices.capital, choices.country),
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
        while (question := random.choice(SUBJECTS[subset])(3, random)).is_held_out != held_out:
            pass
    options, right = question.shuffled(random)
    return {"subset": subset, "question": question.text, "subject": subset, "choices": options, "answer": right,
            "_completion": choices.LETTERS[right], "_key": f"{question.text} {sorted(options)}"}  # fmt: skip


def _sum(held_out: bool, random: Random) -> choices.Question:
    """A sum or difference of a pair of numbers that the word problems train on, or of one that they hold out."""
    while True:
        first, second = random.randint(11, 49), random.randint(2, 9)
        if math.is_held_out_pair(first, second) == held_out:
            break
    sign, result = random.choice((("+", first + second), ("-", first - second)))
    near = [result + by for by in range(-4, 5) if by and result + by >= 0]
    wrong = tuple(str(other) for other in random.sample(near, 3))
    why = f"{first} {sign} {second} = {result}."
    return choices.Question(f"What is {first} {sign} {second}?", sign, str(result), wrong, why)


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


def example(row: dict[str, Any]) -> tuple[str, ...]:
    """The prompt exactly as `tasks/mmlu.yaml` renders it, and the letter."""
    return example_of("mmlu", row)
