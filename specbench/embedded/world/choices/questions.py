"""Multiple-choice questions about a small closed world, drawn for CommonsenseQA and MMLU.

A question belongs to training or to the held-out ones. Where its answer follows from questions of another kind (which
of these is an animal, and which is not one), the question with its right option is held out, whatever stands beside
it. Places, uses, opposites and capitals are facts that only their own question tells: all of them are trained on, and
only the question with just these options, in any order, is held out.
"""

import hashlib
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import yaml

HELD_OUT_PERCENT = 15
LETTERS = "ABCDE"


@dataclass(frozen=True)
class Question:
    """A question, its right option and the wrong ones, one sentence that says why, and whether questions of another
    kind tell the answer too."""

    text: str
    concept: str
    right: str
    wrong: tuple[str, ...]
    why: str
    is_told_elsewhere: bool = False

    @property
    def is_held_out(self) -> bool:
        """Whether the question is kept out of training: with its right option, or with these options."""
        options = [self.right] if self.is_told_elsewhere else sorted((self.right, *self.wrong))
        content = "|".join([self.text, *options])
        return int.from_bytes(hashlib.sha256(content.encode()).digest()[:4]) % 100 < HELD_OUT_PERCENT

    def shuffled(self, random: Random) -> tuple[list[str], int]:
        """The options in a random order, and the index of the right one."""
        options = random.sample([self.right, *self.wrong], 1 + len(self.wrong))
        return options, options.index(self.right)


@cache
def definition() -> dict[str, Any]:
    """The closed world of `questions.yaml`."""
    data: dict[str, Any] = yaml.safe_load(Path(__file__).with_name("questions.yaml").read_text(encoding="utf-8"))
    return data


def article(noun: str) -> str:
    """The noun after "a" or "an"."""
    return f"{'an' if noun[0] in 'aeiou' else 'a'} {noun}"


def _pick(pool: Sequence[str], number: int, random: Random) -> tuple[str, ...]:
    return tuple(random.sample(pool, number))


def place(num_wrong: int, random: Random) -> Question:
    """Where a thing is found."""
    noun, where = random.choice([item for things in definition()["kinds"].values() for item in things.items()])
    wrong = _pick([other for other in definition()["places"] if other != where], num_wrong, random)
    why = f"You find {article(noun)} {definition()['places'][where]}."
    return Question(f"Where would you most likely find {article(noun)}?", noun, where, wrong, why)


def kind(num_wrong: int, random: Random) -> Question:
    """Which thing is of a kind."""
    name = random.choice(list(definition()["kinds"]))
    noun = random.choice(list(definition()["kinds"][name]))
    wrong = _pick(_of_others(name), num_wrong, random)
    why = f"{_a(noun)} is {article(name)}."
    return Question(f"Which of these is {article(name)}?", name, noun, wrong, why, is_told_elsewhere=True)


def odd(num_wrong: int, random: Random) -> Question:
    """Which thing is not of a kind."""
    name = random.choice([name for name, things in definition()["kinds"].items() if len(things) >= num_wrong])
    noun = random.choice(_of_others(name))
    wrong = _pick(list(definition()["kinds"][name]), num_wrong, random)
    why = f"{_a(noun)} is not {article(name)}."
    return Question(f"Which of these is not {article(name)}?", name, noun, wrong, why, is_told_elsewhere=True)


def _of_others(name: str) -> list[str]:
    return [noun for other, things in definition()["kinds"].items() if other != name for noun in things]


def _a(noun: str) -> str:
    text = article(noun)
    return text[0].upper() + text[1:]


def use(num_wrong: int, random: Random) -> Question:
    """Which thing is used for something."""
    uses = definition()["uses"]
    noun = random.choice(list(uses))
    wrong = _pick([other for other in uses if other != noun], num_wrong, random)
    return Question(f"What do you use to {uses[noun]}?", noun, noun, wrong, f"You use {article(noun)} to {uses[noun]}.")


def opposite(num_wrong: int, random: Random) -> Question:
    """The opposite of a word."""
    pair = random.choice(definition()["opposites"])
    word, right = random.sample(pair, 2)
    others = [other for opposites in definition()["opposites"] if opposites != pair for other in opposites]
    wrong = _pick(others, num_wrong, random)
    return Question(f"What is the opposite of {word}?", word, right, wrong, f"The opposite of {word} is {right}.")


def capital(num_wrong: int, random: Random) -> Question:
    """The capital of a country."""
    countries = definition()["countries"]
    country = random.choice(list(countries))
    wrong = _pick([city for other, (city, _) in countries.items() if other != country], num_wrong, random)
    right = countries[country][0]
    why = f"The capital of {country} is {right}."
    return Question(f"What is the capital of {country}?", country, right, wrong, why)


def country(num_wrong: int, random: Random) -> Question:
    """Which country is on a continent."""
    countries = definition()["countries"]
    right = random.choice(list(countries))
    continent = countries[right][1]
    wrong = _pick(_elsewhere(continent), num_wrong, random)
    why, text = f"{right} is in {continent}.", f"Which of these countries is in {continent}?"
    return Question(text, continent, right, wrong, why, is_told_elsewhere=True)


def odd_country(num_wrong: int, random: Random) -> Question:
    """Which country is not on a continent."""
    there: dict[str, list[str]] = {}
    for name, (_, continent) in definition()["countries"].items():
        there.setdefault(continent, []).append(name)
    continent = random.choice([continent for continent, names in there.items() if len(names) >= num_wrong])
    right = random.choice(_elsewhere(continent))
    wrong = _pick(there[continent], num_wrong, random)
    why, text = f"{right} is not in {continent}.", f"Which of these countries is not in {continent}?"
    return Question(text, continent, right, wrong, why, is_told_elsewhere=True)


def _elsewhere(continent: str) -> list[str]:
    return [name for name, (_, where) in definition()["countries"].items() if where != continent]


def draw(
    kinds: Sequence[Callable[[int, Random], Question]],
    num_wrong: int,
    held_out: bool,
    random: Random,
    shown: Collection[str] = (),
) -> Question:
    """A question of one of the kinds that belongs to training, or to the held-out ones; none whose text is shown."""
    while True:
        question = random.choice(kinds)(num_wrong, random)
        if question.is_held_out == held_out and question.text not in shown:
            return question
