"""Talks in German and English, for task `iwslt14`: the sentences of the grammar as a speaker says them.

The speaker thinks or hopes something, tells of what "I" or "we" do, asks who does something and guesses. A talk is held
out by its sentence, as in the other translations.
"""

from dataclasses import replace
from random import Random
from typing import Any

from specbench.embedded.world.texts import example_of
from specbench.embedded.world.translation.grammar import Sentence, capital, clause, name
from specbench.embedded.world.translation.sentences import draw_sentence

SAID = (
    {"de": "Ich glaube, {}.", "en": "I think that {}."},
    {"de": "Ich hoffe, {}.", "en": "I hope that {}."},
    {"de": "Wissen Sie, {}.", "en": "You know, {}."},
    {"de": "Sehen Sie, {}.", "en": "You see, {}."},
    {"de": "Also, {}.", "en": "So, {}."},
)
TOLD = (*SAID[2:], {"de": "{}.", "en": "{}."})
ASKED = {"de": "{} Ich glaube, es ist {}.", "en": "{} I think it is {}."}
KINDS = {"said": 0.45, "told": 0.35, "asked": 0.2}


def weights() -> dict[str, float]:
    """One subset."""
    return {"de-en": 1.0}


def draw(subset: str, held_out: bool, random: Random) -> dict[str, Any]:
    """A row of task `iwslt14`: subset, translation (language → text)."""
    source, target = subset.split("-")
    translation = dict(zip((source, target), draw_talk((source, target), held_out, random), strict=True))
    return {"subset": subset, "translation": translation, "_completion": translation[target],
            "_key": translation[source]}  # fmt: skip


def example(row: dict[str, Any]) -> tuple[str, ...]:
    """The prompt exactly as the task renders it, and the translation."""
    return example_of("iwslt14", row)


def draw_talk(languages: tuple[str, ...], held_out: bool, random: Random) -> list[str]:
    """One or two sentences of a talk in the languages ("de", "en")."""
    kind = random.choices(list(KINDS), weights=list(KINDS.values()))[0]
    if kind == "asked":
        about = random.choice(("transitive", "doing", "giving", "helping"))
        sentence = draw_sentence(held_out, random, time="", about=about)
        return [ask(language, sentence) for language in languages]
    subject = random.choice(("i", "we")) if kind == "told" else None
    sentence = draw_sentence(held_out, random, subject=subject)
    frame = random.choice(TOLD if kind == "told" else SAID)
    return [capital(frame[language].format(clause(language, sentence))) for language in languages]


def ask(language: str, sentence: Sentence) -> str:
    """The question for the subject of a sentence, and the speaker's guess."""
    asked = clause(language, replace(sentence, subject="who", subject_adjective=None))
    return ASKED[language].format(capital(asked) + "?", name(language, sentence.subject))
