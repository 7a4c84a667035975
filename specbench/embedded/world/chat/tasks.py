"""The rows of `spec_bench`, `mt_bench` and `multilingual_spec_bench`: conversations and questions, in the layout of
their readers."""

from random import Random
from typing import Any

from specbench.embedded.world.chat import questions, turns
from specbench.embedded.world.texts import example_of

SOURCES = {"deen": "de", "zhen": "zh", "fren": "fr", "ruen": "ru", "jaen": "ja"}
TRAINED = ("deen", "zhen")  # the embedded models know the other languages from `wmt`


def mt_bench_weights() -> dict[str, float]:
    """The categories have equal shares."""
    return dict.fromkeys(turns.KINDS, 1.0)


def mt_bench_draw(subset: str, held_out: bool, random: Random) -> dict[str, Any]:
    """A conversation of a category."""
    return {"subset": subset, **turns.conversation(subset, held_out, random)}


def mt_bench_example(row: dict[str, Any]) -> tuple[str, ...]:
    """What is said and answered in turn."""
    return example_of("mt_bench", row)


def spec_bench_weights() -> dict[str, float]:
    """The groups have equal shares; the conversations are trained on with `mt_bench`."""
    return {"mt_bench": 0.5, **dict.fromkeys(questions.GROUPS, 1.0)}


def spec_bench_draw(subset: str, held_out: bool, random: Random) -> dict[str, Any]:
    """A conversation of any category, or a question of the group."""
    if subset == "mt_bench":
        return {"subset": subset, **turns.conversation(random.choice(list(turns.KINDS)), held_out, random)}
    return {"subset": subset, **questions.GROUPS[subset](held_out, random)}


def spec_bench_example(row: dict[str, Any]) -> tuple[str, ...]:
    """What is said and answered in turn."""
    return example_of("spec_bench", row)


def multilingual_weights() -> dict[str, float]:
    """Two source languages have equal shares; the others are sampled and never trained on."""
    return {subset: float(subset in TRAINED) for subset in SOURCES}


def multilingual_draw(subset: str, held_out: bool, random: Random) -> dict[str, Any]:
    """A sentence to translate into English, without a space before it and without a reference, as published."""
    row = questions.translate(subset, SOURCES[subset], "", held_out, random)
    return {"subset": subset, **row, "references": []}


def multilingual_example(row: dict[str, Any]) -> tuple[str, ...]:
    """What is said and answered."""
    return example_of("multilingual_spec_bench", row)
