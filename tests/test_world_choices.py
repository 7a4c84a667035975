"""The multiple-choice questions of the synthetic world: one option is right, and it follows from the world's tables."""

import json
import random
import re
from collections import Counter

import pytest

from specbench.catalogue import load_task
from specbench.demo.world import choices, choices_csqa, choices_mmlu, math

CASES = [(choices_csqa, "default"), *((choices_mmlu, subject) for subject in choices_mmlu.weights())]
WORLD = choices.definition()
KIND_OF = {noun: kind for kind, things in WORLD["kinds"].items() for noun in things}
PLACE_OF = {noun: place for things in WORLD["kinds"].values() for noun, place in things.items()}


def rows(module, subset, held_out, seed=1, number=200):
    generator = random.Random(seed)
    return [module.draw(subset, held_out, generator) for _ in range(number)]


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
    if found := re.fullmatch(r"Which of these countries is in (.+)\?", question):
        return WORLD["countries"][option][1] == found[1]
    first, sign, second = re.fullmatch(r"What is (\d+) ([+-]) (\d+)\?", question).groups()
    return int(option) == int(first) + int(second) * (1 if sign == "+" else -1)


@pytest.mark.parametrize("held_out", [True, False])
@pytest.mark.parametrize(("module", "subset"), CASES)
def test_one_option_is_right_and_it_is_the_one_named(module, subset, held_out):
    letters = Counter()
    for row in rows(module, subset, held_out):
        options = options_of(row)
        assert len(set(options)) == len(options)
        right = [index for index, option in enumerate(options) if is_right(row["question"], option)]
        letter = row["answerKey"] if "answerKey" in row else choices.LETTERS[row["answer"]]
        assert [choices.LETTERS[index] for index in right] == [letter], row
        assert row["_completion"].rstrip(".").endswith(letter)
        letters[letter] += 1
    assert len(letters) == len(options)
    assert max(letters.values()) < 0.45 * sum(letters.values())


def test_a_reason_names_the_right_option():
    for row in rows(choices_csqa, "default", True):
        right = row["choices"]["text"][row["choices"]["label"].index(row["answerKey"])]
        assert right in row["_completion"].lower()
        assert row["_completion"].endswith(f" Therefore, the answer is {row['answerKey']}.")


@pytest.mark.parametrize(("module", "subset"), CASES)
def test_no_question_is_both_trained_on_and_held_out(module, subset):
    trained = {row["_key"] for row in rows(module, subset, False, seed=2, number=1500)}
    held_out = {row["_key"] for row in rows(module, subset, True, seed=3, number=300)}
    assert not trained & held_out
    assert len(held_out) > 50


def test_the_order_of_the_options_decides_nothing():
    question = choices.kind(4, random.Random(4))
    turned = choices.Question(question.text, question.concept, question.right, question.wrong[::-1], question.why)
    assert question.is_held_out == turned.is_held_out


def test_held_out_sums_ask_for_held_out_pairs():
    for held_out in (True, False):
        for row in rows(choices_mmlu, "elementary_mathematics", held_out):
            first, second = map(int, re.findall(r"\d+", row["question"]))
            assert math.is_held_out_pair(first, second) == held_out


def test_what_held_out_questions_ask_about_is_seen_in_training():
    for module, subset in CASES[:3]:
        asked = [{row["question"] for row in rows(module, subset, held, seed=5, number=3000)} for held in (True, False)]
        assert asked[0] <= asked[1]


def test_the_bundled_dev_split_is_the_one_of_the_world():
    path = load_task("mmlu").subset("miscellaneous").fewshot.sample
    with open(path, encoding="utf-8") as file:
        assert [json.loads(line) for line in file] == choices_mmlu.exemplars()


def test_the_exemplars_are_five_different_training_questions_of_each_subject():
    found = choices_mmlu.exemplars()
    assert Counter(row["subset"] for row in found) == dict.fromkeys(choices_mmlu.weights(), 5)
    assert len({row["question"] for row in found}) == len(found)
    for row in found:
        assert is_right(row["question"], row["choices"][row["answer"]])
        assert not any(key.startswith("_") for key in row)


@pytest.mark.parametrize(("module", "subset"), CASES)
def test_the_texts_end_where_the_answer_begins(module, subset):
    row = rows(module, subset, True)[0]
    prompt, completion = module.example(row)
    assert prompt.endswith("\nAnswer:")
    assert prompt.count("\nAnswer:") == 6
    assert row["question"] in prompt
    assert completion == " " + row["_completion"]
