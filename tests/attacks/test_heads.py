"""Checkpoints of draft heads that lie: each is refused in one line, before much is allocated and without waiting."""

import math
import os
import signal
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from specbench.core.errors import ConfigError
from specbench.models.causal_lm import CausalLM
from specbench.models.checkpoints import fingerprint
from specbench.models.heads.checkpoints import read_checkpoint
from specbench.models.heads.eagle_checkpoint import load_eagle
from specbench.models.heads.medusa import load_medusa
from specbench.models.loading import load_model, load_tokenizer
from tests.attacks.bounds import within_bounds
from tests.support import tiny
from tests.support.heads import (
    EAGLE1,
    EAGLE3,
    SPECFORGE,
    VOCAB,
    WIDTH,
    Tensors,
    eagle1_tensors,
    eagle3_tensors,
    medusa_tensors,
)
from tests.support.heads import save_head as save

Config = dict[str, Any]
HUGE, DIGITS = "99999999999", "9" * 5000
BIN = "pytorch_model.bin"


@cache
def target() -> CausalLM:
    return tiny.causal_lm(num_hidden_layers=8)


def load(folder: Path) -> None:
    checkpoint = read_checkpoint(str(folder))
    (load_medusa if checkpoint.kind == "medusa" else load_eagle)(checkpoint, target())


def refused(folder: Path, told: str, load: Callable[[Path], object] = load) -> None:
    def stop(*_: object) -> None:
        raise AssertionError("it waits")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, 60)  # a pipe takes no CPU time
    try:
        with within_bounds(), pytest.raises(ConfigError) as raised:
            load(folder)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert told in str(raised.value) and "\n" not in str(raised.value) and len(str(raised.value)) < 600


GAPS = "its tensors do not fit: "
MEDUSA, FIRST, THIRD = ({}, medusa_tensors()), (EAGLE1, eagle1_tensors()), (EAGLE3, eagle3_tensors())
Q = "layers.0.self_attn.q_proj.weight"


def filled(
    value: float, size: tuple[int, ...] = (WIDTH, 2 * WIDTH), dtype: torch.dtype = torch.float32
) -> torch.Tensor:
    return torch.full(size, 0.1).index_fill(0, torch.tensor([1]), value).to(dtype)


TENSORS: dict[str, tuple[tuple[Config, Tensors], Tensors, str]] = {  # a sound head, what is added → what is reported
    "a medusa head with a huge number": (MEDUSA, {f"{HUGE}.0.linear.weight": torch.ones(2, 2)}, GAPS),
    "a medusa block with a huge number": (MEDUSA, {f"0.{HUGE}.linear.weight": torch.ones(2, 2)}, GAPS),
    "a medusa output with a huge number": (MEDUSA, {f"{HUGE}.1.weight": torch.ones(2, 2)}, GAPS),
    "a medusa head with 5000 digits": (MEDUSA, {f"{DIGITS}.0.linear.weight": torch.ones(2, 2)}, GAPS),
    "a medusa head with a large number": (MEDUSA, {"9999.9998.linear.weight": torch.ones(2, 2)}, GAPS),
    "blocks of vLLM without outputs": (({}, {}), {"blocks.0.layers.0.weight": torch.ones(2, 2)}, GAPS),
    "a block of vLLM with 5000 digits": (
        ({}, {"lm_heads.0.weight": torch.ones(2, 2)}), {f"blocks.{DIGITS}.layers.0.weight": torch.ones(2, 2)},
        "its vocabulary has 2 tokens",
    ),
    "an output of vLLM with a huge number": (({}, {}), {f"lm_heads.{HUGE}.weight": torch.ones(2, 2)}, GAPS),
    "an eagle layer with a huge number": (FIRST, {f"layers.{HUGE}.weight": torch.ones(2)}, "2 decoder layers"),
    "a name of 5000 letters": (FIRST, {"x" * 5000: torch.ones(2)}, "unknown tensor xxx"),
    "no tensors": (({}, {}), {}, "has no tensors; expected"),
    "fc without dimensions": (FIRST, {"fc.weight": torch.tensor(1.0)}, "tensor fc.weight has no dimensions"),
    "a projection without dimensions": (FIRST, {Q: torch.tensor(1.0)}, f"tensor {Q} has no dimensions"),
    "d2t without dimensions": (THIRD, {"d2t": torch.tensor(1)}, "tensor d2t has no dimensions"),
    "an output layer without dimensions": (MEDUSA, {"0.1.weight": torch.tensor(1.0)}, "0.1.weight has no dimensions"),
    "fc without rows": (FIRST, {"fc.weight": torch.ones(0, 2 * WIDTH)}, "q_proj.weight reads"),
    "NaN": (FIRST, {"fc.weight": filled(math.nan)}, "tensor fc.weight holds NaN or infinite values"),
    "an infinite value": (THIRD, {"norm.weight": filled(math.inf, (WIDTH,))}, "norm.weight holds NaN or infinite"),
    "infinite values of both signs": (
        MEDUSA, {"0.1.weight": filled(math.inf, (VOCAB, WIDTH)) - filled(math.inf, (VOCAB, WIDTH)).roll(1, 0)},
        "0.1.weight holds NaN or infinite",
    ),
    "NaN of 16 bits": (FIRST, {"fc.weight": filled(math.nan, dtype=torch.bfloat16)}, "holds NaN or infinite"),
    "NaN of 8 bits": (FIRST, {"fc.weight": filled(math.nan, dtype=torch.float8_e4m3fn)}, "holds NaN or infinite"),
}  # fmt: skip


@pytest.mark.parametrize("name", TENSORS)
def test_tensors_are_refused(name, tmp_path) -> None:
    (config, tensors), added, told = TENSORS[name]
    refused(save(tmp_path / "head", config, tensors | added), told)


PICKLES: dict[str, tuple[Any, str]] = {
    "names that are numbers": ({1: torch.ones(2)}, "does not hold a mapping of names to tensors"),
    "a sparse tensor": ({"fc.weight": torch.eye(4).to_sparse()}, "tensor fc.weight is not a plain array"),
    "a tensor of no memory": ({"fc.weight": torch.ones(4, 4, device="meta")}, "is not a plain array"),
    "complex numbers": ({"fc.weight": torch.ones(4, 4, dtype=torch.complex64)}, "is not a plain array"),
}


@pytest.mark.parametrize("name", PICKLES)
def test_pickles_are_refused(name, tmp_path) -> None:
    added, told = PICKLES[name]
    folder = save(tmp_path / "head", EAGLE1, {}, BIN)
    torch.save({**eagle1_tensors(), **added}, folder / BIN)
    refused(folder, told)


CONFIGS: dict[str, tuple[tuple[Config, Tensors], Config, str]] = {
    "an unknown activation": (FIRST, {"hidden_act": "silo"}, "hidden_act = 'silo' in its config.json is unknown: did"),
    "a list of activations": (FIRST, {"hidden_act": ["silu"]}, "config.json describes no decoder layer"),
    "a number as activation": (FIRST, {"hidden_act": 5}, "config.json describes no decoder layer"),
    "an epsilon that is none": (FIRST, {"rms_norm_eps": math.nan}, "rms_norm_eps = nan in its config.json"),
    "a negative epsilon": (FIRST, {"rms_norm_eps": -1.0}, "rms_norm_eps = -1.0 in its config.json"),
    **{
        f"a text for {key}": (head, {key: "false"}, f"config.json has {key} 'false', expected true or false")
        for head, key in (
            (FIRST, "bias"), (THIRD, "norm_before_residual"), (THIRD, "norm_output"), (THIRD, "fc_norm"),
            ((SPECFORGE, eagle3_tensors()), "norm_before_fc"), (MEDUSA, "original_lm_head"),
        )
    },
    "a number for a boolean of a section": (
        THIRD, {"eagle_config": {"norm_output": 0}}, "config.json has norm_output 0, expected true or false",
    ),
    "architectures that are not texts": (THIRD, {"architectures": [1, None, {}]}, ""),
    "a section that is not a mapping": (THIRD, {"eagle_config": [1], "draft_vocab_size": "64"}, "draft_vocab_size 64"),
}  # fmt: skip


@pytest.mark.parametrize("name", CONFIGS)
def test_configurations_are_refused(name, tmp_path) -> None:
    (config, tensors), changes, told = CONFIGS[name]
    folder = save(tmp_path / "head", {**config, **changes}, tensors)
    if told:
        refused(folder, told)
    else:  # harmless
        load(folder)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes")
@pytest.mark.parametrize("device", [False, True])
@pytest.mark.parametrize("file", ["model.safetensors", BIN, "medusa_lm_head.pt"])
def test_weights_that_are_a_pipe_or_a_device_are_refused_at_once(file, device, tmp_path) -> None:
    folder = save(tmp_path / "head", EAGLE1, {})
    (folder / "model.safetensors").unlink()
    os.symlink("/dev/zero", folder / file) if device else os.mkfifo(folder / file)
    refused(folder, f"{file}: cannot be read: it is a folder, a pipe or a device, not a file")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes")
@pytest.mark.parametrize("file", ["model.safetensors", "tokenizer.json", "extra.bin"])
def test_a_pipe_in_the_folder_of_a_model_is_refused_at_once(file, tmp_path, tiny_pair) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    for path in Path(tiny_pair[0]).iterdir():
        os.symlink(path, folder / path.name) if path.name != file else None
    os.mkfifo(folder / file)
    told = f"{file}: cannot be read: it is a folder, a pipe or a device, not a file"
    refused(folder, told, lambda path: load_model(str(path)))
    refused(folder, told, lambda path: load_model(str(path), weights=False))
    refused(folder, told, lambda path: load_tokenizer(str(path)))
    assert fingerprint(str(folder)).startswith("local-")
