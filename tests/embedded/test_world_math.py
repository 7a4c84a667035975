"""The word problems' texts: nouns in the form that their place in the sentence asks for."""

import re
from random import Random

import pytest

from tools.world import math as world_math


def _texts(language: str) -> list[str]:
    random = Random(1)
    rows = [world_math.mgsm_draw(language, False, random) for _ in range(400)]
    return [row["question"] + " " + row["answer"] for row in rows]


def test_telugu_plurals_lose_their_u_before_an_ending_of_case() -> None:
    texts = " ".join(_texts("te"))
    assert not re.search("లు( నుండి| ?కు | ?ను )", texts)
    for form in ("పువ్వుల నుండి", "పువ్వులకు", "పువ్వులను", "మామిడిపండ్లను", "ఎన్ని పువ్వులు"):
        assert form in texts


@pytest.mark.parametrize(
    ("number", "form"),
    [(1, "яблоко"), (21, "яблоко"), (3, "яблока"), (54, "яблока"), (11, "яблок"), (12, "яблок"), (20, "яблок")],
)
def test_russian_nouns_follow_the_number(number: int, form: str) -> None:
    row = world_math.render("ru", "give", 1, "Маша", ["яблоко", "яблока", "яблок"], (number, 1, 0))
    assert f"лежит {number} {form}." in row["question"] and "Сколько яблок" in row["question"]
