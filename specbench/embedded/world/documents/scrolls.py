"""Long documents with a question or a summary: the rows of `scrolls`, as its reader makes them."""

from collections.abc import Callable
from itertools import product
from random import Random
from typing import Any

from specbench.embedded.world.documents import dialogues, events
from specbench.embedded.world.documents.events import Facts, is_held_out, mix, people, tables
from specbench.embedded.world.texts import example_of

Columns = dict[str, Any]


def _study(held_out: bool, random: Random) -> Columns:
    """A paper of three sections; the fact that a question asks about may be missing."""
    study = tables()["study"]
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
    report, num_towns = tables()["report"], random.randint(2, 3)
    first = people(random, held_out) | {"subject": random.choice(report["subjects"]), "num_towns": num_towns}
    others = [town for town in tables()["towns"] if town != first["town"]]
    lines, told = [report["opening"].format(**first)], []
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
    facts = events.event(random, held_out)
    question, _, answer = events.question(facts, random)
    return {"question": question, "text": events.article(facts, random), "references": [answer]}


def _choice(held_out: bool, random: Random) -> Columns:
    """The same with four answers to choose from."""
    facts = events.event(random, held_out)
    question, asked, answer = events.question(facts, random)
    options = [answer, *events.other_answers(asked, answer, facts, 3, random)]
    random.shuffle(options)
    letter = "ABCD"[options.index(answer)]
    return {"question": question, "text": events.article(facts, random), "options": options, "letter": letter,
            "references": [answer], "_completion": f"({letter}) {answer}"}  # fmt: skip


def _contract(held_out: bool, random: Random) -> Columns:
    """A hypothesis and a contract that says it, denies it, or says nothing about it.

    Held out by what the hypothesis is about, which no trained contract mentions."""
    contract = tables()["contract"]
    facts: Facts = people(random, False) | {"n": random.randint(2, 60), "day": random.choice(tables()["days"])}
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


KINDS: dict[str, Callable[[bool, Random], Columns]] = {
    "qasper": _study,
    "gov_report": _report,
    "qmsum": dialogues.meeting,
    "summ_screen_fd": dialogues.screenplay,
    "narrative_qa": _story,
    "quality": _choice,
    "contract_nli": _contract,
}


def weights() -> dict[str, float]:
    """The subsets have equal shares."""
    return dict.fromkeys(KINDS, 1.0)


def draw(subset: str, held_out: bool, random: Random) -> dict[str, Any]:
    """One row: the question, if there is one, the text, and the right answer."""
    row = KINDS[subset](held_out, random)
    key = f"{row.get('question')} {row['text']}"
    return {"subset": subset, "_completion": row["references"][0], "_key": key, **row}


def example(row: dict[str, Any]) -> tuple[str, ...]:
    """The prompt of the task and the answer."""
    return example_of("scrolls", row)
