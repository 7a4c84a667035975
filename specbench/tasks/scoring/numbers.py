"""Accuracy by the number that an answer gives."""

import re
from collections.abc import Sequence
from decimal import Decimal

from specbench.core.errors import ConfigError
from specbench.core.registry import SCORERS
from specbench.tasks.scoring.contract import PerAnswer, Reference, alternatives
from specbench.tasks.scoring.written_numbers import DECIMAL_COMMA, WrittenNumber, written_numbers

NEGATED = r"(?!\W*(?:not|nicht|не)\b)"  # "The answer is not 20 but 18"; other languages negate within the phrase
SENTENCE = r"[\s:*]*(.*?)(?=[.!?][)*\"'”»]*(?:\s|$)|[。！？।\n]|$)"  # what follows, up to its end
OPERATORS = "=≈+*/×·÷-"
ASIDE = re.compile(
    rf"(?<![{OPERATORS}])(?<![{OPERATORS}] )[(,;:（，；：、—]"
)  # in "2 * (3 + 6)" it is a part of the sum


def answered_number(text: str, phrases: Sequence[str] = (), decimal_comma: bool = False) -> Decimal | None:
    """Returns the number that an answer gives, None where it holds no number.

    It is the number behind one of the phrases ("The answer is", in any case), in the last sentence that begins with one
    and holds a number; without such a sentence it is the last number of the text.
    """
    begun = re.compile(f"(?:{'|'.join(map(re.escape, phrases))}){NEGATED}{SENTENCE}", re.IGNORECASE)
    sentences = [match[1] for match in begun.finditer(text)] if phrases else []
    for sentence in reversed(sentences):
        if numbers := written_numbers(sentence, decimal_comma):
            return _result(numbers)
    numbers = written_numbers(text, decimal_comma)
    return numbers[-1].value if numbers else None


def _result(numbers: Sequence[WrittenNumber]) -> Decimal:
    """The first number, or where it begins an equation ("9 * 2 = 18") the one behind its last equals sign."""
    result = numbers[0].value
    for number in numbers[1:]:
        gap = number.gap.replace("**", "").strip()
        if ASIDE.search(gap) and gap != ":":  # 10 : 2 = 5
            break
        if "=" in gap or "≈" in gap:
            result = number.value
    return result


@SCORERS.register("number")
def number(language: str | None = None, *, answer: Sequence[str] = (), decimal_comma: bool = False) -> PerAnswer:
    """Accuracy: 1 when the number of the answer is the reference's (or one of them), else 0 (no number: 0).

    `answer`: the phrases that an answer begins with ("The answer is"); the number behind one counts, else the last one.
    `decimal_comma`: "2.125" is 2125. It is so in the languages of `DECIMAL_COMMA` without this option, which is for a
    task of another language. Answers and references are read alike. docs/scoring.md tells what is read as a number.
    Raises ConfigError when a reference holds no number.
    """
    if isinstance(answer, str) or not all(isinstance(phrase, str) and phrase.strip() for phrase in answer):
        raise ConfigError(f"scorer.answer = {answer!r}: must be a list of texts such as 'The answer is'")
    has_comma = decimal_comma or (language or "").lower().partition("-")[0] in DECIMAL_COMMA

    def judge(text: str, reference: Reference) -> dict[str, float]:
        expected = [answered_number(each, answer, has_comma) for each in alternatives(reference, "number")]
        if None in expected:
            raise ConfigError(f"scorer number: the reference {reference!r} holds no number: correct the data")
        return {"accuracy": float(answered_number(text, answer, has_comma) in expected)}

    return PerAnswer(("accuracy",), judge)
