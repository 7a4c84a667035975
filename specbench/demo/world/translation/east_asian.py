"""Sentences in Chinese and Japanese."""

from specbench.demo.world.translation.words import Sentence, Words, goes_with, is_mass


def chinese(sentence: Sentence, table: Words) -> str:
    """早上年老的老师在花园里读一本红色的书。"""

    def named(noun: str, adjective: str | None) -> str:
        return "".join((table["adjectives"].get(adjective, ""), table["nouns"][noun][1]))

    subject = table["pronouns"].get(sentence.subject) or named(sentence.subject, sentence.subject_adjective)
    person = table["nouns"][sentence.person][1] if sentence.person else ""
    companion, receiver = ("和" + person, "") if person and goes_with(sentence) else ("", person)
    parts = [table["times"].get(sentence.time, ""), subject, companion, table["places"].get(sentence.place, "")]
    if sentence.verb == "be":
        return "".join([*parts, table["predicates"][sentence.object_adjective]])
    parts += [table["verbs"][sentence.verb], receiver]
    if sentence.object:
        count = "" if is_mass(sentence.object) else table["numbers"][sentence.number]
        parts += [count, table["nouns"][sentence.object][0], named(sentence.object, sentence.object_adjective)]
    return "".join(parts)


def japanese(sentence: Sentence, table: Words) -> str:
    """朝、年老いた先生は庭で赤い本を読みます。"""

    def named(noun: str, adjective: str | None) -> str:
        return "".join((table["adjectives"].get(adjective, ""), table["nouns"][noun][1]))

    subject = table["pronouns"].get(sentence.subject) or named(sentence.subject, sentence.subject_adjective)
    time = table["times"][sentence.time] + "、" if sentence.time else ""
    parts = [time, subject, "が" if sentence.subject == "who" else "は"]
    if sentence.verb == "be":
        return "".join([*parts, table["predicates"][sentence.object_adjective]])
    if sentence.person:
        particle = "と" if goes_with(sentence) else "を" if sentence.verb == "help" else "に"
        parts += [table["nouns"][sentence.person][1], particle]
    if sentence.place:
        parts += [table["places"][sentence.place], "で"]
    if sentence.object:
        parts += [named(sentence.object, sentence.object_adjective), "を"]
    if sentence.object and sentence.number > 1:
        parts += [table["numbers"][sentence.number], table["nouns"][sentence.object][0]]
    return "".join([*parts, table["verbs"][sentence.verb]])
