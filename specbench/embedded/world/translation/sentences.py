"""Random sentences of the small parallel grammar.

A sentence belongs to the training data or to the held-out sentences by who does what to what where, in every language
and every task of the family: no combination that is asked for was ever trained on, all its words and frames were.
"""

import hashlib
from random import Random
from typing import Any

from specbench.embedded.world.translation.grammar import Sentence, words

HELD_OUT_PERCENT = 15


def is_held_out(*content: object) -> bool:
    """Whether the content is kept out of training."""
    digest = hashlib.sha256("|".join(map(str, content)).encode()).digest()
    return int.from_bytes(digest[:4]) % 100 < HELD_OUT_PERCENT


def belongs(sentence: Sentence, held_out: bool) -> bool:
    """Whether the sentence belongs to the held-out ones, or to training: by subject, verb, object, other person and
    place, or by subject and adjective where it has no more. "He is old" belongs to both: there are too few of it."""
    if sentence.verb == "be" and sentence.subject in ("m", "f"):
        return True
    said = sentence.object_adjective if sentence.verb == "be" else sentence.object
    return is_held_out(sentence.subject, sentence.verb, said, sentence.person, sentence.place) == held_out


def draw_sentence(
    held_out: bool,
    random: Random,
    *,
    subject: str | None = None,
    time: str | None = None,
    about: str | None = None,
    is_not: str | None = None,
) -> Sentence:
    """A random sentence. `subject`: a person, "m", "f", "i" or "we"; `about`: its kind (see `_KINDS`); else by chance.
    `is_not`: who cannot be its other person, as he or she is its subject."""
    while True:
        kinds = {kind: share for kind, (share, _) in _KINDS.items() if subject is None or kind != "animal"}
        kind = about or random.choices(list(kinds), weights=list(kinds.values()))[0]
        sentence = _KINDS[kind][1](subject, time, random)
        if belongs(sentence, held_out) and (is_not is None or sentence.person != is_not):
            return sentence


def _subject(subject: str | None, time: str | None, random: Random) -> dict[str, Any]:
    """The subject's own words, and the time ("" for none)."""
    concepts = words("concepts")
    if time is None and random.random() < 0.4:
        time = random.choice([*concepts["days"], *concepts["hours"]])
    chosen = subject or random.choice([*concepts["persons"], *concepts["names"]])
    adjective = None
    if chosen in concepts["persons"] and random.random() < 0.4:
        adjective = random.choice(concepts["person_adjectives"])
    return {"subject": chosen, "subject_adjective": adjective, "time": time or None}


def _place(random: Random) -> str | None:
    return random.choice(words("concepts")["places"]) if random.random() < 0.7 else None


def _other(subject: str, random: Random) -> str:
    persons = [*words("concepts")["persons"], *words("concepts")["names"]]
    return str(random.choice([person for person in persons if person != subject]))


def _object(objects: list[str], random: Random) -> dict[str, Any]:
    """An object with its adjective and its number, as the words allow."""
    concepts = words("concepts")
    chosen = random.choice(objects)
    if chosen in concepts["mass"]:
        return {"object": chosen}
    adjectives = concepts["thing_adjectives" if chosen in concepts["things"] else "animal_adjectives"]
    adjective = random.choice(adjectives) if random.random() < 0.35 else None
    number = random.choice(concepts["numbers"]) if chosen in concepts["things"] and random.random() < 0.25 else 1
    return {"object": chosen, "object_adjective": adjective, "number": number}


def _transitive(subject: str | None, time: str | None, random: Random) -> Sentence:
    verb, objects = random.choice(list(words("concepts")["transitive"].items()))
    return Sentence(verb=verb, place=_place(random), **_subject(subject, time, random), **_object(objects, random))


def _giving(subject: str | None, time: str | None, random: Random) -> Sentence:
    giver = _subject(subject, time, random)
    given = _object(words("concepts")["given"], random)
    return Sentence(verb="give", person=_other(giver["subject"], random), **giver, **given)


def _helping(subject: str | None, time: str | None, random: Random) -> Sentence:
    helper = _subject(subject, time, random)
    return Sentence(verb="help", person=_other(helper["subject"], random), place=_place(random), **helper)


def _doing(subject: str | None, time: str | None, random: Random) -> Sentence:
    concepts = words("concepts")
    doer = _subject(subject, time, random)
    verb = random.choice(concepts["intransitive"])
    is_together = verb in concepts["together"] and random.random() < 0.5
    return Sentence(verb=verb, person=_other(doer["subject"], random) if is_together else None,
                    place=random.choice(concepts["places"]), **doer)  # fmt: skip


def _animal(subject: str | None, time: str | None, random: Random) -> Sentence:
    concepts = words("concepts")
    animal = {**_subject(random.choice(concepts["animals"]), time, random), "subject_adjective": None}
    if random.random() < 0.4:
        animal["subject_adjective"] = random.choice(concepts["animal_adjectives"])
    return Sentence(verb=random.choice(concepts["animal_verbs"]), place=random.choice(concepts["places"]), **animal)


def _being(subject: str | None, time: str | None, random: Random) -> Sentence:
    concepts = words("concepts")
    nouns = [*concepts["persons"], *concepts["names"], *concepts["animals"], *concepts["things"]]
    chosen = subject or random.choice(nouns)
    kinds = {noun: kind for kind in ("thing", "animal") for noun in concepts[kind + "s"]}
    adjective = random.choice(concepts[kinds.get(chosen, "person") + "_adjectives"])
    return Sentence(chosen, "be", object_adjective=adjective)


_KINDS = {
    "transitive": (0.45, _transitive),
    "giving": (0.12, _giving),
    "helping": (0.08, _helping),
    "doing": (0.17, _doing),
    "animal": (0.08, _animal),
    "being": (0.1, _being),
}
