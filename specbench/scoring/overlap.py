"""ROUGE by Google's rouge-score, with words of every script."""

import functools
from typing import Any

from specbench.errors import ConfigError, nearest
from specbench.registry import SCORERS
from specbench.scoring.contract import PerAnswer, Reference, alternatives
from specbench.scoring.words import words

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
