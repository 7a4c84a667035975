"""Accuracy by the number in an answer, which may be written in the digits of any script."""

import re
import unicodedata
from collections.abc import Sequence
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from specbench.core.errors import ConfigError
from specbench.core.registry import SCORERS
from specbench.specs.yaml_files import parse
from specbench.tasks.scoring import ACCURACY, PerAnswer, Reference, accepted_texts
from specbench.tasks.scoring.latex import LABELS_ANSWER, MARKS, SAYS_ANSWER, last_box

# Languages that write a decimal comma (CLDR's main territory of each): in them a point marks thousands.
DECIMAL_COMMA = frozenset({
    "be", "bg", "ca", "cs", "da", "de", "el", "es", "et", "fi", "fr", "gl", "hr", "hu", "id", "is", "it", "lt", "lv",
    "nb", "nl", "no", "pl", "pt", "ro", "ru", "sk", "sl", "sr", "sv", "tr", "uk", "vi",
})  # fmt: skip

FILE = Path(__file__).with_name("number_words.yaml")
JOINED = "joined"  # the key of languages without spaces between words


VOWEL_SIGNS = "\u0900-\u0963\u0966-\u0dff"  # of Bengali and Telugu, which are not word characters of `re`


@cache
def number_words() -> dict[str, dict[str, Any]]:
    """Returns the content of number_words.yaml by language; the key "joined" of each says whether it has no spaces."""
    words = parse(unicodedata.normalize("NFC", FILE.read_text(encoding="utf-8")), FILE.name)
    joined = words.pop(JOINED)
    return {name: {**kinds, JOINED: name in joined} for name, kinds in {**words, **joined}.items()}


@cache
def words_pattern(kind: str, before: str = r"(?<!\w)") -> str:
    """Returns the pattern of the words of a kind in all languages. `before`: the boundary before a word of a language
    with spaces."""
    alone, joined = (
        [each for words in number_words().values() if words[JOINED] is is_joined for each in words.get(kind, ())]
        if kind in ("scales", "before")
        else [words[kind] for words in number_words().values() if words[JOINED] is is_joined and kind in words]
        for is_joined in (False, True)
    )
    return rf"(?:{before}(?:{'|'.join(alone)})(?![\w{VOWEL_SIGNS}-])|{'|'.join(joined) or '(?!)'})"


@cache
def factor(word: str) -> int:
    """Returns the value of a word that multiplies a number; 1 for an empty one."""
    factors = {
        k: v
        for words in number_words().values()
        for kind in ("scales", "before")
        for k, v in words.get(kind, {}).items()
    }
    return next((value for each, value in factors.items() if re.fullmatch(each, word, re.IGNORECASE)), 1)


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
NO_SPACES = r"[\u0e00-\u0e7f\u3040-\u30ff\u3400-\u9fff]"  # Thai, Japanese, Chinese
BARE = rf"(?:(?<![\w.,)\]}}%])|(?<={NO_SPACES}))\.\d+(?![.,]?\d)"  # .5; but "end.5" and "...5" are 5
DECIMAL = rf"\d+\.\d+|{BARE}|(?<!\d,)\d+,\d+(?!\d|,\d)"  # 1,2,3,5 is a list
FRACTION = r"(?<![\d/.,])(?:(?P<units>\d+) )?(?P<over>\d+)/(?P<under>0*[1-9]\d*)(?![\d/]|[.,]\d)"  # no date
POWER = r"[eE][+-]?\d{1,2}(?!\w)"
TAIL = rf"(?P<tail>(?: ?{UNIT}(?<!千(?=[米克瓦卡]))\d*)+)"  # 3万5千; but 5千米 is 5 km
MARK = rf"[,'’{SPACES}]|\.(?=\d{{3}}[.,]\d)"  # a point marks thousands where another mark follows: 1.234.567; 1.234,5


@cache
def number_pattern(decimal_comma: bool) -> re.Pattern[str]:
    """Returns the pattern of a number with its sign and the words that multiply it."""
    before, after = words_pattern("before"), words_pattern("scales", before="")
    number = (
        rf"(?:(?P<before>{before}) )?(?P<sign>-\\?[$€£¥₹]?)?(?:{FRACTION}"
        rf"|(?P<digits>{GROUPED}|{INDIAN}|{DECIMAL}|\d+)(?:{TAIL}|(?P<power>{POWER}))?)"
        rf"(?:[ \u00a0]?(?P<after>{after}))?"
    )
    return re.compile(number.replace("MARK", rf"\.|{MARK}" if decimal_comma else MARK), re.IGNORECASE)


# Other signs for the same thing: minus signs and dashes, Arabic and full-width separators.
EQUIVALENTS = str.maketrans("−–﹣－٬٫．＄￥⁄／＝", "----,..$¥//=")
LATEX = {"{,}": ",", "{.}": ".", r"\,": "\u2009", r"\!": ""}  # 1{,}000, 1\,000, 1,\!000
REWRITTEN = (
    (re.compile(r"(?<=\d)(?=[¼-¾⅐-⅞]|\\[dt]?frac)"), " "),  # 1½
    (re.compile(r"\\[dt]?frac\{(-?\d+)\}\{(\d+)\}"), r"\1/\2"),
    (re.compile(r"(?<=[０-９])，(?=[０-９])"), ","),  # between other digits it may end a clause: 16-7=9，2*9=18
    (re.compile(r"(?<=\d)\s?(?:[x×*·]|\\times|\\cdot)\s?10\s?\^\s?\{?(-?\d{1,2})(?!\d)\}?"), r"e\1"),
    (re.compile(r"\^\{?-?\d+\}?"), "^"),  # an exponent: 18 m^2
)
WIDE_GROUPS = re.compile(r"(?<!\d)\d{1,3}(?:，\d{3})+(?!\d)")


class WrittenNumber(NamedTuple):
    """A number in a text. `gap`: the text between it and the number before it (or the start)."""

    value: Decimal
    gap: str


def written_numbers(text: str, decimal_comma: bool = False) -> list[WrittenNumber]:
    """Returns the numbers of a text in order. `decimal_comma`: whether "2.125" is 2125, as in German, or 2.125. "2,125"
    is 2125 in both cases: English marks are common in answers in all languages."""
    plain = _plain(text)
    numbers = []
    end = 0
    for match in number_pattern(decimal_comma).finditer(plain):
        value = _value(match) * factor(match["before"] or "") * factor(match["after"] or "")
        is_negative = match["sign"] and not _is_joined(plain[max(0, match.start() - 2) : match.start()])
        numbers.append(WrittenNumber(value.copy_negate() if is_negative else value, plain[end : match.start()]))
        end = match.end()
    return numbers


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
    if not char or re.match(NO_SPACES, char):  # a sign follows a letter
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
SENTENCE = r"[\s:*_]*(.*?)(?=[.!?][)*\"'”»]*(?:\s|$)|[。！？।\n]|$)"  # the rest of the sentence
ABBREVIATION = re.compile(r"\b(?:i\. ?e|e\. ?g|approx|d\. ?h|z\. ?B|т\. ?е|p\. ?ej|aprox|ca)\.")
OPERATORS = "=≈+*/×·÷-"
ASIDE = re.compile(
    rf"(?<![{OPERATORS}])(?<![{OPERATORS}] )[(,;:（，；：、—]"
)  # in "2 * (3 + 6)" it is part of the calculation
FINAL_LINE = re.compile(  # of GSM8K; "#### 2. Sum the parts" is a heading
    r"^####[ *]{0,4}([-$€£¥ ]{0,4}[\d.,/]{0,30}\d%?(?: [^\W\d]{1,20})?)[.* ]{0,4}$", re.MULTILINE
)
# "Answer: 18 eggs (9 * 2)" as a whole line: more may be the beginning of a solution.
LABELLED_LINE = re.compile(
    rf"{LABELS_ANSWER}{MARKS}\s*{MARKS}"
    rf"((?:\\[(\[]|[-$€£¥₹ ]){{0,4}}\d[\d.,/ ]{{0,30}}%?(?:[ $€£¥₹]{{0,3}}|\\[)\]]){MARKS}"
    rf"(?: ?[^\W\d]{{1,20}}){{0,3}}){MARKS}[.!]?{MARKS}[ \t]*(?:\([^()\n]*\)[. ]*)?$",
    re.IGNORECASE | re.MULTILINE,
)
PERCENT = r"(?:%|percent|Prozent|por ciento|pour cent|процент\w*)"
COPULA = r"(?:です|だ|である)?"
COUNTED = (  # 八个鸡蛋; but not 八分之一, 两个数的和
    rf"(?:(?:[个個只隻元块天人本次岁歳つ枚匹杯回円日]|美元|ドル)(?!.*[的の数和])\w{{0,3}})?{COPULA}"
)
MAX_GAP = 80  # characters between two numbers of a calculation


def answered_number(
    text: str, phrases: Sequence[str] = (), decimal_comma: bool = False, language: str | None = None
) -> Decimal | None:
    """Returns the number that an answer gives; None if the answer has no number.

    That is the number of the last of these that has one: a sentence that begins with one of the phrases ("The answer
    is", in any case), a \\boxed{}, and a line "#### 18". If there are phrases, those of English count besides: "answer
    is", "final answer:", and a line such as "Answer: 18 eggs". Without such a place it is the last number of the text.
    What follows the answer as the next example of a few-shot prompt ("Question: …") does not count. `language`: that of
    the numerals in words, which are read after a phrase.
    """
    text = ABBREVIATION.sub(lambda match: re.sub("[. ]", "", match[0]), text)
    begun = _beginnings(tuple(phrases))
    labelled = LABELLED_LINE if phrases else re.compile("(?!)")
    text = _before_next_question(text, begun, labelled)
    box = last_box(text)
    places = [
        *((match.start(1), match[1], match.end(), language) for match in begun.finditer(text)),
        *(
            (match.start(1), match[1], len(text), None)
            for line in (FINAL_LINE, labelled)
            for match in line.finditer(text)
        ),
        *([(box[0], box[1], len(text), None)] if box else []),
    ]
    for _, written, end, numerals in sorted(places, key=lambda place: place[0], reverse=True):
        result = _result(written, text[end : end + 4 * MAX_GAP], decimal_comma)
        if result is None and numerals is not None:
            result = _numeral(written, numerals)
        if result is not None:
            return result
    numbers = written_numbers(text, decimal_comma)
    return numbers[-1].value if numbers else None


@cache
def _beginnings(phrases: tuple[str, ...]) -> re.Pattern[str]:
    said = "|".join([*map(re.escape, phrases), SAYS_ANSWER]) if phrases else "(?!)"
    return re.compile(f"(?:{said}){NEGATED}{SENTENCE}", re.IGNORECASE | re.MULTILINE)


def _before_next_question(text: str, *answers: re.Pattern[str]) -> str:
    """Returns a text up to the next example of a few-shot prompt that the answer runs on with: a line that begins with
    "Question:" after an answer, or after an empty line and any number; or with "Exercise 2:" after an answer."""
    marked = [match.start() for match in (each.search(text) for each in (*answers, FINAL_LINE)) if match]
    answered = min([*marked, *([text.index("\\boxed{")] if "\\boxed{" in text else [])], default=len(text))
    digit = re.search(r"\d", text)
    numbered = digit.start() if digit else len(text)
    question = re.compile(
        rf"^[ \t#*]{{0,8}}{words_pattern('question')}( ?\d{{1,3}})?[ *]{{0,3}}[:：]", re.IGNORECASE | re.MULTILINE
    )
    for match in question.finditer(text):
        is_apart = text[max(0, match.start() - 9) : match.start()].replace(" ", "").endswith("\n\n")
        if answered < match.start() or (numbered < match.start() and is_apart and not match[1]):
            return text[: match.start()]
    return text


def _result(written: str, following: str, decimal_comma: bool) -> Decimal | None:
    """Returns the first number of an answer, or the result of the calculation that it begins, which may stand after an
    equals sign, after "so" or "i.e.", or at the beginning of the sentence that follows."""
    numbers = written_numbers(written, decimal_comma)
    if not numbers:
        return None
    so = re.compile(words_pattern("so"), re.IGNORECASE)
    multiple = re.search(rf"{words_pattern('multiple')}\s+\\?[$€£¥₹]?$", numbers[0].gap, re.IGNORECASE)
    is_calculation = multiple or (len(numbers) > 1 and _is_calculation(numbers[0].value, numbers[1].gap))
    if is_calculation and "=" not in written:
        first = 1 if multiple else 2  # numbers are what is calculated
        concluded = next((place for place in range(first, len(numbers)) if so.search(numbers[place].gap)), None)
        if concluded is not None:
            numbers = numbers[concluded:]
        elif so.match(following := following.lstrip(" .\n*")):
            numbers = written_numbers(re.findall(SENTENCE, following)[0], decimal_comma) or numbers
    result = numbers[0].value  # in an equation ("9 * 2 = 18") the number after its last equals sign
    for number in numbers[1:]:
        gap = number.gap.replace("**", "").strip()
        if ASIDE.search(gap) and gap != ":":  # 10 : 2 = 5
            break
        if "=" in gap or "≈" in gap:
            result = number.value
    return result


def _is_calculation(number: Decimal, gap: str) -> bool:
    """Returns whether a number and the text after it begin a calculation: "9 eggs times $", "1/4 of "."""
    if len(gap) > MAX_GAP:
        return False
    sign = rf"{words_pattern('times')}|\\times|\\cdot|\\div|[+*×÷·]|(?<=\s)[x/-](?=\s)"
    if re.fullmatch(rf"\W?\s*(?:[^\W\d]+\s+){{0,2}}(?:{sign})\s*\\?[$€£¥₹]?\s*", gap, re.IGNORECASE):
        return True
    share = re.fullmatch(rf"\s*({PERCENT})?\s*{words_pattern('of')}\s*(?:\w+\s)?\\?[$€£¥₹]?", gap, re.IGNORECASE)
    return share is not None and (share[1] is not None or number % 1 != 0)


def _numeral(written: str, language: str) -> Decimal | None:
    """Returns the number that a sentence gives in a word, if it begins with one and three further words follow at most:
    "eight dollars", but not "two hundred", "one of them" or "ten to twelve"."""
    words = number_words().get(language)
    if words is None:
        return None
    text = unicodedata.normalize("NFC", written).strip(" *:：,，\"'“”「」").casefold()
    numerals = list(enumerate(words["numerals"]))[::-1]  # "kumi na nane" before "kumi"
    if words[JOINED]:
        text = text.translate(str.maketrans("两兩〇", "二二零"))
        value, numeral = next((each for each in numerals if text.startswith(each[1])), (None, ""))
        rest = text[len(numeral) :].strip("*")
        if numeral == words["article"]:
            is_whole = re.fullmatch(COPULA, rest.strip()) is not None
        else:
            is_whole = (rest[:1].isspace() and len(rest.split()) <= 3) or re.fullmatch(COUNTED, rest) is not None
    else:
        parts = re.findall(r"[^\s.,;!?*()]+", text)
        value, numeral = next(
            (each for each in numerals if each[1].split() == parts[: len(each[1].split())]), (None, "")
        )
        others = parts[len(numeral.split()) :]
        is_part = any(re.fullmatch(words["more"], word) or word in words["numerals"] for word in others)
        is_whole = not is_part and len(others) <= (0 if numeral == words["article"] else 3)
    return Decimal(value) if value is not None and is_whole else None


@SCORERS.register("number", metrics=(ACCURACY,), takes_language=True)
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
    code = (language or "").lower().partition("-")[0]
    has_comma = decimal_comma or code in DECIMAL_COMMA

    def judge(text: str, reference: Reference) -> dict[str, float]:
        expected = [answered_number(each, answer_phrases, has_comma) for each in accepted_texts(reference, "number")]
        if None in expected:
            raise ConfigError(f"scorer number: the reference {reference!r} holds no number: correct the data")
        return {"accuracy": float(answered_number(text, answer_phrases, has_comma, code) in expected)}

    def read(text: str, reference: Reference) -> str:
        answer = answered_number(text, answer_phrases, has_comma, code)
        return "no number found" if answer is None else f"read {answer:f}"

    return PerAnswer(("accuracy",), judge, read=read)
