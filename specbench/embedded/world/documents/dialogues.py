"""Documents in which people talk: transcripts of meetings with a question, screenplays with their recap."""

from random import Random
from typing import Any

from specbench.embedded.world.documents.events import is_held_out, tables


def _speakers(random: Random, num: int) -> list[str]:
    return random.sample(tables()["names"], num)


def meeting(held_out: bool, random: Random) -> dict[str, Any]:
    """A query and a transcript in which three people say what they think of three things, and the answer.

    Held out by the person asked about and the thing."""
    table = tables()["meeting"]
    while True:
        names, topics = _speakers(random, 3), random.sample(table["topics"], 3)
        views = random.sample(table["views"], 3)
        asked = random.randrange(3)
        if is_held_out(names[asked], topics[asked]) == held_out:
            break
    chair, day, changed = random.choice(names), random.choice(tables()["days"]), random.choice(topics)
    lines = [random.choice(table["opening"]).format(chair=chair)]
    for index, said in enumerate(zip(names, topics, views, strict=True)):
        name, topic, view = said
        lines.append(random.choice(table["view"]).format(name=name, topic=topic, view=view))
        if random.random() < 0.6:
            lines.append(random.choice(table["asides"]).format(name=names[index - 1], other=name))
    lines += [table["decision"].format(chair=chair, topic=changed, day=day), table["closing"].format(chair=chair)]
    if random.random() < 0.3:
        query = table["summary_query"]
        listed = ", ".join(f"the {topic}" for topic in topics[:2]) + f" and the {topics[2]}"
        answer = table["summary"].format(topics=listed, topic=changed, day=day)
    else:
        fields = {"name": names[asked], "topic": topics[asked], "view": views[asked]}
        query, answer = table["query"].format(**fields), table["answer"].format(**fields)
    return {"question": query, "text": "\n".join(lines), "references": [answer]}


def screenplay(held_out: bool, random: Random) -> dict[str, Any]:
    """Two scenes of two people each, and a recap of a sentence a scene. Held out by the first two people."""
    table = tables()["screenplay"]
    while True:
        first, second, third, fourth = _speakers(random, 4)
        if is_held_out(first, second) == held_out:
            break
    lines, recap = [], []
    for scene, (said, told) in enumerate(random.sample(table["exchanges"], 2)):
        a, b = (third, fourth) if scene else (first, second)
        fields = {"a": a, "b": b, "town": random.choice(tables()["towns"]), "thing": random.choice(tables()["things"]),
                  "place": random.choice(tables()["places"]), "time": random.choice(table["times"])}  # fmt: skip
        asides = random.sample(table["asides"], random.randint(1, 3))
        lines += [line.format(**fields) for line in (table["scene"], *asides, *said)]
        recap.append(table["recap"].format(exchange=told.format(**fields), **fields))
    return {"text": "\n".join(lines), "references": [" ".join(recap)]}
