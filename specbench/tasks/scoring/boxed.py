r"""Accuracy of answers in LaTeX, such as those of MATH: the content of the last \boxed{} of an answer."""

import re
from collections.abc import Mapping

from specbench.core.registry import SCORERS
from specbench.tasks.scoring.contract import PerAnswer, Reference, accepted_texts
from specbench.tasks.scoring.numbers import written_numbers

BOX = re.compile(r"\\f?boxed\s*(?=\{)|\\boxed\s+(\S+)")
PHRASE = re.compile(r"final answer is:?\s*(.+?)(?:\.\s*(?:I hope|$)|\n|$)", re.IGNORECASE)
DROPPED = re.compile(
    r"\\left(?![a-z])|\\right(?![a-z])|\\[!,;:> ]|~|\\q?quad(?![a-z])|\\displaystyle|\^\{?\\circ\}?|\\?[$%]|\\(?=\{,\})"
)
WORDS = re.compile(r"\\(?:text|textbf|textit|mathrm|mathbf|mbox)\s*\{([^{}]*)\}")
UNITS = re.compile(
    r"(?<=[\d}])(?:\\?[a-zA-Z ]*(?:inches|feet|units?|cents|dollars|degrees|meters|cm|km))(?:\^\{?\d\}?)?$"
)
SHORT_FRACTION = re.compile(r"\\frac(?:(\d)(\d)|(\d)\{([^{}]*)\}|\{([^{}]*)\}(\d))")
PLAIN_FRACTION = re.compile(r"(-?)(\d+)/(\d+)")
SHORT_ROOT = re.compile(r"\\sqrt([^\[{])")
NAMED = re.compile(r"[a-zA-Z](?:\\in|=)")  # x=5, x\in[0,1]
THOUSANDS = re.compile(r"(?<![\d(,\[])(\d{1,3}(?:\{?,\}?\d{3})+)(?![\d,)\]])")


def boxed_answer(text: str) -> str | None:
    r"""Returns the content of the last complete \boxed{} of a text, else the text after the last "final answer is",
    else None."""
    for box in reversed(list(BOX.finditer(text))):
        if box[1]:
            return box[1].strip("$.")
        depth = 0
        for end in range(box.end(), len(text)):
            depth += {"{": 1, "}": -1}.get(text[end], 0) if text[end - 1] != "\\" else 0
            if depth == 0:
                return text[box.end() + 1 : end]
    said = PHRASE.findall(text)
    return said[-1].strip() if said else None


def normalize_latex(answer: str) -> str:
    r"""Returns an answer in a canonical spelling: without spaces, sizes of brackets, units, currency, percent and
    degree signs and the name of the unknown; with \frac{a}{b} for every fraction; a plain number as its value."""
    plain = DROPPED.sub("", answer.strip().rstrip("."))
    plain = re.sub(r"\\[dt]frac", r"\\frac", plain)
    plain = UNITS.sub("", WORDS.sub(r"\1", plain).strip())
    plain = "".join(plain.split())
    plain = NAMED.sub("", plain, count=1) if NAMED.match(plain) else plain
    plain = THOUSANDS.sub(lambda match: re.sub(r"[{},]", "", match[1]), plain)
    plain = SHORT_FRACTION.sub(_whole_fraction, plain)
    plain = PLAIN_FRACTION.sub(r"\1\\frac{\2}{\3}", plain)
    plain = SHORT_ROOT.sub(r"\\sqrt{\1}", plain)
    return _value(plain) or plain.lower()


def _whole_fraction(match: re.Match[str]) -> str:
    over, under = (part for part in match.groups() if part is not None)
    return f"\\frac{{{over}}}{{{under}}}"


def _value(plain: str) -> str | None:
    """Returns the value of a text that is only a number or a fraction of numbers; None for any other text."""
    if not re.fullmatch(r"-?(?:\d*\.?\d+|\\frac\{-?\d+\}\{[1-9]\d*\})", plain):
        return None
    [number] = written_numbers("0" + plain if plain.startswith(".") else plain.replace("-.", "-0."))
    return str(number.value.normalize())


@SCORERS.register("boxed")
def boxed() -> PerAnswer:
    r"""Accuracy: 1 if the content of the last \boxed{} of the answer equals the reference (or one of them), else 0.

    Without a box, the text after the last "final answer is" counts. Answers and references are first written in a
    canonical spelling, which docs/scoring.md describes. Other expressions of equal value, such as 2(x+1) and 2x+2, are
    not equal.
    """

    def judge(text: str, reference: Reference) -> Mapping[str, float] | None:
        expected = {normalize_latex(each) for each in accepted_texts(reference, "boxed")}
        found = boxed_answer(text)
        return {"accuracy": float(found is not None and normalize_latex(found) in expected)}

    return PerAnswer(("accuracy",), judge)
