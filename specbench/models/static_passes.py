"""Forward passes of fixed shapes over a static cache: recorded as CUDA graphs, compiled, or both."""

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal

import torch
from transformers.cache_utils import Cache

from specbench.core.errors import ConfigError
from specbench.models.checkpoints import one_line
from specbench.models.compiling import (
    CannotCompile,
    check_traced,
    compiled,
    same_logits,
    shared_layers,
    with_own_code,
)
from specbench.models.devices import is_out_of_memory, uploaded
from specbench.models.drafting import RecordedDraft, Sampler
from specbench.models.fused import attending_in_groups
from specbench.models.kv_cache import PreallocatedLayer
from specbench.models.recording import SharedStream, has_graphs, recorded
from specbench.models.static_cache import StaticLayer
from specbench.specs.components import StaticEngine

Kind = Literal["all", "packed"]
NUM_READ_BEFORE = 8  # cached tokens when a pass is compared with the eager one


class StaticPasses:
    """The passes of a model over buffers for `capacity` tokens, each created at its first use.

    A pass reads `length` tokens and returns the logits of all of them. A "packed" pass reads several continuations with
    given positions and a given mask. Each pass reads fixed input buffers. On a GPU every pass is recorded; with the
    engine "compiled", its layers are compiled first. On a CPU a pass is compiled as a whole.
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
        self.start = torch.zeros((), dtype=torch.long, device=self.device)
        places = torch.zeros(capacity, dtype=torch.long, device=self.device) if self.records else None
        torch._dynamo.mark_static_address(self.start)
        self.cache = Cache(layers=[StaticLayer(layer.is_sliding, capacity, self.start, places) for layer in layers])
        self._places = places
        self.seconds = 0.0  # spent on creating passes
        self.num_made = 0
        self._inputs: dict[int, torch.Tensor] = {}
        self._passes: dict[tuple[int, str], Callable[[], torch.Tensor]] = {}
        self._packing: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self._forwards: dict[int, Callable[..., torch.Tensor]] = {}  # with compiled layers, by length
        self.drafts: dict[tuple[int, int, Sampler], RecordedDraft] = {}  # by tokens of the first pass, draft length
        self._stream = SharedStream(self.device) if self.records else None
        self.forward(self.input(1))  # allocates the buffers before anything is compiled
        self._shared = shared_layers(model, self.cache) if self.records and engine == "compiled" else None

    def input(self, length: int) -> torch.Tensor:
        """Returns the input buffer of passes over `length` tokens: [1, length]."""
        if length not in self._inputs:
            tokens = torch.zeros((1, length), dtype=torch.long, device=self.device)
            torch._dynamo.mark_static_address(tokens)
            self._inputs[length] = tokens
        return self._inputs[length]

    def fill(self, length: int, start: int, tokens: list[int], pending: torch.Tensor | None = None) -> None:
        """Fills the input of a pass with `tokens` and `pending`, which follow the first `start` tokens of the sequence.
        The rest of the input is unchanged."""
        self.start.fill_(start)
        buffer = self.input(length)
        if pending is not None:
            buffer[0, len(tokens) : len(tokens) + len(pending)] = pending
            if not tokens:
                return
        if length == 1:
            buffer.fill_(tokens[0])
        else:
            buffer[0, : len(tokens)] = uploaded(torch.tensor(tokens), buffer.device)

    def fill_packed(self, length: int, start: int, suffixes: list[list[int]]) -> None:
        """Fills the input of a packed pass with suffixes of equal length. Each attends to the first `start` tokens and
        to itself, not to other suffixes."""
        num_each, num_tokens = len(suffixes[0]), sum(map(len, suffixes))
        self.fill(length, start, [token for suffix in suffixes for token in suffix])
        positions, mask = self.packing(length)
        places = torch.arange(num_tokens, device=mask.device)
        positions[0, :num_tokens] = start + places % num_each
        mask.fill_(False)
        mask[..., :start] = True
        sees = (places[:, None] >= places) & (places[:, None] // num_each == places // num_each)
        mask[0, 0, :num_tokens, start : start + num_tokens] = sees

    def fill_example(self, length: int, kind: Kind) -> None:
        """Fills in an example on which a pass that reads wrong positions gives different logits: all tokens differ, and
        some are cached before the pass. Overwrites the cached sequence."""
        before = min(NUM_READ_BEFORE, self.capacity - length)
        num_tokens = max(1, length - 1)
        ids = [number % self.model.get_input_embeddings().num_embeddings for number in range(before + num_tokens)]
        if before:
            self.read_eagerly(torch.tensor([ids[:before]], device=self.device), 0, 1)
        if kind == "packed":
            half = num_tokens // 2
            self.fill_packed(length, before, [ids[before : before + half], ids[before + half : before + 2 * half]])
        else:
            self.fill(length, before, ids[before:])

    def packing(self, length: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns the further input buffers of packed passes: positions [1, length] and the attention mask
        [1, 1, length, capacity]."""
        if length not in self._packing:
            mask = torch.ones((1, 1, length, self.capacity), dtype=torch.bool, device=self.device)
            made = (torch.zeros_like(self.input(length)), mask)
            for buffer in made:
                torch._dynamo.mark_static_address(buffer)
            self._packing[length] = made
        return self._packing[length]

    def run(self, length: int, kind: Kind) -> torch.Tensor:
        """Runs a pass over its input buffers. Returns logits [length, output_size]. Raises CannotCompile if the pass
        cannot be created, and ConfigError if it fails."""
        forward = self._passes.get((length, kind))
        if forward is None:
            forward = self._made(length, kind)
        try:
            logits = forward()
        except Exception as error:  # kernels raise many classes
            if is_out_of_memory(error):
                error.add_note(f"in a pass of model '{self.name}' over {length} tokens")
                raise
            made = "compiled" if self.engine == "compiled" else "recorded"
            raise ConfigError(
                f"--engine {self.engine}: a {made} pass of model '{self.name}' over {length} tokens failed "
                f"({one_line(error)}): take --engine eager, or another model"
            ) from error
        return logits.clone() if self.records else logits  # the next replay overwrites a CUDA graph's output

    def reserve_draft(self, num_tokens: int, draw: Sampler, vocab_size: int) -> tuple[int, float]:
        """Records drafts of `num_tokens` tokens after one uncached token, and after two, as when a whole draft was
        accepted. Returns the number of recorded graphs and the seconds spent. Raises CannotCompile if a recorded draft
        gives different logits."""
        started, num_made = time.perf_counter(), 0
        for num_read in (1, 2):
            if (num_read, num_tokens, draw) not in self.drafts and num_read + num_tokens <= self.capacity:
                assert self._stream is not None
                self.start.zero_()
                forwards = self.forward_of(num_read), self.forward_of(1)
                made = RecordedDraft(
                    forwards, self.input(num_read), self.start, self._stream, num_tokens, draw, vocab_size
                )
                if made.differs_from(self.forward, same_logits):
                    raise CannotCompile(self.name, "a recorded draft gives other logits", self.engine)
                self.drafts[num_read, num_tokens, draw] = made
                num_made += 1
        return num_made, time.perf_counter() - started

    def has(self, length: int, kind: Kind) -> bool:
        """Returns whether a pass exists already."""
        return (length, kind) in self._passes

    def check(self) -> None:
        """Creates one pass, or only traces it where compilation takes long. Raises CannotCompile if that fails."""
        if self.engine == "graphs":
            self.fill_example(1, "all")
            self.run(1, "all")
            return
        tokens = self.input(1)
        if self._shared is not None:
            run = self._shared.compiled(self.forward, 1, "traced", backend="eager")
            traced: Callable[[], torch.Tensor] = partial(run, tokens)
        else:
            own = with_own_code(lambda: self.forward(tokens), "traced")
            traced = torch.compile(own, fullgraph=True, backend="eager")
        check_traced(traced, self.name)

    def read_eagerly(self, tokens: torch.Tensor, start: int, num_logits: int) -> torch.Tensor:
        """Runs one eager pass over tokens [1, num_tokens] at position `start`: logits [num_logits, output_size]. It is
        used for prompts, which have no pass of their length."""
        self.start.fill_(start)
        return self.forward(tokens, num_logits=num_logits)

    def forward_of(self, length: int) -> Callable[..., torch.Tensor]:
        """Returns the function that is recorded for a query length: `forward`, with compiled layers if they are
        shared."""
        if self._shared is None:
            return self.forward
        if length not in self._forwards:
            self._forwards[length] = self._shared.compiled(self.forward, length, f"layer_{length}_{self.capacity}")
        return self._forwards[length]

    def _made(self, length: int, kind: Kind) -> Callable[[], torch.Tensor]:
        """Creates a pass and compares it with the eager one on its current inputs. Raises CannotCompile if it fails or
        its logits differ."""
        started = time.perf_counter()
        tokens = self.input(length)
        positions, mask = self.packing(length) if kind == "packed" else (None, None)

        def forward() -> torch.Tensor:
            return self.forward(tokens, positions, mask)

        try:
            expected = forward()
            made = self._recorded(length, positions, mask) if self.records else self._compiled(forward, length)
            found = made()
        except Exception as error:  # untraceable networks and compilers raise many classes
            if is_out_of_memory(error):
                error.add_note(f"while a pass of model '{self.name}' over {length} tokens was made")
                raise
            raise CannotCompile(self.name, one_line(error), self.engine) from error
        if not same_logits(expected, found):
            verb = "compiled" if self.engine == "compiled" else "recorded"
            raise CannotCompile(self.name, f"{verb}, a pass over {length} tokens gives other logits", self.engine)
        self.seconds += time.perf_counter() - started
        self.num_made += 1
        self._passes[length, kind] = made
        return made

    def _compiled(self, forward: Callable[[], torch.Tensor], length: int) -> Callable[[], torch.Tensor]:
        if self.engine == "graphs":  # on a device without graphs: the eager pass
            return forward
        made = compiled(forward, f"forward_{length}_{self.capacity}")
        made()
        return made

    def _recorded(
        self, length: int, positions: torch.Tensor | None, mask: torch.Tensor | None
    ) -> Callable[[], torch.Tensor]:
        """Records a pass with other tokens and another position than its current inputs, so that the comparison detects
        a graph that captured them as constants."""
        forward, tokens = self.forward_of(length), self.input(length)
        asked, start = tokens.clone(), self.start.clone()
        tokens.copy_((asked + 1) % self.model.get_input_embeddings().num_embeddings)
        self.start.copy_((start + 1).clamp_max(self.capacity - length))
        if self.engine == "compiled" and self._shared is None:
            forward = compiled(lambda: self.forward(tokens, positions, mask), f"forward_{length}_{self.capacity}")
            made = recorded(forward, self.device)
        else:
            made = recorded(lambda: forward(tokens, positions, mask), self.device)
        tokens.copy_(asked)
        self.start.copy_(start)
        return made

    def forward(
        self, tokens: torch.Tensor, positions: torch.Tensor | None = None, mask: torch.Tensor | None = None,
        num_logits: int = 0,
    ) -> torch.Tensor:  # fmt: skip
        """Runs transformers' forward pass over tokens [1, num_tokens] at `start`. Returns the logits of the last
        `num_logits` tokens; 0 means all."""
        places = self.start + torch.arange(tokens.shape[1], device=tokens.device)
        if self._places is not None:
            self._places[: tokens.shape[1]] = places
        if positions is None:
            positions = places[None]
        if not self.records:
            return self._logits(tokens, positions, mask, num_logits)
        with attending_in_groups(self.model.config):
            return self._logits(tokens, positions, mask, num_logits)

    def _logits(
        self, tokens: torch.Tensor, positions: torch.Tensor, mask: torch.Tensor | None, num_logits: int
    ) -> torch.Tensor:
        logits: torch.Tensor = self.model(
            input_ids=tokens, position_ids=positions.clamp_max(self.last_position), past_key_values=self.cache,
            use_cache=True, logits_to_keep=num_logits, attention_mask=mask,
        ).logits[0]  # fmt: skip
        return logits
