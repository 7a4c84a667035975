"""A checkpoint that was dequantized from a GGUF file has that file's weights, and one that it was made of has not. A
model has its own."""

import shutil
from collections.abc import Callable
from pathlib import Path

import gguf
import pytest
import torch

from specbench.models.causal_lm import CausalLM
from specbench.models.gguf.header import read_header
from specbench.models.gguf.same_weights import equal_rows, has_same_weights
from specbench.models.loading import load_model
from specbench.report.captions import why_unranked
from specbench.report.ranking import rank_rows, unranked_line
from specbench.results.leaderboard import load
from specbench.results.paired import RowWithRecords
from specbench.statistics.bootstrap import Estimate
from tests.support.gguf_files import embedded
from tests.support.rows import row

Q4 = gguf.GGMLQuantizationType.Q4_0


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The embedded drafter with matrices of 4 bits."""
    path = tmp_path_factory.mktemp("q4") / "model.gguf"
    reader = gguf.GGUFReader(embedded("drafter"))
    writer = gguf.GGUFWriter(path, "llama")
    for key, field in reader.fields.items():
        if not key.startswith("GGUF.") and key != "general.architecture":
            kind, *elements = field.types
            writer.add_key_value(key, field.contents(), kind, elements[-1] if elements else None)
    for tensor in reader.tensors:
        if len(tensor.shape) == 2:
            writer.add_tensor(tensor.name, gguf.quantize(tensor.data, Q4), raw_dtype=Q4)
        else:
            writer.add_tensor(tensor.name, tensor.data)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture(scope="module")
def dequantized(file: Path) -> CausalLM:
    return load_model(str(file), device="cpu", engine="eager")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_checkpoint_that_was_dequantized_has_the_files_weights(
    dtype: str, file: Path, dequantized: CausalLM, tmp_path: Path
) -> None:
    network = dequantized.model
    network.hf_quantizer, network.is_quantized = None, False
    network.save_pretrained(tmp_path)
    dequantized.tokenizer.save_pretrained(tmp_path)
    target = load_model(str(tmp_path), device="cpu", dtype=dtype)
    assert has_same_weights(target, dequantized) and has_same_weights(dequantized, target)


def test_a_checkpoint_of_which_the_file_was_made_has_other_weights(file: Path, dequantized: CausalLM) -> None:
    original = load_model("embedded:drafter", device="cpu")
    assert not has_same_weights(original, dequantized)
    whole = load_model(str(embedded("drafter")), device="cpu", engine="eager")
    assert has_same_weights(original, whole)  # in float32
    other = load_model("embedded:target", device="cpu")
    assert not has_same_weights(other, dequantized)  # of another size


def test_a_model_has_its_own_weights(file: Path, dequantized: CausalLM, tmp_path: Path) -> None:
    again, as_stored = (load_model(str(file), device="cpu", weights=weights) for weights in (True, False))
    for other in (again, as_stored):  # in the same engine, and as llama.cpp reads it
        assert has_same_weights(dequantized, other) and has_same_weights(other, dequantized)
    copied = tmp_path / "model.gguf"
    shutil.copyfile(file, copied)
    assert has_same_weights(dequantized, load_model(str(copied), device="cpu", weights=False))
    first, second = (load_model("embedded:drafter", device="cpu") for _ in range(2))
    assert has_same_weights(first, second)
    quantized = load_model("embedded:drafter", device="cpu", quantize="int8")
    assert not has_same_weights(quantized, first) and has_same_weights(quantized, quantized)


def test_a_place_is_that_of_the_tensor(file: Path) -> None:
    places = read_header(file).tensors
    reader = gguf.GGUFReader(file)
    for tensor in reader.tensors:
        place = places[tensor.name]
        assert place.sizes == tuple(tensor.shape.tolist()) and place.kind == tensor.tensor_type
        if len(place.sizes) == 2:
            whole = torch.from_numpy(gguf.dequantize(tensor.data, tensor.tensor_type).copy())
            assert equal_rows(place, whole)
            whole[0, 0] += 0.1
            assert not equal_rows(place, whole)


def test_a_row_with_the_targets_weights_leads_no_table() -> None:
    fast, slow = Estimate(value=9.0, low=8.9, high=9.1), Estimate(value=1.5, low=1.4, high=1.6)
    rows = [
        row(method="self-quantized@1:0", drafter="q4.gguf", drafter_weights="the target's", metrics={"speedup": fast}),
        row(method="sd@1:0", metrics={"speedup": slow}),
    ]
    order = rank_rows([RowWithRecords(each) for each in rows], "speedup")
    assert [(each.row.method, each.text) for each in order] == [("sd@1:0", "1"), ("self-quantized@1:0", "")]
    (line,) = unranked_line(rows)
    assert line.startswith("not ranked: self-quantized: target and drafter have the same weights: one is the other's")
    assert why_unranked(rows[1]) is None
    itself = row(method="sd@1:0", drafter_weights="the target's", target_revision="local-1", drafter_revision="local-1")
    assert why_unranked(itself) == "target and drafter have the same weights: the drafter is the target itself"


@pytest.mark.parametrize("name", ["file", "embedded:drafter"])
def test_a_run_whose_drafter_is_the_target_says_so(
    name: str, file: Path, specbench: Callable[..., tuple[int, str, str]], tmp_path: Path
) -> None:
    model = str(file) if name == "file" else name
    words = (
        "run", "--task", "mgsm", "--subset", "en", "--data", "sample", "--limit", "2", "--threads", "1", "--method",
        "sd", "--target", model, "--drafter", model, "--set", "generation.max_new_tokens=6", "--output", "here",
    )  # fmt: skip
    code, out, said = specbench(*words)
    assert code == 0, said
    rows = {each.method_name: each for each in load(tmp_path / "here" / "leaderboard.json")}
    assert rows["sd"].drafter_weights == "the target's" and rows["sd"].metrics["acceptance_rate"].value == 1
    assert "target and drafter have the same weights: the drafter is the target itself" in " ".join(out.split())
    code, again, said = specbench(*words)  # without the weights
    assert code == 0 and "the drafter is the target itself" in " ".join(again.split()), said


def test_a_run_with_the_targets_own_file_says_so(
    file: Path, dequantized: CausalLM, specbench: Callable[..., tuple[int, str, str]], tmp_path: Path
) -> None:
    """The target is a checkpoint that was dequantized from its drafter's file."""
    network = dequantized.model
    network.hf_quantizer, network.is_quantized = None, False
    network.save_pretrained(tmp_path / "target")
    dequantized.tokenizer.save_pretrained(tmp_path / "target")
    code, out, said = specbench(
        "run", "--task", "mgsm", "--subset", "en", "--data", "sample", "--limit", "2", "--threads", "1", "--method",
        "self-quantized", "--target", str(tmp_path / "target"), "--set", "drafter.quantize=null", "--set",
        f"drafter.checkpoint={file}", "--set", "generation.max_new_tokens=6", "--output", "here",
    )  # fmt: skip
    assert code == 0, said
    rows = {each.method_name: each for each in load(tmp_path / "here" / "leaderboard.json")}
    assert rows["self-quantized"].drafter == str(file) and rows["self-quantized"].drafter_weights == "the target's"
    assert rows["ar"].drafter_weights is None
    assert "target and drafter have the same weights" in out + said
