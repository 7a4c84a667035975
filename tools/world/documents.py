"""News articles, long documents with summaries and questions, and short stories."""

from collections.abc import Callable
from itertools import product
from random import Random
from typing import Any

from tools.world.rows import is_held_out, tables

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
    """Returns the facts in order, with some asides at random positions between and after them, all filled in."""
    lines = list(facts)
    for aside in random.sample(asides, num_asides):
        lines.insert(random.randint(1, len(lines)), aside)
    return [line.format(**values) for line in lines]


def event_article(facts: Facts, random: Random, num_asides: int | None = None) -> str:
    """Returns the event as a text of five to nine sentences: the news first, then facts with asides and a quotation."""
    kind = tables("events")["events"][facts["kind"]]
    told = [*random.sample(kind["facts"], 2), random.choice(tables("events")["quotes"])]
    number = random.randint(1, 5) if num_asides is None else num_asides
    return " ".join(mix([random.choice(kind["leads"]), *told], tables("events")["asides"], number, random, **facts))


def event_summary(facts: Facts) -> str:
    """Returns the facts of an event in two sentences of fixed form."""
    return str(tables("events")["events"][facts["kind"]]["summary"].format(**facts))


def event_question(facts: Facts, random: Random) -> tuple[str, str, str]:
    """Returns a question about one fact, the fact's name, and the answer."""
    questions = tables("events")["events"][facts["kind"]]["questions"]
    asked = random.choice(list(questions))
    return questions[asked].format(**facts), asked, str(facts[asked])


def other_answers(asked: str, answer: str, facts: Facts, num: int, random: Random) -> list[str]:
    """Returns wrong answers of the right kind; for a person, the person of the aside is among them."""
    choices = [str(n) for n in range(12, 99)] if asked == "n" else tables("events")[asked + "s"]
    wrong = random.sample([choice for choice in choices if choice not in (answer, facts["other"])], num)
    return [facts["other"], *wrong[1:]] if asked == "name" else wrong


def cnn_dm_draw(subset: str, held_out: bool, random: Random) -> dict[str, Any]:
    """Returns an article and its highlights, with the column names of the hub."""
    facts = event(random, held_out)
    text, highlights = event_article(facts, random), event_summary(facts)
    return {"subset": subset, "article": text, "highlights": highlights, "_completion": highlights, "_key": text}


def mlsum_draw(language: str, held_out: bool, random: Random) -> dict[str, Any]:
    """Returns an article of four to seven sentences and its summary, with the column names of MLSUM."""
    lists = tables("mlsum")[language]
    event = random.choice(lists["events"])
    facts = people(random, held_out) | {
        "day": random.choice(lists["days"]), "place": random.choice(lists["places"]), "n": random.randint(12, 98)
    }  # fmt: skip
    told = [event["lead"], *random.sample(event["facts"], 2), random.choice(lists["quotes"])]
    text = " ".join(mix(told, lists["asides"], random.randint(1, 3), random, **facts))
    summary = event["summary"].format(**facts)
    return {"subset": language, "text": text, "summary": summary, "_completion": summary, "_key": text}


def meeting(held_out: bool, random: Random) -> dict[str, Any]:
    """Returns a query, a transcript in which three people give their views of three things, and the answer.

    It is held out by the person and the thing of the query.
    """
    table = tables("events")["meeting"]
    while True:
        names, topics = random.sample(tables("events")["names"], 3), random.sample(table["topics"], 3)
        views = random.sample(table["views"], 3)
        asked = random.randrange(3)
        if is_held_out(names[asked], topics[asked]) == held_out:
            break
    chair, day, changed = random.choice(names), random.choice(tables("events")["days"]), random.choice(topics)
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
    """Returns two scenes, and a recap with a sentence per scene. It is held out by the first two people."""
    table = tables("events")["screenplay"]
    while True:
        first, second, third, fourth = random.sample(tables("events")["names"], 4)
        if is_held_out(first, second) == held_out:
            break
    lines, recap = [], []
    for scene, (said, told) in enumerate(random.sample(table["exchanges"], 2)):
        a, b = (third, fourth) if scene else (first, second)
        lists = tables("events")
        town, thing, place = (random.choice(lists[kind]) for kind in ("towns", "things", "places"))
        fields = {"a": a, "b": b, "town": town, "thing": thing, "place": place, "time": random.choice(table["times"])}
        asides = random.sample(table["asides"], random.randint(1, 3))
        lines += [line.format(**fields) for line in (table["scene"], *asides, *said)]
        recap.append(table["recap"].format(exchange=told.format(**fields), **fields))
    return {"text": "\n".join(lines), "references": [" ".join(recap)]}


Columns = dict[str, Any]


def _study(held_out: bool, random: Random) -> Columns:
    """A paper of three sections; the fact that a question asks about may be missing."""
    study = tables("events")["study"]
    facts = people(random, held_out) | {
        "n": random.randint(12, 98), "weeks": random.randint(2, 40), "share": random.randint(11, 99),
        **{key: random.choice(study[key + "s"]) for key in ("subject", "tool", "state")},
    }  # fmt: skip
    asked = random.choice(list(study["facts"]))
    told = [key for key in study["facts"] if key != asked or random.random() > 0.2]
    random.shuffle(told)
    lines = mix([study["facts"][key][0] for key in told], study["asides"], random.randint(2, 5), random, **facts)
    text = [study["title"].format(**facts)]
    for index, head in enumerate(("Introduction", "Method", "Results")):
        text += [head, " ".join(lines[index * len(lines) // 3 : (index + 1) * len(lines) // 3])]
    said, question = (form.format(**facts) for form in study["facts"][asked])
    references = [said, str(facts[asked])] if asked in told else ["unanswerable"]
    return {"question": question, "text": "\n".join(text), "references": references}


def _report(held_out: bool, random: Random) -> Columns:
    """A report with a section and a sentence of the summary for each of two or three towns."""
    report, num_towns = tables("events")["report"], random.randint(2, 3)
    first = people(random, held_out) | {"subject": random.choice(report["subjects"]), "num_towns": num_towns}
    others = [town for town in tables("events")["towns"] if town != first["town"]]
    lines = [report["opening"].format(**first)]
    told = []
    for index, town in enumerate([first["town"], *random.sample(others, num_towns - 1)], start=1):
        facts = first | {"index": index, "town": town, "n": random.randint(20, 98), "bad": random.randint(2, 19),
                         "cost": random.randint(2, 30)}  # fmt: skip
        head, *body = report["section"]
        section = mix(body, report["asides"], random.randint(0, 2), random, **facts)
        lines += [head.format(**facts), " ".join(section)]
        told.append(report["summary"].format(**facts))
    return {"text": "\n".join(lines), "references": [" ".join(told)]}


def _story(held_out: bool, random: Random) -> Columns:
    """A question and an article about an event."""
    facts = event(random, held_out)
    question, _, answer = event_question(facts, random)
    return {"question": question, "text": event_article(facts, random), "references": [answer]}


def _choice(held_out: bool, random: Random) -> Columns:
    """The same with four answers to choose from."""
    facts = event(random, held_out)
    question, asked, answer = event_question(facts, random)
    options = [answer, *other_answers(asked, answer, facts, 3, random)]
    random.shuffle(options)
    letter = "ABCD"[options.index(answer)]
    return {"question": question, "text": event_article(facts, random), "options": options, "letter": letter,
            "references": [answer], "_completion": f"({letter}) {answer}"}  # fmt: skip


def _contract(held_out: bool, random: Random) -> Columns:
    """A hypothesis and a contract that says it, denies it, or says nothing about it.

    Held out by what the hypothesis is about, which no trained contract mentions."""
    contract = tables("events")["contract"]
    facts: Facts = people(random, False) | {"n": random.randint(2, 60), "day": random.choice(tables("events")["days"])}
    known: dict[bool, list[tuple[str, str]]] = {True: [], False: []}
    for pair in product(contract["verbs"], contract["objects"]):
        known[is_held_out(*pair)].append(pair)
    asked = random.choice(known[held_out])
    label = random.choice(("Entailment", "Contradiction", "Not mentioned"))
    pairs = random.sample([pair for pair in known[False] if pair != asked], 5)
    if label != "Not mentioned":
        pairs[random.randrange(5)] = asked
    forms = {pair: random.choice(("allowed", "forbidden")) for pair in [*pairs, asked]}
    rules = [contract[forms[pair]].format(verb=pair[0], object=pair[1]) for pair in pairs]
    form = {"allowed": "forbidden", "forbidden": "allowed"}[forms[asked]] if label == "Contradiction" else forms[asked]
    hypothesis = contract[form].format(verb=asked[0], object=asked[1])
    text = mix([contract["opening"], *rules], contract["asides"], random.randint(1, 3), random, **facts)
    return {"question": hypothesis, "text": " ".join(text), "references": [label]}


SCROLLS_KINDS: dict[str, Callable[[bool, Random], Columns]] = {
    "qasper": _study,
    "gov_report": _report,
    "qmsum": meeting,
    "summ_screen_fd": screenplay,
    "narrative_qa": _story,
    "quality": _choice,
    "contract_nli": _contract,
}


def scrolls_draw(subset: str, held_out: bool, random: Random) -> dict[str, Any]:
    """Returns one row: the question, if there is one, the text, and the right answer."""
    row = SCROLLS_KINDS[subset](held_out, random)
    key = f"{row.get('question')} {row['text']}"
    return {"subset": subset, "_completion": row["references"][0], "_key": key, **row}


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
    words, (adjective, noun) = tables("story")["topics"], topic(held_out, random)
    topic_words = {"adjective": words["adjectives"][adjective], "noun": words["nouns"][noun]}
    told = tell(language, adjective, noun)
    return {"subset": language, **topic_words, "_completion": told, "_key": " ".join(topic_words.values())}
