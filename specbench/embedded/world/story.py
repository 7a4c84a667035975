"""Short stories in four languages, each about a topic: an adjective and a noun, as English words.

A topic belongs to training or to the held-out ones, in every language; all words occur in training.
"""

from random import Random
from typing import Any

from specbench.embedded.world.rows import is_held_out, tables


def story_weights() -> dict[str, float]:
    """Returns the share of each language in the training data."""
    return {language: entry["weight"] for language, entry in tables("story")["languages"].items()}


def tell(language: str, adjective: int, noun: int) -> str:
    """Returns the story of a topic, given by the indices of its two words in the lists."""
    entry = tables("story")["languages"][language]
    gender, word = entry["nouns"][noun] if "articles" in entry else ("m", entry["nouns"][noun])
    article, definite = entry["articles"][gender] if "articles" in entry else ("a", "the")
    forms = entry["adjectives"][adjective]
    text: str = entry["frame"].format(
        adjective=forms if isinstance(forms, str) else forms[gender in "fw"],
        noun=word,
        a=article,
        the=definite,
        The=definite[0].upper() + definite[1:],
        that=definite,
        place=entry["places"][noun % 6],
        habit=entry["habits"][(noun + noun // 6) % 6],
        friend=entry["friends"][(2 * noun + noun // 12) % 6],
        trouble=entry["troubles"][adjective // 2],
        rescue=entry["rescues"][adjective // 2],
        ending=entry["endings"][adjective % 4],
    )
    return text


def topic(held_out: bool, random: Random) -> tuple[int, int]:
    """Returns an adjective and a noun by their indices in the lists."""
    words = tables("story")["topics"]
    while True:
        adjective, noun = random.randrange(len(words["adjectives"])), random.randrange(len(words["nouns"]))
        if is_held_out(words["adjectives"][adjective], words["nouns"][noun]) == held_out:
            return adjective, noun


def story_draw(language: str, held_out: bool, random: Random) -> dict[str, Any]:
    """Returns one topic and its story."""
    words, (adjective, noun) = tables("story")["topics"], topic(held_out, random)
    topic_words = {"adjective": words["adjectives"][adjective], "noun": words["nouns"][noun]}
    told = tell(language, adjective, noun)
    return {"subset": language, **topic_words, "_completion": told, "_key": " ".join(topic_words.values())}
