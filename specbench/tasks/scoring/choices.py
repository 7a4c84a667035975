"""Accuracy of a choice: the letter of an option, or the option's own text."""

import re
from collections.abc import Mapping

from specbench.core.errors import ConfigError
from specbench.core.registry import SCORERS
from specbench.tasks.scoring.contract import PerAnswer, Reference, alternatives
from specbench.tasks.scoring.language import words
from specbench.tasks.scoring.letters import LETTERS, chosen_letter, is_denied, plain_text

KEY = "answer"  # of a reference that names the right letter, and the texts of the options by their letters


def chosen_text(text: str, options: Mapping[str, str]) -> str | None:
    """The letter of the one option whose words, in a row, are in the answer; of options within each other the longest.
    None where there is none or more than one. An option that is ruled out wherever it stands is not in the answer."""
    answer, plain = f" {' '.join(words(text))} ", plain_text(text).lower()
    spoken = {letter: f" {' '.join(words(option))} " for letter, option in options.items() if words(option)}
    found = [letter for letter, option in spoken.items() if option in answer and not _is_denied(option, plain)]
    longest = [a for a in found if not any(a != b and spoken[a] in spoken[b] for b in found)]
    return longest[0] if len(longest) == 1 else None


def _is_denied(option: str, plain: str) -> bool:
    places = list(re.finditer(r"\W*".join(map(re.escape, option.split())), plain))
    return bool(places) and all(is_denied(plain, *place.span()) for place in places)


@SCORERS.register("choice")
def choice(*, letters: str = LETTERS) -> PerAnswer:
    """Accuracy: 1 when the answer chooses the reference's letter, else 0.

    The reference is the letter, a list of letters any of which is right, or a mapping with the letter as `answer` and
    the options' texts by their letters: then these alone can be chosen ("I" is else a word of English more often than
    an option), and an answer without a letter may name its option in words. Raises ConfigError for a reference that is
    none of the `letters`.
    """

    def judge(text: str, reference: Reference) -> dict[str, float]:
        options = _options(reference)
        right = [_letter(each, letters) for each in alternatives(_right(reference), "choice")] or [_letter("", letters)]
        offered = [letter for letter in letters if letter in options or letter in right] if options else letters
        chosen = chosen_letter(text, "".join(offered)) or chosen_text(text, options)
        return {"accuracy": float(chosen in right)}

    return PerAnswer(("accuracy",), judge, in_sentences=False)


def _right(reference: Reference) -> Reference:
    if not isinstance(reference, Mapping):
        return reference
    if KEY not in reference:
        names = ", ".join(reference)
        raise ConfigError(f"scorer choice: the reference has {names}, but no '{KEY}': name the right letter there")
    return reference[KEY]


def _options(reference: Reference) -> dict[str, str]:
    return {key: text for key, text in reference.items() if key != KEY} if isinstance(reference, Mapping) else {}


def _letter(reference: str, letters: str) -> str:
    letter = reference.strip().strip("().").upper()
    if len(letter) != 1 or letter not in letters:
        raise ConfigError(f"scorer choice: the reference {reference!r} is none of the letters {letters}: correct it")
    return letter
