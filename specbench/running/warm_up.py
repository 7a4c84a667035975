"""Warming up: every method once on a text that is not measured."""

import weakref
from collections.abc import Iterable

from specbench.decoding.ledger import StopRules
from specbench.running.compose import Decoder

TEXT = "This is a text about nothing in particular, read once before anything is measured. "
NUM_NEW_TOKENS = 16
_WARM: dict[int, int] = {}  # tokens that a decoder was warmed up on, by its id, as long as it lives


def warm_up(decoders: Iterable[Decoder], num_tokens: int, context_limit: int | None) -> None:
    """Every decoder, and the parts that it is made of, on `num_tokens` tokens in all, or as many as the context holds:
    no measured pass is then the first of its kind, and no cache grows while it is measured. What was warmed up on as
    many tokens before is left alone."""
    if context_limit is not None:
        num_tokens = min(num_tokens, context_limit)
    length = max(1, num_tokens - NUM_NEW_TOKENS)
    for decoder in (part for each in decoders for part in each.parts):
        if _WARM.get(id(decoder), 0) >= num_tokens:
            continue
        filler = decoder.model.encode_prompt(TEXT, chat=False)
        repeated = (filler * (length // len(filler) + 1))[:length]
        decoder.generate(repeated, StopRules(NUM_NEW_TOKENS, context_limit=context_limit), seed=0)
        if id(decoder) not in _WARM:
            weakref.finalize(decoder, _WARM.pop, id(decoder), None)
        _WARM[id(decoder)] = num_tokens
