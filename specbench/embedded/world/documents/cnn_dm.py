"""Articles and their summaries, the rows of `cnn_dm`."""

from random import Random
from typing import Any

from specbench.embedded.world.documents import events
from specbench.embedded.world.texts import example_of


def weights() -> dict[str, float]:
    """One subset."""
    return {"default": 1.0}


def draw(subset: str, held_out: bool, random: Random) -> dict[str, Any]:
    """An article and its highlights, as the columns of the hub are called."""
    facts = events.event(random, held_out)
    text, highlights = events.article(facts, random), events.summary(facts)
    return {"subset": subset, "article": text, "highlights": highlights, "_completion": highlights, "_key": text}


def example(row: dict[str, Any]) -> tuple[str, ...]:
    """The prompt of the task and the summary."""
    return example_of("cnn_dm", row)
