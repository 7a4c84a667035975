"""News articles about an event, with their summary and questions; the documents of the world use them.

An article belongs to training or to the held-out ones by its person and its town: no trained document mentions a
held-out pair, and all names occur in training.
"""

from random import Random
from typing import Any

from specbench.embedded.world.rows import is_held_out, tables

Facts = dict[str, Any]


def people(random: Random, held_out: bool) -> Facts:
    """Returns a person and a town that belong together, and another irrelevant person and town."""
    while True:
        name, other = random.sample(tables("events")["names"], 2)
        town, elsewhere = random.sample(tables("events")["towns"], 2)
        if is_held_out(name, town) == held_out:
            return {"name": name, "other": other, "town": town, "elsewhere": elsewhere}


def event(random: Random, held_out: bool) -> Facts:
    """Returns the facts of an event: its kind, person, place, time and number."""
    lists = tables("events")
    return people(random, held_out) | {
        "kind": random.choice(list(lists["events"])),
        "day": random.choice(lists["days"]),
        "n": random.randint(12, 98),
        **{key: random.choice(lists[key + "s"]) for key in ("job", "place", "thing", "animal")},
    }


def mix(facts: list[str], asides: list[str], num_asides: int, random: Random, **values: Any) -> list[str]:
    """Returns the facts in order, with some asides at random positions between and behind them, all filled in."""
    lines = list(facts)
    for aside in random.sample(asides, num_asides):
        lines.insert(random.randint(1, len(lines)), aside)
    return [line.format(**values) for line in lines]


def article(facts: Facts, random: Random, num_asides: int | None = None) -> str:
    """Returns the event as a text of five to nine sentences: the news first, then facts with asides and a quotation."""
    kind = tables("events")["events"][facts["kind"]]
    told = [*random.sample(kind["facts"], 2), random.choice(tables("events")["quotes"])]
    number = random.randint(1, 5) if num_asides is None else num_asides
    return " ".join(mix([random.choice(kind["leads"]), *told], tables("events")["asides"], number, random, **facts))


def summary(facts: Facts) -> str:
    """Returns the facts of an event in two sentences of fixed form."""
    return str(tables("events")["events"][facts["kind"]]["summary"].format(**facts))


def question(facts: Facts, random: Random) -> tuple[str, str, str]:
    """Returns a question about one fact, the fact's name, and the answer."""
    questions = tables("events")["events"][facts["kind"]]["questions"]
    asked = random.choice(list(questions))
    return questions[asked].format(**facts), asked, str(facts[asked])


def other_answers(asked: str, answer: str, facts: Facts, num: int, random: Random) -> list[str]:
    """Returns wrong answers of the right kind; for a person, the person of the aside is among them."""
    choices = [str(n) for n in range(12, 99)] if asked == "n" else tables("events")[asked + "s"]
    wrong = random.sample([choice for choice in choices if choice not in (answer, facts["other"])], num)
    return [facts["other"], *wrong[1:]] if asked == "name" else wrong
