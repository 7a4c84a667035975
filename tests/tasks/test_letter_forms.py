"""Right and wrong forms of an answer with a letter, in eleven languages: tests/forms/letters/LANGUAGE.yaml."""

import pytest

from tests.support.letter_forms import FILES, LANGUAGES, chosen, forms


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
