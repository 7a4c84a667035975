"""Answers beside AR's: where they begin to differ, and which are the same."""

import pytest

from specbench.report.shown import PartedText, ShownRecord
from tests.support.records import autoregressive, generation, record


def shown(plain: str, own: str, plain_ids: list[int], own_ids: list[int]) -> ShownRecord:
    methods = {"ar": generation(text=plain, token_ids=plain_ids), "sd": generation(text=own, token_ids=own_ids)}
    return ShownRecord.of(record(methods), {"ar", "sd"})


@pytest.mark.parametrize(
    ("own", "parted"),
    [
        ("one two three", PartedText("one two three")),
        ("one too late", PartedText("one t", "oo", " late", is_parted=True)),
        ("one", PartedText("one", "", "", is_parted=True)),
        ("one two three four", PartedText("one two three", " four", "", is_parted=True)),
    ],
)
def test_a_text_is_parted_at_its_first_difference(own: str, parted: PartedText) -> None:
    made = shown("one two three", own, [1, 2, 3], [1, 2, 4])
    ar, sd = made.answers
    assert made.parted(sd, "text") == parted and "".join(parted[:3]) == own
    assert made.parted(ar, "text") == PartedText("one two three")


def test_only_answers_of_the_same_tokens_are_the_same() -> None:
    same, other = shown("a b", "a b", [1, 2], [1, 2]), shown("a b", "a b", [1, 2], [1, 3])
    assert same.same_as_ar == ("sd",) and same.answers[1].same_tokens == 2 and same.answers[0].same_tokens is None
    assert other.same_as_ar == () and other.answers[1].same_tokens == 1
    shorter = shown("a b", "a", [1, 2], [1])
    assert shorter.same_as_ar == () and shorter.answers[1].same_tokens == 1
    alone = ShownRecord.of(record({"ar": autoregressive(1), "sd": autoregressive(1)}), {"sd"})
    assert alone.same_as_ar == () and alone.answers[0].equals_ar, "an answer is shown where AR's is not"
