"""Texts → words, in every script: letters, marks and digits; single characters where no spaces are written."""

import re
import unicodedata

# Thai, Lao, Myanmar, Khmer; kana, Han, half-width kana
UNSPACED = re.compile(r"[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3005-\u3007\u3040-\u30ff\u3400-\u9fff\uff66-\uff9f]")


def words(text: str) -> list[str]:
    """Lower-case words. Of a script without spaces each character, with the marks on it, is a word of its own.

    On ASCII texts these are the words of rouge-score's tokenizer.
    """
    found: list[str] = []
    is_open = False  # whether the next letter goes on with the last word
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
    """Whether most letters of a text are of scripts that are written without spaces."""
    return 2 * len(UNSPACED.findall(text)) > sum(char.isalpha() for char in text)
