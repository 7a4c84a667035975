"""Warming up: every method once on a text that is not measured."""

import weakref
from collections.abc import Iterable, Iterator

from specbench.decoding.ledger import StopRules
from specbench.models.causal_lm import CausalLM
from specbench.running.compose import Decoder
from specbench.running.plan import Cell
from specbench.running.prompts import Texts, conversation, encode

TEXT = "This is a text about nothing in particular, read once before anything is measured. "
NUM_NEW_TOKENS = 16
_WARM: dict[int, int] = {}  # tokens that a decoder was warmed up on, by its id, as long as it lives


def warm_up_cell(cell: Cell, chat: str) -> None:
    """Every method of a cell, on as many tokens as the cell's longest conversation."""
    for decoder in cell.decoders:
        warm_up([decoder], longest_conversation(cell, decoder.model, chat), cell.context_limit)


def longest_conversation(cell: Cell, model: CausalLM, chat: str) -> int:
    """The tokens of a cell's longest conversation, were every answer as long as it may be."""
    num_new = cell.task.generation.max_new_tokens
    most = max(len(encode(model, texts, chat)) + (len(texts) // 2 + 1) * num_new for texts in unanswered(cell))
    return min(most, cell.context_limit or most)


def unanswered(cell: Cell) -> Iterator[Texts]:
    """The conversations of a cell, with empty answers."""
    for example in cell.data.examples:
        last = len(example.turns) - 1
        yield conversation(example, last, [""] * last)


def warm_up(decoders: Iterable[Decoder], num_tokens: int, context_limit: int | None) -> None:
    """Every decoder, and the parts that it is made of, on `num_tokens` tokens in all, or as many as the context holds:
    no measured pass is then the first of its kind, and no cache grows while it is measured. What was warmed up on as
    many tokens before is left alone."""
    if context_limit is not None:
        num_tokens = min(num_tokens, context_limit)
    for decoder in (part for each in decoders for part in each.parts):
        if _WARM.get(id(decoder), 0) >= num_tokens:
            continue
        ids = text_ids(decoder.model, num_tokens)
        decoder.generate(ids, StopRules(NUM_NEW_TOKENS, context_limit=context_limit), seed=0)
        if id(decoder) not in _WARM:
            weakref.finalize(decoder, _WARM.pop, id(decoder), None)
        _WARM[id(decoder)] = num_tokens


def text_ids(model: CausalLM, num_tokens: int) -> list[int]:
    """What a model reads to be warmed up on `num_tokens` tokens, those that it then writes among them."""
    length = max(1, num_tokens - NUM_NEW_TOKENS)
    ids = model.encode_prompt(TEXT, chat=False)
    return (ids * (length // len(ids) + 1))[:length]
