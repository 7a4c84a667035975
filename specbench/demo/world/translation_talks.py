"""Translation from German into English as task `iwslt14` asks for it."""

from random import Random
from typing import Any

from specbench.demo.world.texts import example_of
from specbench.demo.world.translation import pair_row


def weights() -> dict[str, float]:
    """One subset."""
    return {"de-en": 1.0}


def draw(subset: str, held_out: bool, random: Random) -> dict[str, Any]:
    """A row of task `iwslt14`: subset, translation (language → text)."""
    source, target = subset.split("-")
    return pair_row(subset, source, target, held_out, random)


def example(row: dict[str, Any]) -> tuple[str, ...]:
    """The prompt exactly as the task renders it, and the translation."""
    return example_of("iwslt14", row)
