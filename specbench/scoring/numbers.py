"""Accuracy by the number an answer ends with, in any of the world's digits and separators."""

import re
import unicodedata
from collections.abc import Sequence
from decimal import Decimal

from specbench.errors import ConfigError
from specbench.registry import SCORERS
from specbench.scoring.contract import PerAnswer, Reference, alternatives

SPACES = "\u0020\u00a0\u2009\u202f"
GROUPED = rf"\d{{1,3}}(?P<mark>[,.'’{SPACES}])\d{{3}}(?:(?P=mark)\d{{3}})*(?:(?!(?P=mark))[.,]\d+)?(?!\d)"
INDIAN = r"\d{1,2}(?:,\d{2})+,\d{3}(?:\.\d+)?(?!\d)"  # 12,34,567: the lakh and crore grouping of Bengali and Telugu
DECIMAL = r"\d+\.\d+|(?<!\d,)\d+,\d+(?!\d|,\d)"  # 1,2,3,5 is a list
NUMBER = re.compile(rf"(?P<sign>-[$€£¥₹]?)?(?P<digits>{GROUPED}|{INDIAN}|{DECIMAL}|\d+)(?P<myriads> ?[万萬億亿])?")
MYRIADS = {"万": 10**4, "萬": 10**4, "億": 10**8, "亿": 10**8}

# Other signs for the same thing: minus signs and dashes, Arabic and full-width separators.
SAME = str.maketrans("−–﹣－٬٫．＄￥", "----,..$¥")
LATEX = {"{,}": ",", r"\,": "\u2009", r"\!": ""}  # 1{,}000, 1\,000, 1,\!000
WIDE_COMMA = re.compile(r"(?<=[０-９])，(?=[０-９])")  # between other digits it ends a clause: 16-7=9，2*9=18
SENTENCE = r"[\s:*]*(.*?)(?=[.!?][)*\"'”»]*(?:\s|$)|[。！？।\n]|$)"  # what follows, up to its end
NO_SPACES = re.compile(r"[\u0e00-\u0e7f\u3040-\u30ff\u3400-\u9fff]")  # Thai, Japanese, Chinese: a sign after a letter


def last_number(text: str) -> list[Decimal]:
    """The readings of the last number of a text, the English one first; empty when there is no number.

    "2.125" is 2.125 or, in German, 2125; "5 100" is 5100 or two numbers, of which 100 is the last.
    """
    for written, meant in LATEX.items():
        text = text.replace(written, meant)
    plain = "".join(str(unicodedata.decimal(char, char)) for char in WIDE_COMMA.sub(",", text).translate(SAME))
    matches = list(NUMBER.finditer(plain))
    if not matches:
        return []
    match = matches[-1]
    negative = match["sign"] and not _joins_words(plain[: match.start()])
    factor = MYRIADS[match["myriads"].strip()] if match["myriads"] else 1
    return [value * (-factor if negative else factor) for value in _readings(match["digits"])]


def _joins_words(before: str) -> bool:
    """Whether a dash after this text is a hyphen or a binary minus ("COVID-19", "16-3"), not the sign of a number."""
    char = before[-1:]
    if not char or NO_SPACES.match(char):
        return False
    return char.isalnum() or char in ")]}%$€£" or unicodedata.category(char).startswith("M")


def _readings(digits: str) -> list[Decimal]:
    """All values that one written number may have. The last separator is the decimal point if it can be one."""
    separators = re.findall(r"\D", digits)
    if not separators:
        return [Decimal(digits)]
    grouped = Decimal(re.sub(r"\D", "", digits))
    whole, last, fraction = digits.rpartition(separators[-1])
    decimal = Decimal(re.sub(r"\D", "", whole) + "." + fraction)
    if separators[-1] in ",." and len(set(separators)) > 1:
        return [decimal]
    if last not in ",.":
        return [grouped] if fraction.startswith("0") or last in "'’" else [grouped, Decimal(fraction)]
    if len(separators) > 1:
        return [grouped]
    if len(fraction) != 3 or whole.startswith("0") or len(whole) > 3:
        return [decimal]
    return [grouped, decimal] if last == "," else [decimal, grouped]


def answered_number(text: str, phrases: Sequence[str]) -> list[Decimal]:
    """As `last_number`, of the last sentence that begins with one of the phrases ("The answer is", in any case); where
    none of them holds a number, of the whole text."""
    begun = re.compile(f"(?:{'|'.join(map(re.escape, phrases))}){SENTENCE}", re.IGNORECASE)
    sentences = [match[1] for match in begun.finditer(text)] if phrases else []
    return next(filter(None, map(last_number, reversed(sentences))), None) or last_number(text)


@SCORERS.register("number")
def number(*, answer: Sequence[str] = (), decimal_comma: bool = False) -> PerAnswer:
    """Accuracy: 1 when the number of the answer is the reference's (or one of them), else 0 (no number: 0). It is the
    last one of the sentence that begins with `answer` (the phrases of lm-eval's strict-match), where there is such a
    sentence, else the last of the text (lm-eval's flexible-extract).

    `decimal_comma`: the references may be written as in German, "2.125" for 2125: any reading of theirs is right.
    Raises ConfigError when a reference holds no number.
    """
    if isinstance(answer, str) or not all(isinstance(phrase, str) and phrase.strip() for phrase in answer):
        raise ConfigError(f"scorer.answer = {answer!r}: must be a list of texts such as 'The answer is'")

    def judge(text: str, reference: Reference) -> dict[str, float]:
        found, expected = answered_number(text, answer), []
        for each in alternatives(reference, "number"):
            readings = answered_number(each, answer)
            if not readings:
                raise ConfigError(f"scorer number: the reference {each!r} holds no number: correct the data")
            expected += readings if decimal_comma else readings[:1]
        return {"accuracy": float(any(value in found for value in expected))}

    return PerAnswer(("accuracy",), judge)
