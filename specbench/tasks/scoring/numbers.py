"""Accuracy by the number in an answer, which may be written in the digits of any script."""

import re
import unicodedata
from collections.abc import Sequence
from decimal import Decimal
from typing import NamedTuple

from specbench.core.errors import ConfigError
from specbench.core.registry import SCORERS
from specbench.tasks.scoring import PerAnswer, Reference, accepted_texts

# Languages that write a decimal comma (CLDR's main territory of each): in them a point marks thousands.
DECIMAL_COMMA = frozenset({
    "be", "bg", "ca", "cs", "da", "de", "el", "es", "et", "fi", "fr", "gl", "hr", "hu", "id", "is", "it", "lt", "lv",
    "nb", "nl", "no", "pl", "pt", "ro", "ru", "sk", "sl", "sr", "sv", "tr", "uk", "vi",
})  # fmt: skip

SPACES = "\u0020\u00a0\u2009\u202f"
DIGITS = "一二三四五六七八九两兩"
AS_DIGITS = str.maketrans(DIGITS, "12345678922", "零〇")
UNITS = {"十": 10, "百": 100, "千": 1000, "万": 10**4, "萬": 10**4, "億": 10**8, "亿": 10**8}
UNIT = f"[{''.join(UNITS)}]"
NUMERAL = f"[零〇{DIGITS}{''.join(UNITS)}]"

# Chinese and Japanese numerals. A single numeral is not read: it is part of common words (一共, 十分, 万一, 千万).
COMPOUND = re.compile(
    rf"(?:[{DIGITS}](?={UNIT})|(?<!\d)[十百](?=[{DIGITS}万萬億亿])|(?<!\d)千(?=[{DIGITS}])){NUMERAL}+"
)

GROUPED = r"[1-9]\d{0,2}(?P<mark>MARK)\d{3}(?:(?P=mark)\d{3})*(?!\d)(?:(?!(?P=mark))[.,]\d+)?"
INDIAN = r"\d{1,2}(?:,\d{2})+,\d{3}(?!\d)(?:\.\d+)?"  # 12,34,567: lakh and crore
DECIMAL = r"\d+\.\d+|(?<!\d,)\d+,\d+(?!\d|,\d)"  # 1,2,3,5 is a list
FRACTION = r"(?<![\d/.,])(?:(?P<units>\d+) )?(?P<over>\d+)/(?P<under>0*[1-9]\d*)(?![\d/]|[.,]\d)"  # no date
POWER = r"[eE][+-]?\d{1,2}(?!\w)"
TAIL = rf"(?P<tail>(?: ?{UNIT}(?<!千(?=[米克瓦卡]))\d*)+)"  # 3万5千; but 5千米 is 5 km
NUMBER = (
    rf"(?P<sign>-\\?[$€£¥₹]?)?(?:{FRACTION}"
    rf"|(?P<digits>{GROUPED}|{INDIAN}|{DECIMAL}|\d+)(?:{TAIL}|(?P<power>{POWER}))?)"
)
MARK = rf"[,'’{SPACES}]|\.(?=\d{{3}}[.,]\d)"  # a point marks thousands where another mark follows: 1.234.567; 1.234,5
PATTERNS = {
    decimal_comma: re.compile(NUMBER.replace("MARK", rf"\.|{MARK}" if decimal_comma else MARK))
    for decimal_comma in (False, True)
}

# Other signs for the same thing: minus signs and dashes, Arabic and full-width separators.
EQUIVALENTS = str.maketrans("−–﹣－٬٫．＄￥⁄／＝", "----,..$¥//=")
LATEX = {"{,}": ",", r"\,": "\u2009", r"\!": ""}  # 1{,}000, 1\,000, 1,\!000
REWRITTEN = (
    (re.compile(r"(?<=\d)(?=[¼-¾⅐-⅞]|\\[dt]?frac)"), " "),  # 1½
    (re.compile(r"\\[dt]?frac\{(-?\d+)\}\{(\d+)\}"), r"\1/\2"),
    (re.compile(r"(?<=[０-９])，(?=[０-９])"), ","),  # between other digits it may end a clause: 16-7=9，2*9=18
    (re.compile(r"(?<=\d)\s?(?:[x×*·]|\\times|\\cdot)\s?10\s?\^\s?\{?(-?\d{1,2})(?!\d)\}?"), r"e\1"),
    (re.compile(r"\^\{?-?\d+\}?"), "^"),  # an exponent: 18 m^2
)
WIDE_GROUPS = re.compile(r"(?<!\d)\d{1,3}(?:，\d{3})+(?!\d)")
NO_SPACES = re.compile(r"[\u0e00-\u0e7f\u3040-\u30ff\u3400-\u9fff]")  # Thai, Japanese, Chinese: a sign after a letter


class WrittenNumber(NamedTuple):
    """A number in a text. `gap`: the text between it and the number before it (or the start)."""

    value: Decimal
    gap: str


def written_numbers(text: str, decimal_comma: bool = False) -> list[WrittenNumber]:
    """Returns the numbers of a text in order. `decimal_comma`: whether "2.125" is 2125, as in German, or 2.125. "2,125"
    is 2125 in both cases: English marks are common in answers in all languages."""
    plain, found, end = _plain(text), [], 0
    for match in PATTERNS[decimal_comma].finditer(plain):
        value = _value(match)
        is_negative = match["sign"] and not _is_joined(plain[: match.start()])
        found.append(WrittenNumber(value.copy_negate() if is_negative else value, plain[end : match.start()]))
        end = match.end()
    return found


def _plain(text: str) -> str:
    for written, meant in LATEX.items():
        text = text.replace(written, meant)
    for pattern, replacement in REWRITTEN:
        text = pattern.sub(replacement, text)
    digits = {ord(char): str(unicodedata.decimal(char, char)) for char in set(text)}
    fractions = [char for char in set(text) if unicodedata.decomposition(char).startswith("<fraction>")]
    text = text.translate(digits | {ord(char): unicodedata.normalize("NFKC", char) for char in fractions})
    plain = WIDE_GROUPS.sub(lambda match: match[0].replace("，", ","), text.translate(EQUIVALENTS))
    # 一百二十三 becomes 1百2十3, and 十八 1十8.
    return COMPOUND.sub(lambda match: "1" * (match[0][0] in UNITS) + match[0].translate(AS_DIGITS), plain)


def _is_joined(before: str) -> bool:
    """Returns whether a dash after this text is a hyphen or a binary minus ("COVID-19", "16-3"), not the sign of a
    number."""
    char = before[-1:]
    if not char or NO_SPACES.match(char):
        return False
    if char in "$€£":
        return before[-2:-1].isdecimal()  # 5$-3; but $-3$ in LaTeX has a sign
    return char.isalnum() or char in ")]}%" or unicodedata.category(char).startswith("M")


def _value(match: re.Match[str]) -> Decimal:
    if match["under"]:
        return Decimal(match["units"] or 0) + Decimal(match["over"]) / Decimal(match["under"])
    digits = match["digits"]
    mark = match["mark"] or ("," if digits.count(",") > 1 else "")
    number = Decimal(digits.replace(mark, "").replace(",", ".") + (match["power"] or ""))
    if not match["tail"]:
        return number
    total = section = Decimal(0)
    for unit, digits in re.findall(rf"({UNIT})(\d*)", match["tail"]):  # such as 1.5 and "万", or 3 and "万5千"
        if UNITS[unit] < 10**4:
            section += (number or 1) * UNITS[unit]
        else:
            total, section = total + (section + number) * UNITS[unit], Decimal(0)
        number = Decimal(digits or 0)
    return total + section + number


NEGATED = r"(?!\W*(?:not|nicht|не)\b)"  # "The answer is not 20 but 18"; other languages negate within the phrase
SENTENCE = r"[\s:*]*(.*?)(?=[.!?][)*\"'”»]*(?:\s|$)|[。！？।\n]|$)"  # the rest of the sentence
OPERATORS = "=≈+*/×·÷-"
ASIDE = re.compile(
    rf"(?<![{OPERATORS}])(?<![{OPERATORS}] )[(,;:（，；：、—]"
)  # in "2 * (3 + 6)" it is part of the calculation


def answered_number(text: str, phrases: Sequence[str] = (), decimal_comma: bool = False) -> Decimal | None:
    """Returns the number that an answer gives; None if the answer has no number. That is the number after one of the
    phrases ("The answer is", in any case), in the last sentence that begins with a phrase and has a number; without
    such a sentence, the last number of the text."""
    begun = re.compile(f"(?:{'|'.join(map(re.escape, phrases))}){NEGATED}{SENTENCE}", re.IGNORECASE)
    sentences = [match[1] for match in begun.finditer(text)] if phrases else []
    found = (each for sentence in reversed(sentences) if (each := written_numbers(sentence, decimal_comma)))
    if not (numbers := next(found, [])):
        numbers = written_numbers(text, decimal_comma)
        return numbers[-1].value if numbers else None
    result = numbers[0].value  # in an equation ("9 * 2 = 18") the number after its last equals sign
    for number in numbers[1:]:
        gap = number.gap.replace("**", "").strip()
        if ASIDE.search(gap) and gap != ":":  # 10 : 2 = 5
            break
        if "=" in gap or "≈" in gap:
            result = number.value
    return result


@SCORERS.register("number", takes_language=True)
def number(
    language: str | None = None, *, answer_phrases: Sequence[str] = (), decimal_comma: bool = False
) -> PerAnswer:
    """Accuracy: 1 if the number of the answer equals that of a reference, else 0, also if the answer has no number.

    answer_phrases: phrases that introduce the answer ("The answer is"); the number after a phrase counts, else the last
    number. decimal_comma: read "2.125" as 2125; languages that write so (de, fr, es, …) do not need it. Answers and
    references are read in the same way. docs/scoring.md says what is read as a number. Raises ConfigError if a
    reference has no number.
    """
    if isinstance(answer_phrases, str) or not all(isinstance(each, str) and each.strip() for each in answer_phrases):
        raise ConfigError(
            f"scorer.answer_phrases = {answer_phrases!r}: must be a list of texts such as 'The answer is'"
        )
    has_comma = decimal_comma or (language or "").lower().partition("-")[0] in DECIMAL_COMMA

    def judge(text: str, reference: Reference) -> dict[str, float]:
        expected = [answered_number(each, answer_phrases, has_comma) for each in accepted_texts(reference, "number")]
        if None in expected:
            raise ConfigError(f"scorer number: the reference {reference!r} holds no number: correct the data")
        return {"accuracy": float(answered_number(text, answer_phrases, has_comma) in expected)}

    return PerAnswer(("accuracy",), judge)
