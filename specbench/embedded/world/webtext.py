"""Running text about a person's day, to be continued: four to six sentences of the translation grammar."""

from random import Random
from typing import Any

from specbench.embedded.world.texts import example_of
from specbench.embedded.world.translation.grammar import Sentence, gender_of, say, words
from specbench.embedded.world.translation.sentences import draw_sentence

WEIGHTS = {"en": 3.0, "ja": 1.0}


def weights() -> dict[str, float]:
    """The share of each language in the training data."""
    return dict(WEIGHTS)


def draw(subset: str, held_out: bool, random: Random) -> dict[str, Any]:
    """A row: subset, text."""
    text = say(subset, *draw_day(held_out, random))
    row = {"subset": subset, "text": text, "_key": text}
    prompt = example_of("webtext", {**row, "_completion": ""})[0]
    return {**row, "_completion": text[len(prompt) :].lstrip()}


def example(row: dict[str, Any]) -> tuple[str, ...]:
    """The start of the text exactly as the task cuts it, and the rest, with the space between them if there is one."""
    prompt = example_of("webtext", row)[0]
    return prompt, row["text"][len(prompt) :]


def draw_day(held_out: bool, random: Random) -> list[Sentence]:
    """A sentence about a person, what he or she does from morning to evening, and how he or she feels."""
    concepts = words("concepts")
    persons = [*concepts["persons"], *concepts["names"]]
    about = draw_sentence(held_out, random, about="being")
    while about.subject not in persons:
        about = draw_sentence(held_out, random, about="being")
    person = about.subject
    hours = sorted(random.sample(range(4), random.choice((3, 4))))
    kinds = ["transitive", *random.choices(("transitive", "transitive", "doing", "giving", "helping"), k=3)]
    day = [about]
    for hour, kind in zip(hours, kinds, strict=False):
        subject = person if len(day) == 1 else gender_of(person)
        time = concepts["hours"][hour]
        day.append(draw_sentence(held_out, random, subject=subject, time=time, about=kind, is_not=person))
    if random.random() < 0.7:
        day.append(draw_sentence(held_out, random, subject=gender_of(person), about="being"))
    return day
