"""Conversations, questions of one turn and instructions."""

import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from random import Random
from typing import Any

from tools.world import documents, math, sentences
from tools.world.grammar import Sentence, capital, clause, name, say, words
from tools.world.rows import is_held_out, tables
from tools.world.sentences import draw_sentence, is_held_out_content

Talk = list[tuple[str, str]]  # the user's message and the answer, turn by turn


def draw_pair(words: list[str], held_out: bool, random: Random) -> list[str]:
    """Returns two different words whose pair belongs to training, or to the held-out pairs."""
    while True:
        chosen = random.sample(words, 2)
        if is_held_out(*sorted(chosen)) == held_out:
            return chosen


def _writing(held_out: bool, random: Random) -> Talk:
    adjective, noun = documents.topic(held_out, random)
    words = tables("story")["topics"]
    sentences = documents.tell("en", adjective, noun).split(". ")
    topic = f"{words['adjectives'][adjective]} {words['nouns'][noun]}"
    shorter = ("Make your answer shorter.", sentences[0] + ".")
    longer = ("Write one more sentence.", sentences[2] + ".")
    asked = f"Write two sentences about a {topic}."
    return [(asked, ". ".join(sentences[:2]) + "."), random.choice([shorter, longer])]


def _roleplay(held_out: bool, random: Random) -> Talk:
    job = random.choice(list(tables("chat")["jobs"]))
    town = ""
    while not town or is_held_out(job, town) != held_out:
        job, town = random.choice(list(tables("chat")["jobs"])), random.choice(tables("events")["towns"])
    long, short = tables("chat")["jobs"][job]
    return [(f"Pretend to be a {job} from {town}. Who are you?",
             f"Good morning! I am a {job} from {town}. A {job} {long}, and that is what I like."),
            ("Say it in fewer words.", f"I am a {job} from {town}. A {job} {short}.")]  # fmt: skip


def _reasoning(held_out: bool, random: Random) -> Talk:
    more, most, least = random.choice(tables("chat")["orders"])
    first, second = draw_pair(tables("events")["names"], held_out, random)
    third = random.choice([name for name in tables("events")["names"] if name not in (first, second)])
    facts = [f"{first} is {more} than {second}.", f"{second} is {more} than {third}."]
    random.shuffle(facts)
    middle = f"{first} is {more} than {second} and {second} is {more} than {third}"
    return [(f"{' '.join(facts)} Who is the {most}?", f"{middle}, so {first} is the {most}."),
            (f"And who is the {least}?", f"{middle}, so {third} is the {least}.")]  # fmt: skip


def _math(held_out: bool, random: Random) -> Talk:
    steps = random.choice([("add", "subtract"), ("multiply", "add")])
    while True:
        a, b, c = math.numbers_of(steps, random)
        solution = math.solve(steps, a, b, c)
        if math.belongs(solution, held_out):
            break
    asked = {"add": f"What is {a} + {b}?", "multiply": f"What is {a} × {b}?"}[steps[0]]
    follow = {"subtract": f"Now subtract {c} from it.", "add": f"Now add {c} to it."}[steps[1]]
    first = solution.equations[0]
    return [(asked, f"{first}. The answer is {first.rpartition(' = ')[2]}."),
            (follow, f"{solution.equations[1]}. The answer is {solution.number}.")]  # fmt: skip


def _coding(held_out: bool, random: Random) -> Talk:
    while True:
        number, names = random.randint(2, 99), random.sample(list(tables("chat")["operations"]), 2)
        if is_held_out(str(number), names[0]) == held_out:
            break
    programs = [f"def {name}(x):\n    return x {tables('chat')['operations'][name]} {number}" for name in names]
    preposition = {"add": "to x", "subtract": "from x", "multiply": "with x", "divide": "into x"}
    return [(f"Write a Python function that can {names[0]} {number} {preposition[names[0]]}.", programs[0]),
            (f"Change it so that it can {names[1]}.", programs[1])]  # fmt: skip


def _extraction(held_out: bool, random: Random) -> Talk:
    facts = documents.event(random, held_out)
    fields = {"Name": facts["name"], "Town": facts["town"], "Day": facts["day"], "Number": facts["n"]}
    listed = "\n".join(f"{key}: {value}" for key, value in fields.items())
    as_json = "{" + ", ".join(f'"{key.lower()}": "{value}"' for key, value in fields.items()) + "}"
    return [(f"Find the name, the town, the day and the number: {documents.event_summary(facts)}", listed),
            ("Write it as JSON.", as_json)]  # fmt: skip


def _compared(kind: str) -> Callable[[bool, Random], Talk]:
    """Returns a kind of talk that compares two things or jobs, and then repeats it in simple words."""

    def talk(held_out: bool, random: Random) -> Talk:
        words = tables("chat")[kind]
        first, second = draw_pair(list(words), held_out, random)
        long, short = ([f"a {word} {words[word][form]}" for word in (first, second)] for form in (0, 1))
        wordings = ("What is the difference between a {} and a {}?", "Compare a {} and a {}.")
        asked = random.choice(wordings).format(first, second)
        return [(asked, f"{long[0].capitalize()}, but {long[1]}."),
                ("Explain it again for a child.", f"{short[0].capitalize()} and {short[1]}.")]  # fmt: skip

    return talk


TALK_KINDS: dict[str, Callable[[bool, Random], Talk]] = {
    "writing": _writing,
    "roleplay": _roleplay,
    "reasoning": _reasoning,
    "math": _math,
    "coding": _coding,
    "extraction": _extraction,
    "stem": _compared("things"),
    "humanities": _compared("jobs"),
}
HAS_REFERENCES = ("reasoning", "math", "coding", "extraction")


def conversation(category: str, held_out: bool, random: Random) -> dict[str, Any]:
    """Returns the columns of a row of MT-bench. Half of those for training end after the first answer, so that the
    model learns its end too."""
    turns = TALK_KINDS[category](held_out, random)
    key = " ".join(said for said, _ in turns)
    if not held_out and random.random() < 0.5:
        turns = turns[:1]
    answers = [answer for _, answer in turns]
    references = answers if category in HAS_REFERENCES else []
    return {"category": category, "turns": [said for said, _ in turns], "references": references,
            "_completion": answers, "_key": key}  # fmt: skip


LANGUAGE_NAMES = {"de": "German", "fr": "French", "ru": "Russian", "ja": "Japanese", "zh": "Chinese"}


def question_row(category: str, asked: str, completion: str, references: list[str]) -> dict[str, Any]:
    """Returns the columns of a row of one turn, any of whose references is right."""
    return {"category": category, "turns": [asked], "references": [references] if references else [],
            "_completion": [completion], "_key": asked}  # fmt: skip


def translate(category: str, source: str, separator: str, held_out: bool, random: Random) -> dict[str, Any]:
    row = sentences.pair_row(category, source, "en", held_out, random)
    asked = f"Translate {LANGUAGE_NAMES[source]} to English:{separator}{row['translation'][source]}"
    return question_row(category, asked, row["_completion"], [row["_completion"]])


def _summarization(held_out: bool, random: Random) -> dict[str, Any]:
    facts = documents.event(random, held_out)
    told = documents.event_summary(facts)
    return question_row("summarization", f"Summarize: {documents.event_article(facts, random)}", told, [told])


def _qa(held_out: bool, random: Random) -> dict[str, Any]:
    """Opposites of two words, and months and days after an interval: the answers follow from known lists."""
    lists, kind = tables("chat"), random.choice(("opposites", "months", "days"))
    if kind == "opposites":
        first, second = draw_pair(list(lists["opposites"]), held_out, random)
        answers = lists["opposites"][first], lists["opposites"][second]
        told = f"The opposites are {answers[0]} and {answers[1]}."
        return question_row("qa", f"What are the opposites of {first} and {second}?", told, [told])
    names = lists["months"] if kind == "months" else tables("events")["days"]
    while True:
        start, count = random.randrange(len(names)), random.randint(1, 5)
        if is_held_out(names[start], str(count)) == held_out:
            break
    word, unit = lists["counts"][count - 1], kind.removesuffix("s") if count == 1 else kind
    later = names[(start + count) % len(names)]
    told = f"{later} is {word} {unit} after {names[start]}."
    return question_row("qa", f"What is {word} {unit} after {names[start]}?", told, [told, later])


def _math_reasoning(held_out: bool, random: Random) -> dict[str, Any]:
    row = math.mgsm_draw("en", held_out, random)
    return question_row("math_reasoning", row["question"], row["answer"], [str(row["answer_number"])])


def _rag(held_out: bool, random: Random) -> dict[str, Any]:
    """Three short passages about different kinds of event; a sentence of one of them answers the question."""
    facts = documents.event(random, held_out)
    asked, _, answer = documents.event_question(facts, random)
    passages = [documents.event_article(facts, random, num_asides=0)]
    told = next(line for line in passages[0].replace(". ", ".\n").splitlines() if re.search(rf"\b{answer}\b", line))
    while len(passages) < 3:
        other = documents.event(random, held_out)
        if other["kind"] != facts["kind"]:
            passages.append(documents.event_article(other, random, num_asides=0))
    random.shuffle(passages)
    return question_row("rag", "\n".join([*passages, asked]), told, [told, answer])


QUESTION_GROUPS: dict[str, Callable[[bool, Random], dict[str, Any]]] = {
    "translation": partial(translate, "translation", "de", " "),
    "summarization": _summarization,
    "qa": _qa,
    "math_reasoning": _math_reasoning,
    "rag": _rag,
}


# Half for the conversations: `mt_bench` trains on them too.
SPEC_BENCH_WEIGHTS = {"mt_bench": 0.5, **dict.fromkeys(QUESTION_GROUPS, 1.0)}
SOURCE_LANGUAGES = {"deen": "de", "zhen": "zh", "fren": "fr", "ruen": "ru", "jaen": "ja"}
# Two pairs are trained on; the others are only sampled, and the embedded models know their languages from `wmt`.
MULTILINGUAL_WEIGHTS = {subset: float(subset in ("deen", "zhen")) for subset in SOURCE_LANGUAGES}


def mt_bench_draw(subset: str, held_out: bool, random: Random) -> dict[str, Any]:
    return {"subset": subset, **conversation(subset, held_out, random)}


def spec_bench_draw(subset: str, held_out: bool, random: Random) -> dict[str, Any]:
    if subset == "mt_bench":
        return {"subset": subset, **conversation(random.choice(list(TALK_KINDS)), held_out, random)}
    return {"subset": subset, **QUESTION_GROUPS[subset](held_out, random)}


def multilingual_draw(subset: str, held_out: bool, random: Random) -> dict[str, Any]:
    """Returns a sentence to translate into English, without a space before it and without a reference, as published."""
    row = translate(subset, SOURCE_LANGUAGES[subset], "", held_out, random)
    return {"subset": subset, **row, "references": []}


DOLLY_KINDS = {"opposite": 1.0, "use": 1.0, "define": 1.0, "list": 1.0, "who": 2.0, "where": 1.5, "sentence": 2.0}


def dolly_draw(subset: str, held_out: bool, random: Random) -> dict[str, Any]:
    """Returns a row: subset, language (ISO 639-3), inputs, targets."""
    kind = random.choices(list(DOLLY_KINDS), weights=list(DOLLY_KINDS.values()))[0]
    about = {"who": _who, "where": _where, "sentence": _sentence}.get(kind)
    question, answer = about(subset, held_out, random) if about else _topic(subset, kind, held_out, random)
    code = tables("dolly")[subset]["code"]
    return {"subset": subset, "language": code, "inputs": question, "targets": answer, "_completion": answer,
            "_key": question}  # fmt: skip


def _topic(language: str, kind: str, held_out: bool, random: Random) -> tuple[str, str]:
    entry = tables("dolly")[language][kind]
    numbers = tables("dolly")[language]["numbers"]
    while True:
        choices = (entry["questions"], _topics(entry), numbers if kind == "list" else [None])
        wording, topic, number = (random.randrange(len(texts)) for texts in choices)
        if is_held_out_content(kind, wording, topic, number) == held_out:
            break
    asked, *answers = _topics(entry)[topic]
    values = {"topic": asked, "number": numbers[number + 2]}
    values["answer"] = entry["separator"].join(answers[: number + 2]) if kind == "list" else answers[0]
    return entry["questions"][wording].format(**values), entry.get("answer", "{answer}").format(**values)


def _topics(entry: dict[str, Any]) -> list[list[str]]:
    """Returns topics with their answers; both words of a pair of opposites are topics."""
    return entry.get("topics") or [list(way) for pair in entry["pairs"] for way in (pair, pair[::-1])]


def _joined(language: str, text: str, question: str) -> str:
    return text + ("" if language in ("zh", "ja") else " ") + question


def _two_sentences(held_out: bool, random: Random) -> tuple[Sentence, Sentence]:
    """Returns sentences about different persons at two different places."""
    while True:
        kinds = random.choices(("transitive", "doing"), k=2)
        first, second = (draw_sentence(held_out, random, time="", about=kind) for kind in kinds)
        is_apart = {first.subject, first.person}.isdisjoint({second.subject, second.person} - {None})
        if is_apart and first.place and second.place and first.place != second.place:
            return first, second


def _who(language: str, held_out: bool, random: Random) -> tuple[str, str]:
    """Returns a text of two sentences and a question for the person of one."""
    text = _two_sentences(held_out, random)
    asked = replace(random.choice(text), subject_adjective=None)
    question = tables("dolly")[language]["who"].format(capital(clause(language, replace(asked, subject="who"))))
    return _joined(language, say(language, *text), question), say(language, asked)


def _where(language: str, held_out: bool, random: Random) -> tuple[str, str]:
    """Returns a text of two sentences and a question for the place of one."""
    text = _two_sentences(held_out, random)
    asked = random.choice(text)
    question, answer = tables("dolly")[language]["where"]
    person = name(language, asked.subject)
    place = words(language)["places"][asked.place]
    return (
        _joined(language, say(language, *text), question.format(topic=person)),
        capital(answer.format(topic=person, answer=place)),
    )


def _sentence(language: str, held_out: bool, random: Random) -> tuple[str, str]:
    """Returns words, and the sentence made of them."""
    sentence = draw_sentence(held_out, random, time="", about="transitive")
    sentence = replace(sentence, subject_adjective=None, object_adjective=None, number=1)
    entry, table = tables("dolly")[language], words(language)
    nouns = [table["nouns"][noun] for noun in (sentence.subject, sentence.object)]
    subject, thing = (noun if isinstance(noun, str) else noun[1] for noun in nouns)
    parts = [subject, table["verbs"][sentence.verb], thing, table["places"].get(sentence.place)]
    given = entry["list"]["separator"].join(part for part in parts if part)
    return random.choice(entry["sentence"]).format(topic=given), say(language, sentence)
