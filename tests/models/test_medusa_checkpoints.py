"""Medusa heads in published layouts: their logits are those of plain loops, and what does not fit is refused."""

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from specbench.core.errors import ConfigError
from specbench.models.causal_lm import CausalLM
from specbench.models.heads.checkpoints import medusa_heads_of_target, read_checkpoint
from specbench.models.heads.medusa import MedusaHeads, load_medusa
from specbench.models.loading import load_model
from tests.support import tiny
from tests.support.heads import VOCAB, WIDTH, Draws, Tensors, medusa_tensors, save_head


@cache
def target() -> CausalLM:
    return tiny.causal_lm()


def loaded(folder: Path, config: dict[str, Any], tensors: Tensors, file: str = "model.safetensors") -> MedusaHeads:
    return load_medusa(read_checkpoint(str(save_head(folder, config, tensors, file))), target())


def plain_logits(tensors: Tensors, head: int, num_blocks: int, state: torch.Tensor) -> torch.Tensor:
    """Residual blocks, each followed by the next, and the output layer: in float64."""
    for block in range(num_blocks):
        made = tensors[f"{head}.{block}.linear.weight"].double() @ state
        made = made + tensors.get(f"{head}.{block}.linear.bias", torch.zeros(WIDTH)).double()
        state = state + made * torch.sigmoid(made)
    return tensors[f"{head}.{num_blocks}.weight"].double() @ state


def assert_same(heads: MedusaHeads, tensors: Tensors, num_heads: int, num_blocks: int) -> None:
    state = Draws(4)(WIDTH)
    assert len(heads) == num_heads
    found = heads(state)
    for head in range(num_heads):
        expected = plain_logits(tensors, head, num_blocks, state.double())
        torch.testing.assert_close(found[head].double(), expected, rtol=0, atol=1e-5)


def test_v01(tmp_path: Path) -> None:
    """The configuration says two heads, the file holds five."""
    config = {"medusa_num_heads": 2, "medusa_num_layers": 1, "base_model_name_or_path": "lmsys/vicuna-7b-v1.3"}
    assert_same(loaded(tmp_path, config, medusa_tensors(), "medusa_lm_head.pt"), medusa_tensors(), 5, 1)


@pytest.mark.parametrize("num_blocks", [0, 1, 2])
def test_tgi(num_blocks: int, tmp_path: Path) -> None:
    tensors = medusa_tensors(num_heads=3, num_blocks=num_blocks)
    config = {"medusa_num_heads": 3, "medusa_num_layers": num_blocks, "version": "2"}
    assert_same(loaded(tmp_path, config, tensors, "medusa_lm_head.safetensors"), tensors, 3, num_blocks)


def of_vllm(tensors: Tensors, prefix: str = "") -> Tensors:
    found = {}
    for name, tensor in tensors.items():
        head, block, kind = name.split(".")[0], name.split(".")[1], name.split(".")[-1]
        is_output = "linear" not in name
        found[prefix + (f"lm_heads.{head}.weight" if is_output else f"blocks.{head}.layers.{block}.{kind}")] = tensor
    return found


@pytest.mark.parametrize("prefix", ["", "medusa_heads."])
@pytest.mark.parametrize("has_bias", [True, False])
def test_vllm(prefix: str, has_bias: bool, tmp_path: Path) -> None:
    tensors = {
        name: tensor for name, tensor in medusa_tensors(num_heads=3, num_blocks=2).items()
        if has_bias or "bias" not in name
    }  # fmt: skip
    config = {"model_type": "medusa", "architectures": ["MedusaModel"], "num_heads": 3, "num_hidden_layers": 2}
    assert_same(loaded(tmp_path, config, of_vllm(tensors, prefix)), tensors, 3, 2)


@pytest.mark.parametrize("name", ["lm_head.weight", "lm_heads.0.weight"])
def test_vllm_with_one_output_layer(name: str, tmp_path: Path) -> None:
    tensors, output = medusa_tensors(num_heads=3), Draws(5)(VOCAB, WIDTH)
    blocks = {key: tensor for key, tensor in of_vllm(tensors).items() if key.startswith("blocks.")}
    config = {"model_type": "medusa", "num_heads": 3, "original_lm_head": True}
    expected = {**tensors, **{f"{head}.1.weight": output for head in range(3)}}
    assert_same(loaded(tmp_path, config, {**blocks, name: output}), expected, 3, 1)


def without(tensors: Tensors, *names: str) -> Tensors:
    return {name: tensor for name, tensor in tensors.items() if name not in names}


REFUSED: dict[str, tuple[dict[str, Any], Tensors, str]] = {
    "vocabulary": (
        {}, medusa_tensors(vocab_size=300),
        "its vocabulary has 300 tokens, and that of target 'tiny-llama' has 257: it is a head of another target",
    ),
    "width": (
        {}, {"0.0.linear.weight": torch.zeros(8, 8), "0.1.weight": torch.zeros(VOCAB, 8)},
        "it reads hidden states of 8 values, and those of target 'tiny-llama' have 32",
    ),
    "blocks": ({"medusa_num_layers": 2}, medusa_tensors(), "medusa_num_layers 2, and its heads have 1 blocks"),
    "missing block": (
        {}, without(medusa_tensors(), "3.0.linear.weight"), r"missing tensor 3.0.linear.weight \[32, 32\]",
    ),
    "missing bias": ({}, without(medusa_tensors(), "3.0.linear.bias"), r"missing tensor 3.0.linear.bias \[32\]"),
    "missing output layer": (
        {}, without(medusa_tensors(), "0.1.weight"), r"missing tensor 0.1.weight \[vocabulary, width\]",
    ),
    "missing head": (
        {}, without(medusa_tensors(), *(name for name in medusa_tensors() if name.startswith("2."))),
        "missing tensor 2.0.linear.bias",
    ),
    "shape": (
        {}, {**medusa_tensors(), "1.0.linear.weight": torch.zeros(WIDTH, 8)},
        r"1.0.linear.weight has shape \[32, 8\], expected \[32, 32\]",
    ),
    "truncated vocabulary": (
        {"model_type": "medusa", "truncated_vocab_size": 9},
        {**of_vllm(medusa_tensors()), "token_map": torch.arange(9)}, "its vocabulary is truncated",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_does_not_fit_is_refused(case: str, tmp_path: Path) -> None:
    config, tensors, message = REFUSED[case]
    with pytest.raises(ConfigError, match=message) as error:
        loaded(tmp_path, config, tensors)
    assert str(error.value).startswith(f"drafter.path = '{tmp_path}': ")
    assert "\n" not in str(error.value)


def medusa_1(folder: Path, seed: int = 0) -> Path:
    """A whole model with its heads in one file, as Medusa-1.0 is published."""
    tiny.save(folder, seed=seed)
    config = json.loads((folder / "config.json").read_text())
    config |= {"architectures": ["MedusaLlamaForCausalLM"], "medusa_num_heads": 3, "medusa_num_layers": 1}
    (folder / "config.json").write_text(json.dumps(config))
    heads = {f"medusa_head.{name}": tensor for name, tensor in medusa_tensors(num_heads=3).items()}
    weights = load_file(folder / "model.safetensors")
    save_file({**weights, **heads}, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def test_a_whole_model_with_heads_is_the_target(tmp_path: Path) -> None:
    """transformers loads the model, and the same folder holds the heads."""
    folder = medusa_1(tmp_path)
    whole = load_model(str(folder), device="cpu")
    expected = tiny.causal_lm(vocab_size=whole.vocab_size)
    torch.testing.assert_close(whole.score([1, 2, 3], 1).logits, expected.score([1, 2, 3], 1).logits)
    for checkpoint in (medusa_heads_of_target(whole), read_checkpoint(str(folder))):
        assert checkpoint is not None
        assert (checkpoint.name, checkpoint.revision) == (str(folder), whole.revision)
        assert_same(load_medusa(checkpoint, whole), medusa_tensors(num_heads=3), 3, 1)
    assert medusa_heads_of_target(load_model(str(tiny.save(tmp_path / "plain")), device="cpu")) is None


@pytest.mark.parametrize("names_path", [True, False])
def test_medusa_1_runs(names_path: bool, tmp_path: Path, specbench: Callable[..., tuple[int, str, str]]) -> None:
    """AR and Medusa share the published model, and their greedy answers are equal."""
    folder = medusa_1(tmp_path / "medusa")
    options = ["--set", f"drafter.path={folder}"] if names_path else []
    code, _, error = specbench(
        "run", "--task", "mgsm", "--subset", "en", "--method", "ar,medusa", "--target", str(folder), "--limit", "1",
        "--data", "sample", "--set", "num_draft_tokens=3", "--set", "drafter.num_nodes=9",
        "--set", "drafter.head_chances=[[.5,.2],[.4,.2],[.3,.1]]", "--set", "generation.max_new_tokens=6",
        "--output", "run", *options,
    )  # fmt: skip
    assert code == 0, error
    identity = json.loads(Path("run/run.json").read_text())
    assert identity["drafters"]["medusa"] == identity["target"] and identity["target"]["name"] == str(folder)
    for line in Path("run/records.jsonl").read_text().splitlines():
        methods = json.loads(line)["methods"]
        assert methods["medusa"]["token_ids"] == methods["ar"]["token_ids"]
        assert methods["medusa"]["tree_nodes"]


def test_a_target_without_heads(tmp_path: Path, specbench: Callable[..., tuple[int, str, str]]) -> None:
    folder = tiny.save(tmp_path / "plain")
    words = [
        "run",
        "--task",
        "mgsm",
        "--subset",
        "en",
        "--method",
        "medusa",
        "--target",
        str(folder),
        "--data",
        "sample",
    ]
    code, _, error = specbench(*words)
    assert code == 2 and "drafter.path is missing: target" in error and "Traceback" not in error
    code, _, error = specbench(*words, "--set", "drafter.revision=v1")
    assert code == 2 and "drafter.revision = 'v1': needs drafter.path with a hub id" in error
