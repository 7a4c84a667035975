"""Compiled forward passes of fixed shapes over one static cache."""

import time
from collections.abc import Callable, Sequence
from typing import Any, Literal

import torch
from transformers.cache_utils import Cache, CacheLayerMixin

from specbench.core.errors import ConfigError
from specbench.models.checkpoints import told
from specbench.models.compiling import CannotCompile, compiled, recorded, same_logits, with_own_code
from specbench.models.devices import is_out_of_memory, uploaded
from specbench.models.kv_cache import PreallocatedLayer


class StaticLayer(CacheLayerMixin):
    """Keys and values of one layer: [1, num_heads, capacity, head_dim]. `start`: where the next pass writes, a tensor
    that all layers share; what lies behind it is masked, since no query has seen it yet."""

    is_compileable = True  # transformers then makes a mask in every pass

    def __init__(self, is_sliding: bool, capacity: int, start: torch.Tensor) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.is_sliding = is_sliding
        self.capacity = capacity
        self.start = start

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        self.keys = self._zeros_like(key_states)
        self.values = self._zeros_like(value_states)
        self.is_initialized = True

    def _zeros_like(self, states: torch.Tensor) -> torch.Tensor:
        batch, heads, _, head_dim = states.shape
        buffer = states.new_zeros((batch, heads, self.capacity, head_dim))
        torch._dynamo.mark_static_address(buffer)
        return buffer

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write [1, num_heads, query_length, head_dim] at `start`; returns the whole buffers."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        assert self.keys is not None and self.values is not None
        places = self.start + torch.arange(key_states.shape[-2], device=self.start.device)
        self.keys.index_copy_(2, places, key_states)
        self.values.index_copy_(2, places, value_states)
        return self.keys, self.values

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.capacity, 0

    def get_seq_length(self) -> torch.Tensor:  # type: ignore[override]
        return self.start

    def get_max_length(self) -> int:
        return self.capacity


def static_cache(layers: Sequence[PreallocatedLayer], capacity: int, start: torch.Tensor) -> Cache:
    """An empty cache with layers as others are."""
    return Cache(layers=[StaticLayer(layer.is_sliding, capacity, start) for layer in layers])


NUM_READ_BEFORE = 8  # tokens, when a pass is compared

Kind = Literal["all", "last", "packed"]


class Graphs:
    """The compiled passes of a model over buffers for `capacity` tokens, each made when it is first asked for.

    A pass is of `length` tokens, of which all logits are computed or those of the `last`, at `row`; `packed` are all
    logits of several continuations, whose positions and mask are given. What a pass reads lies in buffers that it owns:
    nothing is checked or copied on the way.
    """

    def __init__(
        self, model: Any, name: str, layers: Sequence[PreallocatedLayer], capacity: int, last_position: int
    ) -> None:
        self.model = model
        self.name = name
        self.capacity = capacity
        self.start = torch.zeros((), dtype=torch.long, device=model.device)
        self.row = torch.zeros(1, dtype=torch.long, device=model.device)
        torch._dynamo.mark_static_address(self.start)
        torch._dynamo.mark_static_address(self.row)
        self.cache = static_cache(layers, capacity, self.start)
        self.last_position = last_position
        self.compile_seconds = 0.0
        self._inputs: dict[int, torch.Tensor] = {}
        self._passes: dict[tuple[int, str], Callable[[], torch.Tensor]] = {}
        self._packing: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self._pool = torch.cuda.graph_pool_handle() if model.device.type == "cuda" else None
        self._forward(self.input(1))  # makes the buffers, which a compiled pass must find

    def input(self, length: int) -> torch.Tensor:
        """Where the tokens of a pass of `length` are written: [1, length]."""
        if length not in self._inputs:
            tokens = torch.zeros((1, length), dtype=torch.long, device=self.model.device)
            torch._dynamo.mark_static_address(tokens)
            self._inputs[length] = tokens
        return self._inputs[length]

    def fill(self, length: int, start: int, tokens: list[int], tail: torch.Tensor | None = None) -> None:
        """Put the tokens that follow the first `start` into the input of a pass; the rest of it is left as it is."""
        self.start.fill_(start)
        self.row.fill_(len(tokens) - 1)
        buffer = self.input(length)
        if tail is not None:
            buffer[0, len(tokens) : len(tokens) + len(tail)] = tail
            if not tokens:
                return
        if length == 1:
            buffer.fill_(tokens[0])
        else:
            buffer[0, : len(tokens)] = uploaded(torch.tensor(tokens), buffer.device)

    def fill_packed(self, length: int, start: int, suffixes: list[list[int]]) -> None:
        """Put equally long suffixes behind one another into the input of a packed pass: none sees another, and all see
        the first `start` tokens."""
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
        """Inputs on which a pass that looks at a wrong place gives other logits: all tokens differ, some are read
        before, and the last row is none that is asked for. It overwrites what was read."""
        before = min(NUM_READ_BEFORE, self.capacity - length)
        num_tokens = max(1, length - 1)
        ids = [number % self.model.get_input_embeddings().num_embeddings for number in range(before + num_tokens)]
        if before:
            self.uncompiled(ids[:before], last=True)
        if kind == "packed":
            half = num_tokens // 2
            self.fill_packed(length, before, [ids[before : before + half], ids[before + half : before + 2 * half]])
        else:
            self.fill(length, before, ids[before:])

    def packing(self, length: int) -> tuple[torch.Tensor, torch.Tensor]:
        """What a packed pass reads beside its tokens: positions [1, length], and which keys they see, [1, 1, length,
        capacity]."""
        if length not in self._packing:
            shape, device = (1, 1, length, self.capacity), self.model.device
            made = (torch.zeros_like(self.input(length)), torch.ones(shape, dtype=torch.bool, device=device))
            for buffer in made:
                torch._dynamo.mark_static_address(buffer)
            self._packing[length] = made
        return self._packing[length]

    def run(self, length: int, kind: Kind) -> torch.Tensor:
        """One pass over what lies in the inputs: logits [length, output_size], of kind "last" [1, output_size]."""
        forward = self._passes.get((length, kind))
        if forward is None:
            forward = self._compiled(length, kind)
        try:
            logits = forward()
        except Exception as error:  # whatever a kernel checks while it runs
            if is_out_of_memory(error):
                raise
            raise ConfigError(
                f"--engine compiled: a compiled pass of model '{self.name}' over {length} tokens failed "
                f"({told(error)}): take --engine eager, or another model"
            ) from error
        return logits.clone() if logits.is_cuda else logits  # a CUDA graph writes its next outputs over its last

    def has(self, length: int, kind: Kind) -> bool:
        """Whether a pass is compiled already."""
        return (length, kind) in self._passes

    def trace(self) -> None:
        """Take the graph of a pass, without compiling it. Raises CannotCompile where it is not one."""
        tokens = self.input(1)
        try:
            torch.compile(with_own_code(lambda: self._forward(tokens), "traced"), fullgraph=True, backend="eager")()
        except Exception as error:  # whatever a network does that cannot be traced
            if is_out_of_memory(error):
                raise
            reason = told(error).partition(" Explanation: ")[0]
            raise CannotCompile(self.name, f"a pass is no single graph: {reason}") from error

    def uncompiled(self, tokens: list[int], last: bool = False) -> torch.Tensor:
        """The logits after each of the first tokens of a sequence or the `last`, by the same pass as transformers runs
        it."""
        self.fill(len(tokens), 0, tokens)
        return self._forward(self.input(len(tokens)), self.row if last else None)

    def _compiled(self, length: int, kind: Kind) -> Callable[[], torch.Tensor]:
        started = time.perf_counter()
        tokens, row = self.input(length), self.row if kind == "last" else None
        positions, mask = self.packing(length) if kind == "packed" else (None, None)

        def forward() -> torch.Tensor:
            return self._forward(tokens, row, positions, mask)

        made = compiled(forward, f"forward_{length}_{self.capacity}")
        try:
            expected = forward()
            made()
            if self._pool is not None:
                made = recorded(made, self.model.device, self._pool)
            found = made()
        except Exception as error:  # whatever a network does that cannot be traced, or a compiler that fails
            if is_out_of_memory(error):
                raise
            raise CannotCompile(self.name, told(error)) from error
        if not same_logits(expected, found):
            raise CannotCompile(self.name, f"compiled, a pass over {length} tokens gives other logits")
        self.compile_seconds += time.perf_counter() - started
        self._passes[length, kind] = made
        return made

    def _forward(
        self, tokens: torch.Tensor, row: torch.Tensor | None = None,
        positions: torch.Tensor | None = None, mask: torch.Tensor | None = None,
    ) -> torch.Tensor:  # fmt: skip
        if positions is None:
            positions = self.start + torch.arange(tokens.shape[1], device=tokens.device)[None]
        logits: torch.Tensor = self.model(
            input_ids=tokens, position_ids=positions.clamp_max(self.last_position), past_key_values=self.cache,
            use_cache=True, logits_to_keep=0 if row is None else row, attention_mask=mask,
        ).logits[0]  # fmt: skip
        return logits
