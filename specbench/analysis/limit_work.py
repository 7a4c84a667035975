"""The work of one forward pass over a cache: the bytes that it must read, and its floating-point operations."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from specbench.models.causal_lm import CausalLM
from specbench.models.kv_cache import CACHE_NAMES
from specbench.models.meters import Clock

EXPERTS = ".experts."  # in the names of expert weights, of which a token uses a share


@dataclass(frozen=True)
class AttentionLayer:
    """An attention layer. `bytes_per_token`: of keys and values; `width`: heads × (key + value dimensions); `window`:
    the sliding window in tokens, None for full attention."""

    bytes_per_token: int
    width: int
    window: int | None = None

    def seen(self, context: int, query_length: int) -> int:
        """Returns the number of cached tokens that any new token attends to, plus the number of new tokens."""
        return context + query_length if self.window is None else min(context, self.window - 1) + query_length

    def pairs(self, context: int, query_length: int) -> int:
        """Returns the number of (query, key) pairs: every new token attends to those before it and to itself."""
        whole = (context + place + 1 for place in range(query_length))
        return sum(whole if self.window is None else (min(each, self.window) for each in whole))


@dataclass(frozen=True)
class Work:
    """The work of a model's pass, independent of the hardware.

    A pass reads `weight_bytes` once, and for each token `row_bytes` (one row of every embedding table) and the
    `expert_share` of `expert_bytes`. Each token is multiplied by `matmul_weights` and by the `expert_share` of
    `expert_weights`. `state_bytes`: of recurrent states.
    """

    weight_bytes: int
    matmul_weights: int
    row_bytes: int = 0
    layers: tuple[AttentionLayer, ...] = ()
    state_bytes: int = 0
    expert_bytes: int = 0
    expert_weights: int = 0
    expert_share: float = 1.0

    def bytes_read(self, query_length: int, context: int) -> float:
        """Returns the bytes of weights and cache that a pass over `query_length` tokens after `context` cached tokens
        must read. The number of experts is that of tokens that choose at random."""
        touched = 1.0 - (1.0 - self.expert_share) ** query_length
        cached = sum(layer.bytes_per_token * layer.seen(context, query_length) for layer in self.layers)
        weights = self.weight_bytes + self.row_bytes * query_length + self.expert_bytes * touched
        return weights + cached + self.state_bytes

    def operations(self, query_length: int, context: int) -> float:
        """Returns the operations of a pass: a multiplication and an addition for each weight and token, and for each
        pair of query and key. Logits are computed for every token."""
        weights = self.matmul_weights + self.expert_weights * self.expert_share
        attention = sum(layer.width * layer.pairs(context, query_length) for layer in self.layers)
        return 2.0 * (weights * query_length + attention)


def work_of(model: CausalLM) -> Work:
    """Returns the work of a model, counted from its weights and from the cache that it fills."""
    network = model.model
    head = network.get_output_embeddings()
    tables = {id(each.weight) for each in network.modules() if isinstance(each, torch.nn.Embedding)}
    tables -= {id(head.weight)} if head is not None else set()  # the output layer reads a tied table whole
    weight_bytes = matmul_weights = row_bytes = expert_bytes = expert_weights = 0
    for name, weight in network.named_parameters():
        if id(weight) in tables:
            row_bytes += weight.element_size() * weight.shape[-1]
        elif EXPERTS in name:
            expert_bytes += weight.nbytes
            expert_weights += weight.numel()
        else:
            weight_bytes += weight.nbytes
            matmul_weights += weight.numel() if weight.ndim > 1 else 0
    layers, state_bytes = cache_of(network)
    return Work(
        weight_bytes=weight_bytes, matmul_weights=matmul_weights, row_bytes=row_bytes, layers=layers,
        state_bytes=state_bytes, expert_bytes=expert_bytes, expert_weights=expert_weights,
        expert_share=expert_share(network.config.get_text_config()),
    )  # fmt: skip


@torch.inference_mode()
def cache_of(network: Any) -> tuple[tuple[AttentionLayer, ...], int]:
    """Returns the attention layers and the bytes of recurrent states, from the cache of one token."""
    output = network(input_ids=torch.zeros((1, 1), dtype=torch.long, device=network.device), use_cache=True)
    cache = next(output[name] for name in CACHE_NAMES if name in output)
    heads = getattr(network.config.get_text_config(), "num_attention_heads", 0)
    layers, state_bytes = [], 0
    for layer in cache.layers:
        keys, values = getattr(layer, "keys", None), getattr(layer, "values", None)
        if isinstance(keys, torch.Tensor) and isinstance(values, torch.Tensor) and keys.ndim == 4:
            width = heads * (keys.shape[-1] + values.shape[-1])
            window = getattr(layer, "sliding_window", None)
            per_token = (keys.nbytes + values.nbytes) // keys.shape[-2]
            layers.append(AttentionLayer(per_token, width, window))
        state_bytes += sum(state.nbytes for state in states_of(layer))
    return tuple(layers), state_bytes


def states_of(layer: Any) -> Iterator[torch.Tensor]:
    for name in ("conv_states", "recurrent_states"):
        held = getattr(layer, name, None)
        for state in held.values() if isinstance(held, dict) else held or ():
            if isinstance(state, torch.Tensor):
                yield state


def expert_share(config: Any) -> float:
    """Returns the share of the experts that a token uses; 1 where there are none."""
    used = getattr(config, "num_experts_per_tok", None)
    whole = getattr(config, "num_local_experts", None) or getattr(config, "num_experts", None)
    return used / whole if used and whole else 1.0


MOST_BYTES = 2**31
LEAST_BYTES = 2**20
ENOUGH_SECONDS = 0.02  # of one timed round
SIZES = (512, 1024, 2048, 4096, 8192)


@dataclass(frozen=True)
class Rates:
    """Rates of one round: `bytes_per_second`, read and written, of a copy; `read_bytes_per_second` of a sum, which
    writes nothing; `operations_per_second` of a product of matrices."""

    bytes_per_second: float
    read_bytes_per_second: float
    operations_per_second: float


class RateBenchmark:
    """Measures the rates of copies and sums with a buffer of `num_bytes`, so that processor caches help as much as in a
    pass that reads as many bytes; and the rate of products with the first matrices that are large enough to time."""

    def __init__(self, device: torch.device, dtype: torch.dtype, num_bytes: int) -> None:
        self.num_bytes = max(LEAST_BYTES, min(num_bytes, MOST_BYTES)) // 16 * 16
        clock = Clock(device)
        whole = torch.ones(self.num_bytes // 8, dtype=torch.int64, device=device)
        source, target = whole.chunk(2)
        self._copy = TimedCall(lambda: target.copy_(source), clock)
        self._read = TimedCall(whole.sum, clock)
        for self._size in SIZES:
            first, second = (torch.randn(self._size, self._size, device=device).to(dtype) for _ in range(2))
            self._product = TimedCall(lambda a=first, b=second: a @ b, clock)  # type: ignore[misc]
            if self._product.num_calls == 1:
                break

    def rates(self) -> Rates:
        """Returns the rates of one round."""
        return Rates(
            bytes_per_second=self.num_bytes / self._copy.seconds(),
            read_bytes_per_second=self.num_bytes / self._read.seconds(),
            operations_per_second=2.0 * self._size**3 / self._product.seconds(),
        )


class TimedCall:
    """A call that is repeated in a round, as often as takes long enough to be timed."""

    def __init__(self, call: Callable[[], object], clock: Clock) -> None:
        self._call, self._clock = call, clock
        self.num_calls = 1
        self.seconds()  # the first call is slower
        self.num_calls = max(1, round(ENOUGH_SECONDS / max(1e-9, self.seconds())))

    def seconds(self) -> float:
        """Returns the seconds of one call, from a round."""
        start = self._clock.now()
        for _ in range(self.num_calls):
            self._call()
        return (self._clock.now() - start) / self.num_calls
