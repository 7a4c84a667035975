"""The warm-up of a cell: before it is measured, every decoder decodes blocks of another text until its speed is
steady."""

import sys
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from statistics import median
from typing import Any

from specbench.decoding.decoder import Decoder, DraftingDecoder, drafting_decoders
from specbench.decoding.loop import Generation, StopRules
from specbench.models.causal_lm import CausalLM, TextModel
from specbench.running.plan import Cell
from specbench.running.prompts import Texts, conversation
from specbench.specs.catalogue import versioned_name

TEXT = "This is a text about nothing in particular, read once before anything is measured. "
NUM_NEW_TOKENS = 20  # new tokens of a block; fewer if the answers are shorter
MIN_NEW_TOKENS = 4  # a block of fewer tokens is too short to time
NUM_PARTS = 4
MIN_BLOCKS = 8
BAND = 1.1  # maximum ratio of the slowest to the fastest part of steady blocks
MAX_BLOCKS, MAX_BLOCKS_CPU, MAX_SECONDS = 64, 32, 60.0  # budget of a decoder in a process
FIRST_BLOCKS_CPU = 16  # budget before the first subset, when the lengths of answers are still unknown
TOP_UP_BLOCKS = 4  # blocks for another subset if the budget was spent and the speed was not steady
MAX_SHARE = 0.1  # maximum ratio of warm-up tokens to new tokens to be measured
_WARM: dict[int, int] = {}  # number of warm-up tokens by the id of a decoder, while the decoder exists
_TIMES: dict[int, dict[str, list[tuple[float, float]]]] = {}  # (seconds per token, seconds) by model's id and method


@dataclass(frozen=True)
class WarmUp:
    """The blocks decoded before a cell was measured, and their seconds; a decoder's first pass over a whole context is
    not included. `steady`: whether the speed was steady in the end."""

    blocks: int
    seconds: float
    steady: bool

    def __add__(self, other: "WarmUp") -> "WarmUp":
        return WarmUp(self.blocks + other.blocks, self.seconds + other.seconds, self.steady and other.steady)

    def as_json(self) -> dict[str, Any]:
        """Returns the warm-up as records keep it."""
        return asdict(self) | {"seconds": round(self.seconds, 3)}


NOTHING = WarmUp(0, 0.0, True)


def is_steady(times: Sequence[float]) -> bool:
    """Returns whether the speed is steady after blocks with these times per token.

    The last half of the blocks, but at least MIN_BLOCKS of them, is split into NUM_PARTS parts of equal length. The
    ratio of the parts' medians may be BAND at most. As the half grows with the number of blocks, slow changes are
    detected and noise averages out.
    """
    if len(times) < MIN_BLOCKS:
        return False
    length = max(MIN_BLOCKS, len(times) // 2) // NUM_PARTS
    parts = [median(times[len(times) - (n + 1) * length : len(times) - n * length]) for n in range(NUM_PARTS)]
    return max(parts) <= BAND * min(parts)


def warm_up_cell(cell: Cell, num_planned: int = sys.maxsize) -> dict[str, WarmUp]:
    """Warms up every method of a cell on as many tokens as the cell's longest conversation has. Afterwards, drafters
    that learn from prompt to prompt forget everything. Returns the warm-ups by method. `num_planned`: the maximum
    number of a method's new tokens that this process will measure."""
    found = {}
    for decoder in cell.decoders:
        num_tokens = longest_conversation(cell, decoder.model)
        num_new = cell.task.generation.max_new_tokens
        found[decoder.method.name] = warm_up([decoder], num_tokens, cell.context_limit, num_planned, num_new)
    _reset_drafters(cell.decoders)
    return found


def _reset_drafters(decoders: Iterable[Decoder]) -> None:
    for drafting in drafting_decoders(decoders):
        drafting.drafter.begin_cell()


def longest_conversation(cell: Cell, model: TextModel) -> int:
    """Returns the number of tokens of a cell's longest conversation if every answer has the maximum length."""
    num_new = cell.task.generation.max_new_tokens
    most = max(
        len(cell.renderer.render(model, texts).packed_ids) + (len(texts) // 2 + 1) * num_new
        for texts in unanswered_conversations(cell)
    )
    return min(most, cell.context_limit or most)


def unanswered_conversations(cell: Cell) -> Iterator[Texts]:
    """Yields the conversations of a cell, with empty answers."""
    for example in cell.data.examples:
        last = len(example.turns) - 1
        yield conversation(example, last, [""] * last)


def block_tokens(max_new_tokens: int) -> int:
    """Returns the number of new tokens of a block if the answers have at most `max_new_tokens`."""
    return min(NUM_NEW_TOKENS, max(MIN_NEW_TOKENS, max_new_tokens))


def warm_up(
    decoders: Iterable[Decoder], num_tokens: int, context_limit: int | None, num_planned: int = sys.maxsize,
    max_new_tokens: int = NUM_NEW_TOKENS,
) -> WarmUp:  # fmt: skip
    """Warms up every decoder and its parts: first on a long text, then in short blocks until its speed is steady.

    The long text has `num_tokens` tokens, answer included, or as many as the context holds. After it, no measured pass
    is the first of its kind, and no cache grows during a measurement. Decoders that were already warmed up on as many
    tokens skip it. `num_planned`: see `warm_up_cell`. `max_new_tokens`: the maximum length of the answers to be
    measured.
    """
    if context_limit is not None:
        num_tokens = min(num_tokens, context_limit)
    whole, num_new = NOTHING, block_tokens(max_new_tokens)
    for decoder in (part for each in decoders for part in each.parts):
        if _WARM.get(id(decoder), 0) < num_tokens:
            _decode_block(decoder, num_tokens, num_new, context_limit)
            pauses_at = decoder.drafter.pauses_at if isinstance(decoder, DraftingDecoder) else None
            if pauses_at is not None and pauses_at < num_tokens:  # then the drafter has read nothing yet
                _decode_block(decoder, pauses_at, num_new, context_limit)
            if id(decoder) not in _WARM:
                weakref.finalize(decoder, _WARM.pop, id(decoder), None)
            _WARM[id(decoder)] = num_tokens
        whole += _until_steady(decoder, min(num_tokens, 2 * num_new), num_new, context_limit, num_planned)
    return whole


def forget_warm_up(decoder: Decoder) -> None:
    """Makes the next warm-up of a decoder a complete one, since its server was restarted."""
    _WARM.pop(id(decoder), None)
    _TIMES.get(id(decoder.model), {}).pop(versioned_name(decoder.method), None)


def _until_steady(
    decoder: Decoder, num_tokens: int, num_new: int, context_limit: int | None, num_planned: int
) -> WarmUp:
    """Decodes blocks until the decoder's speed is steady, or the budget is spent. The last earlier blocks of the same
    method and loaded model count too, so that a method that was steady needs one more block. They are so few that this
    block shows whether the speed has changed."""
    model, name = decoder.model, versioned_name(decoder.method)
    if id(model) not in _TIMES:
        weakref.finalize(model, _TIMES.pop, id(model), None)
    blocks = _TIMES.setdefault(id(model), {}).setdefault(name, [])
    on_cpu = not isinstance(model, CausalLM) or model.device.type == "cpu"
    most = max_blocks(len(blocks), num_planned / num_new, on_cpu)
    decode = partial(_decode_block, decoder, num_tokens, num_new, context_limit)
    return until_steady(lambda: seconds_per_token(decode()), most, blocks)


def max_blocks(num_before: int, num_planned: float, on_cpu: bool) -> int:
    """Returns the budget of a decoder in a process, in blocks. `num_before`: blocks that it has decoded. `num_planned`:
    the new tokens to be measured, in blocks."""
    first = FIRST_BLOCKS_CPU if num_before == 0 else MAX_BLOCKS_CPU
    return min(first if on_cpu else MAX_BLOCKS, int(MAX_SHARE * num_planned))


def until_steady(decode: Callable[[], float], most: int, blocks: list[tuple[float, float]] | None = None) -> WarmUp:
    """Decodes blocks until the speed is steady, or the budget of `most` blocks is spent. `decode`: decodes a block and
    returns its seconds per token. `blocks`: (seconds per token, seconds) of earlier blocks; new blocks are appended.

    If the budget was spent before, a speed that was steady may take MIN_BLOCKS + 1 more blocks, after which `is_steady`
    no longer considers a single slow block. Any other speed may take TOP_UP_BLOCKS, or one after twice the budget.
    """
    blocks = [] if blocks is None else blocks
    num_before = len(blocks)
    first = max(0, num_before - MIN_BLOCKS)

    def is_now_steady() -> bool:
        return is_steady([per_token for per_token, _ in blocks[first:]])

    num_top_up = TOP_UP_BLOCKS if num_before < 2 * max(most, MIN_BLOCKS) else 1
    num_at_least = max(MIN_BLOCKS, num_before + (MIN_BLOCKS + 1 if is_now_steady() else num_top_up))
    steady = False
    while not steady:
        start = time.perf_counter()
        per_token = decode()
        blocks.append((per_token, time.perf_counter() - start))
        steady = is_now_steady()
        is_spent = len(blocks) >= most or sum(seconds for _, seconds in blocks) >= MAX_SECONDS
        if is_spent and len(blocks) >= num_at_least:
            break
    return WarmUp(len(blocks) - num_before, sum(seconds for _, seconds in blocks[num_before:]), steady)


def _decode_block(decoder: Decoder, num_tokens: int, num_new: int, context_limit: int | None) -> Generation:
    """Decodes the text of a warm-up. A drafter that learns forgets everything first, so that all blocks are equal
    work."""
    _reset_drafters([decoder])
    stop = StopRules(num_new, context_limit=context_limit)
    return decoder.generate(warm_up_ids(decoder.model, num_tokens, num_new), stop, seed=0)


def seconds_per_token(generation: Generation) -> float:
    """Returns the seconds per token that the clock of a generation measured."""
    num_first = 1 if generation.external is None else generation.external.num_first_tokens
    return generation.decode_seconds / max(1, len(generation.token_ids) - num_first)


def warm_up_ids(model: TextModel, num_tokens: int, num_new: int) -> list[int]:
    """Returns the prompt ids of a warm-up on `num_tokens` tokens, of which `num_new` are generated."""
    length = max(1, num_tokens - num_new)
    ids = model.encode_prompt(TEXT, chat=False)
    return (ids * (length // len(ids) + 1))[:length]
