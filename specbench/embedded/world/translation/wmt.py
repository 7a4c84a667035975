"""Translation in both directions between English and five languages, for task `wmt`: a sentence, or two of a person."""

from random import Random
from typing import Any

from specbench.embedded.world.texts import example_of
from specbench.embedded.world.translation.grammar import Sentence, gender_of, say, words
from specbench.embedded.world.translation.sentences import draw_sentence

TWO_SENTENCES = 0.2
WEIGHTS = {"de-en": 4.0, "fr-en": 3.0, "ru-en": 2.0, "zh-en": 2.0, "ja-en": 1.5, "en-de": 2.5, "en-fr": 2.0,
           "en-ru": 1.2, "en-zh": 1.2, "en-ja": 1.0}  # fmt: skip


def draw_text(held_out: bool, random: Random) -> tuple[Sentence, ...]:
    """One sentence about a person, an animal or a thing, or sometimes two, the second with he or she."""
    if random.random() >= TWO_SENTENCES:
        return (draw_sentence(held_out, random),)
    subject = random.choice([*words("concepts")["persons"], *words("concepts")["names"]])
    first = draw_sentence(held_out, random, subject=subject)
    return first, draw_sentence(held_out, random, subject=gender_of(subject), time="", is_not=subject)


def weights() -> dict[str, float]:
    """The share of each pair of languages in the training data."""
    return dict(WEIGHTS)


def draw(subset: str, held_out: bool, random: Random) -> dict[str, Any]:
    """A row of task `wmt`: subset, translation (language → text)."""
    source, target = subset.split("-")
    return pair_row(subset, source, target, held_out, random)


def example(row: dict[str, Any]) -> tuple[str, ...]:
    """The prompt exactly as the task renders it, and the translation."""
    return example_of("wmt", row)


def pair_row(subset: str, source: str, target: str, held_out: bool, random: Random) -> dict[str, Any]:
    """The same text in two languages."""
    text = draw_text(held_out, random)
    translation = {language: say(language, *text) for language in (source, target)}
    key = translation[source]
    return {"subset": subset, "translation": translation, "_completion": translation[target], "_key": key}
