"""Random sentences of the small parallel grammar, and the translation and text tasks made of them.

A sentence belongs to the training data or to the held-out sentences by who does what to what where, in every language
and every task of the family: no held-out combination was trained on, but all its words and frames were.
"""

from dataclasses import replace
from random import Random
from typing import Any

from tools.world.grammar import Sentence, capital, clause, gender_of, name, say, words
from tools.world.rows import example_of, is_held_out_text


def is_held_out_content(*content: object) -> bool:
    return is_held_out_text("|".join(map(str, content)))


def sentence_belongs(sentence: Sentence, held_out: bool) -> bool:
    """Returns whether the sentence belongs to the held-out ones, or to training: by subject, verb, object, other person
    and place, or by subject and adjective if it has no more. "He is old" belongs to both, because there are few such
    sentences."""
    if sentence.verb == "be" and sentence.subject in ("m", "f"):
        return True
    said = sentence.object_adjective if sentence.verb == "be" else sentence.object
    return is_held_out_content(sentence.subject, sentence.verb, said, sentence.person, sentence.place) == held_out


def draw_sentence(
    held_out: bool,
    random: Random,
    *,
    subject: str | None = None,
    time: str | None = None,
    about: str | None = None,
    is_not: str | None = None,
) -> Sentence:
    """Returns a random sentence. `subject`: a person, "m", "f", "i" or "we"; `about`: its kind (see `SENTENCE_KINDS`);
    otherwise random. `is_not`: a person that must not be the other person, because it is the subject."""
    while True:
        kinds = {kind: share for kind, (share, _) in SENTENCE_KINDS.items() if subject is None or kind != "animal"}
        kind = about or random.choices(list(kinds), weights=list(kinds.values()))[0]
        sentence = SENTENCE_KINDS[kind][1](subject, time, random)
        if sentence_belongs(sentence, held_out) and (is_not is None or sentence.person != is_not):
            return sentence


def _subject(subject: str | None, time: str | None, random: Random) -> dict[str, Any]:
    """Returns the subject's words, and the time ("" for none)."""
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
    """Returns an object with its adjective and its number, as the words allow."""
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


SENTENCE_KINDS = {
    "transitive": (0.45, _transitive),
    "giving": (0.12, _giving),
    "helping": (0.08, _helping),
    "doing": (0.17, _doing),
    "animal": (0.08, _animal),
    "being": (0.1, _being),
}


TWO_SENTENCES = 0.2
WMT_WEIGHTS = {"de-en": 4.0, "fr-en": 3.0, "ru-en": 2.0, "zh-en": 2.0, "ja-en": 1.5, "en-de": 2.5, "en-fr": 2.0,
           "en-ru": 1.2, "en-zh": 1.2, "en-ja": 1.0}  # fmt: skip


def draw_text(held_out: bool, random: Random) -> tuple[Sentence, ...]:
    """Returns one sentence about a person, an animal or a thing, or sometimes two, the second with he or she."""
    if random.random() >= TWO_SENTENCES:
        return (draw_sentence(held_out, random),)
    subject = random.choice([*words("concepts")["persons"], *words("concepts")["names"]])
    first = draw_sentence(held_out, random, subject=subject)
    return first, draw_sentence(held_out, random, subject=gender_of(subject), time="", is_not=subject)


def wmt_draw(subset: str, held_out: bool, random: Random) -> dict[str, Any]:
    source, target = subset.split("-")
    return pair_row(subset, source, target, held_out, random)


def pair_row(subset: str, source: str, target: str, held_out: bool, random: Random) -> dict[str, Any]:
    text = draw_text(held_out, random)
    translation = {language: say(language, *text) for language in (source, target)}
    key = translation[source]
    return {"subset": subset, "translation": translation, "_completion": translation[target], "_key": key}


SAID = (
    {"de": "Ich glaube, {}.", "en": "I think that {}."},
    {"de": "Ich hoffe, {}.", "en": "I hope that {}."},
    {"de": "Wissen Sie, {}.", "en": "You know, {}."},
    {"de": "Sehen Sie, {}.", "en": "You see, {}."},
    {"de": "Also, {}.", "en": "So, {}."},
)
TOLD = (*SAID[2:], {"de": "{}.", "en": "{}."})
ASKED = {"de": "{} Ich glaube, es ist {}.", "en": "{} I think it is {}."}
TALK_SHARES = {"said": 0.45, "told": 0.35, "asked": 0.2}


def iwslt14_draw(subset: str, held_out: bool, random: Random) -> dict[str, Any]:
    source, target = subset.split("-")
    translation = dict(zip((source, target), draw_talk((source, target), held_out, random), strict=True))
    return {"subset": subset, "translation": translation, "_completion": translation[target],
            "_key": translation[source]}  # fmt: skip


def draw_talk(languages: tuple[str, ...], held_out: bool, random: Random) -> list[str]:
    """Returns one or two sentences of a talk: an opinion, a report of "I" or "we", or a question with a guess."""
    kind = random.choices(list(TALK_SHARES), weights=list(TALK_SHARES.values()))[0]
    if kind == "asked":
        about = random.choice(("transitive", "doing", "giving", "helping"))
        sentence = draw_sentence(held_out, random, time="", about=about)
        return [ask_for_subject(language, sentence) for language in languages]
    subject = random.choice(("i", "we")) if kind == "told" else None
    sentence = draw_sentence(held_out, random, subject=subject)
    frame = random.choice(TOLD if kind == "told" else SAID)
    return [capital(frame[language].format(clause(language, sentence))) for language in languages]


def ask_for_subject(language: str, sentence: Sentence) -> str:
    """Returns the question for the subject of a sentence, and the speaker's guess."""
    asked = clause(language, replace(sentence, subject="who", subject_adjective=None))
    return ASKED[language].format(capital(asked) + "?", name(language, sentence.subject))


def low_resource_draw(subset: str, held_out: bool, random: Random) -> dict[str, Any]:
    """Returns a row of task `low_resource_mt`, into the invented language `x-demo`."""
    return pair_row(subset, "en", subset, held_out, random)


WEBTEXT_WEIGHTS = {"en": 3.0, "ja": 1.0}


def webtext_draw(subset: str, held_out: bool, random: Random) -> dict[str, Any]:
    """Returns a row with a text about a person's day: subset, text."""
    text = say(subset, *draw_day(held_out, random))
    row = {"subset": subset, "text": text, "_key": text}
    prompt = example_of("webtext", {**row, "_completion": ""})[0]
    return {**row, "_completion": text[len(prompt) :].lstrip()}


def webtext_example(row: dict[str, Any]) -> tuple[str, ...]:
    """Returns the start of the text exactly as the task cuts it, and the rest, including a space between them."""
    prompt = example_of("webtext", row)[0]
    return prompt, row["text"][len(prompt) :]


def draw_day(held_out: bool, random: Random) -> list[Sentence]:
    """Returns a sentence about a person, sentences about the day from morning to evening, and one about the mood."""
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
