"""Accuracy of a multiple choice: the answer names the letter of an option, or the option's own text.

Every letter that may name an option is a candidate; the words around it decide how strongly it is chosen.
"""

import re
import unicodedata
from collections.abc import Mapping
from enum import IntEnum
from functools import cache
from pathlib import Path
from typing import NamedTuple

from specbench.core.errors import ConfigError
from specbench.core.registry import SCORERS
from specbench.specs.yaml_files import parse
from specbench.tasks.scoring import ACCURACY, PerAnswer, Reference, accepted_texts, words

FILE = Path(__file__).with_name("letters.yaml")
JOINED = "joined"  # the key of languages without spaces between words, or with endings on their words
OPEN, CLOSE = r"[(\[{*_\"“‘’「『【<$]{0,6}", r"[)\]}*_\"”’」』】>$]{0,6}"
_INSIDE = "A-Za-z0-9À-ɏЀ-ӿ"  # a letter next to one of these is part of a word


def lone(letter: str) -> str:
    """Returns the pattern of a letter that stands alone, unlike those in "I'm", "U.S.", "B-cell" and "C++"."""
    return rf"(?<![{_INSIDE}])(?<![{_INSIDE}][’.-]){letter}(?![’.-]?[{_INSIDE}]|\+\+|#)"


CAPITAL = rf"(?-i:{OPEN}{lone('(?!I [a-z])[A-Z]')}{CLOSE})"
LIST = rf"{CAPITAL}(?:\s*[,、]\s*{CAPITAL}){{2,}}|{CAPITAL}\s*[,、]\s*{CAPITAL}(?=[.。]?\s*(?:\n|$))"
SENTENCE_END = rf"(?=[^\S\n]*(?:[.。;!।]|\n|$|,\s*{CAPITAL}))"  # "A: no", but not "A: No river flows"


class WordPatterns(NamedTuple):
    """Patterns of the words around a letter: `…_before` ends where the letter begins, `…_after` begins at its end."""

    chosen_before: re.Pattern[str]
    chosen_after: re.Pattern[str]
    named_before: re.Pattern[str]
    denied_before: re.Pattern[str]
    denied_after: re.Pattern[str]
    noun_before: re.Pattern[str]
    together: re.Pattern[str]  # two or more letters with the words between them, such as "A or B"


@cache
def word_patterns() -> WordPatterns:
    """Returns the patterns of all languages of letters.yaml together."""
    text = unicodedata.normalize("NFKC", FILE.read_text(encoding="utf-8"))
    words = parse(re.sub(r"\|\s+", "|", text), FILE.name)
    joined = words.pop(JOINED)
    by_language = [
        _patterns({kind: form.format(each or "(?!)") for kind, each in kinds.items()})  # an empty kind matches nothing
        for form, languages in ((r"(?<!\w)(?:{})(?!\w)", words), ("(?:{})", joined))
        for kinds in languages.values()
    ]
    patterns = ["|".join(column) for column in zip(*by_language, strict=True)]
    patterns[0] += r"|\\boxed\s*\Z"
    patterns[-1] += f"|{LIST}"
    return WordPatterns(*(re.compile(pattern, re.IGNORECASE) for pattern in patterns))


def _patterns(words: dict[str, str]) -> tuple[str, ...]:
    """Returns the patterns of one language, in the order of `WordPatterns`."""
    linking = "|".join(words[kind] for kind in ("answer", "option", "right", "link"))

    def links(separator: str) -> str:
        """Returns the pattern of up to eight linking words and their separators."""
        return rf"{separator}*(?:(?:{linking}){separator}*){{0,8}}"

    near, far, after = links(r"[^\S\n]"), links(r"[\s:=*_—–>-]"), links(r"(?:[^\S\n]|[—–-])")
    either, both = (rf",?\s*{words[kind]}{near}" for kind in ("or", "and"))
    return (
        rf"(?:{words['answer']}|{CAPITAL},?\s*{words['but']}){far}\Z",
        rf"{after}{words['right']}",
        rf"{words['option']}{far}\Z",
        rf"(?:{words['not']}{near}|{words['wrong']}{near}(?:{words['answer']}|{words['option']}){far})\Z",
        rf"{after}(?:{words['wrong']}|{words['is_not']})|\s*(?:\?\s*{words['no']}|:\s*{words['no']}{SENTENCE_END})",
        rf"{words['name']}[\s-]*\Z",
        rf"{CAPITAL}(?:[,、]\s*{CAPITAL})*"
        rf"(?:(?:{either}|\s*/\s*){CAPITAL}|(?:{both}|\s*&\s*){CAPITAL}(?!\s+(?:is|ist|es|est)\b))+",
    )


LETTERS = "ABCDEFGHIJ"
WINDOW = 80  # characters before a letter that are searched for its words
LINE_END = r"[.。!]?[^\S\n]*(?:\n|$)"
LETTER = re.compile(
    rf"(?P<open>{OPEN})(?:{lone('(?P<capital>[A-Z])')}|{lone('(?P<small>[a-z])')}(?=[)}}*]|{CLOSE}{LINE_END}))"
    rf"(?P<close>{CLOSE})"
)
ALONE = re.compile(r"[^\S\n]*[.:,;。、!]?[^\S\n]*(?:\n|$)")
LABELLED = re.compile(r"\s*[.:—–]|\s+-|\s*\n")  # "B. a fish"
LABEL = re.compile(r"(?<![^\s*_])\(?([A-Z])[).:](?=[*_]*\s+\S)")
ENGLISH = re.compile(r"\s+(?!(?:is|seems|looks|fits|because|since|as|est|ist|es|ni)\b)[A-Za-z]")  # "A dog", "I think"
LATEX = re.compile(r"\\(?:text|math)\w*\s*\{([^{}]*)\}")
LOOKALIKE = re.compile(r"(?<![^\W_])[АВСЕН](?![^\W_]|\s+[а-яё])")  # Cyrillic; "В саду" is "in the garden"
LATIN = str.maketrans("АВСЕН", "ABCEH")


class Strength(IntEnum):
    """How strongly an answer chooses a letter."""

    FREE = 1  # a capital that stands alone
    MARKED = 2  # in brackets, quotes or bold
    FIRST = 3  # the text begins with it: "B. a fish"
    NAMED = 4  # "option B"
    CHOSEN = 5  # "the answer is B", "B is correct", \boxed{B}
    ALONE = 6  # the first line is the letter and nothing else


class Mention(NamedTuple):
    """A letter that may be chosen. The strongest mention counts; among equally strong ones, the last."""

    strength: Strength
    start: int
    letter: str


def chosen_letter(text: str, letters: str = LETTERS) -> str | None:
    """Returns the option that an answer chooses, or None. A mention that is ruled out ("not A", "A is wrong") does not
    count; other mentions of that letter count only if words choose them. Joined letters ("A or B") and the labels of a
    list of options choose nothing."""

    def erase(match: re.Match[str]) -> str:
        return "…" if all(_letter_of(each) in letters for each in LETTER.finditer(match[0])) else match[0]

    plain = word_patterns().together.sub(erase, plain_text(text))
    label_starts = _list_labels(plain, letters)
    ruled_out, mentions = set[str](), list[Mention]()
    for match in LETTER.finditer(plain):
        letter = _letter_of(match)
        if letter not in letters:
            continue
        if is_denied(plain, match.start(), match.end()):
            ruled_out.add(letter)
        elif strength := _strength(plain, match, label_starts):
            mentions.append(Mention(strength, match.start(), letter))
    valid = [each for each in mentions if each.strength > Strength.FIRST or each.letter not in ruled_out]
    return max(valid).letter if valid else None


def plain_text(text: str) -> str:
    r"""Returns the text with full-width letters and Cyrillic look-alikes as Latin letters, \text{B} as B and ' as ’."""
    plain = LATEX.sub(r"\1", unicodedata.normalize("NFKC", text)).replace("'", "’")
    return LOOKALIKE.sub(lambda match: match[0].translate(LATIN), plain)


def is_denied(plain: str, start: int, end: int) -> bool:
    """Returns whether the words around plain[start:end], a letter or an option's text, rule it out."""
    patterns = word_patterns()
    return _matches_before(patterns.denied_before, plain, start) or bool(patterns.denied_after.match(plain, end))


def _strength(plain: str, match: re.Match[str], label_starts: set[int]) -> Strength | None:
    words = word_patterns()
    start = match.start()
    end = match.end()
    is_capital, is_marked = bool(match["capital"]), bool(match["open"] and match["close"])
    is_at_start = not plain[:start].strip()
    # 1. By what follows the letter.
    if is_at_start and ALONE.match(plain, end):
        return Strength.ALONE
    if words.chosen_after.match(plain, end):
        return Strength.CHOSEN
    # 2. A capital A or I may be the English word. After a lower-case letter, "A" is the word only as part of a title.
    following = ENGLISH.match(plain, end)
    if following and match["capital"] in ("A", "I") and not (match["open"] or match["close"]):
        is_inside = bool(re.compile(r"[a-z]\s\Z").search(plain, max(0, start - 2), start))
        if match["capital"] == "I" or not is_inside or following[0][-1].isupper():
            return None
    # 3. By the words before it.
    if _matches_before(words.chosen_before, plain, start):
        return Strength.CHOSEN
    if _matches_before(words.named_before, plain, start):
        return Strength.NAMED
    if _matches_before(words.noun_before, plain, start) or match.start("capital") in label_starts:
        return None
    # 4. By its form.
    if is_at_start and (is_marked or (is_capital and (match["close"] or LABELLED.match(plain, end)))):
        return Strength.FIRST
    if is_marked and (is_capital or re.compile(LINE_END).match(plain, end)):
        return Strength.MARKED
    return Strength.FREE if is_capital else None


def _matches_before(pattern: re.Pattern[str], plain: str, end: int) -> bool:
    return bool(pattern.search(plain, max(0, end - WINDOW), end))


def _list_labels(plain: str, letters: str) -> set[int]:
    """Returns the positions of the labels in lists of options, such as "A) sea B) sky C) road"."""
    labels, run = set[int](), list[int]()
    for label in LABEL.finditer(plain):
        is_next = label[1] == letters[len(run) : len(run) + 1] and not is_denied(plain, *label.span())
        run = run if is_next else []
        if label[1] == letters[len(run)]:
            run.append(label.start(1))
        if len(run) >= min(3, len(letters)):
            labels.update(run)
    return labels


def _letter_of(match: re.Match[str]) -> str:
    return (match["capital"] or match["small"]).upper()


ANSWER_KEY = "answer"  # the key of the right letter in a reference that is a mapping


def chosen_text(text: str, options: Mapping[str, str]) -> str | None:
    """Returns the letter of the only option that the answer names in words; None if it names none or several. If one
    option contains another, the longer one counts. An option that is ruled out wherever it occurs does not."""
    answer = f" {' '.join(words(text))} "
    plain = plain_text(text).lower()
    named = list[str]()
    spoken = {letter: f" {' '.join(words(option))} " for letter, option in options.items() if words(option)}
    for letter, option in spoken.items():
        places = list(re.finditer(r"\W*".join(map(re.escape, option.split())), plain))
        is_ruled_out = places and all(is_denied(plain, *place.span()) for place in places)
        if option in answer and not is_ruled_out:
            named.append(letter)
    longest = [a for a in named if not any(a != b and spoken[a] in spoken[b] for b in named)]
    return longest[0] if len(longest) == 1 else None


@SCORERS.register("choice", metrics=(ACCURACY,))
def choice(*, letters: str = LETTERS) -> PerAnswer:
    """Accuracy: 1 if the answer chooses the reference's letter, else 0.

    The reference is the letter, a list of letters any of which is right, or a mapping with the letter as `answer` and
    the options' texts by their letters. With a mapping, only these letters can be chosen (a lone "I" is usually the
    English word), and an answer without a letter may name its option in words. Raises ConfigError for a reference that
    is none of the `letters`.
    """

    def parts(reference: Reference) -> tuple[list[str], str, dict[str, str]]:
        """Returns the right letters, those that can be chosen, and the options' texts."""
        options = dict(reference) if isinstance(reference, Mapping) else {}
        if options and ANSWER_KEY not in options:
            problem = f"the reference has {', '.join(options)}, but no '{ANSWER_KEY}'"
            raise ConfigError(f"scorer choice: {problem}: name the right letter there")
        given: Reference = options.pop(ANSWER_KEY) if isinstance(reference, Mapping) else reference
        right = []
        for each in accepted_texts(given, "choice") or [""]:
            right.append(each.strip().strip("().").upper())
            if len(right[-1]) != 1 or right[-1] not in letters:
                raise ConfigError(f"scorer choice: the reference {each!r} is none of the letters {letters}: correct it")
        offered = [letter for letter in letters if letter in options or letter in right] if options else letters
        return right, "".join(offered), options

    def judge(text: str, reference: Reference) -> dict[str, float]:
        right, offered, options = parts(reference)
        return {"accuracy": float((chosen_letter(text, offered) or chosen_text(text, options)) in right)}

    def read(text: str, reference: Reference) -> str:
        _, offered, options = parts(reference)
        if letter := chosen_letter(text, offered):
            return f"read {letter}"
        named = chosen_text(text, options)
        return f"no letter found: read the text of {named}" if named else "no letter found"

    return PerAnswer(("accuracy",), judge, in_sentences=False, read=read)
