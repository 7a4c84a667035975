"""The scorers `choice`, `exact_match` and `f1`: what an answer chooses or says, against what is right."""

import pytest

from specbench.core.errors import ConfigError
from specbench.core.registry import SCORERS
from specbench.tasks.scoring.choices import chosen_letter, chosen_text
from specbench.tasks.scoring.texts import normalize_answer, token_f1

choice, f1, exact = (SCORERS.get(name)() for name in ("choice", "f1", "exact_match"))
LETTERS = "ABCDE"


@pytest.mark.parametrize(
    ("text", "letter"),
    [
        ("B", "B"),
        (" b ", "B"),
        ("B.", "B"),
        ("(B)", "B"),
        ("**B**", "B"),
        ("B) a fish", "B"),
        ("(B) a fish", "B"),
        ("B: a fish", "B"),
        ("the answer is (B)", "B"),
        ("The answer is B.", "B"),
        ("The answer is: **B**", "B"),
        ("Answer: B", "B"),
        ("Answer: (b) a fish", "B"),
        ("ANSWER = B", "B"),
        ("Therefore, the answer is B", "B"),
        ("The correct option is B, not C", "B"),
        ("A is too small and C too big, so the answer is B. D is a trap.", "B"),
        ("The answer is A. No: the answer is B.", "B"),
        ("A fish swims. I think it must be B", "B"),
        (r"so we get \boxed{B}", "B"),
        ("答案是B。", "B"),
        ("答えは（Ｂ）です", "B"),
        ("Die Antwort ist B.", "B"),
        ("Ответ: B", "B"),
        ("B\n\nQuestion: what is a dog?\nAnswer: C", "B"),
        ("So it is A", "A"),
        ("Answer: b", "B"),
        ("the answer is b.", "B"),
        ("the answer is a.", "A"),
        ("The answer is most likely D, not B.", "D"),
        ("Among the choices A, B, C and D, the best is B", "B"),
        ("The correct answer is B. Option A is wrong, and option C is not a fish.", "B"),
        ("A is right and B is wrong", "A"),
        ("I choose option D", "D"),
        ("Answer A is wrong, so B", "B"),
        ("He wrote A Tale of Two Cities", None),
        ("The answer is a dog", None),
        ("A dog", None),
        ("I don't know", None),
        ("Bach", None),
        ("It is F.", None),
        ("", None),
        ("   \n", None),
    ],
)
def test_the_chosen_letter(text, letter):
    assert chosen_letter(text, LETTERS) == letter
    assert choice(text, "B").values == {"accuracy": float(letter == "B")}


@pytest.mark.parametrize("letter", LETTERS)
@pytest.mark.parametrize(
    "text",
    ["{} is correct.", "{} is the correct answer.", "{} seems right", "I would say {} because it swims",
     "It must be {} as it swims", "Correct: {} because it swims", "Réponse : {} est correcte", "Answer: {lower}",
     "the answer is {lower}.", "The answer would most likely be {}"],
)  # fmt: skip
def test_every_letter_is_found_where_another_is(text, letter):
    """ "A" is a word of English too, and yet no rarer an answer."""
    assert chosen_letter(text.format(letter, lower=letter.lower()), LETTERS) == letter


OPTIONS = {"A": "a fish", "B": "a big fish", "C": "the sea", "D": "海の魚"}


@pytest.mark.parametrize(
    ("text", "letter"),
    [
        ("It is the sea.", "C"),
        ("I saw a big fish", "B"),
        ("a fish!", "A"),
        ("それは海の魚です", "D"),
        ("a fish in the sea", None),
        ("a bird", None),
        ("", None),
    ],
)
def test_the_option_that_is_named_in_words(text, letter):
    assert chosen_text(text, OPTIONS) == letter
    right = letter or "A"
    assert choice(text, {"answer": right, **OPTIONS}).values == {"accuracy": float(letter is not None)}


def test_a_letter_goes_before_words():
    assert choice("The answer is C, a big fish", {"answer": "C", **OPTIONS}).values == {"accuracy": 1.0}


def test_only_the_options_of_the_reference_can_be_chosen():
    reference = {"answer": "B", "A": "a fish", "B": "a big fish"}
    assert choice("The answer is I think B", reference).values == {"accuracy": 1.0}
    assert choice("I say B", {**reference, "I": "the sea"}).values == {"accuracy": 1.0}
    assert choice("The answer is I", {**reference, "I": "the sea"}).values == {"accuracy": 0.0}


@pytest.mark.parametrize("letter", LETTERS)
def test_the_reference_itself_is_right_and_nothing_is_wrong(letter):
    for reference in (letter, f"({letter.lower()})", [letter], {"answer": letter, "Z": "zebra"}):
        assert choice(letter, reference).values == {"accuracy": 1.0}
        assert choice("", reference).values == {"accuracy": 0.0}


def test_references_that_are_no_letter_are_errors_and_none_is_no_score():
    for wrong, said in (
        ("fish", "reference 'fish' is none of the letters ABCDEFGHIJ"),
        ({"right": "A", "A": "fish"}, "no 'answer'"),
        ({"answer": "", "A": "fish"}, "none of the letters"),
    ):
        with pytest.raises(ConfigError, match=said):
            choice("A", wrong)
    with pytest.raises(ConfigError, match="none of the letters AB"):
        SCORERS.get("choice")(letters="AB")("A", "C")
    for scorer in (choice, f1, exact):
        assert scorer("A", []).values == {scorer.names[0]: None}
        assert scorer("A", "").problem == "the row has no reference"


SQUAD = [
    ("The Eiffel Tower!", "Eiffel tower", 1.0),
    ("a tower", "Eiffel tower", 2 / 3),
    ("in Paris in Paris", "in Paris", 2 * 2 / 6),
    ("", "Eiffel tower", 0.0),
    ("the", "the", 0.0),
    ("well-known", "well known", 0.0),
]


@pytest.mark.parametrize(("text", "reference", "value"), SQUAD)
def test_shared_words_by_hand(text, reference, value):
    assert token_f1(text, reference) == pytest.approx(value)
    assert f1(text, [reference, "nothing of it"]).values["f1"] == pytest.approx(value)


def scrolls_f1(prediction, truth):
    """As the evaluation of SCROLLS has it, line by line."""
    import re
    import string
    from collections import Counter

    def normalize(text):
        without = "".join(char for char in text.lower() if char not in set(string.punctuation))
        return " ".join(re.sub(r"\b(a|an|the)\b", " ", without).split())

    found, expected = normalize(prediction).split(), normalize(truth).split()
    same = sum((Counter(found) & Counter(expected)).values())
    if same == 0:
        return 0
    precision, recall = 1.0 * same / len(found), 1.0 * same / len(expected)
    return 2 * precision * recall / (precision + recall)


def test_f1_is_that_of_scrolls_on_long_texts():
    texts = [
        "The model was trained on 3 corpora: A, B, and the C corpus (2019).", "trained on three corpora",
        "Yes", "no", "An answer, a question; the end?", "They use BERT-base as an encoder.", "Unanswerable",
    ]  # fmt: skip
    for text in texts:
        for reference in texts:
            assert token_f1(text, reference) == pytest.approx(scrolls_f1(text, reference), abs=1e-12)


def test_exact_match_after_normalisation():
    assert exact("  the Entailment. ", ["entailment"]).values == {"exact_match": 1.0}
    assert exact("not entailment", "entailment").values == {"exact_match": 0.0}
    assert exact("", "entailment").values == {"exact_match": 0.0}
    assert normalize_answer("The  A-team, an end") == "ateam end"


def test_references_without_a_word_are_left_out():
    assert exact("The", "The").values == exact(" The ", ["The"]).values == {"exact_match": 1.0}
    assert exact("a", "The").values == exact("", "The").values == {"exact_match": 0.0}
    assert f1("The", "The").values == {"f1": None} and "empty" in str(f1("The", "The").problem)
    assert f1("a tower", ["...", "tower"]).values == {"f1": 1.0}
