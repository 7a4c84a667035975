"""A cached sequence that recorded or compiled passes read: static buffers and a few fixed query lengths."""

from collections.abc import Collection, Sequence
from typing import Any

import torch

from specbench.core.progress import Say, say_nothing
from specbench.models.compiling import VERBS, CannotCompile, check_compilable
from specbench.models.devices import is_out_of_memory, memory_message, upload
from specbench.models.eager import NO_TREE, UNKNOWN, common_prefix, num_common, num_common_of_tree
from specbench.models.kv_cache import check_attention
from specbench.models.meters import PassLog
from specbench.models.recording import Draft, RecordedDraft, Sampler
from specbench.models.scoring import Output
from specbench.models.static_passes import Kind, PassShape, StaticPasses
from specbench.specs.components import StaticEngine

ATTENTION = ("sdpa", "eager")  # the implementations whose masks are buffers
PACKED = (16, 64)  # lengths of the passes that read several continuations
PROMPTS = (64, 256)  # lengths of the recorded passes that read a prompt; see docs/measured/gpu.md
MIN_CAPACITY = 128
PARTICIPLES = {"compiled": "compiling", "graphs": "recording"}


class StaticSequence:
    """A model's cached sequence, which is extended by passes of the lengths given to `reserve`.

    Shorter inputs are padded at their end. The padding is written into the cache after the sequence, where it is masked
    until later passes overwrite it. A longer input, such as a prompt, is read by one recorded pass over up to 256
    tokens, if the device has graphs, or else by one eager pass over the same buffers.
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
        self._layers = check_compilable(model, name, engine)
        self._records_prompts = True  # unless it failed, or the device has no graphs
        self._reads_trees = model.config._attn_implementation in ATTENTION
        self._kept: dict[
            int, StaticPasses
        ] = {}  # by capacity, since the cells of a run alternate between few capacities
        self._last_position = (context_limit or 2**62) - 1
        self._shapes = [PassShape(1), PassShape(2)]  # of the passes of fixed lengths; others are eager
        self._tree = NO_TREE  # the tree whose keys and values follow the cached sequence
        self.cached_ids: list[int] = []
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
        missing = [shape for shape in [*self._shapes, *self._prompt_shapes()] if not made.has(shape)]
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

    def _prompt_shapes(self) -> list[PassShape]:
        """Returns the shapes of the passes that read prompts into the current buffers, the shortest first."""
        if not (self._static_passes.records and self._records_prompts):
            return []
        lengths = sorted({min(length, self.capacity) for length in PROMPTS})
        hidden = sorted({shape.hidden_layers for shape in self._shapes if shape.kind == "chain"})
        return [PassShape(length, "prompt", layers) for layers in hidden for length in lengths]

    @torch.inference_mode()
    def reserve_draft(self, num_tokens: int, draw: Sampler) -> tuple[int, float]:
        """Records drafts of `num_tokens` tokens (2 or more) as CUDA graphs, if the device has graphs. Returns the
        number of recorded graphs and the seconds spent."""
        if not self._static_passes.records or num_tokens < 2:
            return 0, 0.0
        self.reset()
        return self._static_passes.reserve_draft(num_tokens, draw, self.vocab_size)

    @property
    def verb(self) -> str:
        """The participle of the engine for messages: "compiled" or "recorded"."""
        return VERBS[self.engine]

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
        return self._static_passes.read_eagerly(self._tensor(ids), 0, 0).logits[:, : self.vocab_size]

    @torch.inference_mode()
    def check(self) -> None:
        """Raises CannotCompile if passes cannot be created."""
        self._static_passes.check()

    def reset(self) -> None:
        """Drops the cached sequence; the buffers are kept."""
        self.cached_ids = []
        self._tree = NO_TREE

    def checkpoint(self) -> int:
        """Returns the number of cached tokens, to which `rollback` can return."""
        return len(self.cached_ids)

    def rollback(self, num_tokens: int) -> None:
        """Crops the cache to its first `num_tokens` tokens."""
        del self.cached_ids[num_tokens:]
        self._tree = NO_TREE

    @torch.inference_mode()
    def score(
        self, ids: list[int], num_logits: int, pending: torch.Tensor | None = None, hidden_layers: Sequence[int] = ()
    ) -> Output:
        """Returns the logits after the last `num_logits` tokens of `ids` and `pending`, [num_logits, vocab_size], and
        the hidden states of all tokens that were read."""
        num_tokens = len(ids) + (0 if pending is None else len(pending))
        self.rollback(min(num_common(self.cached_ids, ids, pending), num_tokens - num_logits))
        self._ensure(num_tokens)
        num_left = num_tokens - len(self.cached_ids)
        shape = self._shape(num_left, "chain", hidden_layers)
        if shape is None and num_logits == 1:
            shape = self._prompt_shape(num_left, hidden_layers)
        if shape is None:
            output = self._read_eagerly(ids, num_left, num_logits, pending, hidden_layers)
        else:
            output = self._read(ids, num_left, pending, shape)
        return Output(output.logits[-num_logits:, : self.vocab_size], output.hidden)

    def _shape(self, num_tokens: int, kind: Kind, hidden_layers: Sequence[int]) -> PassShape | None:
        """Returns the shape of the shortest pass that can read `num_tokens` tokens; None if there is none."""
        asked = (kind, tuple(hidden_layers))
        return next((shape for shape in self._shapes if shape[1:] == asked and shape.length >= num_tokens), None)

    def _prompt_shape(self, num_tokens: int, hidden_layers: Sequence[int]) -> PassShape | None:
        """Returns the shape of the shortest recorded pass that reads a prompt of `num_tokens` tokens; None if there is
        none."""
        asked, made = tuple(hidden_layers), self._static_passes
        shapes = (shape for shape in self._prompt_shapes() if shape.hidden_layers == asked and made.has(shape))
        return next((shape for shape in shapes if shape.length >= num_tokens), None)

    def check_trees(self) -> None:
        """Raises ConfigError if passes cannot read draft trees, which needs attention with a mask per token."""
        check_attention(self.model, self.name, ATTENTION)

    @torch.inference_mode()
    def score_tree(
        self, ids: list[int], tree_ids: list[int], parents: Sequence[int], num_logits: int,
        hidden_layers: Sequence[int] = (),
    ) -> Output:  # fmt: skip
        """Returns the logits after the last `num_logits` tokens of `ids` and the tree: [num_logits, vocab_size].

        If this tree begins with the tree read last, reads only the other nodes. A tree that is longer than the longest
        pass over trees is read by one eager pass over the same buffers.
        """
        tree = (list(tree_ids), tuple(parents))
        self._ensure(len(ids) + len(tree_ids))
        num_cached = num_common_of_tree(self.cached_ids, self._tree, ids, tree, num_logits)
        if num_cached <= len(ids):  # the tree read last does not continue
            self.rollback(num_cached)
        self.cached_ids, self._tree = list(ids), tree
        output = self._read_tree(num_cached, hidden_layers)
        return Output(output.logits[-num_logits:, : self.vocab_size], output.hidden)

    def _read_tree(self, num_cached: int, hidden_layers: Sequence[int]) -> Output:
        """Runs one timed pass over the tokens of sequence and tree that follow the first `num_cached`."""
        made, tokens = self._static_passes, [*self.cached_ids, *self._tree[0]]
        num_left, place = len(tokens) - num_cached, (len(self.cached_ids), self._tree[1])
        shape = self._shape(num_left, "tree", hidden_layers)
        if shape is None:
            fed = self._tensor(tokens[num_cached:])
            start = self.passes.clock.mark()
            output = made.read_tree_eagerly(fed, num_cached, *place, hidden_layers)
        else:
            first = made.first_column(num_cached, shape.length)
            made.fill_tree(shape.length, first, tokens[first:], *place)
            start = self.passes.clock.mark()
            output = slice_output(made.run(shape), num_cached - first, len(tokens) - first)
        self.passes.add(num_left, start, self.passes.clock.mark())
        return output

    @torch.inference_mode()
    def keep_path(self, path: Sequence[int]) -> None:
        """Keeps the nodes `path` of the tree read last in the cache as tokens of the sequence, and drops all others."""
        start, tree_ids = len(self.cached_ids), self._tree[0]
        if list(path) != list(range(len(path))):
            self._static_passes.move(start, [start + node for node in path])
        self.cached_ids += [tree_ids[node] for node in path]
        self._tree = NO_TREE

    def _read(self, ids: list[int], num_tokens: int, pending: torch.Tensor | None, shape: PassShape) -> Output:
        """Runs one timed pass over the next tokens: logits [num_tokens, output_size], or [1, output_size] for a prompt,
        and hidden states."""
        made, num_cached = self._static_passes, len(self.cached_ids)
        first = made.first_column(num_cached, shape.length)
        tokens = ids[first : num_cached + num_tokens]
        fill = made.fill_prompt if shape.kind == "prompt" else made.fill
        if pending is None:
            fill(shape.length, first, tokens)
        else:
            tokens += [UNKNOWN] * (num_cached + num_tokens - first - len(tokens))
            fill(shape.length, first, ids[first:], pending[max(first - len(ids), 0) :])
        start = self.passes.clock.mark()
        output = made.run(shape)
        self.passes.add(num_tokens, start, self.passes.clock.mark())
        self.cached_ids += tokens[num_cached - first :]
        read = slice_output(output, len(tokens) - num_tokens, len(tokens))
        return Output(output.logits, read.hidden) if shape.kind == "prompt" else read

    def _read_eagerly(
        self, ids: list[int], num_tokens: int, num_logits: int, pending: torch.Tensor | None,
        hidden_layers: Sequence[int],
    ) -> Output:  # fmt: skip
        """Runs one timed eager pass over the next tokens: logits [num_logits, output_size] and hidden states."""
        num_cached = len(self.cached_ids)
        tokens = self._tensor(ids[num_cached:])
        if pending is not None:
            tokens = torch.cat([tokens, pending[None, max(num_cached - len(ids), 0) :]], dim=1)
        start = self.passes.clock.mark()
        output = self._static_passes.read_eagerly(tokens, num_cached, num_logits, hidden_layers=hidden_layers)
        self.passes.add(num_tokens, start, self.passes.clock.mark())
        self.cached_ids += ids[num_cached:]
        self.cached_ids += [UNKNOWN] * (num_cached + num_tokens - len(self.cached_ids))
        return output

    def _tensor(self, ids: list[int]) -> torch.Tensor:
        return upload(torch.tensor([ids], dtype=torch.long), self.model.device)

    @torch.inference_mode()
    def draft(
        self, ids: list[int], num_tokens: int, draw: Sampler, generator: torch.Generator,
        given: torch.Tensor | None = None,
    ) -> Draft | None:  # fmt: skip
        """Drafts `num_tokens` tokens after `ids` with one recorded graph. Returns None if no matching graph was
        recorded. `given` [num_tokens]: tokens that replace the drawn ones."""
        num_cached = min(num_common(self.cached_ids, ids, None), len(ids) - 1)
        recorded: RecordedDraft | None = self._static_passes.drafts.get((len(ids) - num_cached, num_tokens, draw))
        if recorded is None or len(ids) + num_tokens > self._static_passes.capacity:
            return None
        self.rollback(num_cached)
        self._static_passes.fill(len(ids) - num_cached, num_cached, ids[num_cached:])
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
        if not self._reads_trees or num_each > PACKED[-1]:
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
        """Runs one timed pass over suffixes of equal length, as branches of a tree that is not kept: logits
        [num_suffixes, vocab_size]."""
        made, num_cached, num_tokens = self._static_passes, len(self.cached_ids), len(suffixes) * num_each
        length = next(length for length in PACKED if length >= num_tokens)
        parents = [node - 1 if node % num_each else -1 for node in range(num_tokens)]
        made.fill_tree(length, num_cached, [token for suffix in suffixes for token in suffix], num_cached, parents)
        start = self.passes.clock.mark()
        logits = made.run(PassShape(length, "tree")).logits
        self.passes.add(num_tokens, start, self.passes.clock.mark())
        return logits[num_each - 1 : num_tokens : num_each, : self.vocab_size]


def slice_output(output: Output, start: int, end: int) -> Output:
    """Returns the results of the tokens `start` to `end` of a pass."""
    return Output(output.logits[start:end], tuple(states[start:end] for states in output.hidden))


def capacity_for(num_tokens: int) -> int:
    """Returns the smallest sufficient capacity among powers of two and the values halfway between them."""
    power = MIN_CAPACITY
    while power < num_tokens:
        power *= 2
    halfway = power * 3 // 4
    return halfway if MIN_CAPACITY <= num_tokens <= halfway else power
