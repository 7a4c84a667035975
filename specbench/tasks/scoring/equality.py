"""Whether two answers in LaTeX have the same value.

math-verify and its parser latex2sympy2_extended read an answer and compare; this module adds what they do not know:
units, number bases, the case of letters, words, exact decimals, and some spellings. It imports no other module of
specbench, because it is also the program of the process that compares (`main`, see `latex.Comparison`).
"""

import gc
import json
import logging
import os
import re
import signal
import sys
from contextlib import suppress
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import Any

# Characters and commands → the LaTeX that the parser reads.
SPELLINGS = str.maketrans({
    "−": "-", "–": "-", "×": r"\times ", "·": r"\cdot ", "÷": "/", "π": r"\pi ", "∞": r"\infty ", "√": r"\sqrt ",
    "≤": r"\le ", "≥": r"\ge ", "≠": r"\ne ", "∪": r"\cup ", "∅": r"\emptyset ", "°": r"^\circ ", "²": "^2", "³": "^3",
    "¢": r"\text{cents}", "½": r"\frac12", "⅓": r"\frac13", "¼": r"\frac14", "¾": r"\frac34",
    "\u00a0": " ", "\u2009": " ", "\u202f": " ",
})  # fmt: skip
BREAK_OR_SPACE = re.compile(
    r"(\\\\)(?:\[[^\]]*\])?|(,?\\!)|\\[,;:> ]|~|\\q?quad(?![a-zA-Z])|\\displaystyle(?![a-zA-Z])"
)
TEXT = re.compile(r"\\(?:text(?:bf|it|rm|normal)?|math(?:rm|bf|it|sf)|mbox|textsf|operatorname)\s*\{([^{}]*)\}")
REWRITTEN = (
    (re.compile(r"\{,\}"), ","),
    (re.compile(r"(?<!\\)\$|\\[()]|\\\[|\\\]|\*\*"), ""),
    (re.compile(r"\\left\s*\\?\."), ""),
    (re.compile(r"\\varnothing"), r"\\emptyset"),
    (re.compile(r"\\langle"), "("),
    (re.compile(r"\\rangle"), ")"),
    (re.compile(r"\\([dtc]?frac|binom)\s*(\\(?!sqrt)[a-zA-Z]+|\w)\s*(\\(?!sqrt)[a-zA-Z]+|\w)"), r"\\\1{\2}{\3}"),
    (re.compile(r"^\([a-zA-Z\\, ]+\)\s*=\s*(?=\()"), ""),
    (re.compile(r"\\text\{\s*percent\s*\}|(?<=\d)\s*percent\b|(?<!\\)%"), r"\\%"),
    (re.compile(r"\^\s*\{?\s*\\circ\s*\}?|(?<=\d)\s*degrees?\b"), r"\\text{degrees}"),
    (re.compile(r"(?<=[\d)}]) ?\bcubed\b"), "^3"),
    (re.compile(r"(?<=[\d)}]) ?\b(?:(squared)|factorial)\b"), lambda m: "^2" if m[1] else "!"),
    (re.compile(r"\\text\{\s*(\d[\d.,/:]*\s*)\}"), r"\1"),
    (
        re.compile(r"(?<![\d(\[,.\\])\d{1,3}(?:([ ,])\d{3})(?:\1\d{3})*(?![\d)\],])"),  # (1,234) is a pair
        lambda match: match[0].replace(match[1], ""),
    ),
    (re.compile(r"(?<![\d.])(\d*)\.(\d*)\\overline\s*\{(\d+)\}"), lambda match: _repeating(*match.groups())),
    (re.compile(r"(?<![\d.])(\d*)\.(\d+)(?![\d.])"), lambda match: _exact(match[1], match[2])),
    (re.compile(r"(?<![\d/^])(\d+) +(\d+)/(\d+)(?![\d/])"), r"\1\\frac{\2}{\3}"),
)  # fmt: skip
PLAIN = re.compile(r"-?(?:\d+\.?\d*|\.\d+)")

# The names of units that are abbreviated, and of irregular plurals. Two units are the same only if their names are.
UNIT_NAMES = {
    "mm": "millimeter", "cm": "centimeter", "dm": "decimeter", "m": "meter", "km": "kilometer", "in": "inch",
    "ft": "foot", "feet": "foot", "yd": "yard", "mi": "mile", "mg": "milligram", "g": "gram", "kg": "kilogram",
    "oz": "ounce", "lb": "pound", "ml": "milliliter", "l": "liter", "gal": "gallon", "qt": "quart", "pt": "pint",
    "tsp": "teaspoon", "tbsp": "tablespoon", "ms": "millisecond", "s": "second", "sec": "second", "min": "minute",
    "h": "hour", "hr": "hour", "wk": "week", "mo": "month", "yr": "year", "mph": "mile per hour",
    "kph": "kilometer per hour", "kmh": "kilometer per hour", "fps": "foot per second", "hz": "hertz", "deg": "degree",
    "rad": "radian", "sq": "square", "cu": "cubic", "a": "per", "an": "per", "people": "person", "men": "man",
    "women": "woman", "pts": "point", "children": "child",
}  # fmt: skip
POWERS = {"square": "2", "squared": "2", "cubic": "3", "cubed": "3"}
# Words that change a value, or stand for one, are not units; nor are number words ("3 halves"). Quarters are coins too.
NO_UNITS = re.compile(
    r"and|or|if|not|than|plus|minus|over|divided|multiplied|choose|mod(?:ulo)?|below|negative|factorial|sqrt|log|ln|exp"
    r"|(?:arc)?(?:sin|cos|tan|cot|csc)h?|pi|infinity|alpha|beta|gamma|delta|theta|lambda|sigma|omega|phi|half|halves"
    r"|(?:third|fourth|fifth|sixth|seventh|eighth|ninth|tenth|hundredth|thousandth|millionth)s?"
)

# A unit: a text or words after a value. Words without a space before them must be well-known abbreviations, and single
# letters are units only after a number and a space: 2m and 3xy are products.
ABBREVIATIONS = "cm|mm|km|kg|mg|ml|mL|lbs?|oz|ft|in|yd|mi|hrs?|sec|min|mph|kph|Hz"
UNIT = re.compile(
    rf"(?P<value>.*?[\d}})\]a-z])\s*(?:\\text\{{\s*(?P<text>[a-zA-Z][^{{}}]*)\}}"
    rf"|(?<=[\d}})\] ])(?P<short>(?:{ABBREVIATIONS})(?:/(?:hr?|min|s|sec)| squared| cubed)?)"
    r"|(?<=[\d})] )(?P<words>(?:(?:sq|cu)[. ] ?[a-zA-Z]+|[a-zA-Z]{3,})(?:[ /.-]+[a-zA-Z]+)*)"
    r"|(?<=\d )(?P<letter>[mgshLl](?:/(?:min|s|h)| squared| cubed)?))\s*\.?(?:\^\s*\{?(?P<power>\d)\}?)?",
    re.DOTALL,
)
BASE = re.compile(r"(?P<value>[0-9A-F]+)_\{?(?:\\text\{)?(?P<base>\d+)\}*")
EQUAL = 3  # exit status of a fork; 1 and 2 are errors
WARM_UP = (
    ("x+1", "1+x"), ("3", r"\log_2 8"), ("[2,5)", r"2\le x<5"), (r"(3,\pi)", r"(\pi,3)"), ("6", "x=5"), ("2", "2x"),
    (r"\sin^2 x", r"1-\cos^2 x"), (r"\{1,2\}", r"\{2,1\}"), (r"\frac12", r"\int_0^1 x dx"),
    ("0.1", r"\sqrt{2}"), ("x^2-1", "(x-1)(x+1)"),
    (r"\begin{pmatrix} 1 \\ 2 \end{pmatrix}", r"\begin{pmatrix} 2 \\ 1 \end{pmatrix}"),
)  # fmt: skip
SET_AND_TUPLE = ((True, False, False, True), (False, True, True, False))


@cache
def _number_words() -> tuple[re.Pattern[str], dict[str, int], frozenset[str]]:
    """Returns the pattern of English words after a number that they multiply, their values, and the numerals."""
    import yaml

    words = yaml.safe_load(Path(__file__).with_name("number_words.yaml").read_text(encoding="utf-8"))["en"]
    scales = {**words["scales"], "dozen": 12}
    pattern = rf"(?<=[\d}}])\s*(\\text\{{)?((?:\s*(?:{'|'.join(scales)})s?(?![\w-]))+)"
    return re.compile(pattern, re.IGNORECASE), scales, frozenset(words["numerals"])


def _with_scale(match: re.Match[str]) -> str:
    """Returns 3 million as 3 times a number."""
    scales = _number_words()[1]
    factor = 1
    for word in match[2].split():
        factor *= next(value for each, value in scales.items() if re.fullmatch(rf"{each}s?", word, re.IGNORECASE))
    return rf"\cdot {factor}{match[1] or ''}"


def quick(gold: str, answer: str) -> bool | None:
    """Returns whether two answers are equal if that needs no parser: the same text, or decimals; else None."""
    gold, answer = ("".join(text.split()).strip("$").removesuffix(".") for text in (gold, answer))
    if not gold or not answer:
        return False
    if gold == answer:
        return True
    if PLAIN.fullmatch(gold) and PLAIN.fullmatch(answer):
        return Decimal(gold) == Decimal(answer)
    return None


def equal(gold: str, answer: str) -> bool:
    """Returns whether an answer has the value of `gold`. It can take any time and memory: see `latex.Comparison`."""
    known = quick(gold, answer)
    if known is not None:
        return known
    (gold, gold_unit), (answer, unit) = map(_without_unit, map(_plain, (gold, answer)))
    if gold_unit and unit and gold_unit != unit:
        return False
    if {gold_unit, unit} == {"percent", ""}:
        hundredth = r"\frac{%s}{100}"
        pair = (hundredth % gold, answer) if gold_unit else (gold, hundredth % answer)
        return _is_same_value(gold, answer) or _is_same_value(*pair)
    words = _words(gold), _words(answer)
    if None not in words and words[0] == words[1]:
        return True
    if None not in words:
        lengths = {len(word) for each in words for word in each or ()}
        if r"\text" in gold + answer or max(lengths, default=0) > 3 or lengths == {1}:
            return False  # but ab is ba
    return _is_same_value(gold, answer)


def _plain(latex: str) -> str:
    """Returns an answer in one spelling of spaces, texts, numbers and signs."""
    text = BREAK_OR_SPACE.sub(lambda match: match[1] or (match[2] or " ").strip(r"\!"), latex.translate(SPELLINGS))
    text = TEXT.sub(r"\\text{\1}", text)
    text = _number_words()[0].sub(_with_scale, text).replace(r"\text{}", "")
    for pattern, replacement in REWRITTEN:
        text = pattern.sub(replacement, text)
    return text.strip().rstrip(".,;:").strip()


def _exact(whole: str, places: str) -> str:
    """Returns a decimal as a fraction, because decimals are compared after rounding."""
    places = places.rstrip("0")
    return rf"\frac{{{int(whole + places)}}}{{1{'0' * len(places)}}}" if places else whole or "0"


def _repeating(whole: str, places: str, period: str) -> str:
    """Returns a repeating decimal as a fraction: 0.1\\overline{6} is 15/90."""
    numerator = int(whole + places + period) - int(whole + places or 0)
    return rf"\frac{{{numerator}}}{{{'9' * len(period)}{'0' * len(places)}}}"


def _without_unit(text: str) -> tuple[str, str]:
    """Returns an answer without its unit, and the unit, which is empty if there is none."""
    if text.startswith(r"\$"):
        return text[2:].strip(), "dollar"
    if text.endswith(r"\%"):
        return text[:-2].strip(), "percent"
    if match := BASE.fullmatch(text):
        return match["value"], f"base {match['base']}"
    if not (match := UNIT.fullmatch(text)):
        return text, ""
    written = next(filter(None, match.group("text", "short", "words", "letter"))).lower()
    words = re.findall("[a-z]+", written.replace("/", " per "))
    numerals = _number_words()[2]
    is_product = match["words"] and any(len(word) == 1 and word not in "amgshl" for word in words)  # 12 times x
    if is_product or POWERS.keys() >= set(words) or any(word in numerals or NO_UNITS.fullmatch(word) for word in words):
        return text, ""
    names = " ".join(UNIT_NAMES.get(word) or _name(word) for word in words).split()
    power = match["power"] or "".join([POWERS[name] for name in names if name in POWERS] + re.findall(r"\d", written))
    return match["value"].strip(), " ".join(name for name in names if name not in POWERS) + power


def _name(word: str) -> str:
    """Returns the singular of a unit in full: inch for inches and box for boxes."""
    one = re.sub(r"(?<=\w)ies$", "y", word) if len(word) > 4 else word
    one = re.sub(r"(?<=x|h)es$|(?<=ss)es$|(?<=\w[^s])s$", "", one)
    one = re.sub("(?<=met|lit)re$", "er", one)
    return UNIT_NAMES.get(one, one)


def _words(text: str) -> list[str] | None:
    """Returns the words of an answer that is not mathematics; None for other answers. Words have no case, but letters
    have one. The order of letters, such as A and C, is free."""
    bare = TEXT.sub(r" \1 ", text)
    if re.search(r"[\\\d_^=<>+*/|]|(?<![^\W_]{2})-|-(?![^\W_]{2})", bare):  # q-p is a difference
        return None
    found = re.findall(r"[^\W\d_]+", bare)
    words = [word if len(word) == 1 else word.casefold() for word in found]
    words = [word for word in words if word not in ("and", "or")]
    if words[:1] in (["a"], ["an"], ["the"]) and len(words) > 1:
        del words[0]
    return sorted(words) if all(len(word) == 1 for word in words) else words


def _is_same_value(gold: str, answer: str) -> bool:
    from math_verify import verify
    from sympy import FiniteSet, Set, Union

    known = quick(gold, answer)
    if known is not None:
        return known
    if (gold[:1] in "([", gold[:2] == r"\{", answer[:1] in "([", answer[:2] == r"\{") in SET_AND_TUPLE:
        return False
    one, other = _parsed(gold), _parsed(answer)
    if isinstance(one, str) or isinstance(other, str):
        return isinstance(one, str) and isinstance(other, str) and "".join(one.split()) == "".join(other.split())
    relations = [isinstance(each, FiniteSet) and all(part.is_Relational for part in each.args) for each in (one, other)]
    if isinstance(one, Set) and relations == [False, True]:
        other = Union(*(part.as_set() for part in other.args))  # x<2 or x>3
    return bool(verify(one, other, float_rounding=12, timeout_seconds=None, allow_set_relation_comp=True))


def _parsed(latex: str) -> Any:
    """Returns what math-verify makes of LaTeX, but with the case of letters; other texts as they are."""
    from latex2sympy2_extended.latex2sympy2 import ConversionConfig, latex2sympy
    from latex2sympy2_extended.math_normalization import NormalizationConfig, normalize_latex
    from math_verify.grader import should_treat_as_complex

    spelling = NormalizationConfig(basic_latex=True, malformed_operators=True, nits=True, boxed="none")
    text = normalize_latex(latex, spelling)
    try:
        return latex2sympy(
            text, is_real=not should_treat_as_complex(text), normalization_config=None,
            conversion_config=ConversionConfig(lowercase_symbols=False),
        )  # fmt: skip
    except Exception:  # of many types
        return text


def main(cpu_seconds: float, memory_bytes: int) -> None:
    """Reads lines [gold, answer] of JSON and answers each with 1 or 0. Without an error, the first line is "ready".

    Each comparison runs in a fork, which is at hand at once and ends after `cpu_seconds`, also in the midst of a
    computation in C. Windows has no fork: there the comparison takes what it takes.
    """
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what a library prints is not an answer
    logging.disable()
    try:
        for pair in WARM_UP:  # what is imported or cached here is there in every fork
            equal(*pair)
    except ImportError as error:
        print(error, file=answers, flush=True)
        return
    print("ready", file=answers, flush=True)
    if hasattr(os, "fork"):
        import resource

        gc.disable()  # forks are short, and a pass over what they share would take a third of their time
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    for line in sys.stdin:
        is_equal = _in_fork(line, cpu_seconds) if hasattr(os, "fork") else _compared(line)
        print(int(is_equal), file=answers, flush=True)


def _compared(line: str) -> bool:
    try:
        return equal(*json.loads(line))
    except Exception:  # of many types, among them RecursionError and MemoryError
        return False


def _in_fork(line: str, cpu_seconds: float) -> bool:
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGPROF, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_PROF, cpu_seconds)
        os._exit(EQUAL if _compared(line) else 0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == EQUAL


if __name__ == "__main__":
    main(float(sys.argv[1]), int(sys.argv[2]))
