"""The small parallel grammar: inflection, the same words in all languages, held-out sentences, one translation."""

import random
from itertools import combinations

import pytest

from tools.embedded.rows import SAMPLE_SEED, held_out_rows
from tools.world import WORLDS, chat
from tools.world import chat as dolly
from tools.world import sentences as world_sentences
from tools.world.grammar import LANGUAGES, Sentence, gender_of, say, words
from tools.world.rows import tables

PAIRS = list(WORLDS["wmt"].weights())
SAID = [
    (
        Sentence("man", "read", "old", "newspaper", "red", 1, None, "garden", "morning"),
        {
            "en": "In the morning the old man reads a red newspaper in the garden.",
            "de": "Am Morgen liest der alte Mann eine rote Zeitung im Garten.",
            "fr": "Le matin, le vieil homme lit un journal rouge dans le jardin.",
            "es": "Por la mañana, el hombre viejo lee un periódico rojo en el jardín.",
            "ru": "Утром старый мужчина читает красную газету в саду.",
            "zh": "早上年老的男人在花园里读一份红色的报纸。",
            "ja": "朝、年老いた男の人は庭で赤い新聞を読みます。",
            "x-demo": "Matin dorun garu yardinse novtalka roshi lektar.",
        },
    ),
    (
        Sentence("Anna", "give", None, "hat", "big", 2, "boy"),
        {
            "en": "Anna gives the boy two big hats.",
            "de": "Anna gibt dem Jungen zwei große Hüte.",
            "fr": "Anna donne deux grands chapeaux au garçon.",
            "es": "Anna da dos sombreros grandes al niño.",
            "ru": "Анна даёт мальчику две большие шляпы.",
            "zh": "安娜给男孩两顶大的帽子。",
            "ja": "アンナは男の子に大きい帽子を二つあげます。",
            "x-demo": "Anna pimoti dul kopfanimka makru danar.",
        },
    ),
    (
        Sentence("f", "sing", None, None, None, 1, "doctor", "school", "Monday"),
        {
            "en": "Every Monday she sings with the doctor at school.",
            "de": "Jeden Montag singt sie mit dem Arzt in der Schule.",
            "fr": "Chaque lundi, elle chante avec le médecin à l'école.",
            "es": "Cada lunes, ella canta con el médico en la escuela.",
            "ru": "Каждый понедельник она поёт с врачом в школе.",
            "zh": "每个星期一她和医生在学校里唱歌。",
            "ja": "毎週月曜日、彼女は医者と学校で歌います。",
            "x-demo": "Unday ve horvinmo skulanse kantar.",
        },
    ),
    (
        Sentence("girl", "be", None, None, "tired"),
        {
            "en": "The girl is tired.",
            "de": "Das Mädchen ist müde.",
            "fr": "La fille est fatiguée.",
            "es": "La niña está cansada.",
            "ru": "Девочка устала.",
            "zh": "女孩很疲倦。",
            "ja": "女の子は疲れています。",
            "x-demo": "Nelai lasu esar.",
        },
    ),
    (
        Sentence("bird", "be", None, None, "white"),
        {"fr": "L'oiseau est blanc.", "ru": "Птица белая.", "zh": "鸟是白色的。", "de": "Der Vogel ist weiß."},
    ),
    (
        Sentence("m", "draw", None, "apple", "new", 5),
        {"ru": "Он рисует пять новых яблок.", "fr": "Il dessine cinq nouvelles pommes.", "zh": "他画五个新的苹果。"},
    ),
    (
        Sentence("queen", "drink", None, "water", None, 1, None, "beach"),
        {"fr": "La reine boit de l'eau sur la plage.", "en": "The queen drinks water on the beach."},
    ),
]  # fmt: skip


def sentences(held_out, number, seed=1):
    generator = random.Random(seed)
    return [sentence for _ in range(number) for sentence in world_sentences.draw_text(held_out, generator)]


@pytest.mark.parametrize(("sentence", "texts"), SAID)
def test_what_each_language_says(sentence, texts):
    assert {language: say(language, sentence) for language in texts} == texts


def test_two_sentences_make_a_text():
    first, second = Sentence("king", "wait", place="park"), Sentence("m", "be", object_adjective="rich")
    assert say("en", first, second) == "The king waits in the park. He is rich."
    assert say("ja", first, second) == "王様は公園で待ちます。彼は裕福です。"


def test_all_languages_have_the_same_words():
    concepts = words("concepts")
    for language in LANGUAGES:
        table = words(language)
        nouns = {*concepts["persons"], *concepts["names"], *concepts["animals"], *concepts["things"], *concepts["mass"]}
        assert set(table["nouns"]) == nouns
        assert set(table["adjectives"]) >= {*concepts["person_adjectives"], *concepts["thing_adjectives"]}
        assert set(table["places"]) == set(concepts["places"])
        assert set(table["times"]) == {*concepts["days"], *concepts["hours"]}
        assert set(table["verbs"]) >= {*concepts["transitive"], *concepts["intransitive"], "give", "help"}


@pytest.mark.parametrize("held_out", [True, False])
def test_a_text_has_one_translation(held_out):
    for pair in [*PAIRS, "en-x-demo"]:
        generator, seen = random.Random(2), {}
        source, _, target = pair.partition("-")
        for _ in range(400):
            row = world_sentences.pair_row(pair, source, target, held_out, generator)
            assert seen.setdefault(row["translation"][source], row["translation"][target]) == row["_completion"]
        assert len(seen) > 320


def test_what_is_held_out_is_never_trained_on_in_any_task():
    trained = {sentence for sentence in sentences(False, 5000) if sentence.subject not in ("m", "f")}
    generator = random.Random(3)
    trained |= {
        s for _ in range(500) for s in world_sentences.draw_day(False, generator) if s.subject not in ("m", "f")
    }
    asked = {sentence for sentence in sentences(True, 500) if sentence.subject not in ("m", "f")}
    assert all(world_sentences.sentence_belongs(sentence, False) for sentence in trained)
    assert all(world_sentences.sentence_belongs(sentence, True) for sentence in asked)
    assert not {say("en", sentence) for sentence in trained} & {say("en", sentence) for sentence in asked}


def test_all_words_of_a_held_out_sentence_were_trained_on_with_its_verb():
    def pairs(sentence):
        parts = (sentence.subject, sentence.object, sentence.object_adjective, sentence.person, sentence.place)
        return {(sentence.verb, number, part) for number, part in enumerate(parts) if part}

    missing = set().union(*map(pairs, sentences(True, 600)))
    for seed in range(20):  # 20,000 texts, until nothing is missing
        missing -= set().union(*map(pairs, sentences(False, 1000, seed)))
        if not missing:
            break
    assert not missing


FIRST_PERSON = [
    (Sentence("i", "give", None, "hat", "big", 2, "boy"), "Ich gebe dem Jungen zwei große Hüte.",
     "I give the boy two big hats."),
    (Sentence("we", "sing", person="doctor", place="school", time="Monday"),
     "Jeden Montag singen wir mit dem Arzt in der Schule.", "Every Monday we sing with the doctor at school."),
    (Sentence("i", "be", object_adjective="tired"), "Ich bin müde.", "I am tired."),
    (Sentence("we", "seek", object="key", place="park"), "Wir suchen einen Schlüssel im Park.",
     "We look for a key in the park."),
]  # fmt: skip


@pytest.mark.parametrize(("sentence", "german", "english"), FIRST_PERSON)
def test_the_first_person_of_talks(sentence, german, english):
    assert (say("de", sentence), say("en", sentence)) == (german, english)


def test_a_question_of_a_talk():
    sentence = Sentence("girl", "read", "old", "book", place="garden")
    assert (
        world_sentences.ask_for_subject("de", sentence)
        == "Wer liest ein Buch im Garten? Ich glaube, es ist das Mädchen."
    )
    assert world_sentences.ask_for_subject("en", sentence) == "Who reads a book in the garden? I think it is the girl."


def test_talks_have_one_translation_and_none_is_trained_on():
    generator, seen, known = random.Random(9), {}, {True: set(), False: set()}
    for held_out in (True, False):
        for _ in range(800):
            row = world_sentences.iwslt14_draw("de-en", held_out, generator)["translation"]
            assert seen.setdefault(row["de"], row["en"]) == row["en"]
            assert row["de"][0].isupper() and row["de"][-1] in ".?" and "{" not in row["de"] + row["en"]
            known[held_out].add(row["de"])
    assert not known[True] & known[False] and len(known[True]) > 200


def test_every_translation_task_has_rows_of_its_own():
    """Two tasks meet by chance in one short sentence ("Anna is tall."); the same draws would share a dozen."""
    sources = []
    for task in ("wmt", "iwslt14", "low_resource_mt", "spec_bench", "multilingual_spec_bench"):
        rows = held_out_rows(task, 12, SAMPLE_SEED)
        english = {row["translation"]["en"] for row in rows if "translation" in row}
        english |= {row["_completion"][0] for row in rows if row["subset"] in ("translation", *chat.SOURCE_LANGUAGES)}
        sources.append(english)
    assert all(len(english) >= 12 for english in sources)
    assert all(len(first & second) <= 1 for first, second in combinations(sources, 2))


def test_nobody_gives_himself_a_thing():
    generator = random.Random(4)
    for _ in range(2000):
        text = world_sentences.draw_text(False, generator)
        assert all(sentence.person != text[0].subject for sentence in text)
        assert len(text) == 1 or text[1].subject == gender_of(text[0].subject)


@pytest.mark.parametrize("task", ["wmt", "iwslt14", "low_resource_mt", "webtext", "dolly"])
def test_rows_come_from_the_generator_given_and_texts_from_the_task(task):
    world = WORLDS[task]
    for subset, weight in world.weights().items():
        assert weight > 0
        first, second = (world.draw(subset, True, random.Random(5)) for _ in range(2))
        assert first == second and first["subset"] == subset and first["_key"]
        prompt, completion = world.example(first)
        assert completion.strip() == first["_completion"] and not prompt[-1].isspace()


def test_a_day_is_about_one_person_from_morning_to_evening():
    hours, generator = words("concepts")["hours"], random.Random(6)
    for held_out in [True, False] * 150:
        about, first, *others = world_sentences.draw_day(held_out, generator)
        assert about.verb == "be" and first.subject == about.subject
        assert {sentence.subject for sentence in others} == {gender_of(about.subject)}
        order = [hours.index(sentence.time) for sentence in (first, *others) if sentence.time]
        assert order == sorted(set(order)) and 4 <= len(others) + 2 <= 6


@pytest.mark.parametrize("language", list(WORLDS["dolly"].weights()))
def test_an_instruction_has_one_right_answer(language):
    generator, answers = random.Random(7), {}
    rows = [dolly.dolly_draw(language, held_out, generator) for held_out in (True, False) for _ in range(300)]
    for row in rows:
        assert answers.setdefault(row["inputs"], row["targets"]) == row["targets"]
        assert "{" not in row["inputs"] + row["targets"]
    assert not {row["inputs"] for row in rows[:300]} & {row["inputs"] for row in rows[300:]}


@pytest.mark.parametrize("kind", ["opposite", "use", "define", "list"])
def test_held_out_topics_were_met_in_other_wordings(kind):
    entry = tables("dolly")["en"][kind]
    for topic in range(len(dolly._topics(entry))):
        for number in range(3) if kind == "list" else [0]:
            wordings = range(len(entry["questions"]))
            assert not all(world_sentences.is_held_out_content(kind, wording, topic, number) for wording in wordings)
    everywhere = [tables("dolly")[language][kind] for language in WORLDS["dolly"].weights()]
    assert len({(len(each["questions"]), len(dolly._topics(each))) for each in everywhere}) == 1


def test_questions_about_a_text():
    """Who did it, and where a person is, follow from the sentences before the question."""
    generator, asked = random.Random(8), {"Who": 0, "Where": 0}
    for _ in range(600):
        row = dolly.dolly_draw("en", True, generator)
        if row["inputs"].count(". ") != 2:
            continue
        *text, question = row["inputs"].split(". ")
        asked[question.partition(" ")[0]] += 1
        if question.startswith("Who "):
            done = question.removeprefix("Who ").removesuffix("?")
            assert row["targets"].endswith(f" {done}.") and [part.endswith(done) for part in text].count(True) == 1
        else:
            person, _, place = row["targets"].removesuffix(".").partition(" is ")
            name = person.removeprefix("The ")
            assert question.endswith(f" {name}?")
            assert [name in part.split() and part.endswith(place) for part in text].count(True) == 1
    assert min(asked.values()) > 50
