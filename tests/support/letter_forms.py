"""Right and wrong forms of an answer with a letter: tests/forms/letters."""

from pathlib import Path

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
