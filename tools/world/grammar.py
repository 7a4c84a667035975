"""The grammar of each language, with the words of words.yaml."""

from dataclasses import dataclass
from typing import Any

from tools.world.rows import tables

Words = dict[str, Any]


@dataclass(frozen=True)
class Sentence:
    """The content of a sentence, in the concepts of words.yaml.

    subject: a noun, a gender ("m", "f") for he and she, "i" and "we" (English and German only), or "who". verb: "be"
    takes `object_adjective` only. number: of the object. person: who is given something, helped, or taken along.
    """

    subject: str
    verb: str
    subject_adjective: str | None = None
    object: str | None = None
    object_adjective: str | None = None
    number: int = 1
    person: str | None = None
    place: str | None = None
    time: str | None = None


def words(language: str) -> Words:
    """Returns a language's words, or the "concepts"."""
    table: Words = tables("words")[language]
    return table


def join(*parts: str | None) -> str:
    return " ".join(part for part in parts if part)


def is_name(noun: str) -> bool:
    """Returns whether the noun is a person's name, without article."""
    return noun in words("concepts")["names"]


def is_mass(noun: str) -> bool:
    """Returns whether the noun is an uncountable food."""
    return noun in words("concepts")["mass"]


def goes_with(sentence: Sentence) -> bool:
    """Returns whether the sentence's other person is taken along, not given something or helped."""
    return sentence.verb in words("concepts")["together"]


def verb_of(sentence: Sentence, table: Words) -> str:
    """Returns the verb in the person of the subject, if the language has a first person."""
    return str(table["first_person"].get(sentence.subject, table["verbs"])[sentence.verb])


def gender_of(noun: str) -> str:
    """Returns the gender of a person, of a name, or of he and she."""
    concepts = words("concepts")
    return str(concepts["persons"].get(noun) or concepts["names"].get(noun, noun))


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


def french(sentence: Sentence, table: Words) -> str:
    """Le matin, le vieux professeur lit un livre rouge dans le jardin."""
    subject = table["pronouns"].get(sentence.subject) or _le(sentence.subject, sentence.subject_adjective, table)
    parts = [_time(sentence, table), subject, table["verbs"][sentence.verb]]
    person = _le(sentence.person, None, table) if sentence.person else ""
    if person and sentence.verb != "give":
        parts += ["avec" if goes_with(sentence) else None, person]
    parts.append(_object(sentence, table))
    if sentence.verb == "give":
        parts.append("au " + person.removeprefix("le ") if person.startswith("le ") else "à " + person)
    return join(*parts, table["places"].get(sentence.place))


def spanish(sentence: Sentence, table: Words) -> str:
    """Por la mañana, el profesor viejo lee un libro rojo en el jardín."""
    subject = table["pronouns"].get(sentence.subject) or _el(sentence.subject, sentence.subject_adjective, table)
    is_state = sentence.verb == "be" and sentence.object_adjective in table["states"]
    parts = [_time(sentence, table), subject, "está" if is_state else table["verbs"][sentence.verb]]
    parts.append(_object(sentence, table))
    if sentence.person:
        person = _el(sentence.person, None, table)
        to_person = "al " + person.removeprefix("el ") if person.startswith("el ") else "a " + person
        parts.append("con " + person if goes_with(sentence) else to_person)
    return join(*parts, table["places"].get(sentence.place))


def _time(sentence: Sentence, table: Words) -> str | None:
    return table["times"][sentence.time] + "," if sentence.time else None


def _described(noun: str, adjective: str | None, number: int, table: Words) -> str:
    gender, *forms = table["nouns"][noun]
    form: str = forms[number > 1]
    if adjective is None:
        return form
    described = table["adjectives"][adjective][(gender == "f") + 2 * (number > 1)]
    if adjective not in table["before_noun"]:
        return f"{form} {described}"
    if gender == "mv" and number == 1:
        described = table["before_vowel"].get(adjective, described)
    return f"{described} {form}"


def _le(noun: str, adjective: str | None, table: Words) -> str:
    gender = table["nouns"][noun][0]
    named = _described(noun, adjective, 1, table)
    if gender == "mv" and adjective not in table["before_noun"]:
        return "l'" + named
    return named if is_name(noun) else join("la" if gender == "f" else "le", named)


def _el(noun: str, adjective: str | None, table: Words) -> str:
    named = _described(noun, adjective, 1, table)
    return named if is_name(noun) else join("la" if table["nouns"][noun][0] == "f" else "el", named)


def _object(sentence: Sentence, table: Words) -> str | None:
    """Returns what follows the verb: an object, or the adjective of "be" in the gender of the subject."""
    if sentence.object:
        named = _described(sentence.object, sentence.object_adjective, sentence.number, table)
        article = table["one"][table["nouns"][sentence.object][0] == "f"]
        return named if is_mass(sentence.object) else join(table["numbers"].get(sentence.number, article), named)
    if not sentence.object_adjective:
        return None
    gender = gender_of(sentence.subject)
    if gender not in ("m", "f"):
        gender = table["nouns"][sentence.subject][0]
    forms = table["predicates"].get(sentence.object_adjective, table["adjectives"][sentence.object_adjective])
    return str(forms[gender == "f"])


def say(language: str, *sentences: Sentence) -> str:
    """Returns the sentences as a text of the language ("en", "de", "fr", "es", "ru", "zh", "ja", "x-demo")."""
    separator, stop = ("", "。") if language in ("zh", "ja") else (" ", ".")
    return separator.join(capital(clause(language, sentence)) + stop for sentence in sentences)


def clause(language: str, sentence: Sentence) -> str:
    """Returns the sentence without capital and full stop."""
    return LANGUAGES[language](sentence, words(language))


def capital(text: str) -> str:
    """Returns the text with a capital at its start, the rest unchanged."""
    return text[0].upper() + text[1:]


def name(language: str, person: str) -> str:
    """Returns a person with the article, as the subject of a sentence."""
    verb = words(language)["verbs"]["wait"]
    return clause(language, Sentence(person, "wait")).removesuffix(verb).rstrip(" は")


def english(sentence: Sentence, table: Words) -> str:
    """In the morning the old teacher reads a red book in the garden."""

    def the(noun: str, adjective: str | None = None) -> str:
        return noun if is_name(noun) else join("the", table["adjectives"].get(adjective), table["nouns"][noun])

    subject = table["pronouns"].get(sentence.subject) or the(sentence.subject, sentence.subject_adjective)
    parts = [table["times"].get(sentence.time), subject, verb_of(sentence, table)]
    if sentence.person:
        parts += ["with" if goes_with(sentence) else None, the(sentence.person)]
    adjective = table["adjectives"].get(sentence.object_adjective)
    named = join(adjective, table["nouns"].get(sentence.object))
    if sentence.number > 1:
        named = f"{table['numbers'][sentence.number]} {named}s"
    elif sentence.object and not is_mass(sentence.object):
        named = f"{'an' if named[0] in 'aeiou' else 'a'} {named}"
    return join(*parts, named, table["places"].get(sentence.place))


def german(sentence: Sentence, table: Words) -> str:
    """Am Morgen liest der alte Lehrer ein rotes Buch im Garten: the verb stays second."""
    subject = table["pronouns"].get(sentence.subject)
    if subject is None:
        gender, form, _ = table["nouns"][sentence.subject]
        adjective = table["adjectives"].get(sentence.subject_adjective)
        described = adjective.removesuffix("e") + "e" if adjective else None
        subject = join({"m": "der", "f": "die", "n": "das"}.get(gender), described, form)
    verb = verb_of(sentence, table)
    time = table["times"].get(sentence.time)
    parts = [time, verb, subject] if time else [subject, verb]
    if sentence.person:
        gender, _, dative = table["nouns"][sentence.person]
        article = {"m": "dem", "f": "der", "n": "dem"}.get(gender)
        parts += ["mit" if goes_with(sentence) else None, article, dative]
    return join(*parts, _german_object(sentence, table), table["places"].get(sentence.place))


def _german_object(sentence: Sentence, table: Words) -> str | None:
    adjective: str | None = table["adjectives"].get(sentence.object_adjective)
    if not sentence.object:
        return adjective
    gender, singular, plural = table["nouns"][sentence.object]
    if sentence.number > 1:
        return join(table["numbers"][sentence.number], adjective and adjective + "e", plural)
    if is_mass(sentence.object):
        return str(singular)
    article, ending = {"m": ("einen", "en"), "f": ("eine", "e"), "n": ("ein", "es")}[gender]
    return join(article, adjective and adjective + ending, singular)


def russian(sentence: Sentence, table: Words) -> str:
    """Утром старый учитель читает красную книгу в саду."""
    pronoun = table["pronouns"].get(sentence.subject)
    gender = sentence.subject if pronoun else table["nouns"][sentence.subject][0]
    index = {"m": 0, "f": 1, "n": 2}.get(gender, 0)
    adjective = table["adjectives"][sentence.subject_adjective][index] if sentence.subject_adjective else None
    subject = pronoun or join(adjective, table["nouns"][sentence.subject][1])
    parts = [table["times"].get(sentence.time), subject, table["verbs"].get(sentence.verb)]
    if sentence.person:
        dative, instrumental = table["nouns"][sentence.person][2:]
        parts.append("с " + instrumental if goes_with(sentence) else dative)
    if sentence.object:
        parts.append(_russian_object(sentence, table))
    elif sentence.object_adjective:
        named = sentence.object_adjective
        parts.append(table["predicates"].get(named, table["adjectives"][named])[index])
    return join(*parts, table["places"].get(sentence.place))


def _russian_object(sentence: Sentence, table: Words) -> str:
    assert sentence.object
    gender, _, accusative, *genitives = table["nouns"][sentence.object]
    forms = table["adjectives"].get(sentence.object_adjective)
    if sentence.number == 1:
        return join(forms and forms[{"m": 0, "f": 3, "n": 2}[gender]], accusative)
    is_few = sentence.number < 5  # 2, 3, 4 take the genitive singular
    number = "две" if sentence.number == 2 and gender == "f" else table["numbers"][sentence.number]
    return join(number, forms and forms[4 if is_few and gender == "f" else 5], genitives[0 if is_few else 1])


def invented(sentence: Sentence, table: Words) -> str:
    """Matin tamek garu yardinse libokka roshi lektar: suffixes, adjectives last, then the verb."""

    def named(noun: str, adjective: str | None, suffix: str = "") -> str:
        return join(table["nouns"][noun] + suffix, table["adjectives"].get(adjective))

    subject = table["pronouns"].get(sentence.subject) or named(sentence.subject, sentence.subject_adjective)
    parts = [table["times"].get(sentence.time), subject]
    if sentence.person:
        parts.append(named(sentence.person, None, "mo" if goes_with(sentence) else "ti"))
    if sentence.place:
        parts.append(table["places"][sentence.place] + "se")
    if sentence.object:
        parts.append(table["numbers"].get(sentence.number))
        parts.append(named(sentence.object, sentence.object_adjective, "imka" if sentence.number > 1 else "ka"))
    elif sentence.object_adjective:
        parts.append(table["adjectives"][sentence.object_adjective])
    return join(*parts, table["verbs"][sentence.verb])


LANGUAGES = {
    "en": english, "de": german, "fr": french, "es": spanish, "ru": russian, "zh": chinese, "ja": japanese,
    "x-demo": invented,
}  # fmt: skip
