"""How each language says a sentence, with the words of words.yaml."""

from specbench.demo.world.translation.east_asian import chinese, japanese
from specbench.demo.world.translation.romance import french, spanish
from specbench.demo.world.translation.words import Sentence, Words, goes_with, is_mass, is_name, join, verb_of, words


def say(language: str, *sentences: Sentence) -> str:
    """The sentences as a text of the language ("en", "de", "fr", "es", "ru", "zh", "ja", "x-demo")."""
    separator, stop = ("", "。") if language in ("zh", "ja") else (" ", ".")
    return separator.join(capital(clause(language, sentence)) + stop for sentence in sentences)


def clause(language: str, sentence: Sentence) -> str:
    """The sentence without capital and full stop."""
    return LANGUAGES[language](sentence, words(language))


def capital(text: str) -> str:
    """The text with a capital at its start, the rest as it is."""
    return text[0].upper() + text[1:]


def name(language: str, person: str) -> str:
    """A person with the article, as the subject of a sentence."""
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
