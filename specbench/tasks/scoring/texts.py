"""Scores of texts: overlap with a reference (ROUGE, F1, exact match), translation (BLEU, chrF++), and repetition."""

import functools
import re
import string
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Literal

from specbench.core.environment import require
from specbench.core.errors import ConfigError
from specbench.core.metric import PERCENT, Metric
from specbench.core.registry import SCORERS
from specbench.tasks.scoring import (
    PerAnswer,
    Reference,
    Score,
    Scorer,
    accepted_texts,
    is_unspaced,
    reference_texts,
    shown,
    unscored,
    words,
)

if TYPE_CHECKING:
    from sacrebleu.metrics.bleu import BLEU
    from sacrebleu.metrics.chrf import CHRF

ROUGE_TYPES = ("rougeL", "rouge1", "rouge2")
MIN_STEMMED = 4  # rouge-score stems words of more than three letters


@SCORERS.register(
    "rouge",
    metrics=(
        Metric.share(
            "rougeL", "ROUGE-L",
            "ROUGE-L F-measure by rouge-score: the longest common subsequence of words; mean over answers",
        ),
        Metric.share("rouge1", "ROUGE-1", "ROUGE-1 F-measure: words"),
        Metric.share("rouge2", "ROUGE-2", "ROUGE-2 F-measure: pairs of words"),
    ),
    packages=("rouge-score", "nltk"),
)  # fmt: skip
def rouge(*, use_stemmer: bool = False, tokenizer: Literal["words", "rouge_score"] = "words") -> PerAnswer:
    """F-measures of ROUGE-L (the main one), ROUGE-1 and ROUGE-2, 0 … 1; each is the best over the references.

    `tokenizer`: `words` keeps the letters of every script and treats characters as words in scripts without spaces;
    `rouge_score` is the tokenizer of that package, which drops all but ASCII. On ASCII texts they are equal.
    `use_stemmer`: Porter's stemmer, for English. https://aclanthology.org/W04-1013
    """

    def scores_of(text: str, reference: Reference) -> Any:
        scorer = _rouge_scorer(use_stemmer, tokenizer)
        references = [each for each in accepted_texts(reference, "rouge") if scorer._tokenizer.tokenize(each)]
        return scorer.score_multi(references, text) if references else None

    def judge(text: str, reference: Reference) -> dict[str, float] | None:
        scores = scores_of(text, reference)
        return scores and {name: float(scores[name].fmeasure) for name in ROUGE_TYPES}

    def read(text: str, reference: Reference) -> str | None:
        scores = scores_of(text, reference)
        if scores is None:
            return None
        found = scores[ROUGE_TYPES[0]]
        parts = f"{100 * found.precision:.1f} % of the answer and {100 * found.recall:.1f} % of the reference"
        return f"the longest common sequence of words is {parts}"

    return PerAnswer(ROUGE_TYPES, judge, read=read)


@functools.cache
def _rouge_scorer(use_stemmer: bool, tokenizer: str) -> Any:
    from nltk.stem.porter import PorterStemmer
    from rouge_score.rouge_scorer import RougeScorer

    if tokenizer == "rouge_score":
        return RougeScorer(list(ROUGE_TYPES), use_stemmer=use_stemmer)
    stem = PorterStemmer().stem if use_stemmer else str

    def tokenize(text: str) -> list[str]:
        return [stem(word) if len(word) >= MIN_STEMMED else word for word in words(text)]

    return RougeScorer(list(ROUGE_TYPES), tokenizer=SimpleNamespace(tokenize=tokenize))


PUNCTUATION = str.maketrans("", "", string.punctuation)
ARTICLES = re.compile(r"\b(a|an|the)\b")


def normalize_answer(text: str) -> str:
    """Returns lower case without ASCII punctuation and English articles, with words separated by one space."""
    return " ".join(ARTICLES.sub(" ", text.lower().translate(PUNCTUATION)).split())


def token_f1(text: str, reference: str) -> float:
    """Returns the F1 of the words shared by answer and reference, 0 … 1."""
    found, expected = normalize_answer(text).split(), normalize_answer(reference).split()
    num_shared = sum((Counter(found) & Counter(expected)).values())
    return 2 * num_shared / (len(found) + len(expected)) if num_shared else 0.0


@SCORERS.register(
    "f1",
    metrics=(
        Metric.share(
            "f1", "F1", "harmonic mean of precision and recall of words, for the best reference; as in SCROLLS"
        ),
    ),
)
def f1() -> PerAnswer:
    """F1 of the answer's words, 0 … 1, the best over the references. SCROLLS (arXiv:2201.03533) scores Qasper and
    NarrativeQA like this, after SQuAD (arXiv:1606.05250)."""

    def read(text: str, reference: Reference) -> str:
        return f"read {shown(normalize_answer(text))}"

    return PerAnswer(("f1",), _judge_best("f1", token_f1, normalize_answer), in_sentences=False, read=read)


@SCORERS.register(
    "exact_match",
    metrics=(Metric.share("exact_match", "exact match", "answers that equal a reference after SQuAD's normalisation"),),
)
def exact_match(*, labels: Sequence[str] = ()) -> PerAnswer:
    """1 if the answer equals one of the references, else 0. Case, ASCII punctuation, English articles and spaces are
    ignored, as in SQuAD; for a reference that consists of nothing else ("The"), only the spaces around it. SCROLLS
    (arXiv:2201.03533) scores ContractNLI and QuALITY like this.

    `labels`: the possible answers; the first label in the answer counts, and an answer without a label is wrong. Raises
    ConfigError for a reference that is none of them.
    """
    if isinstance(labels, str) or not all(isinstance(label, str) and normalize_answer(label) for label in labels):
        raise ConfigError(f"scorer.labels = {labels!r}: must be a list of texts")

    def compare(text: str, reference: str) -> float:
        if labels and normalize_answer(reference) not in map(normalize_answer, labels):
            raise ConfigError(
                f"scorer exact_match: the reference {reference!r} is none of the labels {', '.join(labels)}: correct it"
            )
        if not normalize_answer(reference):
            return float(text.strip() == reference.strip())
        return float(answered(text) == normalize_answer(reference))

    def answered(text: str) -> str:
        """Returns the normalised answer; with labels the one that comes first, the longer of two at one position, and
        an empty text if there is none."""
        answer = normalize_answer(text)
        if not labels:
            return answer
        places = [(f" {answer} ".find(f" {label} "), -len(label), label) for label in map(normalize_answer, labels)]
        return min((place for place in places if place[0] >= 0), default=(0, 0, ""))[2]

    def read(text: str, reference: Reference) -> str:
        found = answered(text)
        return "no label found" if labels and not found else f"read {shown(found)}"

    return PerAnswer(("exact_match",), _judge_best("exact_match", compare), in_sentences=False, read=read)


@SCORERS.register(
    "contained",
    metrics=(
        Metric.share("contained", "contained", "answers that contain a reference"),
        Metric.share("share_contained", "share contained", "references that the answer contains, mean over answers"),
    ),
)
def contained() -> PerAnswer:
    """`contained`: 1 if the answer contains the words of any reference in sequence, else 0. `share_contained`: the
    share of references that the answer contains, for references that are parts of one answer. It suits long answers to
    questions with short references (arXiv:2307.03172); English articles are ignored."""

    def find(text: str, reference: Reference) -> list[tuple[str, bool]]:
        """Returns the words of each reference, and whether the answer contains them."""
        answer, parts = _joined_words(text), map(_joined_words, accepted_texts(reference, "contained"))
        return [(part.strip(), part in answer) for part in parts if part.strip()]

    def judge(text: str, reference: Reference) -> dict[str, float]:
        found = [is_found for _, is_found in find(text, reference)]
        return {"contained": float(any(found)), "share_contained": sum(found) / max(1, len(found))}

    def read(text: str, reference: Reference) -> str:
        return ", ".join(
            f"{'found' if is_found else 'not found'}: {shown(part)}" for part, is_found in find(text, reference)
        )

    return PerAnswer(("contained", "share_contained"), judge, read=read)


def _joined_words(text: str) -> str:
    return f" {' '.join(word for word in words(text) if word not in ('a', 'an', 'the'))} "


def _judge_best(
    name: str, compare: Callable[[str, str], float], is_valid: Callable[[str], object] = bool
) -> Callable[[str, Reference], dict[str, float] | None]:
    """Returns a judge that gives the best value over the valid references, or None if no reference is valid."""

    def judge(text: str, reference: Reference) -> dict[str, float] | None:
        values = [compare(text, each) for each in accepted_texts(reference, name) if is_valid(each)]
        return {name: max(values)} if values else None

    return judge


BleuTokenizer = Literal["13a", "zh", "ja-mecab", "intl", "char", "none"]  # those without a download


class TranslationScorer(Scorer):
    """BLEU and chrF++, 0 … 100. The value of one answer is its sentence BLEU over the n-gram orders that fit into it;
    corpus values come from the sums of sacrebleu's statistics."""

    names = ("bleu", "chrf")

    def __init__(self, tokenizer: str) -> None:
        self._tokenizer = tokenizer

    def _make(self, **options: Any) -> "dict[str, BLEU | CHRF]":
        from sacrebleu.metrics.bleu import BLEU  # slow to import, and not needed for tables of speeds
        from sacrebleu.metrics.chrf import CHRF

        if self._tokenizer == "ja-mecab":
            require("MeCab", "scorer.tokenizer = 'ja-mecab'")
        return {"bleu": BLEU(tokenize=self._tokenizer, **options), "chrf": CHRF(word_order=2)}

    @cached_property
    def _metrics(self) -> "dict[str, BLEU | CHRF]":
        # force: sacrebleu logs a warning about answers that end in " .", and scores them the same
        return self._make(force=True)

    @cached_property
    def _sentence(self) -> "BLEU | CHRF":
        return self._make(effective_order=True, force=True)["bleu"]

    def __call__(self, text: str, reference: Reference) -> Score:
        if not reference_texts(reference):
            return unscored(self.names)
        references = accepted_texts(reference, "bleu")
        columns = [[each] for each in references]
        statistics = {
            name: [float(count) for count in metric._extract_corpus_statistics([text], columns)[0]]
            for name, metric in self._metrics.items()
        }
        sums = [int(count) for count in statistics["bleu"]]
        bleu = float(self._sentence._compute_score_from_stats(sums).score)
        return Score({"bleu": bleu, "chrf": self.corpus("chrf", statistics["chrf"])}, statistics)

    def explain(self, text: str, reference: Reference) -> str | None:
        """Returns the precisions of the n-grams and the lengths, from which BLEU is computed."""
        if not (references := reference_texts(reference)):
            return None
        found = self._sentence.sentence_score(text, references)
        precisions = ", ".join(f"{order}-grams {value:.1f} %" for order, value in enumerate(found.precisions, 1))
        return f"{found.sys_len} tokens, reference {found.ref_len}; in the reference too: {precisions}"

    def corpus(self, name: str, sums: Sequence[float]) -> float:
        return float(self._metrics[name]._compute_score_from_stats([int(count) for count in sums]).score)

    @property
    def signature(self) -> Mapping[str, str]:
        """Returns sacrebleu's signatures, for one reference per answer."""
        made = self._make()
        for metric in made.values():
            metric.num_refs = 1
        return {name: str(metric.get_signature()) for name, metric in made.items()}


@SCORERS.register(
    "bleu",
    metrics=(
        Metric(
            "bleu", "0 … 100",
            "corpus BLEU by sacrebleu, with its signature in the row; for several subsets the mean of their scores",
            label="BLEU", bounds=PERCENT, digits=1,
        ),
        Metric(
            "chrf", "0 … 100",
            "corpus chrF++ by sacrebleu (6-grams of characters, 2-grams of words); as bleu",
            label="chrF++", bounds=PERCENT, digits=1,
        ),
    ),
    packages=("sacrebleu",),
)  # fmt: skip
def bleu(*, tokenizer: BleuTokenizer = "13a") -> TranslationScorer:
    """Corpus BLEU (the main metric) and chrF++ by sacrebleu, 0 … 100; there may be several references per answer.

    `tokenizer`: sacrebleu's tokenizer of BLEU: 13a, zh, ja-mecab, intl, char or none. arXiv:1804.08771
    """
    return TranslationScorer(tokenizer)


NGRAM, NGRAM_OF_CHARACTERS = 4, 8
MIN_LOOP, MIN_LOOP_OF_CHARACTERS = 12, 24
NUM_TURNS = 3  # repetitions that make a loop: saying a phrase twice is a figure of speech
LONGEST_TURN = 200


def repetition_rate(units: Sequence[str], order: int) -> float:
    """Returns the share of the units in repeated n-grams: |∪ {i … i+n−1 : the n-gram at i equals one at j < i}| ÷
    number of units; 0 for an empty text."""
    seen: set[tuple[str, ...]] = set()
    repeated = [False] * len(units)
    for start in range(len(units) - order + 1):
        ngram = tuple(units[start : start + order])
        if ngram in seen:
            repeated[start : start + order] = [True] * order
        seen.add(ngram)
    return sum(repeated) / len(units) if units else 0.0


def ends_in_loop(units: Sequence[str], min_length: int) -> bool:
    """Returns whether the text ends in a loop: at least NUM_TURNS repetitions of one period (the last may be cut), with
    at least `min_length` units in all."""
    for period in range(1, min(len(units) // NUM_TURNS, LONGEST_TURN) + 1):
        wanted = max(NUM_TURNS * period, min_length)
        length = period
        while length < min(wanted, len(units)) and units[-length - 1] == units[-length - 1 + period]:
            length += 1
        if length >= wanted:
            return True
    return False


@SCORERS.register(
    "text",
    metrics=(
        Metric.share("loop_free", "loop-free", "answers that are not empty and do not end in a loop"),
        Metric.share(
            "repetition_rate", "repetition",
            "words in 4-grams that the answer had before (characters in 8-grams for languages without spaces)",
            lower_is_better=True,
        ),
    ),
    needs_reference=False,
)  # fmt: skip
def text() -> PerAnswer:
    """Measures of a text without a reference, such as a story (arXiv:2605.30580, section 3.1).

    loop_free (the main metric): 1 if the text has words and does not end in a loop, else 0. repetition_rate: the share
    of its words in repeated 4-grams; for scripts without spaces, the share of characters in repeated 8-grams. The share
    of texts in the requested language is measured for every task that has a `language`.
    """

    def is_looping(answer: str) -> bool:
        return ends_in_loop(words(answer), MIN_LOOP_OF_CHARACTERS if is_unspaced(answer) else MIN_LOOP)

    def judge(answer: str, reference: Reference) -> dict[str, float]:
        units, unspaced = words(answer), is_unspaced(answer)
        return {
            "loop_free": float(bool(units) and not is_looping(answer)),
            "repetition_rate": repetition_rate(units, NGRAM_OF_CHARACTERS if unspaced else NGRAM),
        }

    def read(answer: str, reference: Reference) -> str | None:
        return "it has no words" if not words(answer) else "it ends in a loop" if is_looping(answer) else None

    return PerAnswer(("loop_free", "repetition_rate"), judge, needs_reference=False, read=read)
