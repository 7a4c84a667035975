"""Linear layers on a CPU whose weights are stored as torch's kernels read them: bfloat16 packed by oneDNN, and 8-bit or
4-bit weights, whose products have bfloat16 activations. Compiled passes have the same products as eager ones, as
operators of their own.

A product over few tokens takes the time of reading its weights. torch's plain bfloat16 product reads them at about half
the rate at which the machine copies memory, since it reorders them in every call. The packed product reads them in the
order of its kernel, and gives the same bits: the order of its sums is the same.
"""

import copy
import platform
import time
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from itertools import count
from typing import Any, Literal
from weakref import WeakValueDictionary

import torch
from torch import nn
from torch.nn import functional

from specbench.specs.components import Quantize

Product = Callable[[torch.Tensor], torch.Tensor]
Kernel = Callable[..., torch.Tensor]
Products = Literal["packed", "plain"]
GROUP = 32  # inputs that share a scale and a zero point in 4 bits
INPUTS, OUTPUTS = 32, 16  # torch's kernels read beyond the weights unless the sizes are multiples of these


def packs_bfloat16() -> bool:
    """Returns whether torch has packed bfloat16 products for this CPU. They were tried on x86 only."""
    if platform.machine().lower() not in ("x86_64", "amd64") or not torch.backends.mkldnn.is_available():
        return False
    try:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    except (AttributeError, RuntimeError):  # a build without oneDNN's linear layers
        return False


def has_bfloat16_instructions() -> bool:
    """Returns whether this CPU multiplies bfloat16 (AVX-512 BF16 or AMX). Others convert the weights to float32."""
    names = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")
    return any(bool(supported()) for name in names if (supported := getattr(torch.cpu, name, None)) is not None)


class StoredLinear(nn.Linear):
    """A linear layer that keeps its weights in another form, in place of `weight`.

    Reading `weight` still works: it is computed, unless the embeddings share it, which keep it. So state dicts, copies
    and heads that begin with the target's output layer find what they expect. A pass that needs gradients of its input
    is computed with `weight`, and so is one in another dtype than bfloat16.
    """

    kind = "plain"
    stored: tuple[str, ...] = ()  # the names of what replaces the weight

    @property
    def weight(self) -> torch.Tensor:  # type: ignore[override]
        kept = self._parameters.get("weight")
        return self.dense() if kept is None else kept

    @property
    def stored_bytes(self) -> int:
        """The bytes that a product reads."""
        return sum(getattr(self, name).nbytes for name in self.stored)

    def dense(self) -> torch.Tensor:
        """Returns the weights that the product multiplies with, in bfloat16: [out_features, in_features]."""
        raise NotImplementedError

    def product(self, input: torch.Tensor) -> torch.Tensor:
        """Returns input [..., in_features], in bfloat16, times the weights, plus the bias."""
        raise NotImplementedError

    def store(self, kept: bool, **stored: Any) -> None:
        """Replaces the weight by `stored`. `kept`: whether it stays readable as it is."""
        if not kept:
            del self._parameters["weight"]
        for name, value in stored.items():
            if isinstance(value, torch.Tensor):
                self.register_buffer(name, value, persistent=False)
            else:
                setattr(self, name, value)

    def restore(self) -> None:
        """Turns the layer back into torch's, with the weights of `weight`."""
        weight = self.weight
        self.drop()
        self.__class__ = nn.Linear  # type: ignore[assignment]
        if "weight" not in self._parameters:
            self.register_parameter("weight", nn.Parameter(weight, requires_grad=False))

    def drop(self) -> None:
        """Frees what is stored."""
        for name in self.stored:
            delattr(self, name)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        if input.dtype != torch.bfloat16 or (torch.is_grad_enabled() and input.requires_grad):
            return functional.linear(input, self.weight, self.bias)
        return self.product(input)

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        destination[prefix + "weight"] = self.weight.detach()

    def _load_from_state_dict(self, *given: Any, **named: Any) -> None:
        self.restore()
        self._load_from_state_dict(*given, **named)

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> Any:
        made = fn(torch.empty(0, dtype=torch.bfloat16))
        if made.dtype == torch.bfloat16 and made.device.type == "cpu":
            return self
        self.restore()  # another device or dtype has other products
        return self._apply(fn, recurse)

    def __deepcopy__(self, memo: dict[int, Any]) -> "StoredLinear":
        for name in self.stored:  # they never change, and oneDNN's cannot be copied
            value = getattr(self, name)
            if not isinstance(value, JoinedProduct):  # which copies itself, with a pending input of its own
                memo[id(value)] = value
        made = type(self).__new__(type(self))
        memo[id(self)] = made
        made.__dict__ = copy.deepcopy(self.__dict__, memo)
        return made


class PackedLinear(StoredLinear):
    """A bfloat16 layer in the layout of oneDNN's kernel, which is opaque."""

    kind = "packed"
    stored = ("packed",)
    packed: torch.Tensor

    def dense(self) -> torch.Tensor:
        return self.packed.to_dense()

    def product(self, input: torch.Tensor) -> torch.Tensor:
        multiply = packed_op if torch.compiler.is_compiling() else packed_product
        return multiply(input, self.packed, self.bias)


OPERATORS = torch.library.Library("specbench", "FRAGMENT")


def kernel_op(name: str, signature: str, kernel: Kernel, fake: Kernel) -> Kernel:
    """Returns an operator that torch.compile calls as it is, with weights that are inputs of the graph. torch's own are
    compiled for weights that are constants (oneDNN), in ways that differ between versions (few bits), or not at all
    (FBGEMM). `fake`: returns an empty result of the right shape."""
    return _operator(name, signature, kernel, "CompositeExplicitAutograd", fake)


def traced_op(name: str, signature: str, function: Kernel) -> Kernel:
    """Returns an operator that is one node until `join_products` of models.compiling has found equal ones. Then
    torch.compile looks into it, and fuses its parts with what is around them."""
    return _operator(name, signature, function, "CompositeImplicitAutograd")


def _operator(name: str, signature: str, kernel: Kernel, key: str, fake: Kernel | None = None) -> Kernel:
    OPERATORS.define(name + signature)
    OPERATORS.impl(name, kernel, key)
    if fake is not None:
        torch.library.register_fake(f"specbench::{name}", fake, lib=OPERATORS)
    found: Kernel = getattr(torch.ops.specbench, name).default
    return found


def packed_product(input: torch.Tensor, packed: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """Returns input [..., in], in bfloat16, times packed weights [out, in], plus the bias."""
    found: torch.Tensor = torch.ops.mkldnn._linear_pointwise.default(input, packed, bias, "none", [], "")
    return found


packed_op = kernel_op(
    "packed_product", "(Tensor input, Tensor packed, Tensor? bias) -> Tensor", packed_product,
    lambda input, packed, bias: input.new_empty((*input.shape[:-1], packed.shape[0])),
)  # fmt: skip


class Pending:
    """The last input of a joined product, and the outputs of the layers that have not taken theirs. It is not an
    attribute of a module, whose assignments take longer than a small product."""

    def __init__(self) -> None:
        self.input: torch.Tensor | None = None
        self.parts: dict[int, torch.Tensor] = {}


class JoinedProduct:
    """The product of several layers that read the same input, such as queries, keys and values: one call reads their
    weights faster than several. It is not a module, so that a network shows the layers alone.

    The first layer that is called with an input computes all, and each takes its part. The parts of an input that are
    not taken are dropped with the next one.

    whole: one layer with the outputs of all
    sizes: the outputs of each
    """

    def __init__(self, whole: StoredLinear, sizes: Sequence[int]) -> None:
        self.whole = whole
        self.sizes = list(sizes)
        self.pending = Pending()

    def part(self, number: int, input: torch.Tensor) -> torch.Tensor:
        if torch.compiler.is_compiling():  # compiled passes multiply once; see `join_products`
            return torch.split(self.whole.product(input), self.sizes, -1)[number]
        pending = self.pending
        if pending.input is not input or number not in pending.parts:
            pending.input = input
            pending.parts = dict(enumerate(torch.split(self.whole.product(input), self.sizes, -1)))
        found = pending.parts.pop(number).contiguous()  # as a layer of its own returns it
        if not pending.parts:
            pending.input = None
        return found

    def __deepcopy__(self, memo: object) -> "JoinedProduct":
        return JoinedProduct(self.whole, self.sizes)


class JoinedLinear(StoredLinear):
    """A layer that is part of a joined product."""

    stored = ("joined",)
    joined: JoinedProduct
    number: int

    @property
    def kind(self) -> str:  # type: ignore[override]
        return self.joined.whole.kind

    @property
    def stored_bytes(self) -> int:
        whole = self.joined.whole
        return whole.stored_bytes * self.out_features // whole.out_features

    def dense(self) -> torch.Tensor:
        return list(torch.split(self.joined.whole.dense(), self.joined.sizes))[self.number].clone()

    def product(self, input: torch.Tensor) -> torch.Tensor:
        return self.joined.part(self.number, input)


class Int8Linear(StoredLinear):
    """A layer in 8 bits: `codes` [out, in], with a scale for each output, `scales` [out]."""

    kind = "int8"
    stored = ("codes", "scales")
    codes: torch.Tensor
    scales: torch.Tensor

    def dense(self) -> torch.Tensor:
        return self.codes.to(torch.bfloat16) * self.scales[:, None]

    def product(self, input: torch.Tensor) -> torch.Tensor:
        multiply = int8_op if torch.compiler.is_compiling() else int8_product
        return multiply(input, self.codes, self.scales, self.bias)


OF_CODES = "(Tensor input, Tensor codes, Tensor scales, Tensor? bias) -> Tensor"


def codes_product(
    input: torch.Tensor, codes: torch.Tensor, scales: torch.Tensor, bias: torch.Tensor | None, kernel: Kernel
) -> torch.Tensor:
    """Returns input [..., in], in bfloat16, times `codes` with their scales, plus the bias. `kernel`: multiplies rows
    [n, in]."""
    made = kernel(input.reshape(-1, input.shape[-1]), codes, scales)
    made = made.view(*input.shape[:-1], made.shape[-1])
    return made if bias is None else made + bias


int8_product = partial(codes_product, kernel=torch._weight_int8pack_mm)
int8_kernel = kernel_op(
    "int8_kernel", "(Tensor rows, Tensor codes, Tensor scales) -> Tensor", torch._weight_int8pack_mm,
    lambda rows, codes, scales: rows.new_empty((len(rows), len(codes))),
)  # fmt: skip
int8_op = traced_op("int8_product", OF_CODES, partial(codes_product, kernel=int8_kernel))


BASE = 254  # of the two digits of an input, each of -127 to 127
LARGEST = 127 * BASE + 126  # the largest input: one more would round to a first digit of 128
MOST_INPUTS = 2**31 // (255 * 127)  # whose sum fits into 32 bits
LEAST_WEIGHTS = 2**20  # of a layer: in smaller ones, making the digits takes longer than reading weights faster saves
LEAST = 1e-30  # the largest value of a row that is not taken for 0


class DigitsLinear(StoredLinear):
    """A layer in 8 bits as Int8Linear's, whose product is computed in integers by FBGEMM.

    torch's kernel for 8-bit weights with bfloat16 inputs is bound by arithmetic: it turns each weight into a float.
    Instructions that multiply four pairs of bytes read weights twice as fast. So each row of inputs is rounded to
    multiples of its largest value ÷ 32384, and each multiple is two digits of base 254, in two rows of bytes, whose
    sums are exact. The error of an input is at most 2^-16 of the largest in its row, so that the outputs are those of
    exact products up to bfloat16's rounding, and do not depend on the other rows.
    """

    kind = "int8"
    stored = ("packed", "scales", "key")
    packed: Any  # FBGEMM's, with the scales
    scales: torch.Tensor
    key: torch.Tensor  # by which compiled passes, whose inputs are tensors, find what is packed

    @property
    def stored_bytes(self) -> int:
        return self.in_features * self.out_features + self.scales.nbytes

    def dense(self) -> torch.Tensor:
        weight, _ = torch.ops.quantized.linear_unpack(self.packed)
        codes: torch.Tensor = weight.int_repr()
        return codes.to(torch.bfloat16) * self.scales[:, None]

    def product(self, input: torch.Tensor) -> torch.Tensor:
        multiply = digits_op if torch.compiler.is_compiling() else digits_product
        return multiply(input, self.key, self.bias, self.out_features)


_PACKED: WeakValueDictionary[int, Any] = WeakValueDictionary()  # FBGEMM's weights in use, by the keys of their layers
_KEYS = count()


def bytes_product(digits: torch.Tensor, key: torch.Tensor, num_outputs: int) -> torch.Tensor:
    """Returns whole numbers of -127 to 127, [n, in], times the weights in 8 bits of a key: [n, out], in float32."""
    weights = _PACKED[int(key)]
    found: torch.Tensor = torch.ops.quantized.linear_with_input_q_dq_qweight_dq_output_fp32.default(
        digits, 1.0, 128, weights
    )
    return found


def digits_product(
    input: torch.Tensor, key: torch.Tensor, bias: torch.Tensor | None, num_outputs: int, kernel: Kernel = bytes_product
) -> torch.Tensor:
    """Returns input [..., in], in bfloat16, times the weights of a key, plus the bias; see DigitsLinear."""
    rows = input.reshape(-1, input.shape[-1])
    unit = rows.abs().amax(1, keepdim=True).float().clamp_min(LEAST) / LARGEST
    multiples = rows / unit
    high = torch.round(multiples / BASE)
    made = kernel(torch.cat([high, torch.sub(multiples, high, alpha=BASE)]), key, num_outputs)
    found = torch.add(made[len(rows) :], made[: len(rows)], alpha=BASE) * unit
    return (found if bias is None else found + bias).to(torch.bfloat16).view(*input.shape[:-1], num_outputs)


bytes_kernel = kernel_op(
    "bytes_product", "(Tensor digits, Tensor key, int num_outputs) -> Tensor", bytes_product,
    lambda digits, key, num_outputs: digits.new_empty((len(digits), num_outputs)),
)  # fmt: skip
digits_op = traced_op(
    "digits_product", "(Tensor input, Tensor key, Tensor? bias, int num_outputs) -> Tensor",
    partial(digits_product, kernel=bytes_kernel),
)  # fmt: skip


def prepacked(codes: torch.Tensor, scales: torch.Tensor) -> Any:
    """Returns weights in 8 bits, [out, in] with a scale for each output, as FBGEMM reads them."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*quantize", category=UserWarning)  # deprecated for training
        zeros = torch.zeros(len(codes), dtype=torch.long)
        weight = torch._make_per_channel_quantized_tensor(codes, scales.double(), zeros, 0)
    return torch.ops.quantized.linear_prepack(weight, None)


@cache
def multiplies_digits() -> bool:
    """Returns whether this CPU and this build of torch multiply bytes in integers without loss: sums of the largest
    products saturate on a CPU without AVX-512 VNNI, and other builds have no FBGEMM."""
    codes = torch.full((OUTPUTS, INPUTS), 127, dtype=torch.int8)
    largest = torch.full((2, INPUTS), 127.0)
    try:
        packed = prepacked(codes, torch.ones(OUTPUTS))
        found = torch.ops.quantized.linear_with_input_q_dq_qweight_dq_output_fp32.default(largest, 1.0, 128, packed)
    except (AttributeError, RuntimeError):
        return False
    return bool((found == 127 * 127 * INPUTS).all())


class Int4Linear(StoredLinear):
    """A layer in 4 bits, `codes` in the layout of torch's kernel, with a scale and the value of code 8 for each GROUP
    inputs of an output: `scales` [in ÷ GROUP, out, 2]."""

    kind = "int4"
    stored = ("codes", "scales")
    codes: torch.Tensor
    scales: torch.Tensor

    def dense(self) -> torch.Tensor:
        unit = torch.eye(self.in_features, dtype=torch.bfloat16)  # torch has no function that unpacks them
        return groups_product(unit, self.codes, self.scales).T.contiguous()

    def product(self, input: torch.Tensor) -> torch.Tensor:
        multiply = int4_op if torch.compiler.is_compiling() else int4_product
        return multiply(input, self.codes, self.scales, self.bias)


def groups_product(rows: torch.Tensor, codes: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """Returns rows [n, in], in bfloat16, times `codes` with the scales of groups: [n, out]."""
    found: torch.Tensor = torch.ops.aten._weight_int4pack_mm_for_cpu.default(rows, codes, GROUP, scales)
    return found


int4_product = partial(codes_product, kernel=groups_product)
int4_kernel = kernel_op(
    "int4_kernel", "(Tensor rows, Tensor codes, Tensor scales) -> Tensor", groups_product,
    lambda rows, codes, scales: rows.new_empty((len(rows), scales.shape[1])),
)  # fmt: skip
int4_op = traced_op("int4_product", OF_CODES, partial(codes_product, kernel=int4_kernel))

PRODUCTS = frozenset({packed_op, int8_op, digits_op, int4_op})  # in the graphs of compiled passes


Store = Callable[[nn.Linear, bool], None]  # a layer, and whether its weight stays readable as it is


def pack(layer: nn.Linear, kept: bool) -> None:
    weight = layer.weight.detach()
    layer.__class__ = PackedLinear
    assert isinstance(layer, PackedLinear)
    layer.store(kept, packed=torch.ops.mkldnn._reorder_linear_weight(weight))


# Layers of attention and of gated networks that read the same input, as transformers' models name them.
JOINED = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))


def join(layers: Sequence[nn.Linear], store: Store) -> None:
    """Stores the weights of layers of one input as those of one layer."""
    sizes = [layer.out_features for layer in layers]
    with torch.device("meta"):
        whole = nn.Linear(layers[0].in_features, sum(sizes), bias=False)
    whole.weight = nn.Parameter(torch.cat([layer.weight.detach() for layer in layers]), requires_grad=False)
    if layers[0].bias is not None:
        whole.bias = nn.Parameter(torch.cat([layer.bias.detach() for layer in layers]), requires_grad=False)
    store(whole, False)
    assert isinstance(whole, StoredLinear)
    joined = JoinedProduct(whole, sizes)
    for number, layer in enumerate(layers):
        layer.__class__ = JoinedLinear
        assert isinstance(layer, JoinedLinear)
        layer.store(kept=False, joined=joined)
        layer.number = number


def joinable(part: nn.Module, linear: Collection[nn.Linear], users: Mapping[int, int]) -> Iterator[list[nn.Linear]]:
    """Yields the layers of a part of a network that can be joined: of the same inputs, all with a bias or none, and of
    weights that no other layer has."""
    for names in JOINED:
        layers: list[Any] = [layer for name in names if (layer := getattr(part, name, None)) in linear]
        same = {(layer.in_features, layer.bias is None) for layer in layers}
        if len(layers) == len(names) and len(same) == 1 and all(users[id(layer.weight)] == 1 for layer in layers):
            yield layers


def quantize_8(layer: nn.Linear, kept: bool) -> None:
    """Rounds each weight to a multiple of its row's scale, which is exact in bfloat16."""
    weight = layer.weight.detach().float()
    scales = (weight.abs().amax(1) / 127).clamp_min(torch.finfo(torch.bfloat16).tiny).bfloat16()
    codes = (weight / scales.float()[:, None]).round_().clamp_(-127, 127).to(torch.int8)
    digits = multiplies_digits() and layer.in_features <= MOST_INPUTS and layer.weight.numel() >= LEAST_WEIGHTS
    layer.__class__ = DigitsLinear if digits else Int8Linear
    assert isinstance(layer, StoredLinear)
    if digits:
        packed = prepacked(codes, scales)
        _PACKED[number := next(_KEYS)] = packed
        layer.store(kept, packed=packed, scales=scales, key=torch.tensor(number))
    else:
        layer.store(kept, codes=codes, scales=scales)


def quantize_4(layer: nn.Linear, kept: bool) -> None:
    """Rounds each weight to one of 16 values between the least and the largest of its group."""
    weight = layer.weight.detach().float().unflatten(1, (-1, GROUP))
    low, high = weight.amin(2), weight.amax(2)
    scales = ((high - low) / 15).clamp_min(torch.finfo(torch.bfloat16).tiny).bfloat16()
    zeros = (low + 8 * scales.float()).bfloat16()  # the value of code 8
    codes = ((weight - zeros.float()[..., None]) / scales.float()[..., None] + 8).round_().clamp_(0, 15)
    packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu(codes.flatten(1).to(torch.int32), 1)
    layer.__class__ = Int4Linear
    assert isinstance(layer, Int4Linear)
    layer.store(kept, codes=packed, scales=torch.stack([scales, zeros], 2).transpose(0, 1).contiguous())


def stored_layers(network: nn.Module) -> list[StoredLinear]:
    return [part for part in network.modules() if isinstance(part, StoredLinear)]


UNPACKED = "_specbench_unpacked"  # of a network whose packed layers were turned back


def products_of(network: nn.Module) -> Products | None:
    """Returns whether a network multiplies with packed bfloat16 weights, or plainly though they were packed; None if
    they never were."""
    if any(isinstance(layer, PackedLinear) for layer in stored_layers(network)):
        return "packed"
    return "plain" if getattr(network, UNPACKED, False) else None


def unpack(network: nn.Module) -> None:
    """Turns all layers back into torch's own."""
    for layer in stored_layers(network):
        layer.restore()
    setattr(network, UNPACKED, True)


@torch.no_grad()
def store_weights(network: Any, quantize: Quantize = "none") -> None:
    """Packs the bfloat16 linear layers of a network on a CPU, or stores them in 8 or 4 bits, one after another, so that
    never more than one weight is there twice. Layers of sizes that the kernels of few bits do not read are packed.

    The output layer of int4 has 8 bits, since its errors go directly into the logits. If the embeddings share its
    weight, it gets a copy, and they keep theirs: they read single rows, which the packed layout hides.
    """
    head = network.get_output_embeddings() if hasattr(network, "get_output_embeddings") else None
    linear = [part for part in network.modules() if type(part) is nn.Linear and part.weight.dtype == torch.bfloat16]
    users: dict[int, int] = {}
    for part in network.modules():
        for parameter in part.parameters(recurse=False):
            users[id(parameter)] = users.get(id(parameter), 0) + 1
    can_pack = packs_bfloat16()

    def way(layer: nn.Linear) -> Store | None:
        fits = layer.in_features % INPUTS == 0 and layer.out_features % OUTPUTS == 0
        if quantize != "none" and fits:
            return quantize_4 if quantize == "int4" and layer is not head else quantize_8
        return pack if can_pack else None

    for part in list(network.modules()):
        for layers in joinable(part, set(linear), users):
            ways = {way(layer) for layer in layers}
            if len(ways) == 1 and (store := ways.pop()) is not None:
                join(layers, store)
    for layer in linear:
        if type(layer) is nn.Linear and (store := way(layer)) is not None:
            store(layer, users[id(layer.weight)] > 1)


@dataclass(frozen=True)
class ProductRate:
    """The products of a network with weights of one kind (plain, packed, int8, int4) and shape, for one token: their
    number, the bytes of all of them, and the bytes that they read in a second."""

    kind: str
    out_features: int
    in_features: int
    number: int
    num_bytes: int
    bytes_per_second: float


SECONDS = 0.2  # for the products of one shape
MIN_CALLS = 3


@torch.inference_mode()
def product_rates(network: nn.Module) -> list[ProductRate]:
    """Times the products of each shape over one token, in the order of the layers, so that weights are read from memory
    as in a pass. A kernel that torch silently computes in another way has a fraction of the others' rate."""
    by_shape: dict[tuple[str, int, int], list[tuple[Product, int]]] = {}
    for part in network.modules():
        if isinstance(part, StoredLinear):
            layer = part.joined.whole if isinstance(part, JoinedLinear) else part
            if not isinstance(part, JoinedLinear) or part.number == 0:
                shape = (layer.kind, layer.out_features, layer.in_features)
                by_shape.setdefault(shape, []).append((layer.product, layer.stored_bytes))
        elif type(part) is nn.Linear:
            shape = ("plain", part.out_features, part.in_features)
            by_shape.setdefault(shape, []).append((part, part.weight.nbytes))
    dtype = next(network.parameters()).dtype
    rates = []
    for (kind, num_outputs, num_inputs), products in by_shape.items():
        num_bytes = sum(size for _, size in products)
        row = torch.zeros((1, num_inputs), dtype=dtype)
        seconds = fastest_round([product for product, _ in products], row)
        rates.append(ProductRate(kind, num_outputs, num_inputs, len(products), num_bytes, num_bytes / seconds))
    return rates


def fastest_round(products: Sequence[Product], row: torch.Tensor) -> float:
    """Returns the seconds of one call of each product, in the fastest of several rounds after the first."""
    end = time.perf_counter() + SECONDS
    seconds: list[float] = []
    while len(seconds) <= MIN_CALLS or time.perf_counter() < end:
        start = time.perf_counter()
        for product in products:
            product(row)
        seconds.append(time.perf_counter() - start)
    return min(seconds[1:])


NUM_PROBED = 4  # layers


@torch.inference_mode()
def packing_pays(network: Any) -> tuple[bool, str] | None:
    """Compares packed products with torch's own on some layers of the most frequent bytes. Returns whether the packed
    ones are faster, and both rates as text; None if no layer is packed."""
    by_shape: dict[tuple[int, int], list[StoredLinear]] = {}
    for layer in stored_layers(network) if isinstance(network, nn.Module) else ():
        if isinstance(layer, PackedLinear):
            by_shape.setdefault((layer.out_features, layer.in_features), []).append(layer)
    if not by_shape:
        return None
    layers = max(by_shape.values(), key=lambda layers: sum(layer.stored_bytes for layer in layers))[:NUM_PROBED]
    row = torch.zeros((1, layers[0].in_features), dtype=torch.bfloat16)
    weights = [(layer.dense(), layer.bias) for layer in layers]
    plain: list[Product] = [partial(functional.linear, weight=weight, bias=bias) for weight, bias in weights]
    num_bytes = sum(layer.stored_bytes for layer in layers)
    own, packed = (num_bytes / fastest_round(calls, row) for calls in (plain, [layer.product for layer in layers]))
    return packed > own, f"{packed / 1e9:.1f} GB/s, torch's own {own / 1e9:.1f}"
