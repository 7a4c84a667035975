"""Articles and summaries in German, French and Spanish, the rows of `mlsum`."""

from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import yaml

from specbench.embedded.world.documents.events import mix, people
from specbench.embedded.world.texts import example_of


@cache
def tables() -> dict[str, Any]:
    """The lists and templates of `mlsum.yaml`, by language."""
    data: dict[str, Any] = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))
    return data


def weights() -> dict[str, float]:
    """The languages have equal shares."""
    return dict.fromkeys(tables(), 1.0)


def draw(language: str, held_out: bool, random: Random) -> dict[str, Any]:
    """An article of four to seven sentences and its summary, as the columns of MLSUM are called."""
    lists = tables()[language]
    event = random.choice(lists["events"])
    facts = people(random, held_out) | {
        "day": random.choice(lists["days"]), "place": random.choice(lists["places"]), "n": random.randint(12, 98)
    }  # fmt: skip
    told = [event["lead"], *random.sample(event["facts"], 2), random.choice(lists["quotes"])]
    text = " ".join(mix(told, lists["asides"], random.randint(1, 3), random, **facts))
    summary = event["summary"].format(**facts)
    return {"subset": language, "text": text, "summary": summary, "_completion": summary, "_key": text}


def example(row: dict[str, Any]) -> tuple[str, ...]:
    """The prompt of the task and the summary."""
    return example_of("mlsum", row)
