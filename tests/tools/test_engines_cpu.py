"""The table of ways in which a CPU computes with weights: turns, records, and the page that is made of them."""

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import TypeAdapter

from specbench.core.errors import ConfigError
from specbench.models import packed
from tests.support import tiny
from tools.commands import ROOT
from tools.engines import cpu
from tools.engines.cpu_page import goals_of, page, weights_of
from tools.engines.cpu_records import HEAD, Earlier, InPass, Line, Product, Records, Settings, token_ratio
from tools.engines.cpu_ways import FAMILIES, WAYS, Given

needs_packing = pytest.mark.skipif(not packed.packs_bfloat16(), reason="torch has no packed products here")
SETTINGS = Settings(2, 3, 128, 32, 200, [1, 6, 16])
PLENTY = 1e12  # bytes


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(packed, "SECONDS", 0.0)
    return str(tiny.save(tmp_path, hidden_size=64, intermediate_size=96, head_dim=16))


def line(**given: Any) -> Line:
    found = Line("0123456789", "some CPU, 2 threads", {"torch": "2.13.0"}, 0.5, [], 1.0, 1e9)
    turns: dict[str, Any] = {"token": [0.02], "rates": [5e10], "passes": {1: [0.02], 6: [0.022], 16: [0.03]}}
    return replace(found, **turns | given)


@needs_packing
def test_ways_that_fit_into_memory_take_turns_and_have_their_products(source: str) -> None:
    ways = ["transformers", "eager", "int8", "int4"]
    turns: list[str] = []
    given = Given(source, None, list(range(144)))
    with torch.no_grad():
        [group] = cpu.measure(given, ways, 2, 1, turns.append, PLENTY, times_ready=False)
    lines = group.lines
    assert list(lines) == ways and not group.left_out and not group.sides
    begun = [text.partition(":")[0] for text in turns if ": turn " in text]
    assert begun == [*ways[::-1], *ways, *ways[::-1]]  # the first turn does not count
    assert all(len(each.token) == len(each.rates) == len(each.passes[6]) == 2 for each in lines.values())
    assert all(len(each.cells(way, lines)) == len(HEAD) for way, each in lines.items())
    plain, same, eight, four = lines.values()
    assert plain.divergence == plain.flips == 0.0 < (eight.divergence or 0) < (four.divergence or 0)
    assert (same.divergence or 0.0) < 1e-4  # a token's attention in groups rounds otherwise
    assert plain.num_bytes == same.num_bytes and (plain.num_bytes or 0) > (eight.num_bytes or 0) > 0
    kinds = {way: {each.kind for each in line.products} for way, line in lines.items()}
    # The output layer has 257 rows, of which the kernels of few bits read no whole number of blocks.
    assert kinds == {
        "transformers": {"plain"}, "eager": {"packed"}, "int8": {"int8", "packed"}, "int4": {"int4", "packed"}
    }  # fmt: skip
    for each in lines.values():  # each weight is multiplied once, by a kernel that the profiler knows
        assert each.in_pass is not None and each.in_pass.seconds > 0
        assert each.in_pass.num_calls == sum(product.number for product in each.products)


def test_ways_that_do_not_fit_into_memory_follow_in_further_groups(source: str) -> None:
    ways = ["transformers", "eager", "int8", "compiled", "onnxruntime"]

    def groups(num_sizes: float) -> list[list[str]]:
        free = cpu.OTHERS + num_sizes * cpu.checkpoint_bytes(source)
        found = cpu.groups(Given(source, None, []), ways, free)
        return [[way for _, asked in families for way in asked] for families in found]

    together = ["transformers", "eager", "compiled", "int8", "onnxruntime"]
    assert groups(100) == groups(4) == [together]  # while ONNX Runtime converts, nothing else is there yet
    assert groups(3.5) == [together[:4], together[4:]]
    assert groups(2.7) == [together[:3], together[3:4], together[4:]]
    assert groups(0) == [together[:1], together[1:3], together[3:4], together[4:]]  # not even one fits


@pytest.mark.slow
@needs_packing
def test_compiled_ways_share_the_weights_of_eager_ones_and_are_made_ready_cold_and_warm(
    source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cpu, "ready_seconds", lambda given, way, threads: (3.0, 1.0))
    given = Given(source, None, list(range(150)))
    with torch.no_grad():
        [group] = cpu.measure(given, ["int4", "int4 compiled"], 1, 1, lambda text: None, PLENTY)
    eager, compiled = group.lines.values()
    assert (compiled.ready, compiled.ready_warm, eager.ready_warm) == (3.0, 1.0, None)
    assert compiled.num_bytes == eager.num_bytes
    first, second = ([(each.kind, each.number, each.num_bytes) for each in line.products] for line in (eager, compiled))
    assert first == second != []
    assert compiled.in_pass is not None and eager.in_pass is not None
    assert compiled.in_pass.num_calls == eager.in_pass.num_calls > 0
    assert compiled.divergence == pytest.approx(eager.divergence, rel=0.2)


def test_ways_that_cannot_be_run_are_named_with_the_reason(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("openvino_genai", "onnxruntime_genai"):
        monkeypatch.setitem(sys.modules, name, None)
    group = cpu.Group()
    families = [
        (each, list(each.ways)) for each in FAMILIES if each.ways[0] in ("llama.cpp", "openvino", "onnxruntime")
    ]
    group.load(Given(str(tmp_path), None, []), families, lambda text: None)
    group.take_turns(1, lambda text: None)
    assert not group.lines and set(group.left_out) == {"llama.cpp", "llama.cpp bare", "openvino", "onnxruntime"}
    assert group.left_out["llama.cpp bare"] == "no GGUF file is given: take --gguf FILE"
    assert "pip install openvino-genai" in group.left_out["openvino"]
    assert "pip install onnxruntime-genai" in group.left_out["onnxruntime"]


def test_what_is_measured_again_keeps_what_it_took_before(tmp_path: Path) -> None:
    records = Records(SETTINGS)
    first, second = line(commit="a" * 40), line(token=[0.01, 0.01], rates=[4e10, 4e10], commit="b" * 40)
    cpu.add(records, "small", "small.gguf", cpu.Group(lines={"int8": first}, left_out={"openvino": "no file"}))
    cpu.add(records, "small", "small.gguf", cpu.Group(lines={"int8": second, "openvino": line()}))
    assert records.models["small"]["int8"].before == [Earlier("a" * 40, 0.02, 5e10)]
    assert records.left_out == {"small": {}}
    cpu.write(records, tmp_path)
    assert cpu.read(tmp_path / "cpu.json", SETTINGS) == records
    text = (tmp_path / "cpu.md").read_text(encoding="utf-8")
    assert "| int8 | aaaaaaa | 20.0 | 50.0 | 10.0 | 40.0 | 0.50 |" in text
    with pytest.raises(ConfigError, match=r"^cpu\.json was measured with Settings"):
        cpu.read(tmp_path / "cpu.json", replace(SETTINGS, threads=1))
    assert cpu.read(tmp_path / "none.json", SETTINGS) == Records(SETTINGS)


def test_the_page_is_made_of_the_records_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    records = Records(SETTINGS, {"small": {"openvino": line(num_bytes=None, passes={})}}, {"small": {"int4": "no"}})
    cpu.write(records, tmp_path)
    before = (tmp_path / "cpu.md").read_text(encoding="utf-8")
    assert "`python -m tools.engines.cpu small --write`" in before and "## small\n" in before
    assert "| openvino | 1.0 | – | 20.0 | – | – | – | 50.0 | 1.00 | – | – | – | – | – |" in before
    assert "- 4 bits: openvino 20.0.\n" in before and "- int4: no\n" in before and "- Weights:" not in before
    (tmp_path / "cpu.md").unlink()
    monkeypatch.setattr(sys, "argv", ["cpu", "--page-only", "--place", str(tmp_path)])
    cpu.main()
    assert (tmp_path / "cpu.md").read_text(encoding="utf-8") == before
    known = Records(SETTINGS, {"smollm2-135m": {}})
    assert weights_of(known).startswith("- Weights: `smollm2-135m` is dequantized from a Q4_1 file.")


def test_the_committed_page_is_that_of_the_committed_records() -> None:
    file = ROOT / "docs" / "measured" / "cpu.json"
    if not file.is_file():
        pytest.skip("the page is older than its records")
    records = TypeAdapter(Records).validate_python(json.loads(file.read_text(encoding="utf-8")))
    assert "".join(page(records)) == file.with_suffix(".md").read_text(encoding="utf-8")


def test_a_share_is_the_median_of_the_ratios_of_turns() -> None:
    found = line(token=[1.0, 2.0, 4.0], rates=[2e9, 1e9 / 1.8, 1e9], in_turns=["eager"], ready_warm=0.5)
    found.passes = {1: [1.0, 2.0, 4.0], 6: [1.0, 2.2, 8.0], 16: [3.0, 6.0, 12.0]}
    eager = line(token=[2.0, 2.0, 2.0], rates=[1e9] * 3, in_turns=["compiled"])
    lines = {"eager": eager, "compiled": found}
    assert found.cells("compiled", lines) == [
        "compiled", "1.0 / 0.5", "1.00", "2000.0", "1.00", "2000.0", "0.5", "1.0", "2.00", "0.50", "1.10", "3.00", "–",
        "–",
    ]  # fmt: skip
    assert token_ratio("compiled", "eager", lines) == 1.0
    eager.in_turns = []  # it was measured again without the other
    assert token_ratio("compiled", "eager", lines) is None and token_ratio("eager", "eager", lines) == 1.0


def test_goals_are_judged_by_the_figures_and_missed_ones_have_a_reason() -> None:
    slow = line(products=[Product("int4", 100, 64, 64, 500_000_000, 4e10)], in_pass=InPass(100, 0.0125), num_bytes=5e8)
    bare = line(token=[0.0194], passes={1: [0.0198]}, in_turns=["llama.cpp", "int4", "onnxruntime"])
    engine = line(in_turns=["llama.cpp bare", "int4", "onnxruntime"])
    other = line(token=[0.016], num_bytes=None, passes={}, in_turns=["int4", "llama.cpp", "llama.cpp bare"])
    slow.in_turns = ["llama.cpp", "llama.cpp bare", "onnxruntime"]
    lines = {"int4": slow, "llama.cpp": engine, "llama.cpp bare": bare, "onnxruntime": other}
    found = {cells[0]: (*cells[1:], reason) for cells, reason in goals_of("qwen-coder-1.5b", lines)}
    assert found["int4: share of the bound"][:3] == ("≥ 0.75", "0.50", "missed")
    assert found["int4: share of the bound"][3] == (
        "int4: of a pass of 20.0 ms its products take 12.5, at 40.0 GB/s where the machine moves 50.0, and all else "
        "7.5 (38%). With products at the machine's rate the share would be 0.57."
    )
    assert found["llama.cpp: its bare calls ÷ the engine, token"][1:] == ("0.970", "met", "")
    assert found["llama.cpp: its bare calls ÷ the engine, pass"][1:] == ("0.990", "met", "")
    wanted, ratio, verdict, why = found["4 bits: int4 ÷ onnxruntime, in turns"]
    assert (wanted, ratio, verdict) == ("≤ 1", "1.25", "missed") and "onnxruntime multiplies weights of 4 bits" in why
    assert not list(goals_of("another", lines))
    text = "".join(page(Records(SETTINGS, {"qwen-coder-1.5b": lines})))
    assert why in text and "| int4: share of the bound | ≥ 0.75 | 0.50 | missed |" in text
    assert "| int4 | 20.0 | 10.0 | 100 | 100 | 12.5 | 40.0 | 7.5 (38%) |" in text


def test_frozen_passes_are_measured_only_if_they_are_asked_for() -> None:
    assert "frozen" not in WAYS and "int4 compiled" in WAYS and len(set(WAYS)) == len(WAYS)
