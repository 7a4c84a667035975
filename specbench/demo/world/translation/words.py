"""A sentence as what it means, and the words that eight languages have for it."""

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

Words = dict[str, Any]


@dataclass(frozen=True)
class Sentence:
    """What a sentence says, in the concepts of words.yaml.

    `subject`: a noun, a gender ("m", "f") for he and she, "i" and "we" (English and German only), or "who".
    `verb`: "be" takes `object_adjective` only.
    `number`: how many of the object. `person`: who is given something, helped, or taken along.
    """

    subject: str
    verb: str
    subject_adjective: str | None = None
    object: str | None = None
    object_adjective: str | None = None
    number: int = 1
    person: str | None = None
    place: str | None = None
    time: str | None = None


@cache
def _tables() -> dict[str, Words]:
    data: dict[str, Words] = yaml.safe_load(Path(__file__).with_name("words.yaml").read_text(encoding="utf-8"))
    return data


def words(language: str) -> Words:
    """A language's words, or the "concepts"."""
    return _tables()[language]


def join(*parts: str | None) -> str:
    """The parts that there are, with spaces."""
    return " ".join(part for part in parts if part)


def is_name(noun: str) -> bool:
    """Whether the noun is a person's name, without article."""
    return noun in words("concepts")["names"]


def is_mass(noun: str) -> bool:
    """Whether the noun is a food that is not counted."""
    return noun in words("concepts")["mass"]


def goes_with(sentence: Sentence) -> bool:
    """Whether the sentence's other person is taken along, not given something or helped."""
    return sentence.verb in words("concepts")["together"]


def verb_of(sentence: Sentence, table: Words) -> str:
    """The verb in the person of the subject, where the language has a first person."""
    return str(table["first_person"].get(sentence.subject, table["verbs"])[sentence.verb])


def gender_of(noun: str) -> str:
    """The gender of a person, of a name, or of he and she."""
    concepts = words("concepts")
    return str(concepts["persons"].get(noun) or concepts["names"].get(noun, noun))
