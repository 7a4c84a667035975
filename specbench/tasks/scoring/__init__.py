"""The interface of scorers, which take an answer and its reference and return a score; the words of a text, and its
language by lingua or by its script."""

import re
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import cache
from math import isfinite
from textwrap import shorten
from typing import TYPE_CHECKING, Any

from specbench.core.environment import require
from specbench.core.errors import ConfigError, naming_code
from specbench.core.metric import Metric
from specbench.core.source import is_outside
from specbench.specs.components import SCRIPTS, identifiable_code
from specbench.specs.task import TaskSpec

if TYPE_CHECKING:
    from lingua import LanguageDetector

Reference = str | list[str] | dict[str, str]
ACCURACY = Metric.share("accuracy", "accuracy", "right answers, by their number or their letter")
LANGUAGE = Metric.share(
    "language_share", "asked language",
    "answers in the language of the subset, identified by lingua; null for letters and short answers",
)  # fmt: skip


@dataclass(frozen=True)
class Score:
    """The judgement of one answer.

    values: metric name → value for this answer; None if it could not be judged. statistics: corpus metric name →
    numbers that are summed over answers (for BLEU: n-gram counts and lengths); the metric is computed from the sums.
    problem: why there is no value; such answers are counted separately and enter no mean. outcome: how an executed
    program ended (`status`) and why (`reason`).
    """

    values: Mapping[str, float | None]
    statistics: Mapping[str, list[float]] = field(default_factory=dict)
    problem: str | None = None
    outcome: Mapping[str, str] = field(default_factory=dict)


class Scorer:
    """Judges answers. `names`: its metrics; the first one is the quality, and higher is better."""

    names: tuple[str, ...]
    in_sentences: bool = True  # whether answers are long enough to identify their language: no letters or names
    combines_samples: bool = False  # whether `of_samples` computes its metrics

    def __call__(self, text: str, reference: Reference) -> Score:
        """Judges one answer. Raises ConfigError for a reference that it cannot read, never for an answer."""
        raise NotImplementedError

    def explain(self, text: str, reference: Reference) -> str | None:
        """Returns what the scorer reads in an answer, such as "read 92" or "no letter found", which says why the answer
        got its scores; None if the scores say enough."""
        return None

    def check_reference(self, reference: Reference) -> None:
        """Raises ConfigError for a reference that the scorer cannot read. A scorer overrides this if judging an answer
        is costly."""
        judged(self, "", reference)

    def of_samples(self, name: str, values: Sequence[float]) -> float | None:
        """Returns a metric of one problem, such as pass@k, from the first metric of each of its answers; None if there
        are too few answers."""
        raise NotImplementedError

    def corpus(self, name: str, sums: Sequence[float]) -> float:
        """Returns a corpus metric from the sums of its statistics."""
        raise ValueError(f"{name} is a mean over answers, not a corpus metric")

    @property
    def signature(self) -> Mapping[str, str]:
        """Returns how each metric was computed (sacrebleu's signature); empty if the metric's name says enough."""
        return {}


@dataclass(frozen=True)
class PerAnswer(Scorer):
    """A scorer whose metrics are means over answers. `judge`: returns the values of one answer, or None if nothing is
    left of the reference after normalisation. `read`: `explain`."""

    names: tuple[str, ...]
    judge: Callable[[str, Reference], Mapping[str, float] | None]
    needs_reference: bool = True
    in_sentences: bool = True
    read: Callable[[str, Reference], str | None] | None = None

    def explain(self, text: str, reference: Reference) -> str | None:
        return None if self.read is None else self.read(text, reference)

    def __call__(self, text: str, reference: Reference) -> Score:
        if self.needs_reference and not reference_texts(reference):
            return unscored(self.names)
        values = self.judge(text, reference)
        return unscored(self.names, "the reference is empty after normalization") if values is None else Score(values)


def reference_texts(reference: Reference) -> list[str]:
    """Returns the texts of a reference that are not blank."""
    texts = reference.values() if isinstance(reference, dict) else reference
    return [text for text in ([texts] if isinstance(texts, str) else texts) if text.strip()]


MAX_READ = 80  # characters of what was read in an answer


def shown(text: str) -> str:
    """Returns what a scorer read in an answer as its `explain` shows it: in quotes, on one short line."""
    return f'"{shorten(text, MAX_READ, placeholder=" …")}"'


def unscored(names: Sequence[str], problem: str = "the row has no reference") -> Score:
    return Score(dict.fromkeys(names), problem=problem)


def judged(scorer: Scorer, text: str, reference: Reference) -> Score:
    """Returns a scorer's judgement with plain numbers, as records hold them: of a bool, a NumPy number or any other
    value with a float. A number that is not finite leaves the answer without a score.

    Raises ConfigError that names the scorer by its metrics, with the exception of its code as the cause, for code that
    raises one and for values that are not numbers.
    """
    place = f"scorer of '{', '.join(scorer.names)}'"
    outside = is_outside(scorer) or is_outside(getattr(scorer, "judge", unscored))
    with naming_code(place) if outside else nullcontext():
        score: Any = scorer(text, reference)
    if not isinstance(score, Score) or not isinstance(score.values, Mapping):
        shown = score.values if isinstance(score, Score) else score
        raise ConfigError(f"{place}: returned {shown!r:.60}: return a Score with a value for each metric's name")
    main = scorer.names[0]
    if main not in score.values:
        raise ConfigError(f"{place}: returned no value of '{main}': return one, or None for no score")
    try:
        values = {name: as_number(value) for name, value in score.values.items()}
        statistics = {name: [as_number(each) for each in sums] for name, sums in score.statistics.items()}
    except (TypeError, ValueError) as error:
        remedy = "return a number, or None for an answer that cannot be judged"
        raise ConfigError(f"{place}: returned {error}: {remedy}") from error
    problem = score.problem
    if values[main] is None and problem is None:
        what = score.values[main]
        problem = "the scorer gave no score" if what is None else f"the scorer gave {what!r:.60}, no finite number"
    finite = {name: [each for each in sums if each is not None] for name, sums in statistics.items()}
    whole = {name: sums for name, sums in finite.items() if len(sums) == len(statistics[name])}
    return replace(score, values=values, statistics=whole, problem=problem)


def explained(scorer: Scorer, text: str, reference: Reference) -> str | None:
    """Returns what a scorer says that it read in an answer. Raises ConfigError that names the scorer for code outside
    this package that raises an exception."""
    outside = is_outside(scorer) or is_outside(getattr(scorer, "read", unscored))
    with naming_code(f"scorer of '{', '.join(scorer.names)}'") if outside else nullcontext():
        return scorer.explain(text, reference)


def as_number(value: Any) -> float | None:
    """Returns a number, such as a bool, a NumPy scalar, a tensor without dimensions or a fraction, as a float; None for
    None and for numbers that are not finite. Raises ValueError for anything else."""
    if value is None:
        return None
    if isinstance(value, str | bytes | bytearray) or bool(getattr(value, "ndim", False)):
        raise ValueError(f"{value!r:.60} ({type(value).__name__})")
    try:
        number = float(value)
    except OverflowError:
        return None
    except Exception as error:
        raise ValueError(f"{value!r:.60} ({type(value).__name__})") from error
    return number if isfinite(number) else None


def accepted_texts(reference: Reference, scorer: str) -> list[str]:
    """Returns the texts any of which is right. Raises ConfigError for a mapping, which only some scorers can read."""
    if isinstance(reference, dict):
        names = ", ".join(reference)
        raise ConfigError(f"scorer {scorer}: the reference is a mapping ({names}): make it one text or a list of texts")
    return reference_texts(reference)


def identified_language(language: str | None, scorer: Scorer | None) -> str | None:
    """Returns the code of the language that answers are tested for; None if the task has none, or if answers are too
    short to identify one."""
    return identifiable_code(language) if language and (scorer is None or scorer.in_sentences) else None


def make_scorer(task: TaskSpec) -> Scorer | None:
    """Returns the scorer of a task that is merged with its subset. Raises ConfigError for an object of another type."""
    if task.scorer is None:
        return None
    language = (task.language,) if task.scorer.features.takes_language else ()
    factory = task.scorer.factory
    with naming_code(f"task '{task.name}': scorer '{task.scorer.type}'") if is_outside(factory) else nullcontext():
        made = factory(*language, **task.scorer.options)
    if not isinstance(made, Scorer):
        raise ConfigError(
            f"task '{task.name}': scorer '{task.scorer.type}' returned a {type(made).__name__}, not a "
            "specbench.tasks.scoring.Scorer: derive its class from that one"
        )
    names: Any = getattr(made, "names", None)
    if not isinstance(names, tuple | list) or not names or not all(isinstance(name, str) for name in names):
        raise ConfigError(
            f"task '{task.name}': scorer '{task.scorer.type}' has names = {names!r:.60}: give the names of its "
            'metrics, such as ("accuracy",)'
        )
    return made


# Fewer languages cause fewer mistakes on short texts. Requested languages are added.
COMMON = (
    "ar", "bg", "bn", "cs", "da", "de", "el", "en", "es", "fa", "fi", "fr", "gu", "he", "hi", "hu", "id", "it", "ja",
    "ko", "mr", "nl", "pa", "pl", "pt", "ro", "ru", "so", "sr", "sv", "sw", "ta", "te", "th", "tr", "uk", "ur", "vi",
    "xh", "yo", "zh", "zu",
)  # fmt: skip


def language_of(text: str, *requested: str) -> str | None:
    """Returns the code of a text's language, one of COMMON, SCRIPTS and `requested`; None for a text without words, or
    if two languages are equally likely. It is reliable for a few sentences, less so for a few words."""
    num_letters = sum(char.isalpha() for char in text)
    written = next((code for code, script in SCRIPTS.items() if 2 * len(script.findall(text)) > num_letters), None)
    if written is not None:
        return written
    found = _detector(_uncommon(requested)).detect_language_of(text)
    return None if found is None else found.iso_code_639_1.name.lower()


def prepare_detector(*requested: str) -> None:
    """Loads the models that `language_of` needs for the same codes, so that its first call is as fast as the others.
    All detectors of a process share the loaded models."""
    _detector(_uncommon(requested), preloaded=True)


def _uncommon(requested: tuple[str, ...]) -> frozenset[str]:
    return frozenset(filter(None, map(identifiable_code, requested))) - {*COMMON, *SCRIPTS}


@cache
def _detector(extra: frozenset[str], preloaded: bool = False) -> "LanguageDetector":
    """Returns a low-accuracy detector: it uses only trigrams, which take a tenth of the memory. Unless `preloaded`, it
    loads its models with the first text."""
    require("lingua", "the language of answers")
    from lingua import IsoCode639_1, LanguageDetectorBuilder

    codes = [getattr(IsoCode639_1, code.upper()) for code in (*COMMON, *sorted(extra))]
    builder = LanguageDetectorBuilder.from_iso_codes_639_1(*codes).with_low_accuracy_mode()
    return (builder.with_preloaded_language_models() if preloaded else builder).build()


# Thai, Lao, Myanmar, Khmer; kana, Han, half-width kana
UNSPACED = re.compile(r"[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3005-\u3007\u3040-\u30ff\u3400-\u9fff\uff66-\uff9f]")


def words(text: str) -> list[str]:
    """Returns the lower-case words. In scripts without spaces, each character with its combining marks is a word. For
    ASCII texts these are the words of rouge-score's tokenizer."""
    found: list[str] = []
    is_open = False  # whether the next letter continues the last word
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
    """Returns whether most letters of a text belong to scripts without spaces."""
    return 2 * len(UNSPACED.findall(text)) > sum(char.isalpha() for char in text)
