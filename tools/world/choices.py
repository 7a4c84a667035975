"""Multiple-choice questions about a small closed world, for CommonsenseQA and MMLU.

A question belongs to training or to the held-out ones. If its answer follows from questions of another kind (which of
these is an animal, and which is not one), the question is held out with its right option, whatever the other options
are. Only their own questions tell places, uses, opposites and capitals: all of these facts are trained on, and only the
question with exactly these options, in any order, is held out.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import cache, partial
from random import Random
from typing import Any

from specbench.specs.catalogue import load_task
from tools.world import math
from tools.world.grammar import capital as first_capital
from tools.world.rows import is_held_out_text, tables

LETTERS = "ABCDE"


@dataclass(frozen=True)
class ChoiceQuestion:
    """A question, its right option and the wrong ones, one sentence that gives the reason, and whether questions of
    another kind tell the answer too."""

    text: str
    concept: str
    right: str
    wrong: Sequence[str]
    why: str
    is_told_elsewhere: bool = False

    @property
    def is_held_out(self) -> bool:
        """Returns whether the question is kept out of training: with its right option, or with these options."""
        options = [self.right] if self.is_told_elsewhere else sorted((self.right, *self.wrong))
        content = "|".join([self.text, *options])
        return is_held_out_text(content)

    def shuffled(self, random: Random) -> tuple[list[str], int]:
        """Returns the options in a random order, and the index of the right one."""
        options = random.sample([self.right, *self.wrong], 1 + len(self.wrong))
        return options, options.index(self.right)


def article(noun: str) -> str:
    return f"{'an' if noun[0] in 'aeiou' else 'a'} {noun}"


def place(num_wrong: int, random: Random) -> ChoiceQuestion:
    noun, where = random.choice([item for things in tables("questions")["kinds"].values() for item in things.items()])
    wrong = random.sample([other for other in tables("questions")["places"] if other != where], num_wrong)
    why = f"You find {article(noun)} {tables('questions')['places'][where]}."
    return ChoiceQuestion(f"Where would you most likely find {article(noun)}?", noun, where, wrong, why)


def kind(num_wrong: int, random: Random, is_odd: bool = False) -> ChoiceQuestion:
    """Returns a question: the thing of a kind among others, or the one thing that is not of it."""
    kinds, verb = tables("questions")["kinds"], "is not" if is_odd else "is"
    name = random.choice([each for each, things in kinds.items() if not is_odd or len(things) >= num_wrong])
    sides = list(kinds[name]), [noun for other, things in kinds.items() if other != name for noun in things]
    noun, wrong = random.choice(sides[is_odd]), random.sample(sides[not is_odd], num_wrong)
    why = f"{first_capital(article(noun))} {verb} {article(name)}."
    return ChoiceQuestion(f"Which of these {verb} {article(name)}?", name, noun, wrong, why, is_told_elsewhere=True)


odd = partial(kind, is_odd=True)


def use(num_wrong: int, random: Random) -> ChoiceQuestion:
    uses = tables("questions")["uses"]
    noun = random.choice(list(uses))
    wrong = random.sample([other for other in uses if other != noun], num_wrong)
    return ChoiceQuestion(
        f"What do you use to {uses[noun]}?", noun, noun, wrong, f"You use {article(noun)} to {uses[noun]}."
    )


def opposite(num_wrong: int, random: Random) -> ChoiceQuestion:
    pair = random.choice(tables("questions")["opposites"])
    word, right = random.sample(pair, 2)
    others = [other for opposites in tables("questions")["opposites"] if opposites != pair for other in opposites]
    wrong = random.sample(others, num_wrong)
    return ChoiceQuestion(f"What is the opposite of {word}?", word, right, wrong, f"The opposite of {word} is {right}.")


def capital(num_wrong: int, random: Random) -> ChoiceQuestion:
    countries = tables("questions")["countries"]
    country = random.choice(list(countries))
    wrong = random.sample([city for other, (city, _) in countries.items() if other != country], num_wrong)
    right = countries[country][0]
    why = f"The capital of {country} is {right}."
    return ChoiceQuestion(f"What is the capital of {country}?", country, right, wrong, why)


def country(num_wrong: int, random: Random) -> ChoiceQuestion:
    """Returns a question: the country on a continent."""
    countries = tables("questions")["countries"]
    right = random.choice(list(countries))
    continent = countries[right][1]
    wrong = random.sample(_elsewhere(continent), num_wrong)
    why, text = f"{right} is in {continent}.", f"Which of these countries is in {continent}?"
    return ChoiceQuestion(text, continent, right, wrong, why, is_told_elsewhere=True)


def odd_country(num_wrong: int, random: Random) -> ChoiceQuestion:
    """Returns a question: the country that is not on a continent."""
    there: dict[str, list[str]] = {}
    for name, (_, continent) in tables("questions")["countries"].items():
        there.setdefault(continent, []).append(name)
    continent = random.choice([continent for continent, names in there.items() if len(names) >= num_wrong])
    right = random.choice(_elsewhere(continent))
    wrong = random.sample(there[continent], num_wrong)
    why, text = f"{right} is not in {continent}.", f"Which of these countries is not in {continent}?"
    return ChoiceQuestion(text, continent, right, wrong, why, is_told_elsewhere=True)


def _elsewhere(continent: str) -> list[str]:
    return [name for name, (_, where) in tables("questions")["countries"].items() if where != continent]


def draw_question(
    kinds: Sequence[Callable[[int, Random], ChoiceQuestion]],
    num_wrong: int,
    held_out: bool,
    random: Random,
    shown: Collection[str] = (),
) -> ChoiceQuestion:
    """Returns a question that belongs to training, or to the held-out ones, and is not in `shown`."""
    while True:
        question = random.choice(kinds)(num_wrong, random)
        if question.is_held_out == held_out and question.text not in shown:
            return question


CSQA_KINDS = (place, place, kind, use, opposite)


@cache
def csqa_exemplars() -> frozenset[str]:
    """Returns the questions of the exemplars, which no held-out row asks."""
    fewshot = load_task("csqa").fewshot
    return frozenset(str(row["question"]) for row in fewshot.rows) if fewshot and fewshot.rows else frozenset()


def csqa_draw(subset: str, held_out: bool, random: Random) -> dict[str, Any]:
    """Returns one random row in the layout of tau/commonsense_qa: five options, a reason, and the letter."""
    question = draw_question(CSQA_KINDS, 4, held_out, random, csqa_exemplars() if held_out else ())
    options, right = question.shuffled(random)
    letter = LETTERS[right]
    return {"subset": subset, "question": question.text, "question_concept": question.concept,
            "choices": {"label": list(LETTERS), "text": options}, "answerKey": letter,
            "_completion": f"{question.why} Therefore, the answer is {letter}.",
            "_key": question.text}  # fmt: skip


EXEMPLAR_SEED = 3
EXEMPLAR_ANSWERS = (1, 3, 0, 2, 1)
MMLU_SUBJECTS: dict[str, tuple[Callable[[int, Random], ChoiceQuestion], ...]] = {
    "miscellaneous": (kind, odd, use, opposite),
    "high_school_geography": (capital, capital, country, odd_country),
    "elementary_mathematics": (),
}
MMLU_WEIGHTS = {"miscellaneous": 1.0, "high_school_geography": 0.8, "elementary_mathematics": 0.6}


def mmlu_draw(subset: str, held_out: bool, random: Random) -> dict[str, Any]:
    """Returns one random row in the layout of cais/mmlu: four options, answered by a letter alone."""
    if subset == "elementary_mathematics":
        question = _sum_question(held_out, random)
    else:
        question = draw_question(
            MMLU_SUBJECTS[subset], 3, held_out, random, mmlu_exemplar_questions() if held_out else ()
        )
    options, right = question.shuffled(random)
    return {"subset": subset, "question": question.text, "subject": subset, "choices": options, "answer": right,
            "_completion": LETTERS[right], "_key": question.text}  # fmt: skip


def _sum_question(held_out: bool, random: Random) -> ChoiceQuestion:
    """Returns a sum or difference of a pair of numbers that the word problems train on, or hold out."""
    while True:
        first, second = random.randint(11, 49), random.randint(2, 9)
        if math.is_held_out_pair(first, second) == held_out:
            break
    sign, result = random.choice((("+", first + second), ("-", first - second)))
    near = [result + by for by in range(-4, 5) if by and result + by >= 0]
    wrong = list(map(str, random.sample(near, 3)))
    why = f"{first} {sign} {second} = {result}."
    return ChoiceQuestion(f"What is {first} {sign} {second}?", sign, str(result), wrong, why)


def mmlu_exemplars() -> list[dict[str, Any]]:
    """Returns the rows of the bundled dev split: five different questions of each subject, the first with the
    heading."""
    random = Random(EXEMPLAR_SEED)
    rows: list[dict[str, Any]] = []
    for subset in MMLU_WEIGHTS:
        for number, answer in enumerate(EXEMPLAR_ANSWERS):
            asked = {row["question"] for row in rows}
            while (row := mmlu_draw(subset, False, random))["answer"] != answer or row["question"] in asked:
                pass
            public = {key: value for key, value in row.items() if not key.startswith("_")}
            rows.append({**public, "id": f"{subset}-dev-{number}", "is_first": number == 0})
    return rows


@cache
def mmlu_exemplar_questions() -> frozenset[str]:
    return frozenset(row["question"] for row in mmlu_exemplars())
