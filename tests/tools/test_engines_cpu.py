"""The table of ways in which a CPU computes with weights."""

import argparse
import sys
from pathlib import Path

import pytest
import torch

from specbench.models import packed
from tests.support import tiny
from tools.engines import cpu

pytestmark = pytest.mark.skipif(not packed.packs_bfloat16(), reason="torch has no packed products here")


@pytest.mark.parametrize("together", [False, True])
def test_each_way_has_a_line_and_its_products(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, together: bool) -> None:
    monkeypatch.setattr(packed, "SECONDS", 0.0)
    source = str(tiny.save(tmp_path, hidden_size=64, intermediate_size=96, head_dim=16))
    ways = ("transformers", "eager", "int8", "int4")
    turns: list[str] = []
    with torch.no_grad():
        found = cpu.measured(cpu.Given(source, None, list(range(200))), ways, 2, turns.append, together)
    lines = found.lines
    assert tuple(line.way for line in lines) == ways and not found.left_out
    begun = [text.partition(":")[0] for text in turns if ": turn " in text]
    assert begun == (list(ways) * 3 if together else [way for way in ways for _ in range(3)])  # the first do not count
    assert all(len(line.token) == len(line.rates) == len(line.passes[6]) == 2 for line in lines)
    assert all(len(line.cells()) == len(cpu.HEAD) for line in lines)
    plain, same, eight, four = lines
    assert plain.divergence == same.divergence == plain.flips == 0.0 < (eight.divergence or 0) < (four.divergence or 0)
    assert plain.num_bytes == same.num_bytes and (plain.num_bytes or 0) > (eight.num_bytes or 0) > 0
    kinds = {way: {text.split("(")[1].split(")")[0] for text in found.products if text.startswith(way)} for way in ways}
    # The output layer has 257 rows, of which the kernels of few bits read no whole number of blocks.
    assert kinds == {
        "transformers": {"plain"}, "eager": {"packed"}, "int8": {"int8", "packed"}, "int4": {"int4", "packed"}
    }  # fmt: skip


def test_ways_that_cannot_be_run_are_named_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("openvino_genai", "onnxruntime_genai"):
        monkeypatch.setitem(sys.modules, name, None)
    ways = ("llama.cpp", "openvino", "onnxruntime")
    found = cpu.measured(cpu.Given(str(Path(__file__).parent), None, []), ways, 1, lambda text: None)
    assert not found.lines
    assert [text.split(":")[0] for text in found.left_out] == [*ways]
    assert found.left_out[0] == "llama.cpp: no GGUF file is given: take --gguf FILE"
    assert "pip install openvino-genai" in found.left_out[1] and "pip install onnxruntime-genai" in found.left_out[2]


def test_the_page_has_a_section_for_each_model() -> None:
    line = cpu.Line("openvino", 1.0, None, token=[0.002], rates=[5e10])
    found = cpu.Measured([line], ["eager: 1"], ["llama.cpp: no file"])
    asked = argparse.Namespace(
        models=["/models/small"], gguf=[], ways=",".join(cpu.WAYS), threads=2, turns=3, together=False
    )
    text = "".join(cpu.page(asked, [(cpu.Given("/models/small", None, []), found)]))
    assert "`python -m tools.engines.cpu small --turns 3 --write`" in text and "## small\n" in text
    assert "| openvino | 1.0 | – | 2.0 | – | – | 50.0 | 0.10 | – |" in text and "- Weights:" not in text
    assert "- Weights: `smollm2-135m` is dequantized from a Q4_1 file." in cpu.weights_of(["small", "x/smollm2-135m"])
    assert "- llama.cpp: no file\n" in text and "eager: 1" in text


def test_a_share_is_the_median_of_the_ratios_of_turns() -> None:
    line = cpu.Line("eager", 1.0, 1e9, token=[1.0, 2.0, 4.0], rates=[2e9, 1e9 / 1.8, 1e9])
    line.passes = {1: [1.0, 2.0, 4.0], 6: [1.0, 2.2, 8.0], 16: [3.0, 6.0, 12.0]}
    assert line.cells() == [
        "eager", "1.0", "1.00", "2000.0", "2000.0", "0.5", "1.0", "2.00", "0.50", "1.10", "3.00", "–", "–"
    ]  # fmt: skip
