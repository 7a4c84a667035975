"""A cached sequence that is read in recorded or compiled passes: static buffers and a few fixed query lengths."""

from collections.abc import Sequence
from typing import Any

import torch

from specbench.core.errors import ConfigError
from specbench.core.progress import Say, say_nothing
from specbench.models.compiling import VERBS, compilable
from specbench.models.devices import uploaded
from specbench.models.drafting import Draft, RecordedDraft, Sampler
from specbench.models.eager import UNKNOWN, common_prefix, num_common
from specbench.models.scoring import Output
from specbench.models.static_passes import Kind, StaticPasses
from specbench.models.timing import PassLog
from specbench.specs.components import StaticEngine

PACKED = (16, 64)  # lengths of packed passes, in tokens
MIN_CAPACITY = 128
PARTICIPLES = {"compiled": "compiling", "graphs": "recording"}


class StaticSequence:
    """A model's cached sequence, which passes of the lengths given to `reserve` extend.

    A shorter input is padded at its end. The padding is written into the cache after the sequence, where it is masked
    until later passes overwrite it. An input longer than the longest pass, such as a prompt, is read by one eager pass
    over the same buffers.
    """

    def __init__(
        self, model: Any, name: str, vocab_size: int, passes: PassLog, context_limit: int | None,
        engine: StaticEngine = "compiled",
    ) -> None:  # fmt: skip
        self.model = model
        self.name = name
        self.vocab_size = vocab_size
        self.passes = passes
        self.engine: StaticEngine = engine
        self._layers = compilable(model, name, engine)
        # Packed passes need a custom mask, which other attention implementations interpret differently.
        attention = getattr(model.config, "_attn_implementation", None)
        self._packs = attention == "sdpa" and not any(layer.is_sliding for layer in self._layers)
        self._kept: dict[int, StaticPasses] = {}  # by capacity: the cells of a run alternate between a few
        self._last_position = (context_limit or 2**62) - 1
        self._lengths: tuple[int, ...] = (1, 2)
        self.cached_ids: list[int] = []
        with torch.inference_mode():
            self._made = self._buffers(MIN_CAPACITY)

    @torch.inference_mode()
    def reserve(
        self, num_tokens: int, lengths: Sequence[int], packs: bool = False, *,
        exactly: bool = True, progress: Say = say_nothing,
    ) -> tuple[int, float]:  # fmt: skip
        """Allocates buffers for `num_tokens` tokens and creates the passes of all `lengths`. Returns the number of
        created passes and the seconds spent. `packs`: creates the passes of `score_batch` too. `exactly`: replaces
        larger buffers. `progress`: receives a line before the first pass and after every pass."""
        self._lengths = tuple(sorted({1, *lengths}))
        self._ensure(num_tokens + (PACKED[-1] if packs else 0), exactly)
        self.reset()
        made, before = self._made, self._made.seconds
        passes: list[tuple[int, Kind]] = [(length, "all") for length in self._lengths]
        passes += [(length, "packed") for length in (PACKED if packs and self._packs else ())]
        passes = [each for each in passes if not made.has(*each)]
        if passes:
            lengths_told = ", ".join(str(length) for length, _ in passes)
            wait = "; that takes seconds to minutes, less once torch has them in its cache"
            progress(
                f"{PARTICIPLES[self.engine]} {self.name} for {made.capacity} tokens: {len(passes)} passes, of "
                f"{lengths_told} tokens{wait if self.engine == 'compiled' else ''}"
            )
        for number, (length, kind) in enumerate(passes, start=1):
            made.fill_example(length, kind)
            made.run(length, kind)
            progress(f"{self.name}: {number} of {len(passes)} passes are ready, {made.seconds - before:.0f} s")
        return len(passes), made.seconds - before

    @torch.inference_mode()
    def reserve_draft(self, num_tokens: int, draw: Sampler) -> tuple[int, float]:
        """Records drafts of `num_tokens` tokens (2 or more) as CUDA graphs, if the device has graphs. Returns the
        number of recorded graphs and the seconds spent."""
        if not self._made.records or num_tokens < 2:
            return 0, 0.0
        self.reset()
        return self._made.reserve_draft(num_tokens, draw, self.vocab_size)

    @property
    def verb(self) -> str:
        """The participle of the engine for messages: "compiled" or "recorded"."""
        return VERBS[self.engine]

    @property
    def capacity(self) -> int:
        """The number of tokens that the buffers can hold."""
        return self._made.capacity

    def _ensure(self, num_tokens: int, exactly: bool = False) -> None:
        """Provides buffers for `num_tokens` tokens. Different buffers are empty: the next pass reads the whole
        sequence."""
        capacity = capacity_for(max(num_tokens, self._lengths[-1]))
        if capacity > self._made.capacity or (exactly and capacity < self._made.capacity):
            self._made = self._buffers(capacity)

    def _buffers(self, capacity: int) -> StaticPasses:
        self.cached_ids = []
        if capacity not in self._kept:
            self._kept[capacity] = StaticPasses(
                self.model, self.name, self._layers, capacity, self._last_position, self.engine
            )
        return self._kept[capacity]

    @torch.inference_mode()
    def eager_logits(self, ids: list[int]) -> torch.Tensor:
        """Returns the logits after each token of a short sequence, [num_tokens, vocab_size], from an eager pass over
        the static buffers."""
        self.reset()
        return self._made.read_eagerly(self._tensor(ids), 0, 0)[:, : self.vocab_size]

    @torch.inference_mode()
    def check(self) -> None:
        """Raises CannotCompile if passes cannot be created."""
        self._made.check()

    def reset(self) -> None:
        """Drops the cached sequence; the buffers are kept."""
        self.cached_ids = []

    def checkpoint(self) -> int:
        """Returns the number of cached tokens, to which `rollback` can return."""
        return len(self.cached_ids)

    def rollback(self, num_tokens: int) -> None:
        """Crops the cache to its first `num_tokens` tokens."""
        del self.cached_ids[num_tokens:]

    @torch.inference_mode()
    def score(
        self, ids: list[int], num_logits: int, pending: torch.Tensor | None = None, hidden_layers: Sequence[int] = ()
    ) -> Output:
        """Returns the logits after the last `num_logits` tokens of `ids` and `pending`: [num_logits, vocab_size].
        Raises ConfigError if hidden states are requested, which these passes do not keep."""
        if hidden_layers:
            raise ConfigError(
                f"--engine {self.engine}: passes of model '{self.name}' keep no hidden states, which this "
                "drafter reads; take --engine eager"
            )
        num_tokens = len(ids) + (0 if pending is None else len(pending))
        self.rollback(min(num_common(self.cached_ids, ids, pending), num_tokens - num_logits))
        self._ensure(num_tokens)
        num_left = num_tokens - len(self.cached_ids)
        if num_left <= self._lengths[-1]:
            return Output(self._read(ids, num_left, pending)[-num_logits:])
        return Output(self._read_eagerly(ids, num_left, num_logits, pending))

    def score_tree(
        self, ids: list[int], tree_ids: list[int], parents: Sequence[int], num_logits: int,
        hidden_layers: Sequence[int] = (),
    ) -> Output:  # fmt: skip
        """Raises ConfigError, as `check_trees` does."""
        self.check_trees()
        raise AssertionError

    def check_trees(self) -> None:
        """Raises ConfigError: these passes read chains only."""
        raise ConfigError(
            f"--engine {self.engine}: passes of model '{self.name}' cannot read draft trees; take --engine eager, or a "
            "method that drafts chains"
        )

    def keep_path(self, path: Sequence[int]) -> None:
        """Raises ConfigError, as `check_trees` does."""
        self.check_trees()

    def _read(self, ids: list[int], num_tokens: int, pending: torch.Tensor | None = None) -> torch.Tensor:
        """Runs one timed pass over the next tokens: logits [num_tokens, vocab_size]."""
        made, num_cached = self._made, len(self.cached_ids)
        length = next(length for length in self._lengths if length >= num_tokens)
        first = min(num_cached, made.capacity - length)  # near the end of the buffers, cached tokens are read again
        tokens = ids[first : num_cached + num_tokens]
        if pending is None:
            made.fill(length, first, tokens)
        else:
            tokens += [UNKNOWN] * (num_cached + num_tokens - first - len(tokens))
            made.fill(length, first, ids[first:], pending[max(first - len(ids), 0) :])
        start = self.passes.clock.mark()
        logits = made.run(length, "all")
        self.passes.add(num_tokens, start, self.passes.clock.mark())
        self.cached_ids += tokens[num_cached - first :]
        return logits[len(tokens) - num_tokens : len(tokens), : self.vocab_size]

    def _read_eagerly(
        self, ids: list[int], num_tokens: int, num_logits: int, pending: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Runs one timed eager pass over the next tokens: logits [num_logits, vocab_size]."""
        num_cached = len(self.cached_ids)
        tokens = self._tensor(ids[num_cached:])
        if pending is not None:
            tokens = torch.cat([tokens, pending[None, max(num_cached - len(ids), 0) :]], dim=1)
        start = self.passes.clock.mark()
        logits = self._made.read_eagerly(tokens, num_cached, num_logits)
        self.passes.add(num_tokens, start, self.passes.clock.mark())
        self.cached_ids += ids[num_cached:]
        self.cached_ids += [UNKNOWN] * (num_cached + num_tokens - len(self.cached_ids))
        return logits[:, : self.vocab_size]

    def _tensor(self, ids: list[int]) -> torch.Tensor:
        return uploaded(torch.tensor([ids], dtype=torch.long), self.model.device)

    @torch.inference_mode()
    def draft(
        self, ids: list[int], num_tokens: int, draw: Sampler, generator: torch.Generator,
        given: torch.Tensor | None = None,
    ) -> Draft | None:  # fmt: skip
        """Drafts `num_tokens` tokens after `ids` with one recorded graph. Returns None if no matching graph was
        recorded. `given` [num_tokens]: tokens that replace the drawn ones."""
        num_cached = min(num_common(self.cached_ids, ids, None), len(ids) - 1)
        recorded: RecordedDraft | None = self._made.drafts.get((len(ids) - num_cached, num_tokens, draw))
        if recorded is None or len(ids) + num_tokens > self._made.capacity:
            return None
        self.rollback(num_cached)
        self._made.fill(len(ids) - num_cached, num_cached, ids[num_cached:])
        start = self.passes.clock.mark()
        drafted = recorded.run(generator, given)
        end = self.passes.clock.mark()
        self.passes.add_together([len(ids) - num_cached, *[1] * (num_tokens - 1)], start, end)
        self.cached_ids += [*ids[num_cached:], *[UNKNOWN] * (num_tokens - 1)]
        return drafted

    @torch.inference_mode()
    def score_batch(self, ids: list[int], suffixes: list[list[int]]) -> torch.Tensor:
        """Returns the logits after `ids` followed by each suffix, all of equal length: [num_suffixes, vocab_size]."""
        num_each = len(suffixes[0])
        if not self._packs or num_each > PACKED[-1]:
            rows = [self.score(ids + suffix, 1).logits for suffix in suffixes]
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
        """Runs one timed pass over suffixes of equal length, which do not attend to each other and are not kept:
        logits [num_suffixes, vocab_size]."""
        made, num_cached, num_tokens = self._made, len(self.cached_ids), len(suffixes) * num_each
        length = next(length for length in PACKED if length >= num_tokens)
        made.fill_packed(length, num_cached, suffixes)
        start = self.passes.clock.mark()
        logits = made.run(length, "packed")
        self.passes.add(num_tokens, start, self.passes.clock.mark())
        return logits[num_each - 1 : num_tokens : num_each, : self.vocab_size]


def capacity_for(num_tokens: int) -> int:
    """Returns the smallest sufficient capacity among powers of two and the values halfway between them."""
    power = MIN_CAPACITY
    while power < num_tokens:
        power *= 2
    halfway = power * 3 // 4
    return halfway if MIN_CAPACITY <= num_tokens <= halfway else power
