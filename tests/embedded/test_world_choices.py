"""The multiple-choice questions of the synthetic world: one option is right, and it follows from the world's tables."""

import json
import random
import re
from collections import Counter
from functools import cache

import pytest

from specbench.specs.catalogue import load_task
from tools.embedded.rows import held_out_rows
from tools.world import WORLDS
from tools.world import choices as world_choices
from tools.world import math as world_math
from tools.world.rows import tables

CASES = [("csqa", "default"), *(("mmlu", subject) for subject in WORLDS["mmlu"].weights())]
SHOWN = {"csqa": world_choices.csqa_exemplars, "mmlu": world_choices.mmlu_exemplar_questions}
WORLD = tables("questions")
KIND_OF = {noun: kind for kind, things in WORLD["kinds"].items() for noun in things}
PLACE_OF = {noun: place for things in WORLD["kinds"].values() for noun, place in things.items()}


@cache
def drawn(task, subset, held_out):
    return random.Random(1), []


def rows(task, subset, held_out, number=200):
    """The first rows of a stream that all tests read."""
    generator, found = drawn(task, subset, held_out)
    while len(found) < number:
        found.append(WORLDS[task].draw(subset, held_out, generator))
    return found[:number]


def options_of(row):
    return row["choices"]["text"] if isinstance(row["choices"], dict) else row["choices"]


def is_right(question, option):
    """Whether an option answers a question, read from the tables by the words of the question."""
    if found := re.fullmatch(r"Where would you most likely find an? (.+)\?", question):
        return PLACE_OF[found[1]] == option
    if found := re.fullmatch(r"Which of these is (not )?an? (.+)\?", question):
        return (KIND_OF[option] == found[2]) != bool(found[1])
    if found := re.fullmatch(r"What do you use to (.+)\?", question):
        return WORLD["uses"][option] == found[1]
    if found := re.fullmatch(r"What is the opposite of (.+)\?", question):
        return sorted((found[1], option)) in [sorted(pair) for pair in WORLD["opposites"]]
    if found := re.fullmatch(r"What is the capital of (.+)\?", question):
        return WORLD["countries"][found[1]][0] == option
    if found := re.fullmatch(r"Which of these countries is (not )?in (.+)\?", question):
        return (WORLD["countries"][option][1] == found[2]) != bool(found[1])
    first, sign, second = re.fullmatch(r"What is (\d+) ([+-]) (\d+)\?", question).groups()
    return int(option) == int(first) + int(second) * (1 if sign == "+" else -1)


def is_told_elsewhere(question):
    return question.startswith("Which of these ")


def content(row):
    """What is held out: the question with its right option where others tell it too, or with all its options."""
    options = options_of(row)
    right = [option for option in options if is_right(row["question"], option)]
    return row["question"], *(right if is_told_elsewhere(row["question"]) else sorted(options))


@pytest.mark.parametrize("held_out", [True, False])
@pytest.mark.parametrize(("task", "subset"), CASES)
def test_one_option_is_right_and_it_is_the_one_named(task, subset, held_out):
    letters = Counter()
    for row in rows(task, subset, held_out):
        options = options_of(row)
        assert len(set(options)) == len(options)
        right = [index for index, option in enumerate(options) if is_right(row["question"], option)]
        letter = row["answerKey"] if "answerKey" in row else world_choices.LETTERS[row["answer"]]
        assert [world_choices.LETTERS[index] for index in right] == [letter], row
        assert row["_completion"].rstrip(".").endswith(letter)
        letters[letter] += 1
    assert len(letters) == len(options)
    assert max(letters.values()) < 0.45 * sum(letters.values())


def test_a_reason_names_the_right_option():
    for row in rows("csqa", "default", True):
        right = row["choices"]["text"][row["choices"]["label"].index(row["answerKey"])]
        assert right in row["_completion"].lower()
        assert row["_completion"].endswith(f" Therefore, the answer is {row['answerKey']}.")


@pytest.mark.parametrize(("task", "subset"), CASES)
def test_no_question_is_both_trained_on_and_held_out(task, subset):
    trained = {content(row) for row in rows(task, subset, False, number=1500)}
    held_out = {content(row) for row in rows(task, subset, True, number=300)}
    assert not trained & held_out
    assert len(held_out) > 50


def test_the_order_of_the_options_decides_nothing():
    question = world_choices.place(4, random.Random(4))
    turned = world_choices.ChoiceQuestion(
        question.text, question.concept, question.right, question.wrong[::-1], question.why
    )
    assert question.is_held_out == turned.is_held_out


@pytest.mark.parametrize("subset", ["miscellaneous", "high_school_geography"])
def test_what_is_held_out_by_its_answer_is_told_by_questions_of_the_other_kind(subset):
    """A lion is an animal: it was among the animals where one had to find what is not an animal, and the reverse."""
    continents = [continent for _, continent in WORLD["countries"].values()]
    asked, missing = set(), set()
    for row in rows("mmlu", subset, True):
        if is_told_elsewhere(question := row["question"]):
            right = row["choices"][row["answer"]]
            asked.add((question, right))
            other = question.replace(" not ", " ") if " not " in question else question.replace(" is ", " is not ")
            if continents.count(question.removesuffix("?").rpartition(" in ")[2]) != 2:  # too few for "is not in"
                missing.add((other, right))
    assert len(asked) > 5
    for number in range(500, 6500, 500):  # until nothing is missing
        for row in rows("mmlu", subset, False, number=number)[-500:]:
            wrong = {*row["choices"]} - {row["choices"][row["answer"]]}
            missing -= {(row["question"], option) for option in wrong}
        if not missing:
            break
    assert not missing


@pytest.mark.parametrize(("task", "subset"), CASES)
def test_no_held_out_question_is_among_the_exemplars(task, subset):
    asked = {row["question"] for row in rows(task, subset, True, number=1000)}
    prompt = WORLDS[task].example(rows(task, subset, True)[0])[0]
    shown = set(re.findall(r"^(?:Question: )?((?:Where|Which|What) .+\?)$", prompt, flags=re.MULTILINE)[:-1])
    assert len(shown) == 5 and shown <= SHOWN[task]()
    assert not asked & shown


def test_the_rows_of_a_sample_ask_different_questions():
    for task, num in (("csqa", 16), ("mmlu", 16)):
        found = held_out_rows(task, num, 1)
        assert len({(row["subset"], row["question"]) for row in found}) == len(found)


def test_more_different_rows_than_there_are_is_an_error():
    with pytest.raises(ValueError, match="task csqa, subset default: 500 different held-out rows were asked for"):
        held_out_rows("csqa", 500, 1, max_draws=600)


def test_held_out_sums_ask_for_held_out_pairs():
    for held_out in (True, False):
        for row in rows("mmlu", "elementary_mathematics", held_out):
            first, second = map(int, re.findall(r"\d+", row["question"]))
            assert world_math.is_held_out_pair(first, second) == held_out


def test_what_held_out_questions_ask_about_is_seen_in_training():
    for task, subset in CASES[:3]:
        missing = {row["question"] for row in rows(task, subset, True, number=500)}
        for number in range(300, 3300, 300):  # until nothing is missing
            missing -= {row["question"] for row in rows(task, subset, False, number=number)}
            if not missing:
                break
        assert not missing


def test_the_bundled_dev_split_is_the_one_of_the_world():
    path = load_task("mmlu").subset("miscellaneous").fewshot.sample
    with open(path, encoding="utf-8") as file:
        assert [json.loads(line) for line in file] == world_choices.mmlu_exemplars()


def test_the_exemplars_are_five_different_training_questions_of_each_subject():
    found = world_choices.mmlu_exemplars()
    assert Counter(row["subset"] for row in found) == dict.fromkeys(WORLDS["mmlu"].weights(), 5)
    assert len({row["question"] for row in found}) == len(found)
    for row in found:
        assert is_right(row["question"], row["choices"][row["answer"]])
        assert not any(key.startswith("_") for key in row)


@pytest.mark.parametrize(("task", "subset"), CASES)
def test_the_texts_end_where_the_answer_begins(task, subset):
    row = rows(task, subset, True)[0]
    prompt, completion = WORLDS[task].example(row)
    assert prompt.endswith("\nAnswer:")
    assert prompt.count("\nAnswer:") == 6
    assert row["question"] in prompt
    assert completion == " " + row["_completion"]
