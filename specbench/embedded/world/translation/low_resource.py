"""Translation from English into the invented language `x-demo`."""

from random import Random
from typing import Any

from specbench.embedded.world.texts import example_of
from specbench.embedded.world.translation.wmt import pair_row


def weights() -> dict[str, float]:
    """One subset."""
    return {"x-demo": 1.0}


def draw(subset: str, held_out: bool, random: Random) -> dict[str, Any]:
    """A row of task `low_resource_mt`: subset, translation (language → text)."""
    return pair_row(subset, "en", subset, held_out, random)


def example(row: dict[str, Any]) -> tuple[str, ...]:
    """The prompt exactly as the task renders it, and the translation."""
    return example_of("low_resource_mt", row)
