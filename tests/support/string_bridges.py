"""The joint distribution of a bridge of strings."""

import itertools

from specbench.decoding.sampling import Sampling, process
from tests.support.distributions import PROMPT
from tests.support.toys import TextModel


def joint(model: TextModel, length: int, sampling: Sampling) -> dict[tuple[int, ...], float]:
    """The exact distribution of the next `length` tokens behind the prompt."""
    result = {}
    for tokens in itertools.product(range(model.vocab_size), repeat=length):
        ids, mass = list(PROMPT), 1.0
        for token in tokens:
            mass *= float(process(model.score(ids, 1).logits, sampling)[0, token])
            ids.append(token)
        result[tokens] = mass
    return result
