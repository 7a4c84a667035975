"""Instructions with one right answer: about words and things, about a short text, and sentences to be written.

A question about a topic is held out by its wording and topic together (the topic occurs in other wordings), one about
sentences by its sentences, as in translation.
"""

from dataclasses import replace
from random import Random
from typing import Any

from specbench.embedded.world.grammar import Sentence, capital, clause, name, say, words
from specbench.embedded.world.rows import tables
from specbench.embedded.world.sentences import draw_sentence, is_held_out_content

DOLLY_KINDS = {"opposite": 1.0, "use": 1.0, "define": 1.0, "list": 1.0, "who": 2.0, "where": 1.5, "sentence": 2.0}


def dolly_weights() -> dict[str, float]:
    """Returns the share of each language in the training data."""
    return {language: entry["weight"] for language, entry in tables("dolly").items()}


def dolly_draw(subset: str, held_out: bool, random: Random) -> dict[str, Any]:
    """Returns a row: subset, language (ISO 639-3), inputs, targets."""
    kind = random.choices(list(DOLLY_KINDS), weights=list(DOLLY_KINDS.values()))[0]
    about = {"who": _who, "where": _where, "sentence": _sentence}.get(kind)
    question, answer = about(subset, held_out, random) if about else _topic(subset, kind, held_out, random)
    code = tables("dolly")[subset]["code"]
    return {"subset": subset, "language": code, "inputs": question, "targets": answer, "_completion": answer,
            "_key": question}  # fmt: skip


def _topic(language: str, kind: str, held_out: bool, random: Random) -> tuple[str, str]:
    entry = tables("dolly")[language][kind]
    numbers = tables("dolly")[language]["numbers"]
    while True:
        choices = (entry["questions"], _topics(entry), numbers if kind == "list" else [None])
        wording, topic, number = (random.randrange(len(texts)) for texts in choices)
        if is_held_out_content(kind, wording, topic, number) == held_out:
            break
    asked, *answers = _topics(entry)[topic]
    values = {"topic": asked, "number": numbers[number + 2]}
    values["answer"] = entry["separator"].join(answers[: number + 2]) if kind == "list" else answers[0]
    return entry["questions"][wording].format(**values), entry.get("answer", "{answer}").format(**values)


def _topics(entry: dict[str, Any]) -> list[list[str]]:
    """Returns topics with their answers; both words of a pair of opposites are topics."""
    return entry.get("topics") or [list(way) for pair in entry["pairs"] for way in (pair, pair[::-1])]


def _joined(language: str, text: str, question: str) -> str:
    return text + ("" if language in ("zh", "ja") else " ") + question


def _two_sentences(held_out: bool, random: Random) -> tuple[Sentence, Sentence]:
    """Returns sentences about different persons at two different places."""
    while True:
        kinds = random.choices(("transitive", "doing"), k=2)
        first, second = (draw_sentence(held_out, random, time="", about=kind) for kind in kinds)
        is_apart = {first.subject, first.person}.isdisjoint({second.subject, second.person} - {None})
        if is_apart and first.place and second.place and first.place != second.place:
            return first, second


def _who(language: str, held_out: bool, random: Random) -> tuple[str, str]:
    """Returns a text of two sentences and a question for the person of one."""
    text = _two_sentences(held_out, random)
    asked = replace(random.choice(text), subject_adjective=None)
    question = tables("dolly")[language]["who"].format(capital(clause(language, replace(asked, subject="who"))))
    return _joined(language, say(language, *text), question), say(language, asked)


def _where(language: str, held_out: bool, random: Random) -> tuple[str, str]:
    """Returns a text of two sentences and a question for the place of one."""
    text = _two_sentences(held_out, random)
    asked = random.choice(text)
    question, answer = tables("dolly")[language]["where"]
    person = name(language, asked.subject)
    place = words(language)["places"][asked.place]
    return (
        _joined(language, say(language, *text), question.format(topic=person)),
        capital(answer.format(topic=person, answer=place)),
    )


def _sentence(language: str, held_out: bool, random: Random) -> tuple[str, str]:
    """Returns words, and the sentence made of them."""
    sentence = draw_sentence(held_out, random, time="", about="transitive")
    sentence = replace(sentence, subject_adjective=None, object_adjective=None, number=1)
    entry, table = tables("dolly")[language], words(language)
    nouns = [table["nouns"][noun] for noun in (sentence.subject, sentence.object)]
    subject, thing = (noun if isinstance(noun, str) else noun[1] for noun in nouns)
    parts = [subject, table["verbs"][sentence.verb], thing, table["places"].get(sentence.place)]
    given = entry["list"]["separator"].join(part for part in parts if part)
    return random.choice(entry["sentence"]).format(topic=given), say(language, sentence)
