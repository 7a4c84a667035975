"""Answers in LaTeX: what counts as the answer, and which spellings are equal."""

import pytest

from specbench.tasks.scoring.numbers import boxed, boxed_answer, normalize_latex


def right(answer: str, reference: str) -> bool:
    return boxed()(answer, reference).values["accuracy"] == 1.0


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (r"first \boxed{1}, then \boxed{\frac{1}{2}}.", r"\frac{1}{2}"),
        (r"$\boxed{\{1, 2\}}$", r"\{1, 2\}"),
        (r"it is \boxed 7.", "7"),
        (r"\boxed{5} and \boxed{6", "5"),
        (r"\fbox{no} The final answer is $x+1$. I hope it is correct.", "$x+1$"),
        ("nothing here: 12", None),
        (r"\boxed{}", ""),
    ],
)
def test_what_counts_as_the_answer(text: str, expected: str | None) -> None:
    assert boxed_answer(text) == expected


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (r"\dfrac{1}{2}", r"\frac12"), ("0.5", r"\frac{1}{2}"), (".5", "0.50"), ("-1/2", "-0.5"),
        (r"\left( 3, \frac{\pi}{2} \right)", r"(3,\frac{\pi}{2})"), ("1,000", "1000"), (r"1{,}000{,}000", "1000000"),
        (r"x = 5", "5"), (r"x\in[2,5)", "[2,5)"), (r"90^\circ", "90"), (r"\$18.00", "18"), (r"25\%", "25"),
        (r"12\text{ cm}", "12"), (r"6\text{ inches}^2", "6"), (r"\text{Tuesday}", "tuesday"), (r"\sqrt2", r"\sqrt{2}"),
        ("1/2", r"\frac{1}{2}"), (r"\frac{3}4", r"\frac34"), ("2 \\sqrt{3}", "2\\sqrt{3}"), ("7.", "7"),
        (r"\text{(B)}", "(B)"),
    ],
)  # fmt: skip
def test_spellings_of_one_answer_are_equal(one: str, other: str) -> None:
    assert normalize_latex(one) == normalize_latex(other)
    assert right(rf"so \boxed{{{one}}}", other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("12", "1"), ("(1,2)", "(2,1)"), (r"\frac{1}{2}", r"\frac{2}{1}"), ("[1,2]", "(1,2)"), ("x+1", "x-1"),
        ("(1,234)", "1234"), (r"\sqrt{2}", "2"), ("-5", "5"), ("0.3333", r"\frac{1}{3}"), ("", "0"), ("1,2", "12"),
    ],
)  # fmt: skip
def test_other_answers_are_not(one: str, other: str) -> None:
    assert not right(rf"so \boxed{{{one}}}", other)


def test_an_answer_without_a_box_is_wrong_and_a_row_without_an_answer_is_not_scored() -> None:
    assert not right("63", "63")
    assert boxed()("63", "").values["accuracy"] is None
