"""The warm-up of a subset: before it is measured, AR and every method decode the same number of blocks of another text,
until the speed of all of them is steady or the time for it is spent."""

import sys
import time
import weakref
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from math import inf
from statistics import median

from specbench.core.progress import Say, doing, say_nothing
from specbench.core.values import all_known
from specbench.decoding.decoder import Decoder, DraftingDecoder, drafting_decoders
from specbench.decoding.loop import GenerationOutput, StopRules
from specbench.models.causal_lm import CausalLM, TextModel
from specbench.records.generation import WarmUpRecord
from specbench.running.plan import SubsetRun
from specbench.running.prompts import Texts, conversation
from specbench.specs.catalogue import versioned_name

TEXT = "This is a text about nothing in particular, read once before anything is measured. "
NUM_NEW_TOKENS = 20  # new tokens of a block; fewer if the answers are shorter, or if the time for the warm-up is
MIN_NEW_TOKENS = 4  # a block of fewer tokens is too short to time
NUM_PARTS = 4
MIN_BLOCKS = 8
BAND = 1.1  # maximum ratio of the slowest to the fastest part of steady blocks
MAX_BLOCKS, MAX_BLOCKS_CPU, MAX_SECONDS = 64, 32, 60.0  # budget of a decoder in a process
FIRST_BLOCKS_CPU = 16  # budget before the first subset, when the lengths of answers are still unknown
TOP_UP_BLOCKS = 4  # blocks for another subset if the budget was spent and the speed was not steady
MAX_SHARE = 0.1  # maximum ratio of the warm-up to what is measured: of their seconds, and on a GPU of their tokens
_WARM: dict[int, int] = {}  # number of warm-up tokens by the id of a decoder, while the decoder exists
Blocks = list[tuple[float, float]]  # seconds per token, and seconds in all
_HISTORIES = weakref.WeakKeyDictionary[TextModel, dict[str, "History"]]()  # by loaded model and method


@dataclass(frozen=True)
class WarmUp:
    """The blocks that a method decoded before a subset was measured, and the seconds of its whole warm-up. `steady`:
    whether the speed was steady in the end; None if there were too few blocks to tell."""

    blocks: int
    seconds: float
    steady: bool | None

    def as_record(self) -> WarmUpRecord:
        """Returns the warm-up as records keep it."""
        return WarmUpRecord(blocks=self.blocks, seconds=round(self.seconds, 3), steady=self.steady)


@dataclass
class Budget:
    """The time for the warm-ups of a process.

    `seconds`: given by --warm-up; None is MAX_SHARE of the expected measurement. `num_planned`: the maximum number of a
    method's new tokens that this process measures; `num_left`: those that are still to be measured. `spent`: the
    seconds of all warm-ups so far.
    """

    seconds: float | None = None
    num_planned: float = sys.maxsize
    num_left: float = sys.maxsize
    spent: float = 0.0


@dataclass
class History:
    """The earlier blocks of a method with a loaded model in this process. `blocks`: by the number of new tokens, since
    only blocks of equal length are equal work. `first`: seconds per token of the first
    block of all, and `prefill` per token of its prompt."""

    first: float | None = None
    prefill: float = 0.0
    blocks: dict[int, Blocks] = field(default_factory=lambda: defaultdict(list))

    @property
    def seconds_per_token(self) -> float | None:
        """Those of the fastest block; None without blocks."""
        times = [per_token for method_blocks in self.blocks.values() for per_token, _ in method_blocks]
        return min(times if self.first is None else [self.first, *times], default=None)


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


def warm_up_subset(run: SubsetRun, budget: Budget | None = None, progress: Say = say_nothing) -> dict[str, WarmUp]:
    """Warms up AR and every method of a subset on as many tokens as its longest conversation has. Afterwards, drafters
    that learn from prompt to prompt forget everything. Returns the warm-ups by method."""
    models = {id(decoder.model): decoder.model for decoder in run.decoders}
    lengths = {key: longest_conversation(run, model) for key, model in models.items()}
    decoders = [(decoder, lengths[id(decoder.model)]) for decoder in run.decoders]
    warm_ups = warm_up(decoders, run.context_limit, run.task.generation.max_new_tokens, budget, progress)
    reset_drafters(run.decoders)
    return warm_ups


@contextmanager
def doing_warm_up(run: SubsetRun) -> Iterator[Say]:
    """Says that a subset is warmed up until the block ends. Yields a function that receives the lines about it."""
    where = f"warming up {run.task.name}/{run.subset}"
    with doing(where) as tell:
        yield lambda line: tell(f"{where}: {line}")


def reset_drafters(decoders: Iterable[Decoder]) -> None:
    """Lets drafters that learn from prompt to prompt forget everything."""
    for drafting in drafting_decoders(decoders):
        drafting.drafter.begin_cell()
        drafting.drafter.length.forget()


def longest_conversation(run: SubsetRun, model: TextModel) -> int:
    """Returns the number of tokens of a subset's longest conversation if every answer has the maximum length."""
    num_new = run.task.generation.max_new_tokens
    most = max(
        len(run.renderer.render(model, texts).packed_ids) + (len(texts) // 2 + 1) * num_new
        for texts in unanswered_conversations(run)
    )
    return min(most, run.context_limit or most)


def unanswered_conversations(run: SubsetRun) -> Iterator[Texts]:
    """Yields the conversations of a subset, with empty answers."""
    for example in run.data.examples:
        last = len(example.turns) - 1
        yield conversation(example, last, [""] * last)


@dataclass(frozen=True)
class Part:
    """A decoder without routes. `name`: the method that it is a part of. `num_tokens`: those of its longest
    conversation."""

    decoder: Decoder
    name: str
    num_tokens: int
    history: History


def warm_up(
    decoders: Sequence[tuple[Decoder, int]], context_limit: int | None, max_new_tokens: int = NUM_NEW_TOKENS,
    budget: Budget | None = None, progress: Say = say_nothing,
) -> dict[str, WarmUp]:  # fmt: skip
    """Warms up decoders and their parts alternately, with as many blocks each. Returns the warm-ups by method.

    `decoders`: each with the number of tokens of its longest conversation, answer included. `max_new_tokens`: the
    maximum length of the answers to be measured. `progress` receives a line before each block.

    On a CPU the whole takes at most the time of the budget, but at least one block. On a GPU, whose clock rises slowly,
    there are at least as many blocks as `is_steady` needs.
    """
    budget = budget or Budget()
    num_new = min(NUM_NEW_TOKENS, max(MIN_NEW_TOKENS, max_new_tokens))  # of a block
    parts = []
    for each, num_tokens in decoders:
        for decoder in each.parts:
            histories = _HISTORIES.setdefault(decoder.model, {})
            history = histories.setdefault(versioned_name(decoder.method), History())
            parts.append(Part(decoder, each.method.name, min(num_tokens, context_limit or num_tokens), history))
    # Whether the warm-up gives way to the measurement when its time is spent, as it does on a CPU.
    models = [part.decoder.model for part in parts]
    yields = all(not isinstance(model, CausalLM) or model.device.type == "cpu" for model in models)
    seconds = dict.fromkeys((part.name for part in parts), 0.0)  # by method

    def per_token() -> float:
        """Returns the seconds that all parts together take for a token, as far as known."""
        return sum(part.history.seconds_per_token or 0.0 for part in parts)

    def left() -> float:
        """Returns the seconds that the warm-up may still take; those of --warm-up hold on a GPU, too."""
        if budget.seconds is not None:
            return budget.seconds - budget.spent
        return MAX_SHARE * budget.num_planned * per_token() - budget.spent if yields else inf

    def decode(part: Part, num_tokens: int, num_new: int, what: str) -> tuple[float, float, float]:
        """Returns the seconds per token of a block, and its seconds of decoding and in all."""
        progress(f"{part.name}, {what}{_times(budget, left(), per_token())}")
        start = time.perf_counter()
        reset_drafters([part.decoder])  # so that all blocks are equal work for a drafter that learns
        ids = warm_up_ids(part.decoder.model, num_tokens, num_new)
        generation = part.decoder.generate(ids, StopRules(num_new, context_limit=context_limit), seed=0)
        took = time.perf_counter() - start
        budget.spent += took
        seconds[part.name] += took
        return seconds_per_token(generation), generation.decode_seconds, took

    # 1. A short block of each, if one of them is new: it tells how long the others would take.
    num_rounds = 0
    if any(part.history.seconds_per_token is None for part in parts):
        num_rounds = 1
        for part in parts:
            size = min(part.num_tokens, NUM_NEW_TOKENS + MIN_NEW_TOKENS)
            history = part.history
            history.first, decoding, took = decode(part, size, MIN_NEW_TOKENS, "block 1")
            history.prefill = max(0.0, took - decoding) / NUM_NEW_TOKENS
            if num_new == MIN_NEW_TOKENS:
                history.blocks[MIN_NEW_TOKENS].append((history.first, took))

    # 2. A text as long as the longest conversation, so that no measured pass is the first of its kind, and no cache
    #    grows during a measurement. It is shorter where there is no time to read it.
    longer = [part for part in parts if _WARM.get(id(part.decoder), 0) < part.num_tokens]
    reading = sum(part.history.prefill * part.num_tokens for part in longer)
    rest = left() - MIN_NEW_TOKENS * sum(part.history.seconds_per_token or 0.0 for part in longer)
    share = 1.0 if not yields or rest >= reading else max(0.0, rest) / max(reading, 1e-9)
    for part in longer:
        decoder = part.decoder
        length = part.num_tokens if share == 1.0 else int(share * part.num_tokens)
        if share < 1.0 and length <= max(_WARM.get(id(decoder), 0), NUM_NEW_TOKENS + MIN_NEW_TOKENS):
            continue
        decode(part, length, MIN_NEW_TOKENS, f"a text of {length} tokens")
        pauses_at = decoder.drafter.pauses_at if isinstance(decoder, DraftingDecoder) else None
        if pauses_at is not None and pauses_at < length:  # then the drafter has read nothing yet
            decode(part, pauses_at, MIN_NEW_TOKENS, f"a text of {pauses_at} tokens")
        if id(decoder) not in _WARM:
            weakref.finalize(decoder, _WARM.pop, id(decoder), None)
        _WARM[id(decoder)] = length

    # 3. Blocks until all are steady. The last earlier blocks of the same methods and loaded models count, too. Where
    #    there is no time for a block, a single shorter one takes its place.
    blocks = [part.history.blocks[num_new] for part in parts]
    cost = per_token() + sum(part.history.prefill for part in parts)  # of a token of a block
    affordable = num_new
    if yields and cost > 0:
        affordable = int(max(MIN_NEW_TOKENS, min(num_new, left() / cost)))
    has_time = not yields or left() >= affordable * cost
    is_done = num_rounds > 0 and all(
        is_steady([each for each, _ in part_blocks[-MIN_BLOCKS:]]) for part_blocks in blocks
    )
    if has_time and affordable == num_new and not is_done:
        most = inf
        if budget.seconds is None:
            most = max_blocks(min(map(len, blocks)), budget.num_planned / num_new, yields)

        def decodes(part: Part) -> Iterator[float]:
            for number in count(num_rounds + 1):
                yield decode(part, min(part.num_tokens, 2 * num_new), num_new, f"block {number}")[0]

        blocks_of = [decodes(part).__next__ for part in parts]
        num_more, verdicts = until_steady(blocks_of, blocks, most, left, yields=yields)
    else:
        num_before = len(blocks[0])
        num_more = 0
        if num_rounds == 0 or (has_time and affordable < num_new):
            num_more = 1
            for part, part_blocks in zip(parts, blocks, strict=True):
                size = min(part.num_tokens, 2 * affordable)
                speed, _, took = decode(part, size, affordable, f"block {num_rounds + 1}")
                part_blocks += [(speed, took)] if affordable == num_new else []
        verdicts = [_verdict(part_blocks, max(0, len(part_blocks) - MIN_BLOCKS)) for part_blocks in blocks]
        if len(blocks[0]) == num_before and num_new > MIN_NEW_TOKENS:  # uneven before may be even now
            verdicts = [steady or None for steady in verdicts]
    return {
        name: WarmUp(
            num_rounds + num_more, took,
            all_known([each for part, each in zip(parts, verdicts, strict=True) if part.name == name]),
        )
        for name, took in seconds.items()
    }  # fmt: skip


def _times(budget: Budget, left: float, per_token: float) -> str:
    """Returns the time that the warm-up has taken, its limit, and the time until the run is done, as far as known."""
    if per_token == 0 and budget.seconds is None:
        return ""
    text = f" · {budget.spent:.0f}" + (f" of {budget.spent + max(0.0, left):.0f} s" if left < inf else " s")
    if budget.num_left < sys.maxsize and per_token:
        most = budget.num_left * per_token + (max(0.0, left) if left < inf else 0.0)
        text += f" · up to {most:.0f} s left"
    return text


def forget_warm_up(decoder: Decoder) -> None:
    """Makes the next warm-up of a decoder a complete one, since its server was restarted."""
    _WARM.pop(id(decoder), None)
    _HISTORIES.get(decoder.model, {}).pop(versioned_name(decoder.method), None)


def max_blocks(num_before: int, num_planned: float, on_cpu: bool) -> int:
    """Returns the budget of a decoder in a process, in blocks. `num_before`: blocks that it has decoded. `num_planned`:
    the new tokens to be measured, in blocks."""
    first = FIRST_BLOCKS_CPU if num_before == 0 else MAX_BLOCKS_CPU
    return min(first if on_cpu else MAX_BLOCKS, int(MAX_SHARE * num_planned))


def _verdict(blocks: Blocks, first: int) -> bool | None:
    """Returns whether the speed is steady in the blocks from `first` on; None if they are too few to tell."""
    times = [per_token for per_token, _ in blocks[first:]]
    return is_steady(times) or (None if len(times) < MIN_BLOCKS else False)


def until_steady(
    decodes: Sequence[Callable[[], float]], histories: Sequence[Blocks], most: float,
    left: Callable[[], float] = lambda: inf, *, yields: bool = True,
) -> tuple[int, list[bool | None]]:  # fmt: skip
    """Decodes blocks in rounds, one of each decoder in turn, until the speed of all is steady or their budget is spent.
    Returns the number of rounds, and for each decoder whether its speed is steady (None: too few blocks to tell).

    `decodes`: each decodes a block and returns its seconds per token. `histories`: (seconds per token, seconds) of
    earlier blocks of each; new blocks are appended. `most`: the budget of each in blocks. `left`: returns the seconds
    that all may still take. `yields`: a round for which there is no time is not begun, except the first.

    If the budget was spent before, a speed that was steady may take MIN_BLOCKS + 1 more blocks, after which `is_steady`
    no longer considers a single slow block. Any other speed may take TOP_UP_BLOCKS, or one after twice the budget.
    """
    before = [len(blocks) for blocks in histories]
    firsts = [max(0, number - MIN_BLOCKS) for number in before]
    at_least = []
    for blocks, number, first in zip(histories, before, firsts, strict=True):
        num_top_up = TOP_UP_BLOCKS if number < 2 * max(most, MIN_BLOCKS) else 1
        more = MIN_BLOCKS + 1 if _verdict(blocks, first) else num_top_up
        at_least.append(max(MIN_BLOCKS, number + more))
    for num_rounds in count(1):
        for decode, blocks in zip(decodes, histories, strict=True):
            start = time.perf_counter()
            per_token = decode()
            blocks.append((per_token, time.perf_counter() - start))
        verdicts = [_verdict(blocks, first) for blocks, first in zip(histories, firsts, strict=True)]
        is_over = left() <= 0
        done = []
        for steady, blocks, least in zip(verdicts, histories, at_least, strict=True):
            took = sum(seconds for _, seconds in blocks)
            is_spent = is_over or len(blocks) >= most or (most < inf and took >= MAX_SECONDS)
            done.append(steady or (len(blocks) >= least and is_spent))
        if all(done) or (yields and left() < sum(blocks[-1][1] for blocks in histories)):
            return num_rounds, verdicts
    raise AssertionError  # the loop has no end


def seconds_per_token(generation: GenerationOutput) -> float:
    """Returns the seconds per token that the clock of a generation measured."""
    num_first = 1 if generation.external is None else generation.external.num_first_tokens
    return generation.decode_seconds / max(1, len(generation.token_ids) - num_first)


def warm_up_ids(model: TextModel, num_tokens: int, num_new: int) -> list[int]:
    """Returns the prompt ids of a warm-up on `num_tokens` tokens, of which `num_new` are generated."""
    length = max(1, num_tokens - num_new)
    ids = model.encode_prompt(TEXT, chat=False)
    return (ids * (length // len(ids) + 1))[:length]
