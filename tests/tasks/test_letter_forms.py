"""Right and wrong forms of an answer with a letter, in eleven languages: tests/forms/letters/LANGUAGE.yaml."""

from pathlib import Path

import pytest

from specbench.core.registry import SCORERS
from tests.support.read_yaml import read_yaml

FOLDER = Path(__file__).parents[1] / "forms" / "letters"
LANGUAGES = ("bn", "de", "en", "es", "fr", "ja", "ru", "sw", "te", "th", "zh")
FILES = {language: read_yaml(FOLDER / f"{language}.yaml") for language in LANGUAGES}
choice = SCORERS.get("choice")(letters="ABCD")


def chosen(text: str, options: dict[str, str]) -> str:
    """The letters that an answer is right for, all of one letter; "none" where there is none."""
    right = [letter for letter in options if choice(text, {"answer": letter, **options}).values["accuracy"] == 1]
    return "".join(right) or "none"


def forms(language: str, group: str) -> dict[str, str]:
    """Text → the letter that it chooses, or "none"."""
    return {text: letter for letter, texts in FILES[language]["forms"][group].items() for text in texts}


@pytest.mark.parametrize(
    ("language", "group"), [(language, group) for language in LANGUAGES for group in FILES[language]["forms"]]
)
def test_a_form_chooses_its_letter_and_no_other(language: str, group: str) -> None:
    expected = forms(language, group)
    assert {text: chosen(text, FILES[language]["options"]) for text in expected} == expected


@pytest.mark.parametrize("language", LANGUAGES)
def test_there_are_enough_forms(language: str) -> None:
    texts = [text for group in FILES[language]["forms"] for text in forms(language, group)]
    assert len(texts) == len(set(texts)) >= (80 if language == "en" else 40)


@pytest.mark.parametrize("text", ["B: No", "The answer is B: no.", "B: No, because it is small."])
def test_an_option_whose_text_is_no_can_be_chosen(text: str) -> None:
    assert chosen(text, {"A": "Yes", "B": "No", "C": "Maybe"}) == "B"
