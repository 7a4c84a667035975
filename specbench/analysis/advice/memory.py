"""Equal total memory: a drafter's weights and cache take room in which AR alone would answer more requests at once.

A request holds keys and values of all its tokens, of the target and of the drafter. So in the same memory AR has a
higher concurrency than a method, and both are compared at their own: as measured where these levels were, otherwise
interpolated between measured levels, which is marked as computed. The interpolation is checked at each measured level
that lies between two others: it is interpolated from these, too, and compared with what was measured.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple

from pydantic import Field

from specbench.core.errors import ConfigError, nearest
from specbench.core.progress import doing
from specbench.models.gguf.cache_size import cache_bytes
from specbench.models.gguf.files import find_gguf, is_gguf
from specbench.models.gguf.header import joined, read_header
from specbench.results.concurrency import BASELINE, load_groups, load_of, rows_by_server
from specbench.results.paired import unpaired_ratio
from specbench.results.row import Row
from specbench.specs import yaml_files
from specbench.specs.components import Name, Spec, Text, build
from specbench.statistics.bootstrap import Estimate, FilePart

if TYPE_CHECKING:
    from specbench.analysis.roofline.roofline import AttentionLayer

GIB, KIB = 2**30, 2**10
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class ModelSpec(Spec):
    """The memory of a model."""

    weights_gib: NotNegative
    """GiB of its weights."""
    cache_kib: NotNegative
    """KiB of the keys and values of one token."""


class MemorySpec(Spec):
    """The memory that servers share: `specbench memory FILE`."""

    total_gib: Positive
    """GiB that weights and caches may take."""
    reserved_gib: NotNegative = 0.0
    """GiB of it that the engine takes for other things, such as activations and recorded passes."""
    tokens: Annotated[int, Field(ge=1, le=2**24)]
    """Tokens of a request: prompt and answer."""
    target: Text | ModelSpec
    """The target: a folder, hub id or GGUF file, whose precision is that of its checkpoint; or {weights_gib: 14.2,
    cache_kib: 56}."""
    drafters: dict[Name, Text | ModelSpec | None]
    """The drafter of each method, by the method's name, which is that of its server; null for one without weights and
    cache, such as n-grams. A head takes numbers."""


@dataclass(frozen=True)
class Footprint:
    """The bytes of a model: of its weights, of keys and values of a token by layer, and of recurrent states."""

    weight_bytes: float
    layers: "tuple[AttentionLayer, ...]" = ()
    state_bytes: int = 0
    cache_bytes: float = 0.0  # of a token, where layers are not known

    def of_request(self, num_tokens: int) -> float:
        """Returns the bytes that a request of so many tokens holds. A layer with a sliding window holds no more tokens
        than its window."""
        held = sum(layer.bytes_per_token * min(num_tokens, layer.window or num_tokens) for layer in self.layers)
        return held + self.cache_bytes * num_tokens + self.state_bytes


def footprint_of(given: str | ModelSpec | None, key: str) -> Footprint:
    """Returns the bytes of a model as a memory file gives it: by numbers, or by a checkpoint, of which only the
    configuration is read. `key`: of the file, for messages."""
    if given is None:
        return Footprint(0.0)
    if isinstance(given, ModelSpec):
        return Footprint(given.weights_gib * GIB, cache_bytes=given.cache_kib * KIB)
    import torch  # which takes seconds, and no other command of these files needs it

    from specbench.analysis.roofline.roofline import cache_of
    from specbench.models.loading import load_model

    try:
        if is_gguf(given):
            header = joined([read_header(path) for path in find_gguf(given).paths])
            return Footprint(header.num_bytes, cache_bytes=cache_bytes(header, 1, "float16"))
        network = load_model(given, device="cpu", weights=False).model
    except ConfigError as error:
        raise ConfigError(f"{key} = '{given}': {error}; or give {{weights_gib: …, cache_kib: …}}") from error
    config = network.config.get_text_config()
    network = network.to(getattr(config, "dtype", None) or torch.bfloat16)
    for name, module in network.named_modules():
        if name.rpartition(".")[2] == "experts":  # on the device meta no expert can be chosen, and none has a cache
            module.forward = lambda hidden, *_, **__: hidden
    layers, state_bytes = cache_of(network, getattr(config, "num_attention_heads", 0))
    return Footprint(float(sum(weight.nbytes for weight in network.parameters())), layers, state_bytes)


class ModelMemory(FilePart):
    """The bytes of one model: weights, and what one request holds. `name`: target, or the method of a drafter."""

    name: str
    weight_bytes: float
    request_bytes: float


class Capacity(FilePart):
    """How many requests at once a method holds in the total memory. `spare_bytes`: left for caches beside the weights;
    negative if these do not fit. `request_bytes`: what a request holds, in target and drafter."""

    method: str
    weight_bytes: float
    spare_bytes: float
    request_bytes: float
    requests: int


Basis = Literal["measured", "computed"]


class AtCapacity(FilePart):
    """A value of a server at its capacity. `level`: the requests at once. `basis`: measured at this level, or computed:
    interpolated between the measured levels around it; null if they do not reach it."""

    level: int
    value: Estimate
    basis: Basis | None


class EqualMemory(FilePart):
    """A method beside AR in the same total memory. `load`: the rows' context, or empty. `ratio`: the method's value at
    its capacity ÷ AR's at AR's. `speedup`: at the method's level, both with as many requests; null unless measured."""

    task: str
    subset: str
    load: str
    method: str
    ar: AtCapacity
    own: AtCapacity
    ratio: Estimate
    speedup: Estimate


class LevelCheck(FilePart):
    """A measured level of a server that was also interpolated, from the measured levels on both sides of it. `ratio`:
    interpolated ÷ measured. A value between neighbouring levels is interpolated over a shorter distance than this."""

    task: str
    subset: str
    load: str
    method: str
    level: int
    between: tuple[int, int]
    measured: Estimate
    interpolated: Estimate
    ratio: Estimate


class MemoryReport(FilePart):
    """The report of `specbench memory`. `quantity`: what is compared. `limits`: of goodput, in seconds. `checks`: of
    the interpolation."""

    total_bytes: float
    reserved_bytes: float
    tokens: int
    models: tuple[ModelMemory, ...]
    capacities: tuple[Capacity, ...]
    quantity: Literal["tokens/s", "answers/s within the limits"]
    limits: dict[str, float] | None
    compared: tuple[EqualMemory, ...]
    checks: tuple[LevelCheck, ...]


@dataclass(frozen=True)
class SharedMemory:
    """The memory of a file, with the bytes of its models. `place`: the beginning of messages about it."""

    spec: MemorySpec
    target: Footprint
    drafters: Mapping[str, Footprint]
    place: str = ""

    @classmethod
    def read(cls, path: Path) -> "SharedMemory":
        """Reads a memory file. Raises ConfigError that names the file, the key and the problem."""
        place = f"{path}: "
        return cls.of(build(MemorySpec, yaml_files.read(path), prefix=place), place)

    @classmethod
    def of(cls, spec: MemorySpec, place: str = "") -> "SharedMemory":
        with doing("reading the configurations of the models"):
            drafters = {name: footprint_of(given, f"{place}drafters.{name}") for name, given in spec.drafters.items()}
            return cls(spec, footprint_of(spec.target, f"{place}target"), drafters, place)

    def capacity(self, method: str) -> Capacity:
        """Raises ConfigError for a method that the file does not name."""
        if method != BASELINE and method not in self.drafters:
            remedy = f"add it, with null if it has no weights ({nearest(method, self.drafters)})"
            raise ConfigError(f"{self.place}drafters: has no method '{method}': {remedy}")
        models = [self.target, *([] if method == BASELINE else [self.drafters[method]])]
        spec = self.spec
        weights = sum(model.weight_bytes for model in models)
        held = sum(model.of_request(spec.tokens) for model in models)
        spare = (spec.total_gib - spec.reserved_gib) * GIB - weights
        fitting = math.floor(spare / held) if held else 0
        return Capacity(
            method=method, weight_bytes=weights, spare_bytes=spare, request_bytes=held, requests=max(0, fitting)
        )

    def models(self) -> list[ModelMemory]:
        named = {"target": self.target, **self.drafters}
        return [
            ModelMemory(name=name, weight_bytes=each.weight_bytes, request_bytes=each.of_request(self.spec.tokens))
            for name, each in named.items()
        ]


class Level(NamedTuple):
    """A measured level of concurrency and its value."""

    level: float
    value: Estimate


def value_at(levels: Sequence[Level], requests: int) -> AtCapacity:
    """Returns the value at a number of requests at once: as measured at this level, or interpolated between the levels
    around it, the logarithm of the value over that of the level, ends of intervals likewise. `levels`: lowest first."""
    for level, value in levels:
        if level == requests and value.value is not None:
            return AtCapacity(level=requests, value=value, basis="measured")
    for low, high in pairwise(levels):
        if low.level < requests < high.level:
            share = math.log(requests / low.level) / math.log(high.level / low.level)
            ends = {name: _between(getattr(low.value, name), getattr(high.value, name), share)
                    for name in ("value", "low", "high")}  # fmt: skip
            if ends["value"] is not None:
                return AtCapacity(level=requests, value=Estimate(**ends), basis="computed")
    return AtCapacity(level=requests, value=Estimate(), basis=None)


def _between(low: float | None, high: float | None, share: float) -> float | None:
    if low is None or high is None:
        return None
    if low <= 0 or high <= 0:  # no answer within the limits
        return (1 - share) * low + share * high
    return math.exp((1 - share) * math.log(low) + share * math.log(high))


def at_equal_memory(
    memory: SharedMemory, rows: Sequence[Row], value_of: Callable[[Row], Estimate]
) -> list[EqualMemory]:
    """Returns each method of rows with a concurrency beside AR, both at their capacity. Raises ConfigError if there are
    no such rows."""
    found = []
    for group in load_groups([row for row in rows if row.level and load_of(row).kind == "concurrency"]):
        (plain, *others) = rows_by_server(group)
        if not plain[0].is_baseline:
            continue
        ar = value_at(levels_of(plain, value_of), memory.capacity(BASELINE).requests)
        for own in others:
            at = value_at(levels_of(own, value_of), memory.capacity(own[0].method_name).requests)
            same = next((row.metric("speedup") for row in own if load_of(row).level == at.level), Estimate())
            context = load_of(own[0]).context
            found.append(EqualMemory(
                task=own[0].task_name, subset=own[0].subset, load="" if context is None else f"context {context}",
                method=own[0].method_name, ar=ar, own=at, speedup=same,
                ratio=same if ar.level == at.level and value_of is throughput else unpaired_ratio(ar.value, at.value),
            ))  # fmt: skip
    if not found:
        raise ConfigError(
            "no row is of a concurrency: give runs of servers with load: {concurrency: […]}, and their AR"
        )
    return found


def check_levels(rows: Sequence[Row], value_of: Callable[[Row], Estimate]) -> list[LevelCheck]:
    """Returns a check of each measured level between two others of the same server; none if a server has only two."""
    found = []
    for group in load_groups([row for row in rows if row.level and load_of(row).kind == "concurrency"]):
        for own in rows_by_server(group):
            levels = levels_of(own, value_of)
            context = load_of(own[0]).context
            for low, checked, high in zip(levels, levels[1:], levels[2:], strict=False):
                at = value_at([low, high], int(checked.level))
                if at.basis is None or checked.value.value is None:
                    continue
                found.append(LevelCheck(
                    task=own[0].task_name, subset=own[0].subset, load="" if context is None else f"context {context}",
                    method=own[0].method_name, level=at.level, between=(int(low.level), int(high.level)),
                    measured=checked.value, interpolated=at.value, ratio=unpaired_ratio(checked.value, at.value),
                ))  # fmt: skip
    return found


def levels_of(rows: Sequence[Row], value_of: Callable[[Row], Estimate]) -> list[Level]:
    return [Level(load_of(row).level, value_of(row)) for row in sorted(rows, key=lambda row: load_of(row).level)]


def throughput(row: Row) -> Estimate:
    return row.metric("tokens_per_second")


def memory_report(
    memory: SharedMemory, rows: Sequence[Row], goodput_of: Callable[[Row], Estimate] | None = None,
    limits: Mapping[str, float] | None = None,
) -> MemoryReport:  # fmt: skip
    """Returns the capacities of AR and of every method of the file, and what rows tell of them. `goodput_of`: the
    answers per second within `limits` of a row; None: tokens per second are compared."""
    spec, value_of = memory.spec, goodput_of or throughput
    return MemoryReport(
        total_bytes=spec.total_gib * GIB, reserved_bytes=spec.reserved_gib * GIB, tokens=spec.tokens,
        models=tuple(memory.models()),
        capacities=tuple(memory.capacity(name) for name in (BASELINE, *memory.drafters)),
        quantity="tokens/s" if goodput_of is None else "answers/s within the limits",
        limits=None if limits is None else dict(limits),
        compared=tuple(at_equal_memory(memory, rows, value_of)) if rows else (),
        checks=tuple(check_levels(rows, value_of)),
    )  # fmt: skip
