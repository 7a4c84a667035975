"""Linear layers on a CPU as torch's kernels read them: the bits of plain products, one copy of the weights, and what
reads `weight`."""

import copy
import weakref
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from transformers import AutoModelForCausalLM

from specbench.analysis.roofline.roofline import work_of
from specbench.core.errors import ConfigError
from specbench.integrations.transformers_decoders import own_copy
from specbench.models import loading, machine, packed
from specbench.models.causal_lm import CausalLM
from specbench.models.compiling import join_products
from specbench.models.loading import load_model
from specbench.models.packed import (
    DigitsLinear,
    Int4Linear,
    Int8Linear,
    JoinedLinear,
    PackedLinear,
    StoredLinear,
    product_rates,
    store_weights,
    stored_layers,
)
from specbench.models.scoring import same_logits
from specbench.models.static_passes import StaticPasses
from specbench.running.models import LoadedModels, choose_products, products_by_model
from specbench.specs.components import check_quantized
from specbench.training.new_heads import output_weight
from tests.support import tiny

needs_packing = pytest.mark.skipif(not packed.packs_bfloat16(), reason="torch has no packed products here")
WIDTHS = (1, 2, 3, 6, 16, 17, 70)
SIZES = {"hidden_size": 64, "intermediate_size": 96, "head_dim": 16}  # which the kernels of few bits read
BITS: list[tuple[Any, float]] = [("int8", 0.02), ("int4", 0.2)]  # and the error of a layer's outputs


def linear(num_outputs: int, num_inputs: int, bias: bool = True) -> nn.Linear:
    torch.manual_seed(num_outputs * 1000 + num_inputs)
    return nn.Linear(num_inputs, num_outputs, bias=bias, dtype=torch.bfloat16)


def network(tied: bool = False, **options: Any) -> Any:
    return tiny.network(tie_word_embeddings=tied, **SIZES, **options).to(torch.bfloat16)


def causal_lm(network: Any, quantize: Any = "none") -> CausalLM:
    return CausalLM(network, tiny.tokenizer(), "tiny", None, quantize)


def same(first: torch.Tensor, second: torch.Tensor) -> bool:
    """Whether two results have the same bits, or are equal up to rounding on a CPU where that was never seen."""
    names = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")
    multiplies, has_tiles = (bool(getattr(torch.cpu, name, lambda: False)()) for name in names)
    if multiplies and not has_tiles:
        return torch.equal(first, second)
    return not first.numel() or same_logits(first, second)


def stored_bytes(network: nn.Module) -> int:
    """The bytes of all weights and buffers that the network holds, shared ones once, and of stored weights."""
    layers = stored_layers(network)
    stored = {id(getattr(layer, name)) for layer in layers for name in layer.stored}
    tensors = {id(tensor): tensor for tensor in (*network.parameters(), *network.buffers()) if id(tensor) not in stored}
    return sum(tensor.nbytes for tensor in tensors.values()) + sum(layer.stored_bytes for layer in layers)


def opaque(network: nn.Module) -> list[Any]:
    """What a network has in place of weights."""
    layers = stored_layers(network)
    wholes = [layer.joined.whole if isinstance(layer, JoinedLinear) else layer for layer in layers]
    return [getattr(layer, name) for layer in wholes for name in layer.stored]


@needs_packing
@pytest.mark.parametrize(("num_outputs", "num_inputs"), [(64, 48), (33, 17), (7, 5), (128, 256)])
@pytest.mark.parametrize("bias", [True, False])
def test_packed_products_have_the_same_bits_at_every_width(num_outputs: int, num_inputs: int, bias: bool) -> None:
    layer = linear(num_outputs, num_inputs, bias)
    plain = copy.deepcopy(layer)
    network = nn.Sequential(layer)
    store_weights(network)
    assert type(network[0]) is PackedLinear
    assert torch.equal(network[0].weight, plain.weight)
    with torch.inference_mode():
        for width in (0, *WIDTHS):
            rows = torch.randn(1, width, num_inputs).bfloat16()
            assert same(network(rows), plain(rows)), width
        wide = torch.randn(5, 2 * num_inputs).bfloat16()[:, ::2]
        assert same(network(wide), plain(wide))


@needs_packing
@pytest.mark.parametrize("kind", ["llama", "qwen2", "gemma3_text", "qwen3_5_text"])
@pytest.mark.parametrize("tied", [False, True])
def test_a_packed_network_gives_the_same_logits(kind: str, tied: bool) -> None:
    plain = tiny.network(kind, tie_word_embeddings=tied).to(torch.bfloat16)
    stored = copy.deepcopy(plain)
    store_weights(stored)
    kinds = {type(part) for part in stored.modules() if isinstance(part, nn.Linear)}
    assert kinds == {PackedLinear, JoinedLinear}
    first, second = causal_lm(plain), causal_lm(stored)
    for width in WIDTHS:
        ids = [(7 * place) % 250 for place in range(9 + width)]
        for model in (first, second):
            model.reset()
            model.score(ids[:9], 1)
        assert same(first.score(ids, width).logits, second.score(ids, width).logits), width


@needs_packing
def test_no_weight_is_there_twice() -> None:
    network_of = network()
    before = stored_bytes(network_of)
    weights = [weakref.ref(part.weight) for part in network_of.modules() if isinstance(part, nn.Linear)]
    store_weights(network_of)
    assert all(weight() is None for weight in weights)
    assert stored_bytes(network_of) == before
    assert sum(layer.stored_bytes for layer in stored_layers(network_of)) < before


@needs_packing
def test_embeddings_keep_the_weight_that_they_share_with_the_output_layer() -> None:
    shared = network(tied=True)
    before, table = stored_bytes(shared), shared.model.embed_tokens.weight
    store_weights(shared)
    assert shared.lm_head.weight is table and shared.model.embed_tokens.weight is table
    assert stored_bytes(shared) == before + table.nbytes  # the only copy


@needs_packing
@pytest.mark.parametrize("tied", [False, True])
def test_what_reads_the_weights_finds_them(tied: bool, tmp_path: Path) -> None:
    plain, stored = network(tied), network(tied)
    store_weights(stored)
    expected = plain.state_dict()
    found = stored.state_dict()
    assert sorted(found) == sorted(expected)
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    assert torch.equal(output_weight(causal_lm(stored)), output_weight(causal_lm(plain)))
    stored.save_pretrained(tmp_path)
    again = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.bfloat16)
    assert all(torch.equal(value, expected[name]) for name, value in again.state_dict().items())


@pytest.mark.parametrize("quantize", [pytest.param("none", marks=needs_packing), "int8", "int4"])
def test_copies_share_the_packed_weights(quantize: Any) -> None:
    stored = network()
    store_weights(stored, quantize)
    ids = torch.arange(8)[None]
    for made in (own_copy(stored), copy.deepcopy(stored)):
        for own, other in zip(stored_layers(made), stored_layers(stored), strict=True):
            assert own is not other
            assert not isinstance(own, JoinedLinear) or own.joined is not other.joined  # nor what is pending
        for own, other in zip(opaque(made), opaque(stored), strict=True):
            assert own is other
        with torch.inference_mode():
            assert torch.equal(made(ids).logits, stored(ids).logits)


@needs_packing
def test_another_dtype_and_loaded_weights_make_the_layers_plain_again() -> None:
    plain, stored = network(), network()
    store_weights(stored)
    assert len(stored_layers(stored.to("cpu"))) == len(stored_layers(stored)) > 0  # nothing changes
    single = stored.float()
    assert not stored_layers(single)
    ids = torch.arange(8)[None]
    with torch.inference_mode():
        assert torch.equal(single(ids).logits, copy.deepcopy(plain).float()(ids).logits)
    stored = network()
    store_weights(stored)
    other = network(seed=1)
    stored.load_state_dict(other.state_dict())
    assert not stored_layers(stored)
    with torch.inference_mode():
        assert torch.equal(stored(ids).logits, other(ids).logits)


@needs_packing
def test_gradients_of_the_input_pass_through() -> None:
    plain = linear(32, 64)
    layers = nn.Sequential(copy.deepcopy(plain))
    store_weights(layers)
    rows = torch.randn(3, 64, dtype=torch.bfloat16, requires_grad=True)
    layers(rows).float().square().sum().backward()
    found, rows.grad = rows.grad, None
    plain(rows).float().square().sum().backward()
    assert found is not None and torch.equal(found, rows.grad)


@pytest.mark.parametrize(("quantize", "limit"), BITS)
def test_products_of_few_bits_are_those_of_the_weights_that_the_layer_shows(quantize: Any, limit: float) -> None:
    plain = linear(48, 64)
    layers = nn.Sequential(copy.deepcopy(plain))
    store_weights(layers, quantize)
    assert type(layers[0]) is {"int8": Int8Linear, "int4": Int4Linear}[quantize]
    dense = layers[0].weight
    assert dense.shape == plain.weight.shape and dense.dtype == torch.bfloat16
    with torch.inference_mode():
        for width in WIDTHS:
            rows = torch.randn(1, width, 64).bfloat16()
            found, exact = layers(rows).float(), functional.linear(rows.float(), dense.float(), plain.bias.float())
            assert (found - exact).abs().max() < 0.02 * exact.abs().max()  # rounding
            whole = plain(rows).float()
            assert (found - whole).norm() < limit * whole.norm()
    error = (dense.float() - plain.weight.float()).norm() / plain.weight.float().norm()
    assert 0 < error < limit


needs_digits = pytest.mark.skipif(not packed.multiplies_digits(), reason="bytes are not multiplied without loss here")


@pytest.fixture
def digits_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small layers have digits too."""
    monkeypatch.setattr(packed, "LEAST_WEIGHTS", 0)


@needs_digits
@pytest.mark.usefixtures("digits_everywhere")
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("outlier", [1.0, 300.0])
def test_products_by_digits_are_exact_up_to_the_rounding_of_inputs_and_outputs(bias: bool, outlier: float) -> None:
    layer = linear(48, 608, bias)
    plain = copy.deepcopy(layer)
    layers = nn.Sequential(layer)
    store_weights(layers, "int8")
    assert type(layer) is DigitsLinear
    codes, _ = torch.ops.quantized.linear_unpack(layer.packed)
    weight = codes.int_repr().double() * layer.scales.double()[:, None]
    rows = torch.randn(17, 608).bfloat16()
    rows[:, 5] *= outlier  # as in models whose few largest activations dwarf the others
    rows[3] = 0
    with torch.inference_mode():
        found = layers(rows).double()
    exact = rows.double() @ weight.T + (0.0 if plain.bias is None else plain.bias.double())
    rounding = rows.double().abs().amax(1, keepdim=True) / 2**16 * weight.abs().sum(1)
    assert ((found - exact).abs() <= exact.abs() / 2**8 + rounding + 1e-6).all()
    assert (found - exact).norm() < exact.norm() / 2**8


@needs_digits
@pytest.mark.usefixtures("digits_everywhere")
def test_rows_of_products_by_digits_do_not_depend_on_other_rows() -> None:
    layers = nn.Sequential(linear(64, 608))
    store_weights(layers, "int8")
    rows = torch.randn(70, 608).bfloat16() * torch.logspace(-3, 3, 70)[:, None].bfloat16()
    with torch.inference_mode():
        alone = torch.cat([layers(row[None]) for row in rows])
        for width in WIDTHS:
            assert torch.equal(layers(rows[:width]), alone[:width]), width
        assert layers(rows[:0]).shape == (0, 64)


@needs_digits
@pytest.mark.parametrize("name", ["multiplies_digits", "MOST_INPUTS", "LEAST_WEIGHTS"])
def test_layers_without_digits_have_the_same_weights(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(packed, "LEAST_WEIGHTS", 48 * 64)
    own, other = (nn.Sequential(linear(48, 64)) for _ in range(2))
    store_weights(own, "int8")
    monkeypatch.setattr(packed, name, {"MOST_INPUTS": 63, "LEAST_WEIGHTS": 48 * 64 + 1}.get(name, lambda: False))
    store_weights(other, "int8")
    assert type(own[0]) is DigitsLinear and type(other[0]) is Int8Linear
    assert torch.equal(own[0].weight, other[0].weight)
    rows = torch.randn(3, 64).bfloat16()
    with torch.inference_mode():
        assert same_logits(own(rows), other(rows))


@needs_digits
@pytest.mark.usefixtures("digits_everywhere")
def test_a_network_of_digits_is_copied_and_loses_them(tmp_path: Path) -> None:
    stored = network()
    store_weights(stored, "int8")
    assert {type(layer) for layer in stored_layers(stored)} == {DigitsLinear, JoinedLinear, PackedLinear}
    made, ids = own_copy(stored), torch.arange(8)[None]
    assert all(first is second for first, second in zip(opaque(made), opaque(stored), strict=True))
    with torch.inference_mode():
        found = stored(ids).logits
        assert torch.equal(made(ids).logits, found)
        for layer in stored_layers(stored):
            layer.restore()
        assert not stored_layers(stored) and same_logits(stored(ids).logits, found)


@pytest.mark.parametrize("error", [RuntimeError("no FBGEMM"), AttributeError("no such operator")])
def test_a_build_without_fbgemm_multiplies_no_digits(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def fail(*given: object) -> None:
        raise error

    packed.multiplies_digits.cache_clear()
    monkeypatch.setattr(packed, "prepacked", fail)
    try:
        assert not packed.multiplies_digits()
    finally:
        packed.multiplies_digits.cache_clear()


def test_constant_and_zero_weights_are_kept_exactly() -> None:
    layers = [linear(16, 64, bias=False) for _ in range(4)]
    for layer, value in zip(layers, (0.0, 0.5, 0.0, 0.5), strict=True):
        nn.init.constant_(layer.weight, value)
    for quantize, (zero, half) in (("int8", layers[:2]), ("int4", layers[2:])):
        pair = nn.Sequential(zero, half)
        store_weights(pair, quantize)  # type: ignore[arg-type]
        assert not pair[0].weight.any()
        assert torch.allclose(pair[1].weight, torch.tensor(0.5, dtype=torch.bfloat16), rtol=0.01)


@pytest.mark.parametrize(("quantize", "limit"), BITS)
def test_sizes_that_the_kernels_do_not_read_stay_in_16_bits(quantize: Any, limit: float) -> None:
    """torch's kernels would read beyond the weights."""
    for num_outputs, num_inputs in ((16, 48), (24, 64)):
        layers = nn.Sequential(linear(num_outputs, num_inputs))
        store_weights(layers, quantize)
        assert type(layers[0]) is (PackedLinear if packed.packs_bfloat16() else nn.Linear)


@pytest.mark.parametrize(("quantize", "limit"), BITS)
def test_a_quantized_target_is_loaded(tmp_path: Path, quantize: Any, limit: float) -> None:
    source = str(tiny.save(tmp_path, num_extra=15, **SIZES))
    plain, model = (
        load_model(source, device="cpu", dtype="bfloat16"),
        load_model(source, device="cpu", quantize=quantize),
    )
    assert (model.precision, model.dtype, model.engine) == (f"{quantize} (bfloat16)", "bfloat16", "eager")
    kinds = [layer.kind for layer in stored_layers(model.model)]
    assert set(kinds[:-1]) == {quantize} and kinds[-1] == "int8"  # the output layer has 8 bits
    ids = list(range(20))
    assert not torch.equal(model.score(ids, 20).logits, plain.score(ids, 20).logits)
    assert stored_bytes(model.model) < stored_bytes(plain.model)


@needs_packing
def test_loading_packs_what_eager_passes_compute_in_bfloat16(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = str(tiny.save(tmp_path))
    model = load_model(source, device="cpu", dtype="bfloat16")
    assert {layer.kind for layer in stored_layers(model.model)} == {"packed"}
    assert not stored_layers(load_model(source, device="cpu").model)  # float32
    monkeypatch.setattr(packed, "packs_bfloat16", lambda: False)  # as on an old CPU
    plain = load_model(source, device="cpu", dtype="bfloat16")
    assert not stored_layers(plain.model)
    ids = list(range(30))
    assert same(model.score(ids, 30).logits, plain.score(ids, 30).logits)


@pytest.mark.parametrize(
    ("able", "dtype", "large", "expected"),
    [
        (True, torch.bfloat16, 0, torch.bfloat16),
        (False, torch.bfloat16, 0, torch.float32),  # a CPU that converts the weights
        (True, torch.float32, 0, torch.float32),  # of the checkpoint
        (True, torch.bfloat16, 2**40, torch.float32),  # a small network
    ],
)
def test_auto_is_bfloat16_for_large_checkpoints_where_the_cpu_multiplies_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, able: bool, dtype: torch.dtype, large: int, expected: torch.dtype
) -> None:
    folder = tmp_path / "model"
    tiny.save(folder)
    AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).save_pretrained(folder)
    monkeypatch.setattr(loading, "packs_bfloat16", lambda: True)
    monkeypatch.setattr(loading, "has_bfloat16_instructions", lambda: able)
    monkeypatch.setattr(loading, "LARGE", large)
    assert load_model(str(folder), device="cpu").dtype == str(expected).removeprefix("torch.")
    assert load_model(str(folder), device="cpu", dtype="float32").dtype == "float32"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"quantize": "nf4"}, "--quantize nf4: needs a CUDA device, and this is cpu: take --quantize int8 or int4"),
        (
            {"quantize": "int8", "dtype": "float32"},
            "--quantize int8: computes in bfloat16 on a CPU: leave out --dtype float32",
        ),
        (
            {"quantize": "int4", "device_map": "auto"},
            "--quantize int4: there is one device, the CPU: leave out --device-map auto",
        ),
        (
            {"quantize": "int8", "engine": "graphs"},
            "--quantize int8: works on cpu only with --engine eager or compiled, not graphs",
        ),
    ],
)
def test_what_a_cpu_does_not_quantize_is_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as error:
        load_model("embedded:drafter", device="cpu", **options)
    assert str(error.value) == said


def test_a_gpu_quantizes_for_eager_passes_only() -> None:
    check_quantized("int8", "cuda", "auto", "auto", "auto")
    with pytest.raises(ConfigError, match=r"^--quantize int8: works on cuda only with --engine eager, not compiled$"):
        check_quantized("int8", "cuda", "auto", "none", "compiled")


@pytest.mark.parametrize("quantize", ["none", "int8", "int4"])
def test_the_bound_counts_the_bytes_that_products_read(quantize: Any) -> None:
    for tied in (False, True):
        plain, stored = network(tied), network(tied)
        store_weights(stored, quantize)
        expected, found = (work_of(causal_lm(each)) for each in (plain, stored))
        assert found.matmul_weights == expected.matmul_weights
        if quantize == "none":
            if packed.packs_bfloat16():
                row = 2 * SIZES["hidden_size"]  # embeddings that share the weight read their own copy of it
                assert (found.weight_bytes, found.row_bytes) == (expected.weight_bytes, row)
        else:
            layers = stored_layers(stored)
            norms = sum(part.nbytes for part in stored.parameters() if part.ndim == 1)
            assert found.weight_bytes == sum(layer.stored_bytes for layer in layers) + norms < expected.weight_bytes


def test_rates_are_of_each_kind_and_shape(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed, "SECONDS", 0.0)
    stored = network()
    store_weights(stored, "int4")
    stored.model.layers[0].mlp.down_proj.restore()
    rates = product_rates(stored)
    assert sum(rate.number for rate in rates) == 4 * 4 + 1  # q+k+v, o, gate+up, down of each, output layer
    assert [(r.kind, r.number) for r in rates if (r.out_features, r.in_features) == (64, 96)] == [
        ("plain", 1), ("int4", 3),
    ]  # fmt: skip
    assert all(rate.bytes_per_second > 0 for rate in rates)
    assert [rate.num_bytes for rate in rates if rate.kind == "plain"] == [2 * 64 * 96]


@needs_packing
def test_joined_products_are_timed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed, "SECONDS", 0.0)
    stored = network()
    layers = [part.weight.nbytes for part in stored.modules() if isinstance(part, nn.Linear)]
    store_weights(stored)
    rates = product_rates(stored)
    assert sum(rate.num_bytes for rate in rates) == sum(layers)
    assert sorted(rate.number for rate in rates) == [1, 4, 4, 4, 4]  # output layer, q+k+v, o, gate+up, down


@needs_packing
def test_layers_of_one_input_are_joined_and_take_their_parts() -> None:
    plain = network().model.layers[0].mlp
    joined = copy.deepcopy(plain)
    store_weights(joined)
    gate, up = joined.gate_proj, joined.up_proj
    assert (
        type(gate) is type(up) is JoinedLinear and gate.joined is up.joined and type(joined.down_proj) is PackedLinear
    )
    first, second = torch.randn(2, 1, 5, 64).bfloat16().unbind()
    with torch.inference_mode():
        for layer, input in ((up, first), (gate, first), (gate, second), (gate, second), (up, first), (up, second)):
            name = "gate_proj" if layer is gate else "up_proj"
            found = layer(input)
            assert same(found, getattr(plain, name)(input)) and found.is_contiguous()
        gate(second)
        assert gate.joined.pending.input is None  # both parts are taken, and nothing is held


@needs_packing
def test_layers_whose_weights_are_shared_are_not_joined() -> None:
    mlp = network().model.layers[0].mlp
    mlp.up_proj.weight = mlp.gate_proj.weight
    weight = mlp.gate_proj.weight
    store_weights(mlp)
    assert type(mlp.gate_proj) is PackedLinear and mlp.gate_proj.weight is weight is mlp.up_proj.weight


def calls_of(model: CausalLM, ids: list[int]) -> Counter[str]:
    """The operators of a pass over the tokens after the first ten."""
    model.reset()
    model.score(ids[:10], 1)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        model.score(ids, len(ids) - 10)
    return Counter({event.key: event.count for event in profile.key_averages()})


KERNELS = {  # of layers, by the operators of compiled passes and by torch's
    PackedLinear: ("specbench::packed_product", "mkldnn::_linear_pointwise"),
    Int8Linear: ("specbench::int8_kernel", "aten::_weight_int8pack_mm"),
    DigitsLinear: ("specbench::bytes_product", "quantized::linear_with_input_q_dq_qweight_dq_output_fp32"),
    Int4Linear: ("specbench::int4_kernel", "aten::_weight_int4pack_mm_for_cpu"),
}


def multiplies_each_weight_once(model: CausalLM) -> bool:
    """Whether the passes over one token and over several are compiled, and their products are all of stored weights."""
    layers = stored_layers(model.model)
    wholes = {id(layer): layer for layer in (getattr(each, "joined", None) for each in layers) if layer is not None}
    alone = [layer for layer in layers if not isinstance(layer, JoinedLinear)]
    number = Counter(type(layer) for layer in (*alone, *(joined.whole for joined in wholes.values())))
    return all(
        all(calls[name] == number[kind] for kind, names in KERNELS.items() for name in names)
        and not any(calls[f"aten::{name}"] for name in ("linear", "mm", "addmm", "to_dense"))
        for calls in (calls_of(model, list(range(10 + width))) for width in (1, 3))
    )


QUANTIZED = [pytest.param("none", marks=needs_packing), "int8", pytest.param("digits", marks=needs_digits), "int4"]


@pytest.fixture
def quantize(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    """How the weights are stored; `digits`: in 8 bits, multiplied in bytes however small the layer."""
    if request.param == "digits":
        monkeypatch.setattr(packed, "LEAST_WEIGHTS", 0)
    return "int8" if request.param == "digits" else request.param


@pytest.mark.parametrize("kind", ["qwen2", pytest.param("gemma3_text", marks=pytest.mark.slow)])
@pytest.mark.parametrize("quantize", QUANTIZED, indirect=True)
def test_the_graph_of_a_compiled_pass_multiplies_each_stored_weight_once(
    kind: str, quantize: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The graph that is given to the compiler is called as it is. Its results and what it writes are checked as those
    of any compiled pass."""
    monkeypatch.setattr(StaticPasses, "check", lambda self: None)
    monkeypatch.setattr("torch._inductor.compile_fx.compile_fx", lambda graph, examples, **given: graph.forward)
    plain = tiny.network(kind, num_hidden_layers=2, **SIZES).to(torch.bfloat16)
    stored = copy.deepcopy(plain)
    store_weights(stored, quantize)
    before = stored_bytes(stored)
    eager, model = causal_lm(copy.deepcopy(stored), quantize), causal_lm(stored, quantize)
    loading.make_passes(model, "compiled")
    assert model.static is not None, model.why_eager
    model.static.reserve(64, (1, 3))
    assert multiplies_each_weight_once(model)
    assert stored_bytes(stored) == before
    rows = products_by_model(LoadedModels(model, {"sd": model}))
    assert rows == ({"tiny": "packed"} if quantize == "none" else {}) == products_by_model(LoadedModels(eager, {}))
    ids = list(range(13))
    first, second = (each.score(ids, 3).logits for each in (eager, model))
    assert same_logits(first, second)
    other = causal_lm(plain).score(ids, 3).logits
    assert same_logits(other, second) if quantize == "none" else not torch.equal(other, second)


@pytest.mark.parametrize("product", sorted(packed.PRODUCTS, key=str), ids=str)
def test_only_products_of_the_same_input_and_weights_are_joined(product: Any) -> None:
    def forward(first: Any, second: Any, weights: Any) -> Any:
        first.add_(1)  # which nothing reads
        return product(first, weights, None) + product(second, weights, None) * product(first, weights, None)

    graph = torch.fx.symbolic_trace(forward)
    join_products(graph)
    targets = [node.target for node in graph.graph.nodes]
    assert targets.count(product) == 2 and "add_" in targets


@pytest.mark.slow
@pytest.mark.parametrize("quantize", QUANTIZED, indirect=True)
def test_passes_of_a_loaded_model_are_compiled_with_stored_products(tmp_path: Path, quantize: Any) -> None:
    source = str(tiny.save(tmp_path, **SIZES))
    options: Any = {"device": "cpu", "dtype": "bfloat16", "quantize": quantize}
    eager, model = (load_model(source, engine=each, **options) for each in ("eager", "compiled"))
    assert model.static is not None, model.why_eager
    assert (model.engine, model.precision) == ("compiled", eager.precision)
    assert stored_bytes(model.model) == stored_bytes(eager.model)
    model.static.reserve(64, (1, 3))  # compares them with eager passes
    assert multiplies_each_weight_once(model)
    for width in (1, 3):
        ids = list(range(10 + width))
        assert same_logits(*(each.score(ids, width).logits for each in (eager, model)))


def test_weights_of_bytes_are_freed_with_their_last_layer(digits_everywhere: None) -> None:
    layers = nn.Sequential(linear(48, 64))
    before = len(packed._PACKED)
    store_weights(layers, "int8")
    made = copy.deepcopy(layers)
    assert len(packed._PACKED) == before + isinstance(layers[0], DigitsLinear)
    rows = torch.randn(3, 64).bfloat16()
    del layers
    with torch.inference_mode():
        assert made(rows).shape == (3, 48)
    del made
    assert len(packed._PACKED) == before


@pytest.mark.real
@needs_packing
def test_a_public_model_gives_the_same_bits_packed_and_nearly_the_same_logits_in_8_bits(
    real_models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = str(real_models / "smollm2-135m")
    model = load_model(source, device="cpu", dtype="bfloat16")
    assert {layer.kind for layer in stored_layers(model.model)} == {"packed"}
    ids = model.tokenizer("def fibonacci(n):\n    if n < 2:\n        return n\n    return")["input_ids"]
    found = model.score(ids, len(ids)).logits
    eight = load_model(source, device="cpu", quantize="int8")
    assert {layer.kind for layer in stored_layers(eight.model)} == {"int8"}
    logits = eight.score(ids, len(ids)).logits
    assert same_logits(logits, found) and not torch.equal(logits, found)
    monkeypatch.setattr(loading, "store_weights", lambda *given: None)
    plain = load_model(source, device="cpu", dtype="bfloat16")
    assert not any(isinstance(part, StoredLinear) for part in plain.model.modules())
    assert same(found, plain.score(ids, len(ids)).logits)


@needs_packing
@pytest.mark.parametrize(("seconds", "pays"), [((2.0, 1.0), True), ((1.0, 2.0), False)])
def test_auto_says_which_products_a_probe_found_faster_and_takes_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seconds: tuple[float, float], pays: bool
) -> None:
    source = str(tiny.save(tmp_path))
    model = load_model(source, device="cpu", dtype="bfloat16")
    taken = iter(seconds)  # torch's own first
    monkeypatch.setattr(packed, "fastest_round", lambda calls, row: next(taken))
    [line] = choose_products(LoadedModels(model, {"sd": model}), {})
    kind = "packed products" if pays else "torch's own products"
    assert line.startswith(f"--engine auto: eager passes of {source} with {kind}")
    assert bool(stored_layers(model.model)) is pays
    assert packed.products_of(model.model) == ("packed" if pays else "plain")
    assert not list(choose_products(LoadedModels(load_model(source, device="cpu"), {}), {}))  # float32


@pytest.mark.parametrize(
    ("asked", "given", "said"),
    [("1", "always [madvise] never", True), ("0", "always [madvise] never", False),
     ("1", "[always] madvise never", False), ("1", None, False)],
)  # fmt: skip
def test_the_device_of_a_row_says_that_torch_asks_for_huge_pages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: str, given: str | None, said: bool
) -> None:
    file = tmp_path / "enabled"
    if given is not None:
        file.write_text(given + "\n")
    monkeypatch.setattr(machine, "HUGE_PAGES", file)
    monkeypatch.setenv("THP_MEM_ALLOC_ENABLE", asked)
    device = machine.environment("cpu", "bfloat16", "sdpa")["device"]
    assert (", huge pages" in device) is said
