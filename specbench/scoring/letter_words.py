"""The words around the letter of an option (letter_words.yaml) as patterns: what chooses it, what rules it out."""

import re
import unicodedata
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from specbench.specs.yaml_files import parse

FILE = Path(__file__).with_suffix(".yaml")
JOINED = "joined"  # the key of the languages that are written without spaces or with endings on their words
OPEN, CLOSE = r"[(\[{*_\"“‘’「『【<$]{0,6}", r"[)\]}*_\"”’」』】>$]{0,6}"
_INSIDE = "A-Za-z0-9À-ɏЀ-ӿ"  # a letter beside one of these is part of a word


def lone(letter: str) -> str:
    """The pattern of a letter that is no part of "I'm", "U.S.", "B-cell" or "C++"."""
    return rf"(?<![{_INSIDE}])(?<![{_INSIDE}][’.-]){letter}(?![’.-]?[{_INSIDE}]|\+\+|#)"


CAPITAL = rf"(?-i:{OPEN}{lone('(?!I [a-z])[A-Z]')}{CLOSE})"
LIST = rf"{CAPITAL}(?:\s*[,、]\s*{CAPITAL}){{2,}}|{CAPITAL}\s*[,、]\s*{CAPITAL}(?=[.。]?\s*(?:\n|$))"
SENTENCE_END = rf"(?=[^\S\n]*(?:[.。;!।]|\n|$|,\s*{CAPITAL}))"  # "A: no", but not "A: No river flows"


class Around(NamedTuple):
    """Patterns of the words around a letter. Those `before` end where it begins, those `behind` begin at its end."""

    chosen_before: re.Pattern[str]
    chosen_behind: re.Pattern[str]
    named_before: re.Pattern[str]
    denied_before: re.Pattern[str]
    denied_behind: re.Pattern[str]
    noun_before: re.Pattern[str]
    together: re.Pattern[str]  # two letters or more, and the words between them


@cache
def around() -> Around:
    """The patterns of all languages of the file together."""
    patterns = ["|".join(column) for column in zip(*map(_patterns, _languages()), strict=True)]
    patterns[0] += r"|\\boxed\s*\Z"
    patterns[-1] += f"|{LIST}"
    return Around(*(re.compile(pattern, re.IGNORECASE) for pattern in patterns))


def _languages() -> Iterator[dict[str, str]]:
    """Of each language its kinds of words, each as one pattern; one that nothing matches where it has none."""
    text = unicodedata.normalize("NFKC", FILE.read_text(encoding="utf-8"))
    words: dict[str, Any] = parse(re.sub(r"\|\s+", "|", text), FILE.name)
    joined = words.pop(JOINED)
    for form, languages in ((r"(?<!\w)(?:{})(?!\w)", words), ("(?:{})", joined)):
        for kinds in languages.values():
            yield {kind: form.format(each or "(?!)") for kind, each in kinds.items()}


def _patterns(words: dict[str, str]) -> tuple[str, ...]:
    """The patterns of one language, in the order of `Around`."""
    linking = "|".join(words[kind] for kind in ("answer", "option", "right", "link"))

    def links(separator: str) -> str:
        """Up to eight words that may stand between two others, and what separates them."""
        return rf"{separator}*(?:(?:{linking}){separator}*){{0,8}}"

    near, far, behind = links(r"[^\S\n]"), links(r"[\s:=*_—–>-]"), links(r"(?:[^\S\n]|[—–-])")
    either, both = (rf",?\s*{words[kind]}{near}" for kind in ("or", "and"))
    return (
        rf"(?:{words['answer']}|{CAPITAL},?\s*{words['but']}){far}\Z",
        rf"{behind}{words['right']}",
        rf"{words['option']}{far}\Z",
        rf"(?:{words['not']}{near}|{words['wrong']}{near}(?:{words['answer']}|{words['option']}){far})\Z",
        rf"{behind}(?:{words['wrong']}|{words['is_not']})|\s*(?:\?\s*{words['no']}|:\s*{words['no']}{SENTENCE_END})",
        rf"{words['name']}[\s-]*\Z",
        rf"{CAPITAL}(?:[,、]\s*{CAPITAL})*"
        rf"(?:(?:{either}|\s*/\s*){CAPITAL}|(?:{both}|\s*&\s*){CAPITAL}(?!\s+(?:is|ist|es|est)\b))+",
    )
