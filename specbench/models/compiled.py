"""The forward passes of a model compiled for fixed shapes: static buffers, few query lengths, no Python in a pass."""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from specbench.models.compiling import compilable
from specbench.models.eager import UNKNOWN, common_prefix, num_common
from specbench.models.graphs import Graphs, Kind
from specbench.models.timing import PassLog

CHUNKS = (16, 64, 256)  # tokens of a prompt that one pass reads; the last pass is filled up
PACKED = (16, 64)  # tokens of several continuations that one pass reads


MIN_CAPACITY = 128


class CompiledSequence:
    """The tokens that a model has read, and how it reads more: in passes of the lengths of `reserve`, and of CHUNKS.

    A pass of fewer tokens is filled up behind them. What the filling writes into the cache lies behind the sequence,
    where no token sees it, until later passes write over it.
    """

    def __init__(self, model: Any, name: str, vocab_size: int, passes: PassLog, context_limit: int | None) -> None:
        self.model = model
        self.name = name
        self.vocab_size = vocab_size
        self.passes = passes
        self._layers = compilable(model, name)
        # Of several continuations in one pass a mask tells what each sees; other attention reads it otherwise.
        attention = getattr(model.config, "_attn_implementation", None)
        self._packs = attention == "sdpa" and not any(layer.is_sliding for layer in self._layers)
        self._kept: dict[int, Graphs] = {}  # by capacity: cells of a run go to and fro between few of them
        self._last_position = (context_limit or 2**62) - 1
        self._lengths: tuple[int, ...] = (1, 2)
        self.cached_ids: list[int] = []
        with torch.inference_mode():
            self._graphs = self._made(MIN_CAPACITY)

    @torch.inference_mode()
    def reserve(
        self, num_tokens: int, lengths: Sequence[int], packs: bool = False, *,
        prompts: bool = True, exactly: bool = True, told: Callable[[str], None] = lambda line: None,
    ) -> float:  # fmt: skip
        """Make room for `num_tokens` and compile every pass that they may need; returns the seconds that it took.
        Passes of `lengths` give the logits of all their tokens, those of CHUNKS only of the last. `packs`: whether
        `score_batch` is needed too; `prompts`: whether CHUNKS are; `exactly`: whether buffers that are larger make way.
        `told` hears of every pass, and before the first."""
        self._lengths = tuple(sorted({1, *lengths}))
        self._ensure(num_tokens + (PACKED[-1] if packs else 0), exactly)
        self.reset()
        graphs, before = self._graphs, self._graphs.compile_seconds
        passes: list[tuple[int, Kind]] = [(length, "all") for length in self._lengths]
        passes += [(length, "last") for length in (self._chunks() if prompts else ())]
        passes += [(length, "packed") for length in (PACKED if packs and self._packs else ())]
        passes = [each for each in passes if not graphs.has(*each)]
        if passes:
            lengths_told = ", ".join(str(length) for length, _ in passes)
            told(
                f"compiling {self.name} for {graphs.capacity} tokens: {len(passes)} passes, of {lengths_told} tokens; "
                "that takes seconds to minutes, less once torch has them in its cache"
            )
        for number, (length, kind) in enumerate(passes, start=1):
            graphs.fill_example(length, kind)
            graphs.run(length, kind)
            told(f"{self.name}: {number} of {len(passes)} passes are there, {graphs.compile_seconds - before:.0f} s")
        return graphs.compile_seconds - before

    @property
    def capacity(self) -> int:
        """The tokens that the buffers hold."""
        return self._graphs.capacity

    def _ensure(self, num_tokens: int, exactly: bool = False) -> None:
        """Buffers for so many tokens, whatever passes read them; other ones are empty, so that the next pass reads all
        anew."""
        capacity = capacity_for(max(num_tokens, self._lengths[-1]))
        if capacity > self._graphs.capacity or (exactly and capacity < self._graphs.capacity):
            self._graphs = self._made(capacity)

    def _made(self, capacity: int) -> Graphs:
        self.cached_ids = []
        if capacity not in self._kept:
            self._kept[capacity] = Graphs(self.model, self.name, self._layers, capacity, self._last_position)
        return self._kept[capacity]

    def _chunks(self) -> list[int]:
        return [length for length in CHUNKS if self._lengths[-1] < length <= self._graphs.capacity]

    @torch.inference_mode()
    def uncompiled(self, ids: list[int]) -> torch.Tensor:
        """The logits after each token of a short sequence, [num_tokens, vocab_size], over the same buffers."""
        self.reset()
        return self._graphs.uncompiled(ids)[:, : self.vocab_size]

    @torch.inference_mode()
    def check(self) -> None:
        """Raise CannotCompile where the passes are no single graphs."""
        self._graphs.trace()

    @torch.inference_mode()
    def fill(self, ids: list[int]) -> None:
        """Read `ids` anew, by a pass that is not compiled: for those that only look at what comes behind them."""
        self._ensure(len(ids))
        self._graphs.uncompiled(ids, last=True)
        self.cached_ids = list(ids)

    def reset(self) -> None:
        """Forget the sequence; the buffers stay."""
        self.cached_ids = []

    def checkpoint(self) -> int:
        """A point of the sequence to come back to with `rollback`: the number of cached tokens."""
        return len(self.cached_ids)

    def rollback(self, num_tokens: int) -> None:
        """Keep the first `num_tokens` cached tokens."""
        del self.cached_ids[num_tokens:]

    @torch.inference_mode()
    def score(self, ids: list[int], num_logits: int, tail: torch.Tensor | None = None) -> torch.Tensor:
        """The logits after each of the last `num_logits` tokens of `ids` and `tail`: [num_logits, vocab_size]."""
        num_tokens = len(ids) + (0 if tail is None else len(tail))
        self.rollback(min(num_common(self.cached_ids, ids, tail), num_tokens - num_logits))
        self._ensure(num_tokens)
        if tail is not None:
            num_left = num_tokens - len(self.cached_ids)
            if num_left <= self._lengths[-1]:
                return self._read(ids, num_left, True, tail)[-num_logits:]
            ids = ids + tail.tolist()  # what is read in several passes is known
        most, longest = self._lengths[-1], max([self._lengths[-1], *self._chunks()])
        rows: list[torch.Tensor] = []
        while num_left := len(ids) - len(self.cached_ids):
            num_ahead = num_left - num_logits  # of which nobody asks for logits
            if num_left <= most:
                rows.append(self._read(ids, num_left, True))
            elif num_logits == 1 or num_ahead > 0:
                rows.append(self._read(ids, min(num_left if num_logits == 1 else num_ahead, longest), False))
            else:  # a whole text, as an audit asks for
                rows.append(self._read(ids, min(num_left, longest), True))
        return (rows[0] if len(rows) == 1 else torch.cat(rows))[-num_logits:]

    def _read(self, ids: list[int], num_tokens: int, all_rows: bool, tail: torch.Tensor | None = None) -> torch.Tensor:
        """One clocked pass over the next tokens: logits [num_tokens or 1, vocab_size]."""
        graphs, num_cached = self._graphs, len(self.cached_ids)
        chunks = self._chunks()
        kind: Kind = "all" if all_rows or not chunks else "last"
        lengths = self._lengths if kind == "all" and num_tokens <= self._lengths[-1] else chunks
        length = next(length for length in lengths if length >= num_tokens)
        first = min(num_cached, graphs.capacity - length)  # at the end of the buffers the last tokens are read again
        tokens = ids[first : num_cached + num_tokens]
        if tail is None:
            graphs.fill(length, first, tokens)
        else:
            tokens += [UNKNOWN] * (num_cached + num_tokens - first - len(tokens))
            graphs.fill(length, first, ids[first:], tail[max(first - len(ids), 0) :])
        start = self.passes.clock.mark()
        logits = graphs.run(length, kind)
        self.passes.add(num_tokens, start, self.passes.clock.mark())
        self.cached_ids += tokens[num_cached - first :]
        if kind == "all":
            logits = logits[len(tokens) - num_tokens : len(tokens)]
        return logits[0 if all_rows else -1 :, : self.vocab_size]

    @torch.inference_mode()
    def score_batch(self, ids: list[int], suffixes: list[list[int]]) -> torch.Tensor:
        """The logits after `ids` and each of the equally long suffixes: [num_suffixes, vocab_size]."""
        num_each = len(suffixes[0])
        if not self._packs or num_each > PACKED[-1]:
            rows = [self.score(ids + suffix, 1) for suffix in suffixes]
            self.rollback(len(ids))
            return torch.cat(rows)
        self._ensure(len(ids) + PACKED[-1])
        if common_prefix(self.cached_ids, ids) < len(ids):
            self.score(ids, 1)
        self.rollback(len(ids))
        num_rows = PACKED[-1] // num_each
        batches = [suffixes[first : first + num_rows] for first in range(0, len(suffixes), num_rows)]
        return torch.cat([self._read_packed(batch, num_each) for batch in batches])

    def _read_packed(self, suffixes: list[list[int]], num_each: int) -> torch.Tensor:
        """One clocked pass over equally long suffixes behind one another, none of which sees another; not kept."""
        graphs, num_cached, num_tokens = self._graphs, len(self.cached_ids), len(suffixes) * num_each
        length = next(length for length in PACKED if length >= num_tokens)
        graphs.fill_packed(length, num_cached, suffixes)
        start = self.passes.clock.mark()
        logits = graphs.run(length, "packed")
        self.passes.add(num_tokens, start, self.passes.clock.mark())
        return logits[num_each - 1 : num_tokens : num_each, : self.vocab_size]


def capacity_for(num_tokens: int) -> int:
    """The next of few sizes: powers of two, and what lies halfway between them."""
    power = MIN_CAPACITY
    while power < num_tokens:
        power *= 2
    halfway = power * 3 // 4
    return halfway if MIN_CAPACITY <= num_tokens <= halfway else power
