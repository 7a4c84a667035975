"""The scorers `rouge` and `text`: words of every script, rouge-score's numbers, repetition and loops."""

import pytest

from specbench.core.errors import ConfigError
from specbench.core.registry import SCORERS
from specbench.specs.components import complete_options
from specbench.tasks.scoring import is_unspaced, words
from specbench.tasks.scoring.texts import ends_in_loop, repetition_rate


@pytest.fixture
def rouge_score():
    """The package, which takes a second to import."""
    import rouge_score.rouge_scorer
    import rouge_score.tokenize

    return rouge_score


TEXTS = [
    "The U.S. government said on Monday that 3,000 jobs were lost; it didn't say why.",
    "Government officials said 3000 jobs had been lost on Monday.",
    "Nothing to do with it - really_nothing at all!",
    "Running runners ran; the runner runs.",
    "",
]


@pytest.mark.parametrize("use_stemmer", [False, True])
def test_ascii_texts_have_rouge_scores_own_numbers(rouge_score, use_stemmer):
    own = SCORERS.get("rouge")(use_stemmer=use_stemmer)
    theirs = rouge_score.rouge_scorer.RougeScorer(["rouge1", "rouge2", "rougeL"], use_stemmer=use_stemmer)
    for text in TEXTS:
        for reference in TEXTS[:-1]:
            expected = {name: score.fmeasure for name, score in theirs.score(reference, text).items()}
            assert own(text, reference).values == pytest.approx(expected, abs=1e-12)


def test_several_references_give_the_best_of_each(rouge_score):
    theirs = rouge_score.rouge_scorer.RougeScorer(["rouge1", "rouge2", "rougeL"]).score_multi(TEXTS[1:3], TEXTS[0])
    expected = {name: score.fmeasure for name, score in theirs.items()}
    assert SCORERS.get("rouge")()(TEXTS[0], TEXTS[1:3]).values == pytest.approx(expected)


def test_the_tokenizer_of_rouge_score_can_be_asked_for(rouge_score):
    text, reference = "Ein schöner Käfer", "ein schoner Kafer"
    theirs = rouge_score.rouge_scorer.RougeScorer(["rouge1"]).score(reference, text)["rouge1"].fmeasure
    assert SCORERS.get("rouge")(tokenizer="rouge_score")(text, reference).values["rouge1"] == theirs == 0.25
    assert SCORERS.get("rouge")()(text, reference).values["rouge1"] == pytest.approx(1 / 3)
    with pytest.raises(ConfigError, match=r"scorer.tokenizer = 'word': did you mean 'words'"):
        complete_options(SCORERS, "rouge", {"tokenizer": "word"}, "scorer")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Größe, naïve!", ["größe", "naïve"]),
        ("Ответ — ДА", ["ответ", "да"]),
        ("猫がいる。OK?", ["猫", "が", "い", "る", "ok"]),
        ("3只猫", ["3", "只", "猫"]),
        ("উত্তর হল", ["উত্তর", "হল"]),
        ("సమాధానం", ["సమాధానం"]),
        ("ที่นี่", ["ที่", "นี่"]),
        ("１２ ｶﾀ", ["12", "カ", "タ"]),
        ("don't stop_it", ["don", "t", "stop", "it"]),
        ("… !?", []),
        ("", []),
    ],
)
def test_words_of_every_script(text, expected):
    assert words(text) == expected


def test_ascii_words_are_those_of_rouge_score(rouge_score):
    for text in TEXTS:
        assert words(text) == rouge_score.tokenize.tokenize(text, None)


@pytest.mark.parametrize("text", ["The end of it", "Конец дела", "猫がいる", "故事的结尾", "เรื่องสั้น", "উত্তর হল"])
def test_the_reference_itself_has_all_points_and_nothing_has_none(text):
    rouge = SCORERS.get("rouge")()
    assert rouge.names[0] == "rougeL"
    assert rouge(text, text).values == {"rougeL": 1.0, "rouge1": 1.0, "rouge2": 1.0}
    assert rouge("", text).values == {"rougeL": 0.0, "rouge1": 0.0, "rouge2": 0.0}
    assert rouge(text, []).values == dict.fromkeys(rouge.names) and rouge(text, "").problem


@pytest.mark.parametrize("tokenizer", ["words", "rouge_score"])
def test_references_without_a_word_are_left_out(tokenizer):
    rouge = SCORERS.get("rouge")(tokenizer=tokenizer)
    assert rouge("...", "...").values == dict.fromkeys(rouge.names)
    assert rouge("...", ["...", "!"]).problem == "the reference is empty after normalization"
    assert rouge("the end", ["...", "the end"]).values == dict.fromkeys(rouge.names, 1.0)


def test_scripts_without_spaces():
    assert is_unspaced("猫がいるOK") and is_unspaced("เรื่อง") and not is_unspaced("The 猫") and not is_unspaced("12")


def test_repetition_rate_by_hand():
    # a b c d comes again behind x, and b c d e is new: 4 of 10 words.
    assert repetition_rate(list("abcdxabcde"), 4) == pytest.approx(0.4)
    assert repetition_rate(list("abcdefg"), 4) == 0.0
    assert repetition_rate(["a"] * 10, 4) == pytest.approx(0.9)  # all but the first
    assert repetition_rate([], 4) == repetition_rate(["a"], 4) == 0.0


STORY = (
    "Once upon a time a small fox lived by the river. Every day it went to the water and looked for fish. One day the "
    "fox met an old bird, who told it of a lake behind the hill. They went there together, and they were never hungry."
)


@pytest.mark.parametrize(
    ("text", "free"),
    [
        (STORY, 1.0),
        (STORY + " No, no, no!", 1.0),  # a figure of speech
        (STORY + " And then?" * 2, 1.0),
        (STORY + " and the fox ran away" * 3, 0.0),
        (STORY + " and the fox ran away" * 6 + " and the", 0.0),  # cut in the middle of a turn
        (STORY + " fish" * 12, 0.0),
        ("昔々、小さな狐が川のそばに住んでいました。毎日魚を探しました。", 1.0),
        ("昔々、小さな狐が" + "川に行きました。" * 5, 0.0),
        ("ha " * 50, 0.0),
        ("", 0.0),
        ("…!", 0.0),
    ],
)
def test_a_text_is_free_of_loops_or_not(text, free):
    assert SCORERS.get("text")()(text, "").values["loop_free"] == free


def test_what_the_scorer_of_texts_says():
    scorer = SCORERS.get("text")()
    assert not SCORERS.features("text").needs_reference and not scorer.needs_reference
    assert scorer("", "").values == {"loop_free": 0.0, "repetition_rate": 0.0}
    assert scorer(STORY, "").values == {"loop_free": 1.0, "repetition_rate": 0.0}
    looped = scorer(STORY + " and the fox ran away" * 10, "").values["repetition_rate"]
    assert looped == pytest.approx(45 / (len(words(STORY)) + 50))
    assert not ends_in_loop([], 12)
