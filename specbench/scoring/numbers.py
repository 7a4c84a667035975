"""Accuracy by the last number of an answer, in any of the world's digits and separators."""

import re
import unicodedata
from decimal import Decimal

from specbench.errors import ConfigError
from specbench.registry import SCORERS
from specbench.scoring.contract import PerAnswer, Reference, alternatives

SPACES = "\u0020\u00a0\u2009\u202f"
GROUPED = rf"\d{{1,3}}(?P<mark>[,.'’{SPACES}])\d{{3}}(?:(?P=mark)\d{{3}})*(?:(?!(?P=mark))[.,]\d+)?(?!\d)"
INDIAN = r"\d{1,2}(?:,\d{2})+,\d{3}(?:\.\d+)?(?!\d)"  # 12,34,567: the lakh and crore grouping of Bengali and Telugu
NUMBER = re.compile(rf"(?P<sign>-[$€£¥₹]?)?(?P<digits>{GROUPED}|{INDIAN}|\d+[.,]\d+|\d+)(?P<myriads> ?[万萬億亿])?")
MYRIADS = {"万": 10**4, "萬": 10**4, "億": 10**8, "亿": 10**8}

# Other signs for the same thing: minus signs and dashes, Arabic and full-width separators.
SAME = str.maketrans("−–﹣－٬٫．＄￥", "----,..$¥")
WIDE_COMMA = re.compile(r"(?<=[０-９])，(?=[０-９])")  # between other digits it ends a clause: 16-7=9，2*9=18
NO_SPACES = re.compile(r"[\u0e00-\u0e7f\u3040-\u30ff\u3400-\u9fff]")  # Thai, Japanese, Chinese: a sign after a letter


def last_number(text: str) -> list[Decimal]:
    """The readings of the last number of a text, the English one first; empty when there is no number.

    "2.125" is 2.125 or, in German, 2125; "5 100" is 5100 or two numbers, of which 100 is the last.
    """
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


@SCORERS.register("number")
def number() -> PerAnswer:
    """Accuracy: 1 when the last number of the text is the reference's (or one of them), else 0 (no number: 0).

    Raises ConfigError when a reference holds no number.
    """

    def judge(text: str, reference: Reference) -> dict[str, float]:
        found = last_number(text)
        expected = [_only_reading(each) for each in alternatives(reference, "number")]
        return {"accuracy": float(any(value in found for value in expected))}

    return PerAnswer(("accuracy",), judge)


def _only_reading(reference: str) -> Decimal:
    readings = last_number(reference)
    if not readings:
        raise ConfigError(f"scorer number: the reference {reference!r} holds no number: correct the data")
    return readings[0]
