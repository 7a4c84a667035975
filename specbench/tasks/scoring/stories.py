"""Texts without a reference: whether they repeat themselves, or never came to an end."""

from collections.abc import Sequence

from specbench.core.registry import SCORERS
from specbench.tasks.scoring.contract import PerAnswer, Reference
from specbench.tasks.scoring.language import is_unspaced, words

NGRAM, NGRAM_OF_CHARACTERS = 4, 8
MIN_LOOP, MIN_LOOP_OF_CHARACTERS = 12, 24
NUM_TURNS = 3  # of a loop: a phrase said twice is a figure of speech
LONGEST_TURN = 200


def repetition_rate(units: Sequence[str], order: int) -> float:
    """The share of the units that lie in an n-gram which the text has had before: |∪ {i … i+n−1 : the n-gram at i is
    equal to one at j < i}| ÷ number of units. 0 for an empty text."""
    seen: set[tuple[str, ...]] = set()
    repeated = [False] * len(units)
    for start in range(len(units) - order + 1):
        ngram = tuple(units[start : start + order])
        if ngram in seen:
            repeated[start : start + order] = [True] * order
        seen.add(ngram)
    return sum(repeated) / len(units) if units else 0.0


def ends_in_loop(units: Sequence[str], min_length: int) -> bool:
    """Whether the text ends by saying the same again and again: its last units are at least NUM_TURNS turns of one
    period, the last of which may be cut, and at least `min_length` in all."""
    for period in range(1, min(len(units) // NUM_TURNS, LONGEST_TURN) + 1):
        wanted = max(NUM_TURNS * period, min_length)
        length = period
        while length < min(wanted, len(units)) and units[-length - 1] == units[-length - 1 + period]:
            length += 1
        if length >= wanted:
            return True
    return False


@SCORERS.register("text")
def text() -> PerAnswer:
    """What can be said of a text that nothing is compared with, such as a story (arXiv:2605.30580, section 3.1).

    loop_free (the main metric): 1 when the text says something and does not end in a loop, else 0. repetition_rate: the
    share of its words in 4-grams that it has had before; of characters, and 8-grams, where no spaces are written.
    The share of texts in the asked language is measured for every task that has a `language`.
    """

    def judge(answer: str, reference: Reference) -> dict[str, float]:
        units, unspaced = words(answer), is_unspaced(answer)
        looping = ends_in_loop(units, MIN_LOOP_OF_CHARACTERS if unspaced else MIN_LOOP)
        return {
            "loop_free": float(bool(units) and not looping),
            "repetition_rate": repetition_rate(units, NGRAM_OF_CHARACTERS if unspaced else NGRAM),
        }

    return PerAnswer(("loop_free", "repetition_rate"), judge, needs_reference=False)


text.needs_reference = False  # type: ignore[attr-defined]
