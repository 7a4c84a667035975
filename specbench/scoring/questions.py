"""Answers to questions as SCROLLS judges them: the words that are shared, or the same words."""

import re
import string
from collections import Counter
from collections.abc import Callable

from specbench.registry import SCORERS
from specbench.scoring.contract import PerAnswer, Reference, alternatives

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
    return PerAnswer(("f1",), _best("f1", token_f1), in_sentences=False)


@SCORERS.register("exact_match")
def exact_match() -> PerAnswer:
    """1 when the answer is one of the references after SQuAD's normalisation, else 0: case, ASCII punctuation, English
    articles and spaces do not count. As SCROLLS (arXiv:2201.03533) scores ContractNLI and QuALITY."""
    same = _best("exact_match", lambda a, b: float(normalized(a) == normalized(b) != ""))
    return PerAnswer(("exact_match",), same, in_sentences=False)


def _best(name: str, compare: Callable[[str, str], float]) -> Callable[[str, Reference], dict[str, float]]:
    return lambda text, reference: {name: max(compare(text, each) for each in alternatives(reference, name))}
