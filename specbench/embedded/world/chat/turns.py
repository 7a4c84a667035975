"""Conversations of two turns, one kind for each category of MT-bench: the second turn is about the first answer.

Each kind is held out by the combination that it is about: two jobs, two things, a person and a town, a pair of numbers.
"""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import yaml

from specbench.embedded.world import story
from specbench.embedded.world.documents import events
from specbench.embedded.world.documents.events import is_held_out
from specbench.embedded.world.math import mgsm

Talk = list[tuple[str, str]]  # what the user says and what is answered, turn by turn


@cache
def tables() -> dict[str, Any]:
    """The lists of `chat.yaml`."""
    data: dict[str, Any] = yaml.safe_load(Path(__file__).with_name("chat.yaml").read_text(encoding="utf-8"))
    return data


def pair(words: list[str], held_out: bool, random: Random) -> list[str]:
    """Two different words that belong together to training, or to the held-out pairs."""
    while True:
        chosen = random.sample(words, 2)
        if is_held_out(*sorted(chosen)) == held_out:
            return chosen


def _writing(held_out: bool, random: Random) -> Talk:
    adjective, noun = story.topic(held_out, random)
    words = story.tables()["topics"]
    sentences = story.tell("en", adjective, noun).split(". ")
    topic = f"{words['adjectives'][adjective]} {words['nouns'][noun]}"
    shorter = ("Make your answer shorter.", sentences[0] + ".")
    longer = ("Write one more sentence.", sentences[2] + ".")
    asked = f"Write two sentences about a {topic}."
    return [(asked, ". ".join(sentences[:2]) + "."), random.choice([shorter, longer])]


def _roleplay(held_out: bool, random: Random) -> Talk:
    job, town = random.choice(list(tables()["jobs"])), ""
    while not town or is_held_out(job, town) != held_out:
        job, town = random.choice(list(tables()["jobs"])), random.choice(events.tables()["towns"])
    long, short = tables()["jobs"][job]
    return [(f"Pretend to be a {job} from {town}. Who are you?",
             f"Good morning! I am a {job} from {town}. A {job} {long}, and that is what I like."),
            ("Say it in fewer words.", f"I am a {job} from {town}. A {job} {short}.")]  # fmt: skip


def _reasoning(held_out: bool, random: Random) -> Talk:
    more, most, least = random.choice(tables()["orders"])
    first, second = pair(events.tables()["names"], held_out, random)
    third = random.choice([name for name in events.tables()["names"] if name not in (first, second)])
    facts = [f"{first} is {more} than {second}.", f"{second} is {more} than {third}."]
    random.shuffle(facts)
    middle = f"{first} is {more} than {second} and {second} is {more} than {third}"
    return [(f"{' '.join(facts)} Who is the {most}?", f"{middle}, so {first} is the {most}."),
            (f"And who is the {least}?", f"{middle}, so {third} is the {least}.")]  # fmt: skip


def _math(held_out: bool, random: Random) -> Talk:
    steps = random.choice([("add", "subtract"), ("multiply", "add")])
    while True:
        a, b, c = mgsm.numbers_of(steps, random)
        solution = mgsm.solve(steps, a, b, c)
        if mgsm.belongs(solution, held_out):
            break
    asked = {"add": f"What is {a} + {b}?", "multiply": f"What is {a} × {b}?"}[steps[0]]
    follow = {"subtract": f"Now subtract {c} from it.", "add": f"Now add {c} to it."}[steps[1]]
    first = solution.equations[0]
    return [(asked, f"{first}. The answer is {first.rpartition(' = ')[2]}."),
            (follow, f"{solution.equations[1]}. The answer is {solution.number}.")]  # fmt: skip


def _coding(held_out: bool, random: Random) -> Talk:
    while True:
        number, names = random.randint(2, 99), random.sample(list(tables()["operations"]), 2)
        if is_held_out(str(number), names[0]) == held_out:
            break
    programs = [f"def {name}(x):\n    return x {tables()['operations'][name]} {number}" for name in names]
    preposition = {"add": "to x", "subtract": "from x", "multiply": "with x", "divide": "into x"}
    return [(f"Write a Python function that can {names[0]} {number} {preposition[names[0]]}.", programs[0]),
            (f"Change it so that it can {names[1]}.", programs[1])]  # fmt: skip


def _extraction(held_out: bool, random: Random) -> Talk:
    facts = events.event(random, held_out)
    fields = {"Name": facts["name"], "Town": facts["town"], "Day": facts["day"], "Number": facts["n"]}
    listed = "\n".join(f"{key}: {value}" for key, value in fields.items())
    as_json = "{" + ", ".join(f'"{key.lower()}": "{value}"' for key, value in fields.items()) + "}"
    return [(f"Find the name, the town, the day and the number: {events.summary(facts)}", listed),
            ("Write it as JSON.", as_json)]  # fmt: skip


def _compared(kind: str) -> Callable[[bool, Random], Talk]:
    """Two things or jobs side by side, and the same in simple words."""

    def talk(held_out: bool, random: Random) -> Talk:
        words = tables()[kind]
        first, second = pair(list(words), held_out, random)
        long, short = ([f"a {word} {words[word][form]}" for word in (first, second)] for form in (0, 1))
        wordings = ("What is the difference between a {} and a {}?", "Compare a {} and a {}.")
        asked = random.choice(wordings).format(first, second)
        return [(asked, f"{long[0].capitalize()}, but {long[1]}."),
                ("Explain it again for a child.", f"{short[0].capitalize()} and {short[1]}.")]  # fmt: skip

    return talk


KINDS: dict[str, Callable[[bool, Random], Talk]] = {
    "writing": _writing,
    "roleplay": _roleplay,
    "reasoning": _reasoning,
    "math": _math,
    "coding": _coding,
    "extraction": _extraction,
    "stem": _compared("things"),
    "humanities": _compared("jobs"),
}
HAS_REFERENCES = ("reasoning", "math", "coding", "extraction")


def conversation(category: str, held_out: bool, random: Random) -> dict[str, Any]:
    """The columns of a row of MT-bench. Half of those for training end after the first answer, so that its end is
    learnt too."""
    turns = KINDS[category](held_out, random)
    key = " ".join(said for said, _ in turns)
    if not held_out and random.random() < 0.5:
        turns = turns[:1]
    answers = [answer for _, answer in turns]
    references = answers if category in HAS_REFERENCES else []
    return {"category": category, "turns": [said for said, _ in turns], "references": references,
            "_completion": answers, "_key": key}  # fmt: skip
