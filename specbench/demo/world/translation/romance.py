"""Sentences in French and Spanish."""

from specbench.demo.world.translation.words import Sentence, Words, gender_of, goes_with, is_mass, is_name, join


def french(sentence: Sentence, table: Words) -> str:
    """Le matin, le vieux professeur lit un livre rouge dans le jardin."""
    subject = _pronoun(sentence, table) or _le(sentence.subject, sentence.subject_adjective, table)
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
    subject = _pronoun(sentence, table) or _el(sentence.subject, sentence.subject_adjective, table)
    is_state = sentence.verb == "be" and sentence.object_adjective in table["states"]
    parts = [_time(sentence, table), subject, "está" if is_state else table["verbs"][sentence.verb]]
    parts.append(_object(sentence, table))
    if sentence.person:
        person = _el(sentence.person, None, table)
        to_person = "al " + person.removeprefix("el ") if person.startswith("el ") else "a " + person
        parts.append("con " + person if goes_with(sentence) else to_person)
    return join(*parts, table["places"].get(sentence.place))


def _pronoun(sentence: Sentence, table: Words) -> str | None:
    pronoun: str | None = table["pronouns"].get(sentence.subject)
    return pronoun


def _time(sentence: Sentence, table: Words) -> str | None:
    return table["times"][sentence.time] + "," if sentence.time else None


def _described(noun: str, adjective: str | None, number: int, table: Words) -> str:
    """A noun with its adjective, without article."""
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
    """What comes after the verb: an object, or the adjective of "be" in the gender of the subject."""
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
