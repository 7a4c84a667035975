"""Forward passes of fixed shapes over a static cache (recorded as CUDA graphs, compiled, or both), and the cached
sequence that they read: static buffers and a few fixed query lengths."""

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, TypedDict

import torch
from transformers.cache_utils import Cache

from specbench.core.errors import ConfigError
from specbench.core.progress import Say, say_nothing
from specbench.models.agreement import SAFETY, agree, apart, example_ids, rounding_at_random
from specbench.models.checkpoints import one_line
from specbench.models.compiling import (
    CannotCompile,
    HiddenStates,
    check_compilable,
    compile_pass,
    decoder_layers,
    one_layer_of_each_kind,
    shared_layers,
    with_own_code,
)
from specbench.models.devices import cache_room, is_out_of_memory, memory_message, noting_memory, upload
from specbench.models.eager import UNKNOWN, CachedSequence, num_common
from specbench.models.fused import attending_in_groups, fusable_norms, fused_norms
from specbench.models.kv_cache import (
    PreallocatedLayer,
    StaticLayer,
    by_layer_type,
    cache_parameter,
    check_attention,
    tree_inputs,
)
from specbench.models.meters import PassLog
from specbench.models.recording import RecordedDraft, SharedStream, has_graphs, record_graph
from specbench.models.scoring import PACKED, VERBS, Draft, Kind, Output, PassShape, Sampler
from specbench.specs.components import StaticEngine

NUM_READ_BEFORE = 8  # cached tokens when a pass is compared with the eager ones
NUM_ROUNDED = 4  # eager passes that round at random
NUM_MOVED = 16  # tokens of an accepted path that are moved at once; a shorter path is padded


class PassOptions(TypedDict, total=False):
    """What a pass reads besides its tokens; see `StaticPasses.forward`."""

    positions: torch.Tensor
    mask: Any
    num_logits: int | torch.Tensor
    hidden_layers: Sequence[int]


class StaticPasses:
    """The passes of a model over buffers for `capacity` tokens, each created at its first use.

    A pass reads tokens from fixed input buffers and returns the logits and hidden states of all of them. Passes over
    trees of the same length share the buffers for positions and masks. On a GPU every pass is recorded; with the engine
    "compiled", its layers are compiled first, except for passes over prompts. On a CPU, a pass is compiled as a whole,
    but its layers only once.
    """

    def __init__(
        self, model: Any, name: str, layers: Sequence[PreallocatedLayer], capacity: int, last_position: int,
        engine: StaticEngine,
    ) -> None:  # fmt: skip
        self.model = model
        self.name = name
        self.capacity = capacity
        self.last_position = last_position
        self.engine = engine
        self.device: torch.device = model.device
        self.records = has_graphs(self.device)
        self._groups_heads = self.records or model.dtype == torch.bfloat16  # as eager passes on a CPU
        self.start = torch.zeros((), dtype=torch.long, device=self.device)
        places = torch.zeros(capacity, dtype=torch.long, device=self.device) if self.records else None
        torch._dynamo.mark_static_address(self.start)
        self._layers = [StaticLayer(layer.is_sliding, capacity, self.start, places) for layer in layers]
        self.cache = Cache(layers=[*self._layers])
        self._cache_name = cache_parameter(model.forward)
        self._places = places
        self.seconds = 0.0  # spent on creating passes
        self.num_made = 0
        self._inputs: dict[int, torch.Tensor] = {}
        self.made: dict[PassShape, Callable[[], Output]] = {}
        self._apart = 0.0  # the largest distance between the logits of right passes that was found
        self._tree_buffers: dict[int, tuple[torch.Tensor, dict[str, torch.Tensor]]] = {}
        self._forwards: dict[int, Callable[..., Output]] = {}  # with compiled layers, by length
        self._last_place = torch.zeros(1, dtype=torch.long, device=self.device)  # of a prompt's last token in its pass
        self._sources = torch.arange(NUM_MOVED, device=self.device)
        self._hidden: HiddenStates | None = None
        self._move: Callable[[], torch.Tensor] | None = None
        self.drafts: dict[tuple[int, int, Sampler], RecordedDraft] = {}  # by (first pass's tokens, draft length, draw)
        self._stream = SharedStream(self.device) if self.records else None
        # torch.compile fuses norms itself.
        self._norms = fusable_norms(model) if self.records and engine == "graphs" else []
        with self._noting_memory(f"in buffers of model '{name}' for {capacity} tokens"):
            self.forward(self.input(1))  # allocates the buffers before anything is compiled
        self._shared = shared_layers(model, self.cache) if engine == "compiled" else None

    def input(self, length: int) -> torch.Tensor:
        """Returns the input buffer of passes over `length` tokens: [1, length]."""
        if length not in self._inputs:
            tokens = torch.zeros((1, length), dtype=torch.long, device=self.device)
            torch._dynamo.mark_static_address(tokens)
            self._inputs[length] = tokens
        return self._inputs[length]

    def fill(self, shape: PassShape, start: int, tokens: list[int], pending: torch.Tensor | None = None) -> None:
        """Fills the input of a pass with `tokens`, which follow the first `start` tokens of the sequence, and `pending`
        after them. The rest of the input is unchanged."""
        self.start.fill_(start)
        buffer = self.input(shape.length)
        if shape.kind == "prompt":
            self._last_place.fill_(len(tokens) + (0 if pending is None else len(pending)) - 1)
        if pending is not None:
            buffer[0, len(tokens) : len(tokens) + len(pending)] = pending
            if not tokens:
                return
        if shape.length == 1:
            buffer.fill_(tokens[0])
        else:
            buffer[0, : len(tokens)] = upload(torch.tensor(tokens), buffer.device)

    def fill_tree(
        self, shape: PassShape, first: int, tokens: list[int], num_prefix: int, parents: Sequence[int]
    ) -> None:
        """Fills the input of a pass with `tokens`, which are the tokens from column `first` on of a sequence of
        `num_prefix` tokens followed by a tree."""
        self.fill(shape, first, tokens)
        positions, masks = self.tree_buffers(shape.length)
        node_positions, found_masks = self._tree_inputs(num_prefix, parents, first, shape.length)
        positions[0].copy_(node_positions)
        for layer_type, mask in masks.items():
            mask.copy_(found_masks[layer_type])

    def _tree_inputs(
        self, num_prefix: int, parents: Sequence[int], first: int, num_read: int
    ) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        windows = {layer.is_sliding for layer in self._layers}
        return tree_inputs(self.model, windows, num_prefix, parents, first, num_read, self.capacity)

    def fill_example(self, shape: PassShape) -> None:
        """Fills in an example on which a pass that reads wrong positions gives other logits: all tokens differ, and
        some are cached before the pass. Overwrites the cached sequence."""
        length = shape.length
        before = min(NUM_READ_BEFORE, self.capacity - length)
        num_tokens = max(1, length - 1)
        ids = example_ids(before + num_tokens, self.model.get_input_embeddings().num_embeddings)
        if before:
            self.read_eagerly(torch.tensor([ids[:before]], device=self.device), 0, 1)
        if shape.kind == "tree":  # two chains
            parents = [-1 if node == num_tokens // 2 else node - 1 for node in range(num_tokens)]
            self.fill_tree(shape, before, ids[before:], before, parents)
        else:
            self.fill(shape, before, ids[before:])

    def tree_buffers(self, length: int) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """Returns the additional input buffers of passes over trees: positions [1, length] and the attention mask of
        each type of layers, [1, 1, length, capacity]."""
        if length not in self._tree_buffers:
            _, masks = self._tree_inputs(1, (), 0, length)
            positions = torch.zeros_like(self.input(length))
            for buffer in (positions, *masks.values()):
                torch._dynamo.mark_static_address(buffer)
            self._tree_buffers[length] = (positions, masks)
        return self._tree_buffers[length]

    def run(self, shape: PassShape) -> Output:
        """Runs a pass over its input buffers: logits [length, output_size], or [1, output_size] for a prompt, and
        hidden states [length, width] of each layer. Raises CannotCompile if the pass cannot be created, and ConfigError
        if it fails."""
        forward = self.made.get(shape)
        if forward is None:
            forward = self._create_pass(shape)
        try:
            output = forward()
        except Exception as error:  # kernels raise many classes
            if is_out_of_memory(error):
                room = cache_room(self._layers, self.device)
                error.add_note(f"in a pass of model '{self.name}' over {shape.length} tokens{room}")
                raise
            raise ConfigError(
                f"--engine {self.engine}: a {VERBS[self.engine]} pass of model '{self.name}' over {shape.length} "
                f"tokens failed ({one_line(error)}): take --engine eager, or another model"
            ) from error
        if not self.records:
            return output
        # The next replay overwrites a CUDA graph's output.
        return Output(output.logits.clone(), tuple(states.clone() for states in output.hidden))

    def move(self, start: int, places: list[int]) -> None:
        """Moves the keys and values of the tokens at `places`, in ascending order, to the positions from `start` on."""
        move = self.path_move()
        moved = places[:NUM_MOVED]
        later = places[NUM_MOVED:]
        first = min(start, self.capacity - NUM_MOVED)
        sources = torch.arange(first, first + NUM_MOVED)
        sources[start - first : start - first + len(moved)] = torch.tensor(moved)
        self._sources.copy_(upload(sources, self.device))
        self.start.fill_(first)
        move()
        if later:  # which are behind the positions that were written
            self.move(start + NUM_MOVED, later)

    def path_move(self) -> Callable[[], torch.Tensor]:
        """Returns the function that moves the tokens at `_sources` to `start`; it is recorded if passes are."""
        if self._move is None:
            numbers = torch.arange(NUM_MOVED, device=self.device)

            def move() -> torch.Tensor:
                targets = self.start + numbers
                for layer in self._layers:
                    layer.move(self._sources, targets)
                return targets

            self._sources.copy_(numbers)  # so that recording it moves nothing
            self.start.zero_()
            self._move = record_graph(move, self.device) if self.records else move
        return self._move

    def reserve_draft(self, num_tokens: int, draw: Sampler, vocab_size: int) -> tuple[int, float]:
        """Records drafts of `num_tokens` tokens after one uncached token, and after two, which follow the acceptance of
        a whole draft. Returns the number of recorded graphs and the seconds spent. Raises CannotCompile if a recorded
        draft gives other logits."""
        started = time.perf_counter()
        num_made = 0
        for num_read in (1, 2):
            if (num_read, num_tokens, draw) not in self.drafts and num_read + num_tokens <= self.capacity:
                assert self._stream is not None
                self.start.zero_()
                forwards = self.recordable_forward(num_read), self.recordable_forward(1)
                with self._noting_memory(f"while a draft of model '{self.name}' of {num_tokens} tokens was recorded"):
                    recorded_draft = RecordedDraft(
                        forwards, self.input(num_read), self.start, self._stream, num_tokens, draw, vocab_size
                    )
                if recorded_draft.differs_from(self.forward, partial(agree, limit=SAFETY * self._apart)):
                    raise CannotCompile(self.name, "a recorded draft gives other logits", self.engine)
                self.drafts[num_read, num_tokens, draw] = recorded_draft
                num_made += 1
        return num_made, time.perf_counter() - started

    def check(self) -> None:
        """Creates one pass, or, where compilation takes long, only traces it, with one layer of each kind. Raises
        CannotCompile if that fails."""
        if self.engine == "graphs":
            self.fill_example(PassShape(1))
            self.run(PassShape(1))
            return
        tokens = self.input(1)
        if self._shared is not None and self.records:
            run = self._shared.compile_layers(self.forward, 1, "traced", backend="eager")
            traced: Callable[[], Output] = partial(run, tokens)
        else:
            traceable = with_own_code(lambda: self.forward(tokens), "traced")
            traced = torch.compile(traceable, fullgraph=True, dynamic=False, backend="eager")
        layers = decoder_layers(self.model, self.cache)
        with self._nested(), nullcontext() if layers is None else one_layer_of_each_kind(layers):
            try:
                traced()
            except Exception as error:  # untraceable networks raise many classes
                if is_out_of_memory(error):
                    raise
                reason = one_line(error).partition(" Explanation: ")[0]
                raise CannotCompile(self.name, f"a pass is not a single graph: {reason}") from error

    def _nested(self) -> AbstractContextManager[None]:
        """Makes torch compile, on a CPU, one layer for all layers of the passes that are traced during the block."""
        return nullcontext() if self._shared is None or self.records else self._shared.nested()

    def read_eagerly(
        self, tokens: torch.Tensor, start: int, num_logits: int, num_prefix: int = 0, parents: Sequence[int] = (),
        hidden_layers: Sequence[int] = (),
    ) -> Output:  # fmt: skip
        """Runs one eager pass over tokens [1, num_tokens] at position `start`, such as a prompt, if no pass of a fixed
        length can read them: logits [num_logits, output_size]. `parents`: see `fill_tree`."""
        options: PassOptions = {"num_logits": num_logits, "hidden_layers": hidden_layers}
        if parents:
            positions, masks = self._tree_inputs(num_prefix, parents, start, tokens.shape[1])
            options |= {"positions": positions[None], "mask": by_layer_type(masks)}
        self.start.fill_(start)
        with self._noting_memory(f"in a pass of model '{self.name}' over {tokens.shape[1]} tokens"):
            return self.forward(tokens, **options)

    def _noting_memory(self, place: str) -> AbstractContextManager[None]:
        return noting_memory(place, self._layers, self.device)

    def recordable_forward(self, length: int) -> Callable[..., Output]:
        """Returns the function to be recorded for a query length: `forward`, with compiled layers if they are
        shared."""
        if self._shared is None or not self.records:
            return self.forward
        if length not in self._forwards:
            self._forwards[length] = self._shared.compile_layers(
                self.forward, length, f"layer_{length}_{self.capacity}"
            )
        return self._forwards[length]

    def _create_pass(self, shape: PassShape) -> Callable[[], Output]:
        """Creates a pass and compares it with eager ones on its current inputs. Raises CannotCompile if it fails or its
        results differ."""
        # 1. What the pass reads besides its tokens stands in buffers, too, so that one graph serves all inputs.
        started = time.perf_counter()
        length = shape.length
        places = self.start + torch.arange(length, device=self.device)
        options: PassOptions = {"hidden_layers": shape.hidden_layers}
        if shape.kind == "tree":
            positions, masks = self.tree_buffers(length)
            options |= {"positions": positions, "mask": by_layer_type(masks)}
        elif shape.kind == "prompt":
            options["num_logits"] = self._last_place
        # 2. Eager passes over the same inputs say what the new one must give, and how far right ones are apart.
        try:
            with self._noting_memory(f"while a pass of model '{self.name}' over {length} tokens was made"):
                right = list(self._right_readings(places, options))
                created = (self._record if self.records else self._compile)(shape, options)
                # Keys and values that the new pass does not write, such as those of a layer that it lacks, are no
                # numbers, not those that the eager passes have left.
                self._fill(torch.nan, places)
                found = self._reading(places, created())
        except CannotCompile:
            raise
        except Exception as error:  # untraceable networks and compilers raise many classes
            self._fill(0.0)  # also where a wrong pass has spread what is not a number
            if is_out_of_memory(error):
                raise
            raise CannotCompile(self.name, one_line(error), self.engine) from error
        # 3. A pass that gives anything else is no faster pass but another model. Rounding grows from layer to layer, so
        # that what the first ones keep shows a wrong position or mask that may hide in the noise of the logits.
        for what in found:
            expected = [reading[what] for reading in right]
            if not all(agree(*pair) for pair in zip(found[what], zip(*expected, strict=True), strict=True)):
                reason = f"{VERBS[self.engine]}, a pass over {length} tokens gives other {what}"
                self._fill(0.0)  # also where a wrong pass has spread what is not a number
                raise CannotCompile(self.name, reason, self.engine)
        self._apart = max(self._apart, apart([reading["logits"][0] for reading in right]))
        self.seconds += time.perf_counter() - started
        self.num_made += 1
        self.made[shape] = created
        return created

    def _right_readings(self, places: torch.Tensor, options: PassOptions) -> Iterator[dict[str, list[torch.Tensor]]]:
        """Reads the current inputs of a pass, which is about to write at `places`, in eager passes that round otherwise
        than each other."""
        tokens = self.input(len(places))
        yield self._reading(places, self.forward(tokens, **options))
        for seed in range(NUM_ROUNDED):
            with rounding_at_random(self.model, seed):
                yield self._reading(places, self.forward(tokens, **options))

    def _reading(self, places: torch.Tensor, output: Output) -> dict[str, list[torch.Tensor]]:
        """Returns what a pass gives, and what it keeps at `places`: lists of rows, [length, …] each."""
        kept = []
        for layer in self._layers:
            for buffer in (layer.keys, layer.values):
                assert buffer is not None
                kept.append(buffer.index_select(2, places)[0].transpose(0, 1).flatten(1))
        return {
            "logits": [output.logits.clone()], "hidden states": [states.clone() for states in output.hidden],
            "keys and values": kept,
        }  # fmt: skip

    def _fill(self, value: float, places: torch.Tensor | None = None) -> None:
        """Fills the keys and values at `places`, or all of them."""
        for layer in self._layers:
            for buffer in (layer.keys, layer.values):
                assert buffer is not None
                if places is None:
                    buffer.fill_(value)
                else:
                    buffer.index_fill_(2, places, value)

    def _compile(self, shape: PassShape, options: PassOptions) -> Callable[[], Output]:
        tokens = self.input(shape.length)

        def forward() -> Output:
            return self.forward(tokens, **options)

        if self.engine == "graphs":  # on a device without graphs: the eager pass
            return forward
        with self._nested():
            return compile_pass(forward, f"forward_{shape.length}_{self.capacity}")

    def _record(self, shape: PassShape, options: PassOptions) -> Callable[[], Output]:
        """Records a pass with other tokens and another position than its current inputs, so that the comparison detects
        a graph that captured them as constants."""
        length = shape.length
        is_prompt = shape.kind == "prompt"
        forward = self.forward if is_prompt else self.recordable_forward(length)
        tokens = self.input(length)
        asked, start, last_place = tokens.clone(), self.start.clone(), self._last_place.clone()
        tokens.copy_((asked + 1) % self.model.get_input_embeddings().num_embeddings)
        self.start.copy_((start + 1).clamp_max(self.capacity - length))
        self._last_place.copy_((last_place + 1) % length)
        if self.engine == "compiled" and self._shared is None and not is_prompt:
            forward = compile_pass(lambda: self.forward(tokens, **options), f"forward_{length}_{self.capacity}")
            graph = record_graph(forward, self.device)
        else:
            graph = record_graph(lambda: forward(tokens, **options), self.device)
        tokens.copy_(asked)
        self.start.copy_(start)
        self._last_place.copy_(last_place)
        return graph

    def forward(
        self, tokens: torch.Tensor, positions: torch.Tensor | None = None, mask: Any = None,
        num_logits: int | torch.Tensor = 0, hidden_layers: Sequence[int] = (),
    ) -> Output:  # fmt: skip
        """Runs transformers' forward pass over tokens [1, num_tokens] at `start`. Returns the logits of the last
        `num_logits` tokens (0: all), or those of the tokens at the places that a tensor holds, and the hidden states of
        all tokens."""
        places = self.start + torch.arange(tokens.shape[1], device=tokens.device)
        if self._places is not None:
            self._places[: tokens.shape[1]] = places
        if positions is None:
            positions = places[None]
        given = {"position_ids": positions.clamp_max(self.last_position), "attention_mask": mask}
        given |= {"logits_to_keep": num_logits, self._cache_name: self.cache, "use_cache": True}
        if hidden_layers:
            if self._hidden is None:
                self._hidden = HiddenStates(self.model, self.name, self.cache, self.engine)
            self._hidden.start(hidden_layers)
        with attending_in_groups(self.model.config) if self._groups_heads else nullcontext(), fused_norms(self._norms):
            logits = self.model(input_ids=tokens, **given).logits[0]
        if self._hidden is None or not hidden_layers:
            return Output(logits)
        return Output(logits, tuple(states[0] for states in self._hidden.stop(hidden_layers)))


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
        static_passes = self._static_passes
        before = self._static_passes.seconds
        num_made = static_passes.num_made
        if static_passes.records and self._records_prompts:  # the shortest first
            prompts = sorted({min(length, self.capacity) for length in PROMPTS})
            hidden = sorted({shape.hidden_layers for shape in self._shapes if shape.kind == "chain"})
            self._shapes += [PassShape(length, "prompt", layers) for layers in hidden for length in prompts]
        missing = [shape for shape in self._shapes if shape not in static_passes.made]
        if missing:
            missing_lengths = ", ".join(str(shape.length) for shape in missing)
            wait = "; that takes seconds to minutes, less once torch has them in its cache"
            progress(
                f"{PARTICIPLES[self.engine]} {self.name} for {static_passes.capacity} tokens: {len(missing)} passes, "
                f"of {missing_lengths} tokens{wait if self.engine == 'compiled' else ''}"
            )
        for number, shape in enumerate(missing, start=1):
            try:
                static_passes.fill_example(shape)
                static_passes.run(shape)
            except Exception as error:  # recording raises many classes
                if shape.kind != "prompt" or not (isinstance(error, CannotCompile) or is_out_of_memory(error)):
                    raise
                self._records_prompts = False
                reason = error.reason if isinstance(error, CannotCompile) else memory_message(error)
                progress(f"{self.name}: prompts are read by passes that are not recorded: {reason}")
                break
            progress(
                f"{self.name}: {number} of {len(missing)} passes are ready, {static_passes.seconds - before:.0f} s"
            )
        if longest_tree:
            static_passes.path_move()
        return static_passes.num_made - num_made, static_passes.seconds - before

    @torch.inference_mode()
    def reserve_draft(self, num_tokens: int, draw: Sampler) -> tuple[int, float]:
        if not self._static_passes.records or num_tokens < 2:
            return 0, 0.0
        self.reset()
        return self._static_passes.reserve_draft(num_tokens, draw, self.vocab_size)

    @property
    def capacity(self) -> int:
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
        self._static_passes.check()

    def _shape(self, num_tokens: int, kind: Kind, hidden_layers: Sequence[int]) -> PassShape | None:
        """Returns the shape of the shortest pass that can read `num_tokens` tokens; None if there is none."""
        asked = (kind, tuple(hidden_layers))
        static_passes = self._static_passes
        shapes = (
            shape for shape in self._shapes if shape[1:] == asked and (kind != "prompt" or shape in static_passes.made)
        )
        return next((shape for shape in shapes if shape.length >= num_tokens), None)

    def check_trees(self) -> None:
        check_attention(self.model, self.name, ATTENTION)

    def _read(
        self, ids: list[int], pending: torch.Tensor | None, parents: Sequence[int], num_read: int, num_replayed: int,
        num_logits: int, hidden_layers: Sequence[int],
    ) -> Output:  # fmt: skip
        """See CachedSequence. What is longer than all passes is read by one eager pass over the same buffers."""
        static_passes = self._static_passes
        num_prefix = len(ids) - len(parents)
        num_tokens = len(ids) + (0 if pending is None else len(pending))
        num_cached = num_tokens - num_read
        shape = self._shape(num_read, "tree" if parents else "chain", hidden_layers)
        if shape is None and num_logits == 1 and not parents:
            shape = self._shape(num_read, "prompt", hidden_layers)
        if shape is None:
            given = (self._input(ids, pending, num_read), num_cached, 0 if parents else num_logits, num_prefix, parents)
            return self.passes.timed(num_read, static_passes.read_eagerly, *given, hidden_layers=hidden_layers)
        # Near the end of the buffers, some tokens are read again.
        first = min(num_cached, static_passes.capacity - shape.length)
        if parents:
            static_passes.fill_tree(shape, first, ids[first:], num_prefix, parents)
        else:
            static_passes.fill(
                shape, first, ids[first:], None if pending is None else pending[max(first - len(ids), 0) :]
            )
        output = self.passes.timed(num_read, static_passes.run, shape)
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
        static_passes = self._static_passes
        num_cached = len(self.cached_ids)
        num_each = len(suffixes[0])
        num_rows = PACKED[-1] // num_each
        for start in range(0, len(suffixes), num_rows):
            tokens = [token for suffix in suffixes[start : start + num_rows] for token in suffix]
            shape = PassShape(next(length for length in PACKED if length >= len(tokens)), "tree")
            parents = [node - 1 if node % num_each else -1 for node in range(len(tokens))]
            static_passes.fill_tree(shape, num_cached, tokens, num_cached, parents)
            logits = self.passes.timed(len(tokens), static_passes.run, shape).logits
            yield logits[num_each - 1 : len(tokens) : num_each, : self.vocab_size]


def capacity_for(num_tokens: int) -> int:
    """Returns the smallest sufficient capacity among powers of two and the values halfway between them."""
    power = MIN_CAPACITY
    while power < num_tokens:
        power *= 2
    halfway = power * 3 // 4
    return halfway if MIN_CAPACITY <= num_tokens <= halfway else power
