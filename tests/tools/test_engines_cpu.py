"""The table of ways in which a CPU computes with weights."""

from pathlib import Path

import pytest
import torch

from specbench.models import packed
from tests.support import tiny
from tools.engines import cpu

pytestmark = pytest.mark.skipif(not packed.packs_bfloat16(), reason="torch has no packed products here")


def test_each_way_has_a_line_and_its_products(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed, "SECONDS", 0.0)
    source = str(tiny.save(tmp_path, hidden_size=64, intermediate_size=96, head_dim=16))
    lines, products = [], []
    with torch.no_grad():
        for line, shapes in cpu.measured(source, ("plain", "packed", "int8", "int4"), 2, lambda text: None):
            lines.append(line)
            products += shapes
    assert [line.way for line in lines] == ["plain", "packed", "int8", "int4"]
    assert all(len(line.token) == len(line.copies) == len(line.passes[6]) == 2 for line in lines)
    assert all(len(line.cells()) == len(cpu.HEAD) for line in lines)
    plain, same, eight, four = lines
    assert plain.divergence == same.divergence == plain.flips == 0.0 < (eight.divergence or 0) < (four.divergence or 0)
    assert plain.num_bytes == same.num_bytes > eight.num_bytes
    kinds = {way: {text.split("(")[1].split(")")[0] for text in products if text.startswith(way)} for way in cpu.WAYS}
    # The output layer has 257 rows, of which the kernels of few bits read no whole number of blocks.
    assert kinds == {"plain": {"plain"}, "packed": {"packed"}, "int8": {"int8", "packed"}, "int4": {"int4", "packed"}}


def test_a_share_is_the_median_of_the_ratios_of_turns() -> None:
    line = cpu.Line("plain", 1.0, 1e9, token=[1.0, 2.0, 4.0], copies=[0.5, 1.8, 1.0])
    line.passes = {1: [1.0, 2.0, 4.0], 6: [1.0, 2.2, 8.0], 16: [3.0, 6.0, 12.0]}
    assert line.cells() == ["plain", "1.0", "1.00", "2000.0", "2000.0", "0.5", "0.50", "1.10", "3.00", "–", "–"]
