r"""The scorer `boxed`: what counts as the answer, which answers are equal, and hostile ones.

The verdicts of math-verify with its own settings and of lm-eval's two normalisers stand beside ours."""

import os
import threading
from collections import Counter
from pathlib import Path

import pytest

from specbench.core.errors import ConfigError
from specbench.tasks.scoring import latex
from specbench.tasks.scoring.latex import boxed, boxed_answer
from tests.support.lm_eval_verdicts import math_normalisers
from tests.support.read_yaml import read_yaml

FOLDER = Path(__file__).parents[1] / "forms"
PAGE = Path(__file__).parents[2] / "docs" / "scoring.md"

# right or wrong: the reference; box: the answer in the box, or text: the whole answer; and the name of another scorer:
# why its verdict differs
Form = dict[str, str]
FORMS: dict[str, list[Form]] = read_yaml(FOLDER / "latex.yaml")
REASONS: dict[str, str] = read_yaml(FOLDER / "latex_beside_others.yaml")
OTHERS = ("math_verify", "hendrycks", "minerva")


def reference(form: Form) -> str:
    return form["right"] if "right" in form else form["wrong"]


def answer(form: Form) -> str:
    return form["text"] if "text" in form else f"so it is $\\boxed{{{form['box']}}}$."


def is_right(text: str, gold: str) -> bool:
    return boxed()(text, gold).values["accuracy"] == 1.0


@pytest.mark.parametrize("group", FORMS)
def test_every_form_is_judged_as_its_file_says(group: str) -> None:
    wrong = [form for form in FORMS[group] if is_right(answer(form), reference(form)) != ("right" in form)]
    assert not wrong


def test_the_forms_are_many_and_a_quarter_of_them_is_wrong() -> None:
    forms = [form for forms in FORMS.values() for form in forms]
    assert len({(reference(form), answer(form)) for form in forms}) == len(forms) >= 300
    assert sum("wrong" in form for form in forms) / len(forms) > 0.25


def verdict(other: str, form: Form) -> bool:
    if other == "math_verify":
        from math_verify import parse, verify

        gold, found = (parse(text, parsing_timeout=None) for text in (f"\\boxed{{{reference(form)}}}", answer(form)))
        return bool(verify(gold, found, timeout_seconds=None))
    module = math_normalisers()[other]
    if other == "hendrycks":
        return bool(module.is_equiv(reference(form), form["box"]))
    one, two = (module.normalize_final_answer(each) for each in (reference(form), form["box"]))
    return bool(one == two)


@pytest.mark.parametrize("other", [pytest.param(OTHERS[0], marks=pytest.mark.slow), *OTHERS[1:]])
def test_the_verdicts_that_differ_from_those_of_others_are_known(other: str) -> None:
    forms = [form for forms in FORMS.values() for form in forms if "box" in form or other == "math_verify"]
    for form in forms:
        assert (verdict(other, form) != ("right" in form)) == (other in form), form


def test_the_page_on_scoring_gives_the_reason_of_every_difference_and_counts_them() -> None:
    forms = [form for forms in FORMS.values() for form in forms]
    assert {form[other] for form in forms for other in OTHERS if other in form} == set(REASONS)
    page = " ".join(PAGE.read_text(encoding="utf-8").split())
    assert [reason for reason in REASONS.values() if reason not in page] == []
    boxes = [form for form in forms if "box" in form]
    counts = Counter((other, "right" in form) for form in boxes for other in OTHERS if other in form)
    for other in OTHERS:
        row = f"| {other} | {len(boxes) - counts[other, True] - counts[other, False]} of {len(boxes)} "
        assert f"{row}| {counts[other, True]} | {counts[other, False]} |" in page


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (r"first \boxed{1}, then \boxed{\frac{1}{2}}.", r"\frac{1}{2}"),
        (r"$\boxed{\{1, 2\}}$", r"\{1, 2\}"),
        (r"\boxed{5} and \boxed{6", "5"),
        (r"{ \boxed{5} }} \boxed{\text{a} }", r"\text{a} "),
        (r"a line \\boxed{4}", "4"),
        (r"\fbox{no} The final answer is $x+1$. I hope it is correct.", "x+1"),
        (r"The answer is \[ \frac{1}{2} \] and more", r" \frac{1}{2} "),
        ("The answer is 2.5. It is 3 halves.", "2.5"),
        ("nothing here: 12", None),
        (r"\boxed{}", ""),
    ],
)
def test_what_counts_as_the_answer(text: str, expected: str | None) -> None:
    assert boxed_answer(text) == expected


def test_an_answer_without_a_box_is_wrong_and_a_row_without_an_answer_is_not_scored() -> None:
    assert not is_right("63", "63")
    assert boxed()("63", "").values["accuracy"] is None


HOSTILE = {
    "a tower of powers": r"10^{10^{10}}",
    "factorials": "((1000!)!)!",
    "brackets": "(" * 25 + "1" + ")" * 25,
    "roots": r"\sqrt{2+" * 12 + "2" + "}" * 12,
    "10,000 braces": "{" * 10_000 + "1" + "}" * 10_000,
    "100 kB": "1+" * 50_000 + "1",
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_hostile_answer_is_not_equal_in_a_thread_either(kind: str) -> None:
    """math-verify's own limit of time works in the main thread only."""
    found: list[bool] = []
    judging = threading.Thread(target=lambda: found.append(is_right(f"\\boxed{{{HOSTILE[kind]}}}", "7")))
    judging.start()
    judging.join()
    assert found == [False]
    assert is_right(r"\boxed{\frac{14}{2}}", "7"), "the next answer is judged as ever"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no limit of processor time")
def test_the_process_answers_on_after_a_comparison_that_takes_too_long() -> None:
    comparison = latex._comparison(os.getpid())
    comparison.start()
    process = comparison._process
    assert not comparison.equal("7", HOSTILE["a tower of powers"]) and comparison.equal("7", r"\frac{14}{2}")
    assert comparison._process is process


def test_many_boxes_without_an_end_are_read_in_one_pass() -> None:
    assert boxed_answer(r"\boxed{" * 15_000) is None
    assert boxed_answer(r"\boxed{" * 15_000 + "}" * 15_000) == ""


def test_a_process_that_does_not_start_is_an_error_before_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(latex.sys, "executable", "/nowhere/python")
    made = latex.Comparison()
    monkeypatch.setattr(latex, "_comparison", lambda process: made)
    with pytest.raises(ConfigError, match=r"the process that compares answers does not start \(.*nowhere"):
        boxed().check_reference("7")


def test_an_unfit_antlr_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "math_verify.py").write_text("raise ImportError('Unsupported ANTLR version 4.7')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(ConfigError, match=r"does not start \(Unsupported ANTLR version 4.7\): install math-verify"):
        latex.Comparison().start()
