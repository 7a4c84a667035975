"""Questions of one turn: the groups of Spec-Bench beside the conversations, each held out by what it is about."""

import re
from collections.abc import Callable
from random import Random
from typing import Any

from specbench.embedded.world.chat.turns import pair, tables
from specbench.embedded.world.documents import events
from specbench.embedded.world.documents.events import is_held_out
from specbench.embedded.world.math import mgsm
from specbench.embedded.world.translation import wmt

NAMES = {"de": "German", "fr": "French", "ru": "Russian", "ja": "Japanese", "zh": "Chinese"}


def row_of(category: str, asked: str, completion: str, references: list[str]) -> dict[str, Any]:
    """The columns of a row of one turn, any of whose references is right."""
    return {"category": category, "turns": [asked], "references": [references] if references else [],
            "_completion": [completion], "_key": asked}  # fmt: skip


def translate(category: str, source: str, separator: str, held_out: bool, random: Random) -> dict[str, Any]:
    """A sentence to translate into English."""
    row = wmt.pair_row(category, source, "en", held_out, random)
    asked = f"Translate {NAMES[source]} to English:{separator}{row['translation'][source]}"
    return row_of(category, asked, row["_completion"], [row["_completion"]])


def _translation(held_out: bool, random: Random) -> dict[str, Any]:
    return translate("translation", "de", " ", held_out, random)


def _summarization(held_out: bool, random: Random) -> dict[str, Any]:
    facts = events.event(random, held_out)
    told = events.summary(facts)
    return row_of("summarization", f"Summarize: {events.article(facts, random)}", told, [told])


def _qa(held_out: bool, random: Random) -> dict[str, Any]:
    """Opposites of two words, months and days so much later: what follows from lists that are known."""
    lists, kind = tables(), random.choice(("opposites", "months", "days"))
    if kind == "opposites":
        first, second = pair(list(lists["opposites"]), held_out, random)
        answers = lists["opposites"][first], lists["opposites"][second]
        told = f"The opposites are {answers[0]} and {answers[1]}."
        return row_of("qa", f"What are the opposites of {first} and {second}?", told, [told])
    names = lists["months"] if kind == "months" else events.tables()["days"]
    while True:
        start, count = random.randrange(len(names)), random.randint(1, 5)
        if is_held_out(names[start], str(count)) == held_out:
            break
    word, unit = lists["counts"][count - 1], kind.removesuffix("s") if count == 1 else kind
    later = names[(start + count) % len(names)]
    told = f"{later} is {word} {unit} after {names[start]}."
    return row_of("qa", f"What is {word} {unit} after {names[start]}?", told, [told, later])


def _math_reasoning(held_out: bool, random: Random) -> dict[str, Any]:
    row = mgsm.draw("en", held_out, random)
    return row_of("math_reasoning", row["question"], row["answer"], [str(row["answer_number"])])


def _rag(held_out: bool, random: Random) -> dict[str, Any]:
    """Three short passages about different kinds of event; a sentence of one of them answers the question."""
    facts = events.event(random, held_out)
    asked, _, answer = events.question(facts, random)
    passages = [events.article(facts, random, num_asides=0)]
    told = next(line for line in passages[0].replace(". ", ".\n").splitlines() if re.search(rf"\b{answer}\b", line))
    while len(passages) < 3:
        other = events.event(random, held_out)
        if other["kind"] != facts["kind"]:
            passages.append(events.article(other, random, num_asides=0))
    random.shuffle(passages)
    return row_of("rag", "\n".join([*passages, asked]), told, [told, answer])


GROUPS: dict[str, Callable[[bool, Random], dict[str, Any]]] = {
    "translation": _translation,
    "summarization": _summarization,
    "qa": _qa,
    "math_reasoning": _math_reasoning,
    "rag": _rag,
}
