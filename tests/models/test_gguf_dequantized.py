"""GGUF files in torch: positions and tensors that transformers leaves out are carried over or refused."""

import math
from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from transformers import FalconConfig, Gemma3TextConfig, Starcoder2Config

from specbench.core.errors import ConfigError
from specbench.models.gguf.dequantized import OtherModel, carry_norms, carry_positions, check_tensors, file_config
from specbench.models.gguf.files import find_gguf
from specbench.models.gguf.header import Header
from specbench.models.gguf.options import GgufOptions
from specbench.models.loading import load_model
from tests.support import gguf_files

OPTIONS = GgufOptions(cache_dtype="float32", given_by="options")
TEXT = list(range(300, 400))
Scaling = dict[str, Any]


@pytest.fixture(scope="module")
def file() -> Path:
    return gguf_files.embedded("drafter")


@pytest.fixture(scope="module")
def plain(file: Path) -> torch.Tensor:
    return score(file, "eager")


@pytest.fixture
def config(file: Path) -> Any:
    return deepcopy(read_config(file))


@cache
def read_config(file: Path) -> Any:
    return file_config(file, find_gguf(str(file)).header)


def llama3_factors(num_pairs: int, base: float, factor: float) -> "np.ndarray[Any, Any]":
    """The factors of Llama 3.1's paper code: 1 for wave lengths below 2,048 tokens, `factor` from 8,192 on, and between
    them what interpolates the frequencies."""
    found = []
    for pair in range(num_pairs):
        turns = 8192 / (2 * math.pi * base ** (pair / num_pairs))
        share = min(1.0, max(0.0, (turns - 1) / (4 - 1)))
        found.append(1 / ((1 - share) / factor + share))
    return np.array(found, dtype=np.float32)


def factors_of(file: Path, factor: float = 8.0) -> "np.ndarray[Any, Any]":
    header = find_gguf(str(file)).header
    found = llama3_factors(
        header.of_architecture("rope.dimension_count") // 2, header.of_architecture("rope.freq_base"), factor
    )
    assert found[0] == 1 and found.max() == factor
    return found


LINEAR = {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 4.0}
YARN = {"llama.rope.scaling.type": "yarn", "llama.rope.scaling.factor": 4.0,
        "llama.rope.scaling.original_context_length": (64, gguf.GGUFValueType.UINT32)}  # fmt: skip
WITHOUT_TYPE = {"llama.rope.scale_linear": 4.0}
EIGHTS = {"rope_freqs.weight": np.full(16, 8.0)}
BIAS = {"blk.0.attn_q.bias": np.full(64, 2.0)}
UNSCALED = {"llama.rope.scaling.type": "none", "llama.rope.scaling.factor": 4.0}


def score(path: Path, engine: Any) -> torch.Tensor:
    model = load_model(str(path), device="cpu", engine=engine, gguf=OPTIONS)
    return torch.log_softmax(model.score(TEXT, len(TEXT)).logits.float(), -1)


def divergence(one: torch.Tensor, other: torch.Tensor) -> float:
    return float((one.exp() * (one - other)).sum(-1).mean())


@pytest.mark.parametrize(
    "values",
    [LINEAR, YARN, pytest.param(WITHOUT_TYPE, marks=pytest.mark.slow), pytest.param(UNSCALED, marks=pytest.mark.slow),
     "llama3"],
    ids=str,
)  # fmt: skip
def test_positions_are_those_of_llama_cpp(
    file: Path, plain: torch.Tensor, tmp_path: Path, values: Scaling | str
) -> None:
    pytest.importorskip("llama_cpp", reason=gguf_files.NO_BINDING)
    extra = {"rope_freqs.weight": factors_of(file)} if values == "llama3" else {}
    path = gguf_files.rewritten(file, tmp_path / "m.gguf", {} if isinstance(values, str) else values, extra)
    scaled = score(path, "eager")
    assert divergence(score(path, "llama.cpp"), scaled) < 1e-5
    assert (divergence(scaled, plain) > 1e-4) is (values is not UNSCALED)


@pytest.mark.parametrize(
    ("values", "tensors", "problem"),
    [
        ({"llama.rope.scaling.type": "longrope"}, {}, r"^llama.rope.scaling.type = 'longrope', .*does not read"),
        ({**YARN, "llama.rope.scaling.attn_factor": 2.0}, {}, r"^llama.rope.scaling.attn_factor = 2.0: transformers"),
        ({}, EIGHTS, r"^tensor 'rope_freqs.weight' has factors from 8 to 8, which are not those of Llama 3"),
        (LINEAR, EIGHTS, r"factor = 4 and tensor 'rope_freqs.weight': transformers has no scaling of positions by bo"),
        ({}, BIAS, r"^tensor 'blk.0.attn_q.bias' has no place in transformers' LlamaForCausalLM, and would be left"),
        ({}, {**BIAS, "x": np.ones(4)}, r"^tensor 'blk.0.attn_q.bias' and 1 others have no place"),
    ],
)  # fmt: skip
def test_what_transformers_would_leave_out(
    file: Path, config: Any, tmp_path: Path, values: Scaling, tensors: dict[str, Any], problem: str
) -> None:
    header = find_gguf(str(gguf_files.rewritten(file, tmp_path / "m.gguf", values, tensors))).header
    with pytest.raises(OtherModel, match=problem) as caught:
        carry_positions(config, header)
        check_tensors(config, header)
    assert "\n" not in str(caught.value)


def test_a_file_without_a_weight(file: Path, config: Any) -> None:
    header = find_gguf(str(file)).header
    check_tensors(config, header)
    fewer = {name: place for name, place in header.tensors.items() if name != "blk.0.attn_q.weight"}
    with pytest.raises(OtherModel, match=r"^it lacks 1 tensors .* such as model.layers.0.self_attn.q_proj.weight"):
        check_tensors(config, replace(header, tensors=fewer))


@pytest.mark.parametrize("key", ["attention.head_count", "attention.layer_norm_rms_epsilon"])
def test_a_number_that_no_tensor_shows(file: Path, tmp_path: Path, key: str) -> None:
    """transformers has a default for it, with which the file would be another model."""
    path = gguf_files.rewritten(file, tmp_path / "m.gguf", {f"llama.{key}": None})
    with pytest.raises(OtherModel, match=rf"^llama.{key} is missing, and transformers would take [\de-]+$"):
        file_config(path, find_gguf(str(path)).header)


def test_the_epsilon_of_norms_is_the_files() -> None:
    """Of Falcon, transformers reads a key that its files do not have."""
    config = FalconConfig(layer_norm_epsilon=1e-5)
    values = {"general.architecture": "falcon", "falcon.attention.layer_norm_epsilon": 1e-3,
              "falcon.attention.head_count": 71}  # fmt: skip
    carry_norms(config, Header(Path("m.gguf"), values, {}, 0, {}))
    assert config.layer_norm_epsilon == 1e-3


def test_a_size_that_tensors_do_not_have(file: Path, tmp_path: Path) -> None:
    path = gguf_files.rewritten(file, tmp_path / "m.gguf", {"llama.feed_forward_length": None})
    with pytest.raises(
        ConfigError, match=r"m.gguf: tensor 'blk.0.ffn_\w+.weight' is [\dx ]+, and the keys llama.\* make"
    ):
        load_model(str(path), device="cpu", engine="eager", gguf=OPTIONS)


def test_factors_of_one_change_nothing(file: Path, config: Any, tmp_path: Path) -> None:
    path = gguf_files.rewritten(file, tmp_path / "m.gguf", {}, {"rope_freqs.weight": np.ones(16)})
    before = deepcopy(config.rope_parameters)
    carry_positions(config, find_gguf(str(path)).header)
    assert config.rope_parameters == before


def test_a_run_that_would_measure_another_model_ends(
    file: Path, specbench: Callable[..., tuple[int, str, str]], tmp_path: Path
) -> None:
    path = gguf_files.rewritten(file, tmp_path / "m.gguf", {}, BIAS)
    code, _, said = specbench(
        "run", "--target", str(path), "--engine", "eager", "--task", "mgsm", "--method", "pld", "--data", "sample"
    )
    assert code == 2 and "no place in transformers' LlamaForCausalLM, and would be left out" in " ".join(said.split())


def test_the_base_of_positions_is_the_files() -> None:
    """transformers takes a default for StarCoder 2."""
    config = Starcoder2Config()
    values = {"general.architecture": "starcoder2", "starcoder2.rope.freq_base": 999999.0}
    carry_positions(config, Header(Path("m.gguf"), values, {}, 0, {}))
    assert config.rope_parameters["rope_theta"] == 999999.0


def test_positions_of_layers_with_a_window_stay() -> None:
    """As llama.cpp computes Gemma 3, whose larger checkpoints scale those of the other layers."""
    config = Gemma3TextConfig()
    before = dict(config.rope_parameters["sliding_attention"])
    values = {"general.architecture": "gemma3", "gemma3.rope.scaling.type": "linear", "gemma3.rope.scaling.factor": 8.0}
    carry_positions(config, Header(Path("m.gguf"), values, {}, 0, {}))
    assert config.rope_parameters["sliding_attention"] == before
    full = config.rope_parameters["full_attention"]
    assert (full["rope_type"], full["factor"]) == ("linear", 8.0)


def test_one_engine_names_the_other_only_where_that_can_load_the_file(file: Path, tmp_path: Path) -> None:
    pytest.importorskip("llama_cpp", reason=gguf_files.NO_BINDING)

    def said(path: Path, engine: Any) -> str:
        with pytest.raises(ConfigError) as caught:
            load_model(str(path), device="cpu", engine=engine, gguf=OPTIONS)
        return str(caught.value)

    neither = gguf_files.rewritten(file, tmp_path / "xyz.gguf", {}, architecture="xyz")
    assert all("--engine" not in said(neither, engine) for engine in ("eager", "llama.cpp"))
    bias = gguf_files.rewritten(file, tmp_path / "bias.gguf", {}, BIAS)
    assert said(bias, "eager").endswith("take another file, or take --engine llama.cpp")
    eager = gguf_files.rewritten(
        file, tmp_path / "eager.gguf", {"general.file_type": ("Q4", gguf.GGUFValueType.STRING)}
    )
    assert said(eager, "llama.cpp").endswith("take another file, or take --engine eager")
    load_model(str(eager), device="cpu", engine="eager", gguf=OPTIONS)
