"""Accuracy of a choice: the letter of an option, or the option's own text."""

import re
import unicodedata
from collections.abc import Mapping

from specbench.errors import ConfigError
from specbench.registry import SCORERS
from specbench.scoring.contract import PerAnswer, Reference, alternatives
from specbench.scoring.words import words

LETTERS = "ABCDEFGHIJ"
KEY = "answer"  # of a reference that names the right letter, and the texts of the options by their letters
_OPEN, _CLOSE = r"[(\[{*_\"'“‘「]*", r"[)\]}*_\"'”’」]*"
_FREE = r"(?![A-Za-z0-9'’])"  # no letter of a word, nor of "I'm"
_SURELY = r"(?:be|most|likely|probably|clearly|certainly|definitely|therefore|thus|indeed|the|more)"
_IS = rf"(?:\s+(?:is|are|was|would|should|must|will|{_SURELY}|:))*[\s:=*\-]*"
_WRONG = rf"(?!{_CLOSE}\s+(?:isn't|cannot|can't|is\s+(?:not|wrong|incorrect|false))\b)"
_LETTER = (
    rf"{_IS}(?:(?:option|choice)\s+)?(?:\(([A-Za-z])\)|{_OPEN}(?-i:([A-Z])){_FREE}|"
    rf"{_OPEN}([A-Za-z]){_CLOSE}[.。]?[^\S\n]*(?:\n|$)){_WRONG}"
)
CUE = re.compile(rf"\b(?:answer|(?:right|correct|best)\s+(?:choice|option))\b{_LETTER}", re.IGNORECASE)
NAMED = re.compile(rf"\b(?:choice|option)\b{_LETTER}", re.IGNORECASE)
_LONE = rf"(?<![A-Za-z0-9'’])(%s){_FREE}"
VERDICT = re.compile(
    rf"{_LONE % '[A-Z]'}{_CLOSE}\s+(?i:is|was|seems|looks|would|should|must)"
    rf"(?i:\s+(?:to\s+)?{_SURELY})*\s+(?i:right|correct|true|best|answer)\b"
)
ALONE = re.compile(rf"\s*{_OPEN}([A-Za-z]){_CLOSE}\s*[.:,;。、]?\s*")
FIRST = re.compile(rf"\s*(?:\(([A-Za-z])\)|{_OPEN}([A-Z]){_CLOSE}\s*(?:[.:)]|\n|$))")
MARKED = re.compile(r"(?:\(|\*\*|\\boxed\{|\[|「|\")([A-Z])(?:\)|\*\*|\}|\]|」|\")")
FREE = re.compile(
    rf"{_LONE % '[A-Z]'}(?=[^A-Za-z]*$|\s*[^\sA-Za-z])|{_LONE % '[B-HJ-Z]'}|"
    rf"{_LONE % 'A'}(?=\s+(?:is|was|seems|looks|fits|because|since|est|ist|es)\b)|"
    rf"(?<=[a-z] ){_LONE % 'A'}(?!\s+[A-Z])"
)


def chosen_letter(text: str, letters: str = LETTERS) -> str | None:
    """The option that an answer chooses, or None.

    In this order: a first line that is a letter and nothing else; the last letter behind "answer" or "correct option",
    or before "is correct"; the last behind "option" or "choice"; a letter that the text begins with ("B.", "(B) …");
    the last letter in brackets, quotes, bold or a box; the last capital that stands alone ("I" before another word, and
    "A" at the beginning of a sentence unless a verb follows, are English words, not options).
    """
    plain = unicodedata.normalize("NFKC", text)
    first_line = next((line for line in plain.splitlines() if line.strip()), "")
    alone, first = ALONE.fullmatch(first_line), FIRST.match(plain)
    told = sorted((*CUE.finditer(plain), *VERDICT.finditer(plain)), key=re.Match.start)
    found = (
        *([_group(alone)] if alone else []),
        *(_group(match) for match in reversed(told)),
        *(_group(match) for match in reversed(list(NAMED.finditer(plain)))),
        *([_group(first)] if first else []),
        *(_group(match) for match in reversed(list(MARKED.finditer(plain)))),
        *(_group(match) for match in reversed(list(FREE.finditer(plain)))),
    )
    return next((letter for letter in found if letter in letters), None)


def chosen_text(text: str, options: Mapping[str, str]) -> str | None:
    """The letter of the one option whose words, in a row, are in the answer; of options within each other the longest.
    None where there is none or more than one."""
    answer = f" {' '.join(words(text))} "
    spoken = {letter: f" {' '.join(words(option))} " for letter, option in options.items() if words(option)}
    found = [letter for letter, option in spoken.items() if option in answer]
    longest = [a for a in found if not any(a != b and spoken[a] in spoken[b] for b in found)]
    return longest[0] if len(longest) == 1 else None


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


def _group(match: re.Match[str]) -> str:
    return next(group for group in match.groups() if group is not None).upper()
