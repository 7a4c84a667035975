"""Documents, stories and conversations of the world: grammatical templates, answers that follow, nothing leaks."""

import re
from functools import cache
from random import Random
from typing import Any

import pytest

from tools.world import WORLDS, chat
from tools.world import documents as story
from tools.world import math as world_math
from tools.world.rows import tables

TASKS = ("cnn_dm", "mlsum", "scrolls", "story", "mt_bench", "spec_bench", "multilingual_spec_bench")
SUBSETS = [(task, subset) for task in TASKS for subset in WORLDS[task].weights()]


@cache
def _drawn(task: str, subset: str, held_out: bool) -> tuple[Random, list[dict[str, Any]]]:
    return Random(1), []


def _rows(task: str, subset: str, held_out: bool, num: int = 60) -> list[dict[str, Any]]:
    """The first rows of a stream that all tests read."""
    random, rows = _drawn(task, subset, held_out)
    while len(rows) < num:
        rows.append(WORLDS[task].draw(subset, held_out, random))
    return rows[:num]


@pytest.mark.parametrize(("task", "subset"), SUBSETS)
def test_draws_are_decided_by_their_random(task, subset):
    same, other = ([WORLDS[task].draw(subset, True, random) for _ in range(20)] for random in (Random(1), Random(2)))
    assert _rows(task, subset, True, 20) == same != other


@pytest.mark.parametrize(("task", "subset"), SUBSETS)
def test_nothing_held_out_is_trained_on(task, subset):
    trained = {row["_key"] for row in _rows(task, subset, False, 250)}
    held_out = {row["_key"] for row in _rows(task, subset, True, 250)}
    assert not trained & held_out
    assert len(held_out) >= 32, "too few rows for a sample and for an evaluation"


@pytest.mark.parametrize(("task", "subset"), SUBSETS)
def test_all_words_of_held_out_texts_are_trained_on(task, subset):
    def words(rows):
        texts = [text for row in rows for text in WORLDS[task].example(row)]
        return {word for text in texts for word in re.findall(r"[\u3040-\u9fff]|[^\W\d_\u3040-\u9fff]+", text)}

    missing, num = words(_rows(task, subset, True, 150)), 0
    while missing and num < 4000:
        missing -= words(_rows(task, subset, False, num + 50)[num:])
        num += 50
    assert not missing


@pytest.mark.parametrize(("task", "subset"), SUBSETS)
def test_texts_are_filled_in_and_short(task, subset):
    for row in _rows(task, subset, True):
        texts = WORLDS[task].example(row)
        assert len(texts) in (2, 4)
        assert not re.search(r"[{}]", "".join(texts)) or "json" in "".join(texts).lower()
        assert len("".join(texts)) <= 1200
        assert all(text.strip() for text in texts)


@pytest.mark.parametrize("task", TASKS)
def test_no_a_before_a_vowel(task):
    for subset in WORLDS[task].weights():
        if task not in ("mlsum", "story") or subset == "en":
            for row in _rows(task, subset, True):
                assert not re.search(r"\b[Aa] [aeiou]", "".join(WORLDS[task].example(row)))


def test_facts_of_a_summary_stand_in_its_article():
    for task, subset, text, summary in (("cnn_dm", "default", "article", "highlights"), *(
        ("mlsum", language, "text", "summary") for language in WORLDS["mlsum"].weights()
    )):  # fmt: skip
        for row in _rows(task, subset, True):
            said = set(re.findall(r"\w+", row[text]))
            named = {*tables("events")["names"], *tables("events")["towns"]} & set(re.findall(r"\w+", row[summary]))
            assert len(named) >= 2 and named <= said
            assert set(re.findall(r"\d+", row[summary])) <= said


def test_articles_have_five_to_nine_sentences():
    lengths = {len(re.findall(r'[.!?]"?(?= |$)', row["article"])) for row in _rows("cnn_dm", "default", True, 300)}
    assert min(lengths) >= 5 and max(lengths) <= 9


@pytest.mark.parametrize("subset", ["qasper", "narrative_qa", "quality"])
def test_answers_stand_in_the_text(subset):
    rows = _rows("scrolls", subset, True, 200)
    answerable = [row for row in rows if row["references"] != ["unanswerable"]]
    assert all(row["references"][-1] in row["text"] for row in answerable)
    assert (len(answerable) < len(rows)) == (subset == "qasper")


def test_the_right_option_is_among_four():
    for row in _rows("scrolls", "quality", True, 200):
        assert len(set(row["options"])) == 4
        assert row["options"]["ABCD".index(row["letter"])] == row["references"][0]
        assert row["_completion"] == f"({row['letter']}) {row['references'][0]}"


def test_contracts_say_deny_or_leave_out_the_hypothesis():
    labels = set()
    for row in _rows("scrolls", "contract_nli", True, 200):
        labels.add(row["references"][0])
        denied = row["question"].replace("may not", "may") if "may not" in row["question"] else row["question"].replace(
            "may", "may not"
        )  # fmt: skip
        assert (row["question"] in row["text"]) == (row["references"] == ["Entailment"])
        assert (denied in row["text"]) == (row["references"] == ["Contradiction"])
    assert labels == {"Entailment", "Contradiction", "Not mentioned"}


def test_what_a_speaker_said_stands_in_the_meeting():
    for row in _rows("scrolls", "qmsum", True, 100):
        said = re.fullmatch(r"(\w+) said that the (\w+) was (.*)\.", row["references"][0])
        if said:
            name, topic, view = said.groups()
            assert re.search(rf"^{name}: (I think|For me,) the {topic} is {view}\.$", row["text"], re.MULTILINE)


def test_the_story_follows_from_its_topic():
    assert story.tell("de", 0, 2).startswith("Es war einmal eine Katze, die am Meer lebte. Die Katze war mutig.")
    assert "L'ours était petit." in story.tell("fr", 1, 1)
    assert "La rana era valiente." in story.tell("es", 0, 9)
    words = tables("story")["topics"]
    for language in WORLDS["story"].weights():
        told = {
            story.tell(language, adjective, noun)
            for adjective in range(len(words["adjectives"]))
            for noun in range(len(words["nouns"]))
        }
        assert len(told) == len(words["adjectives"]) * len(words["nouns"])


@pytest.mark.parametrize("language", ["de", "fr", "es", "en"])
def test_the_lists_of_a_story_run_alongside(language):
    entry, words = tables("story")["languages"][language], tables("story")["topics"]
    lengths = {key: len(entry[key]) for key in ("places", "habits", "friends", "troubles", "rescues", "endings")}
    assert lengths == {"places": 6, "habits": 6, "friends": 6, "troubles": 8, "rescues": 8, "endings": 4}
    assert (len(entry["adjectives"]), len(entry["nouns"])) == (len(words["adjectives"]), len(words["nouns"]))


def test_half_of_the_conversations_trained_on_end_after_an_answer():
    rows = _rows("mt_bench", "math", False, 200)
    assert 60 <= sum(len(row["turns"]) == 1 for row in rows) <= 140
    assert all(len(row["turns"]) == 2 for row in _rows("mt_bench", "math", True))


def test_programs_of_a_conversation_run():
    for row in _rows("mt_bench", "coding", True, 30):
        number = int(re.findall(r"\d+", row["turns"][0])[0])
        for program in row["_completion"]:
            names: dict[str, Any] = {}
            exec(program, names)
            name = re.match(r"def (\w+)", program)[1]
            right = {"add": 50 + number, "subtract": 50 - number, "multiply": 50 * number, "divide": 50 // number}
            assert names[name](50) == right[name]


def test_sums_of_a_conversation_are_right_and_held_out():
    for row in _rows("mt_bench", "math", True, 60):
        first, second = (int(number) for number in re.findall(r"\d+", row["turns"][0]))
        assert world_math.is_held_out_pair(first, second)
        result = first + second if "+" in row["turns"][0] else first * second
        assert row["_completion"][0].endswith(f"The answer is {result}.")
        follow = int(re.findall(r"\d+", row["turns"][1])[0])
        final = result - follow if "subtract" in row["turns"][1] else result + follow
        assert row["_completion"][1].endswith(f"The answer is {final}.")


def test_orders_are_right():
    for row in _rows("mt_bench", "reasoning", True, 60):
        said = dict(re.findall(r"(\w+) is \w+er than (\w+)\.", row["turns"][0]))
        (top,) = set(said) - set(said.values())
        (bottom,) = set(said.values()) - set(said)
        assert f"so {top} is the" in row["_completion"][0] and f"so {bottom} is the" in row["_completion"][1]


def test_passages_answer_the_question():
    for row in _rows("spec_bench", "rag", True, 100):
        passages = row["turns"][0].splitlines()[:-1]
        assert len(passages) == 3
        assert sum(row["_completion"][0].rstrip(".") in passage for passage in passages) == 1
        assert re.search(rf"\b{row['references'][0][1]}\b", row["_completion"][0])


@pytest.mark.parametrize(
    ("pair", "language"),
    [("deen", "German"), ("fren", "French"), ("ruen", "Russian"), ("jaen", "Japanese"), ("zhen", "Chinese")],
)
def test_published_prompts_without_a_space_keep_that(pair, language):
    row = chat.multilingual_draw(pair, True, Random(0))
    assert re.match(rf"Translate {language} to English:\S", row["turns"][0]) and row["references"] == []
    assert row["category"] == pair


def test_every_kind_of_conversation_is_a_category():
    from specbench.tasks.readers import CATEGORIES

    assert tuple(chat.TALK_KINDS) == CATEGORIES
