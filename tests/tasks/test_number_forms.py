"""Forms of right and wrong answers with numbers in eleven languages, and lm-eval's verdicts beside ours."""

from functools import cache
from pathlib import Path
from typing import Any

import pytest

from specbench.specs.catalogue import load_task
from specbench.tasks.scoring import Scorer, make_scorer
from tests.support.lm_eval_verdicts import GSM8K, mgsm, verdicts
from tests.support.read_yaml import read_yaml

FOLDER = Path(__file__).parents[1] / "forms"
PAGE = Path(__file__).parents[2] / "docs" / "scoring.md"

Form = dict[str, Any]  # right or wrong: the reference; text: the answer; mgsm, gsm8k: why lm-eval's verdict differs


FORMS: dict[str, dict[str, list[Form]]] = {path.stem: read_yaml(path) for path in sorted(FOLDER.glob("numbers/*.yaml"))}
REASONS: dict[str, str] = read_yaml(FOLDER / "numbers_beside_lm_eval.yaml")
GROUPS = [(language, group) for language, groups in FORMS.items() for group in groups]


def is_right(form: Form) -> bool:
    return "right" in form


def reference(form: Form) -> str:
    return str(form["right" if is_right(form) else "wrong"])


def forms_of(language: str) -> list[Form]:
    return [form for group in FORMS[language].values() for form in group]


@cache
def judge_of(language: str) -> Scorer:
    judge = make_scorer(load_task("mgsm").subset(language))
    assert judge is not None
    return judge


@pytest.mark.parametrize(("language", "group"), GROUPS)
def test_every_form_is_judged_as_its_file_says(language: str, group: str) -> None:
    judge = judge_of(language)
    for form in FORMS[language][group]:
        values = judge(form["text"], reference(form)).values
        assert values == {"accuracy": float(is_right(form))}, form


@pytest.mark.parametrize("language", FORMS)
def test_mcot_judges_as_mgsm(language: str) -> None:
    assert load_task("mcot").subset(language).scorer == load_task("mgsm").subset(language).scorer


def test_every_language_has_enough_forms_and_a_third_of_them_are_wrong() -> None:
    assert set(FORMS) == set(load_task("mgsm").subset_names)
    for language in FORMS:
        forms = forms_of(language)
        assert len({(form["text"], reference(form)) for form in forms}) == len(forms) >= 60
        assert 0.3 < sum(not is_right(form) for form in forms) / len(forms) < 0.45


@pytest.mark.parametrize(("task", "language"), [*(("mgsm", language) for language in FORMS), ("gsm8k", "en")])
def test_the_verdicts_that_differ_from_those_of_lm_eval_are_known(task: str, language: str) -> None:
    forms = forms_of(language)
    found = verdicts(
        GSM8K if task == "gsm8k" else mgsm(language), [form["text"] for form in forms], list(map(reference, forms))
    )
    for form, verdict in zip(forms, found, strict=True):
        assert (verdict != is_right(form)) == (task in form), (verdict, form)


def test_the_page_on_scoring_gives_the_reason_of_every_difference() -> None:
    used = {
        form[task] for language in FORMS for form in forms_of(language) for task in ("mgsm", "gsm8k") if task in form
    }
    assert used == set(REASONS)
    page = " ".join(PAGE.read_text(encoding="utf-8").split())
    assert [reason for reason in REASONS.values() if reason not in page] == []
