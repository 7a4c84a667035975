"""The interface of scorers: an answer and its reference in, a score out."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from specbench.core.errors import ConfigError
from specbench.specs.languages import identifiable_code
from specbench.specs.task import TaskSpec

Reference = str | list[str] | dict[str, str]


@dataclass(frozen=True)
class Score:
    """The judgement of one answer.

    values: metric name → value of this answer; None if it could not be judged. statistics: corpus metric name → numbers
    whose sums over answers give the metric of all answers (n-gram counts and lengths of BLEU). problem: why there is no
    value; such answers are counted separately and enter no mean. outcome: of an executed program, how it ended
    (`status`) and why (`reason`).
    """

    values: Mapping[str, float | None]
    statistics: Mapping[str, list[float]] = field(default_factory=dict)
    problem: str | None = None
    outcome: Mapping[str, str] = field(default_factory=dict)


class Scorer:
    """Judges answers. `names`: its metrics; the first one is the quality, and higher is better."""

    names: tuple[str, ...]
    in_sentences: bool = True  # whether answers are long enough to detect their language; a letter or a name is not
    combines_samples: bool = False  # whether its metrics are those of `of_samples`

    def __call__(self, text: str, reference: Reference) -> Score:
        """Judges one answer. Raises ConfigError for a reference that it cannot read, never for an answer."""
        raise NotImplementedError

    def check_reference(self, reference: Reference) -> None:
        """Raises ConfigError for a reference that the scorer cannot read. Where judging an answer is costly, a scorer
        overrides this."""
        self("", reference)

    def of_samples(self, name: str, values: Sequence[float]) -> float | None:
        """Returns a metric of one problem from the first metric of each of its answers, such as pass@k; None if there
        are too few."""
        raise NotImplementedError

    def corpus(self, name: str, sums: Sequence[float]) -> float:
        """Returns the corpus metric from the sums of its statistics."""
        raise ValueError(f"{name} is a mean over answers, not a corpus metric")

    @property
    def signature(self) -> Mapping[str, str]:
        """Returns how each metric was computed (sacrebleu's signature); empty if its name says it."""
        return {}


@dataclass(frozen=True)
class PerAnswer(Scorer):
    """A scorer whose metrics are means over answers. `judge` returns the values of one answer, or None if the scorer's
    normalisation leaves nothing of the reference."""

    names: tuple[str, ...]
    judge: Callable[[str, Reference], Mapping[str, float] | None]
    needs_reference: bool = True
    in_sentences: bool = True

    def __call__(self, text: str, reference: Reference) -> Score:
        if self.needs_reference and is_missing(reference):
            return unscored(self.names)
        values = self.judge(text, reference)
        return unscored(self.names, "the reference holds no words") if values is None else Score(values)


def reference_texts(reference: Reference) -> list[str]:
    """Returns the texts of a reference that are not blank."""
    texts = reference.values() if isinstance(reference, dict) else reference
    return [text for text in ([texts] if isinstance(texts, str) else texts) if text.strip()]


def is_missing(reference: Reference) -> bool:
    """Returns whether a reference holds no text that an answer could be compared with."""
    return not reference_texts(reference)


def unscored(names: Sequence[str], problem: str = "the row has no reference") -> Score:
    return Score(dict.fromkeys(names), problem=problem)


def alternatives(reference: Reference, scorer: str) -> list[str]:
    """Returns the texts any of which is right. Raises ConfigError for a mapping, whose names only some scorers know."""
    if isinstance(reference, dict):
        names = ", ".join(reference)
        raise ConfigError(f"scorer {scorer}: the reference is a mapping ({names}): make it one text or a list of texts")
    return reference_texts(reference)


def identified_language(language: str | None, scorer: Scorer | None) -> str | None:
    """Returns the code of the language to identify in answers; None where none is required, or answers are too
    short."""
    return identifiable_code(language) if language and (scorer is None or scorer.in_sentences) else None


def make_scorer(task: TaskSpec) -> Scorer | None:
    """Returns the scorer of a task that is merged with its subset. Raises ConfigError for an object of another type."""
    if task.scorer is None:
        return None
    language = (task.language,) if task.scorer.features.takes_language else ()
    made = task.scorer.factory(*language, **task.scorer.options)
    if not isinstance(made, Scorer):
        raise ConfigError(
            f"task '{task.name}': scorer '{task.scorer.type}' made a {type(made).__name__}, which is no "
            "specbench.tasks.scoring.contract.Scorer: derive its class from that one"
        )
    return made
