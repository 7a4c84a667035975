"""A cached sequence that recorded or compiled passes read: static buffers and a few fixed query lengths."""

from collections.abc import Collection, Iterator, Sequence
from typing import Any

import torch

from specbench.core.progress import Say, say_nothing
from specbench.models.compiling import CannotCompile, check_compilable
from specbench.models.devices import is_out_of_memory, memory_message
from specbench.models.eager import UNKNOWN, CachedSequence, num_common
from specbench.models.kv_cache import check_attention
from specbench.models.meters import PassLog
from specbench.models.recording import RecordedDraft
from specbench.models.scoring import PACKED, Draft, Kind, Output, PassShape, Sampler
from specbench.models.static_passes import StaticPasses
from specbench.specs.components import StaticEngine

ATTENTION = ("sdpa", "eager")  # the implementations whose masks are buffers
PROMPTS = (64, 256)  # lengths of the recorded passes that read a prompt; see docs/measured/gpu.md
MIN_CAPACITY = 128
PARTICIPLES = {"compiled": "compiling", "graphs": "recording"}


class StaticSequence(CachedSequence):
    """A model's cached sequence, which is extended by passes of the lengths given to `reserve`.

    Shorter inputs are padded at their end. The padding is written into the cache after the sequence, where it is masked
    until later passes overwrite it. A longer input, such as a prompt, is read by one recorded pass over up to 256
    tokens, if the device has graphs, or else by one eager pass over the same buffers.
    """

    def __init__(
        self, model: Any, name: str, vocab_size: int, passes: PassLog, context_limit: int | None,
        engine: StaticEngine = "compiled",
    ) -> None:  # fmt: skip
        super().__init__(model, name, vocab_size, passes)
        self.engine: StaticEngine = engine
        self._layers = check_compilable(model, name, engine)
        self._records_prompts = True  # unless it failed, or the device has no graphs
        self._reads_trees = model.config._attn_implementation in ATTENTION
        # By capacity, since the subsets of a run alternate between few capacities.
        self._kept: dict[int, StaticPasses] = {}
        self._last_position = (context_limit or 2**62) - 1
        self._shapes = [PassShape(1), PassShape(2)]  # of the passes of fixed lengths; others are eager
        with torch.inference_mode():
            self._static_passes = self._buffers(MIN_CAPACITY)

    @torch.inference_mode()
    def reserve(
        self, num_tokens: int, lengths: Sequence[int], packs: bool = False, *, shapes: Collection[PassShape] = (),
        exactly: bool = True, progress: Say = say_nothing,
    ) -> tuple[int, float]:  # fmt: skip
        """Allocates buffers for `num_tokens` tokens and creates the passes of all `lengths` and `shapes`. Returns the
        number of created passes and the seconds spent. `packs`: also create the passes of `score_batch`. `exactly`:
        replace larger buffers too. `progress`: receives a line before the first pass and after every pass."""
        asked = {*map(PassShape, {1, *lengths}), *shapes}
        if packs and self._reads_trees:
            asked |= {PassShape(length, "tree") for length in PACKED}
        self._shapes = sorted(asked)
        longest_tree = max((shape.length for shape in asked if shape.kind == "tree"), default=0)
        self._ensure(num_tokens + longest_tree, exactly)
        self.reset()
        made, before = self._static_passes, self._static_passes.seconds
        num_made = made.num_made
        if made.records and self._records_prompts:  # the shortest first
            lengths = sorted({min(length, self.capacity) for length in PROMPTS})
            hidden = sorted({shape.hidden_layers for shape in self._shapes if shape.kind == "chain"})
            self._shapes += [PassShape(length, "prompt", layers) for layers in hidden for length in lengths]
        missing = [shape for shape in self._shapes if shape not in made.made]
        if missing:
            missing_lengths = ", ".join(str(shape.length) for shape in missing)
            wait = "; that takes seconds to minutes, less once torch has them in its cache"
            progress(
                f"{PARTICIPLES[self.engine]} {self.name} for {made.capacity} tokens: {len(missing)} passes, of "
                f"{missing_lengths} tokens{wait if self.engine == 'compiled' else ''}"
            )
        for number, shape in enumerate(missing, start=1):
            try:
                made.fill_example(shape)
                made.run(shape)
            except Exception as error:  # recording raises many classes
                if shape.kind != "prompt" or not (isinstance(error, CannotCompile) or is_out_of_memory(error)):
                    raise
                self._records_prompts = False
                reason = error.reason if isinstance(error, CannotCompile) else memory_message(error)
                progress(f"{self.name}: prompts are read by passes that are not recorded: {reason}")
                break
            progress(f"{self.name}: {number} of {len(missing)} passes are ready, {made.seconds - before:.0f} s")
        if longest_tree:
            made.path_move()
        return made.num_made - num_made, made.seconds - before

    @torch.inference_mode()
    def reserve_draft(self, num_tokens: int, draw: Sampler) -> tuple[int, float]:
        if not self._static_passes.records or num_tokens < 2:
            return 0, 0.0
        self.reset()
        return self._static_passes.reserve_draft(num_tokens, draw, self.vocab_size)

    @property
    def capacity(self) -> int:
        """The number of tokens that the buffers can hold."""
        return self._static_passes.capacity

    def _ensure(self, num_tokens: int, exactly: bool = False) -> None:
        """Provides buffers for `num_tokens` tokens. New buffers are empty, so the next pass reads the whole
        sequence."""
        capacity = capacity_for(max(num_tokens, *(shape.length for shape in self._shapes)))
        if capacity > self._static_passes.capacity or (exactly and capacity < self._static_passes.capacity):
            self._static_passes = self._buffers(capacity)

    def _buffers(self, capacity: int) -> StaticPasses:
        self.reset()
        if capacity not in self._kept:
            self._kept[capacity] = StaticPasses(
                self.model, self.name, self._layers, capacity, self._last_position, self.engine
            )
        return self._kept[capacity]

    @torch.inference_mode()
    def eager_logits(self, ids: list[int]) -> torch.Tensor:
        """Returns the logits after each token of a short sequence, [num_tokens, vocab_size], by an eager pass over the
        static buffers."""
        self.reset()
        tokens = self._input(ids, None, len(ids))
        return self._static_passes.read_eagerly(tokens, 0, 0).logits[:, : self.vocab_size]

    @torch.inference_mode()
    def check(self) -> None:
        """Raises CannotCompile if passes cannot be created."""
        self._static_passes.check()

    def _shape(self, num_tokens: int, kind: Kind, hidden_layers: Sequence[int]) -> PassShape | None:
        """Returns the shape of the shortest pass that can read `num_tokens` tokens; None if there is none."""
        asked, made = (kind, tuple(hidden_layers)), self._static_passes
        shapes = (shape for shape in self._shapes if shape[1:] == asked and (kind != "prompt" or shape in made.made))
        return next((shape for shape in shapes if shape.length >= num_tokens), None)

    def check_trees(self) -> None:
        check_attention(self.model, self.name, ATTENTION)

    def _read(
        self, ids: list[int], pending: torch.Tensor | None, parents: Sequence[int], num_read: int, num_replayed: int,
        num_logits: int, hidden_layers: Sequence[int],
    ) -> Output:  # fmt: skip
        """See CachedSequence. What is longer than all passes is read by one eager pass over the same buffers."""
        made, num_prefix = self._static_passes, len(ids) - len(parents)
        num_tokens = len(ids) + (0 if pending is None else len(pending))
        num_cached = num_tokens - num_read
        shape = self._shape(num_read, "tree" if parents else "chain", hidden_layers)
        if shape is None and num_logits == 1 and not parents:
            shape = self._shape(num_read, "prompt", hidden_layers)
        if shape is None:
            given = (self._input(ids, pending, num_read), num_cached, 0 if parents else num_logits, num_prefix, parents)
            return self.passes.timed(num_read, made.read_eagerly, *given, hidden_layers=hidden_layers)
        first = min(num_cached, made.capacity - shape.length)  # near the end of the buffers, some are read again
        if parents:
            made.fill_tree(shape, first, ids[first:], num_prefix, parents)
        else:
            made.fill(shape, first, ids[first:], None if pending is None else pending[max(first - len(ids), 0) :])
        output = self.passes.timed(num_read, made.run, shape)
        read = slice(num_cached - first, num_tokens - first)
        logits = output.logits if shape.kind == "prompt" else output.logits[read]
        return Output(logits, tuple(states[read] for states in output.hidden))

    def _move(self, start: int, places: list[int]) -> None:
        if places != list(range(start, start + len(places))):
            self._static_passes.move(start, places)

    @torch.inference_mode()
    def draft(
        self, ids: list[int], num_tokens: int, draw: Sampler, generator: torch.Generator,
        given: torch.Tensor | None = None,
    ) -> Draft | None:  # fmt: skip
        num_cached = min(num_common(self.cached_ids, ids, None), len(ids) - 1)
        recorded: RecordedDraft | None = self._static_passes.drafts.get((len(ids) - num_cached, num_tokens, draw))
        if recorded is None or len(ids) + num_tokens > self._static_passes.capacity:
            return None
        self.rollback(num_cached)
        self._static_passes.fill(PassShape(len(ids) - num_cached), num_cached, ids[num_cached:])
        start = self.passes.clock.mark()
        drafted = recorded.run(generator, given)
        end = self.passes.clock.mark()
        self.passes.add_together([len(ids) - num_cached, *[1] * (num_tokens - 1)], start, end)
        self.cached_ids += [*ids[num_cached:], *[UNKNOWN] * (num_tokens - 1)]
        return drafted

    @torch.inference_mode()
    def score_batch(self, ids: list[int], suffixes: list[list[int]]) -> torch.Tensor:
        if self._reads_trees and len(suffixes[0]) <= PACKED[-1]:
            self._ensure(len(ids) + PACKED[-1])
            return super().score_batch(ids, suffixes)
        rows = [self.score(ids + suffix, 1).logits for suffix in suffixes]
        self.rollback(len(ids))
        return torch.cat(rows)

    def _read_suffixes(self, suffixes: list[list[int]]) -> Iterator[torch.Tensor]:
        """Reads suffixes as branches of a tree that is not kept."""
        made, num_cached, num_each = self._static_passes, len(self.cached_ids), len(suffixes[0])
        num_rows = PACKED[-1] // num_each
        for start in range(0, len(suffixes), num_rows):
            tokens = [token for suffix in suffixes[start : start + num_rows] for token in suffix]
            shape = PassShape(next(length for length in PACKED if length >= len(tokens)), "tree")
            parents = [node - 1 if node % num_each else -1 for node in range(len(tokens))]
            made.fill_tree(shape, num_cached, tokens, num_cached, parents)
            logits = self.passes.timed(len(tokens), made.run, shape).logits
            yield logits[num_each - 1 : len(tokens) : num_each, : self.vocab_size]


def capacity_for(num_tokens: int) -> int:
    """Returns the smallest sufficient capacity among powers of two and the values halfway between them."""
    power = MIN_CAPACITY
    while power < num_tokens:
        power *= 2
    halfway = power * 3 // 4
    return halfway if MIN_CAPACITY <= num_tokens <= halfway else power
