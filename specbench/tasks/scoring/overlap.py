"""ROUGE by Google's rouge-score, with words of every script."""

import functools
import re
import string
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from specbench.core.errors import ConfigError, nearest
from specbench.core.registry import SCORERS
from specbench.tasks.scoring.contract import PerAnswer, Reference, alternatives
from specbench.tasks.scoring.language import words

TYPES = ("rougeL", "rouge1", "rouge2")
TOKENIZERS = ("words", "rouge_score")
MIN_STEMMED = 4  # rouge-score stems words of more than three letters


@SCORERS.register("rouge")
def rouge(*, use_stemmer: bool = False, tokenizer: str = "words") -> PerAnswer:
    """F-measures of ROUGE-L (the main one), ROUGE-1 and ROUGE-2, 0 … 1; the best over the references, each by itself.

    `tokenizer: words` keeps the letters of every script, and takes characters where no spaces are written;
    `rouge_score` is that package's own, which drops all but ASCII. On ASCII texts the two are one. `use_stemmer`:
    Porter's, for English. https://aclanthology.org/W04-1013
    """
    if tokenizer not in TOKENIZERS:
        raise ConfigError(f"scorer.tokenizer = {tokenizer!r}: {nearest(tokenizer, TOKENIZERS)}")

    def judge(text: str, reference: Reference) -> dict[str, float] | None:
        scorer = _rouge(use_stemmer, tokenizer)
        references = [each for each in alternatives(reference, "rouge") if scorer._tokenizer.tokenize(each)]
        if not references:
            return None
        scores = scorer.score_multi(references, text)
        return {name: float(scores[name].fmeasure) for name in TYPES}

    return PerAnswer(TYPES, judge)


class Words:
    """The words of every script for rouge-score, stemmed where asked."""

    def __init__(self, use_stemmer: bool) -> None:
        from nltk.stem.porter import PorterStemmer

        self._stemmer = PorterStemmer() if use_stemmer else None

    def tokenize(self, text: str) -> list[str]:
        if self._stemmer is None:
            return words(text)
        return [self._stemmer.stem(word) if len(word) >= MIN_STEMMED else word for word in words(text)]


@functools.cache
def _rouge(use_stemmer: bool, tokenizer: str) -> Any:
    from rouge_score.rouge_scorer import RougeScorer

    if tokenizer == "rouge_score":
        return RougeScorer(list(TYPES), use_stemmer=use_stemmer)
    return RougeScorer(list(TYPES), tokenizer=Words(use_stemmer))


PUNCTUATION = str.maketrans("", "", string.punctuation)
ARTICLES = re.compile(r"\b(a|an|the)\b")


def normalized(text: str) -> str:
    """Lower case without ASCII punctuation and the English articles, words one space apart."""
    return " ".join(ARTICLES.sub(" ", text.lower().translate(PUNCTUATION)).split())


def token_f1(text: str, reference: str) -> float:
    """The harmonic mean of the shares of words that answer and reference have in common, 0 … 1."""
    found, expected = normalized(text).split(), normalized(reference).split()
    num_shared = sum((Counter(found) & Counter(expected)).values())
    return 2 * num_shared / (len(found) + len(expected)) if num_shared else 0.0


@SCORERS.register("f1")
def f1() -> PerAnswer:
    """F1 of the answer's words, 0 … 1, the best over the references. As SCROLLS (arXiv:2201.03533) scores Qasper and
    NarrativeQA, after SQuAD (arXiv:1606.05250)."""
    return PerAnswer(("f1",), _best("f1", token_f1, normalized), in_sentences=False)


@SCORERS.register("exact_match")
def exact_match(*, labels: Sequence[str] = ()) -> PerAnswer:
    """1 when the answer is one of the references after SQuAD's normalisation, else 0: case, ASCII punctuation, English
    articles and spaces do not count; of a reference that is nothing else ("The"), only spaces around it do not. As
    SCROLLS (arXiv:2201.03533) scores ContractNLI and QuALITY.

    `labels`: what can be answered; then the first of them in the answer is what counts, and an answer without any is
    wrong. Raises ConfigError for a reference that is none of them.
    """
    if isinstance(labels, str) or not all(isinstance(label, str) and normalized(label) for label in labels):
        raise ConfigError(f"scorer.labels = {labels!r}: must be a list of texts")

    def same(text: str, reference: str) -> float:
        if labels and normalized(reference) not in map(normalized, labels):
            raise ConfigError(
                f"scorer exact_match: the reference {reference!r} is none of the labels {', '.join(labels)}: correct it"
            )
        if not normalized(reference):
            return float(text.strip() == reference.strip())
        said = first_label(text, labels) if labels else normalized(text)
        return float(said == normalized(reference))

    return PerAnswer(("exact_match",), _best("exact_match", same), in_sentences=False)


def first_label(text: str, labels: Sequence[str]) -> str | None:
    """The normalised label that stands first in a text, of two at one place the longer; None where there is none."""
    said = f" {normalized(text)} "
    places = [(said.find(f" {label} "), -len(label), label) for label in map(normalized, labels)]
    return min((place for place in places if place[0] >= 0), default=(0, 0, None))[2]


@SCORERS.register("contained")
def contained() -> PerAnswer:
    """`contained`: 1 when the words of any reference stand in a row in the answer, else 0. `share_contained`: the share
    of the references that do, where they are parts of one answer. For long answers to questions with short ones, as
    arXiv:2307.03172 judges them; English articles do not count."""

    def judge(text: str, reference: Reference) -> dict[str, float]:
        said = _in_a_row(text)
        found = [_in_a_row(each) in said for each in alternatives(reference, "contained") if _in_a_row(each).strip()]
        return {"contained": float(any(found)), "share_contained": sum(found) / max(1, len(found))}

    return PerAnswer(("contained", "share_contained"), judge)


def _in_a_row(text: str) -> str:
    return f" {' '.join(word for word in words(text) if word not in ('a', 'an', 'the'))} "


def _best(
    name: str, compare: Callable[[str, str], float], counts: Callable[[str], object] = bool
) -> Callable[[str, Reference], dict[str, float] | None]:
    """The best over the references that count; None where none does."""

    def judge(text: str, reference: Reference) -> dict[str, float] | None:
        values = [compare(text, each) for each in alternatives(reference, name) if counts(each)]
        return {name: max(values)} if values else None

    return judge
