"""The language of a text, by lingua or by its script; and its words."""

import re
import unicodedata
from functools import cache
from typing import TYPE_CHECKING

from specbench.core.environment import require
from specbench.specs.languages import SCRIPTS, identifiable_code

if TYPE_CHECKING:
    from lingua import LanguageDetector


# Fewer languages cause fewer mistakes on short texts. Requested languages are added.
COMMON = (
    "ar", "bg", "bn", "cs", "da", "de", "el", "en", "es", "fa", "fi", "fr", "gu", "he", "hi", "hu", "id", "it", "ja",
    "ko", "mr", "nl", "pa", "pl", "pt", "ro", "ru", "so", "sr", "sv", "sw", "ta", "te", "th", "tr", "uk", "ur", "vi",
    "xh", "yo", "zh", "zu",
)  # fmt: skip


def language_of(text: str, *requested: str) -> str | None:
    """Returns the code of a text's language, one of COMMON, SCRIPTS and `requested`; None for a text without words, or
    if two languages are equally likely. It is reliable for a few sentences, less so for a few words."""
    num_letters = sum(char.isalpha() for char in text)
    written = next((code for code, script in SCRIPTS.items() if 2 * len(script.findall(text)) > num_letters), None)
    if written is not None:
        return written
    found = _detector(_uncommon(requested)).detect_language_of(text)
    return None if found is None else found.iso_code_639_1.name.lower()


def prepare(*requested: str) -> None:
    """Loads the models that `language_of` needs for the same codes, so that its first call is as fast as the others.
    All detectors of a process share the loaded models."""
    _detector(_uncommon(requested), preloaded=True)


def _uncommon(requested: tuple[str, ...]) -> frozenset[str]:
    return frozenset(filter(None, map(identifiable_code, requested))) - {*COMMON, *SCRIPTS}


@cache
def _detector(extra: frozenset[str], preloaded: bool = False) -> "LanguageDetector":
    """Returns a low-accuracy detector: it uses only trigrams, which take a tenth of the memory. Unless `preloaded`, it
    loads its models with the first text."""
    require("lingua", "the language of answers")
    from lingua import IsoCode639_1, LanguageDetectorBuilder

    codes = [getattr(IsoCode639_1, code.upper()) for code in (*COMMON, *sorted(extra))]
    builder = LanguageDetectorBuilder.from_iso_codes_639_1(*codes).with_low_accuracy_mode()
    return (builder.with_preloaded_language_models() if preloaded else builder).build()


# Thai, Lao, Myanmar, Khmer; kana, Han, half-width kana
UNSPACED = re.compile(r"[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3005-\u3007\u3040-\u30ff\u3400-\u9fff\uff66-\uff9f]")


def words(text: str) -> list[str]:
    """Returns the lower-case words. In scripts without spaces, each character with its combining marks is a word.

    For ASCII texts these are the words of rouge-score's tokenizer.
    """
    found: list[str] = []
    is_open = False  # whether the next letter continues the last word
    for char in unicodedata.normalize("NFKC", text).lower():
        kind = unicodedata.category(char)[0]
        if kind == "M" and found:
            found[-1] += char
        elif kind not in "LN":
            is_open = False
        elif UNSPACED.match(char):
            found.append(char)
            is_open = False
        elif is_open:
            found[-1] += char
        else:
            found.append(char)
            is_open = True
    return found


def is_unspaced(text: str) -> bool:
    """Returns whether most letters of a text belong to scripts without spaces."""
    return 2 * len(UNSPACED.findall(text)) > sum(char.isalpha() for char in text)
