"""The tool that computes the drift of a public target: each part from its files to the page, on embedded models that
lie where the public ones would."""

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from specbench.embedded import member_path
from tests.support import gguf_files
from tools import acceptance_drift
from tools.acceptance_drift import BASE_RUN, PAIRS, Adapter, read
from tools.real.archive import pack
from tools.real.models import QWEN, QWEN_DRAFTER, QWEN_DRAFTER_GGUF, QWEN_GGUF

Run = Callable[..., tuple[int, str, str]]
LIMIT = 2
SENTENCES = [("Das Haus ist alt.", "The house is old."), ("Wir haben Zeit.", "We have time.")]


@pytest.fixture
def tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SimpleNamespace]:
    """`call`: the program with these parts. `place`: of its page. `models`: where a GGUF file of the target may lie.
    `root`: the checkout, whose archives it reads."""
    models, data, root = tmp_path / "given", tmp_path / "rows", tmp_path / "checkout"
    for folder in (models, data / "tatoeba", data / "wmt22", root / "leaderboards"):
        folder.mkdir(parents=True)
    for model, name in ((QWEN, "target"), (QWEN_DRAFTER, "drafter")):
        (models / model.folder).symlink_to(member_path(name))
    for column, language in enumerate(("deu", "eng")):
        lines = "".join(f"{pair[column]}\n" for pair in SENTENCES)
        (data / "tatoeba" / f"tatoeba.deu-eng.{language}").write_text(lines, encoding="utf-8")
    rows = [{"translation": {"de": f"Ich habe {n} Bücher.", "en": f"I have {n} books."}} for n in range(40)]
    (data / "wmt22" / "test.de-en.json").write_text(json.dumps(rows), encoding="utf-8")
    monkeypatch.setattr(acceptance_drift, "SUBSETS", ("de-en", "en-de"))
    monkeypatch.setattr(acceptance_drift, "Adapter", lambda: Adapter(rank=2, num_steps=4, rows_per_step=2))
    monkeypatch.setattr(acceptance_drift, "ROOT", root)
    monkeypatch.chdir(tmp_path)
    found = SimpleNamespace(place=tmp_path / "docs", models=models, root=root, work=tmp_path / "work")
    found.place.mkdir()

    def call(*parts: str) -> None:
        monkeypatch.setattr(sys, "argv", [
            "acceptance_drift", str(models), "--data", str(data), "--limit", str(LIMIT), "--threads", "1",
            "--work", str(found.work), "--place", str(found.place), "--only", *parts,
        ])  # fmt: skip
        acceptance_drift.main()

    found.call = call
    found.page = lambda: (found.place / "drift.md").read_text(encoding="utf-8")
    found.parts = lambda kind: read(found.place, LIMIT)[kind]
    yield found


def overlaps(part: dict[str, Any], temperature: str) -> list[float]:
    return [numerator for *_, numerator, _ in part["prompts"][temperature]]


def test_weights_of_fewer_bits_are_sides_beside_the_unchanged_target(
    tool: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool.call("sides:bfloat16", "sides:int8", "sides:int4")
    sides = tool.parts("sides")
    assert [side["side"]["precision"] for side in sides.values()] == ["bfloat16", "int8 (bfloat16)", "int4 (bfloat16)"]
    assert {side["side"]["target"] for side in sides.values()} == {QWEN.path}
    base, int8, int4 = (overlaps(sides[name], "1") for name in ("bfloat16", "int8", "int4"))
    assert len(base) == 2 * LIMIT
    off8, off4 = (max(abs(x - y) for x, y in zip(base, other, strict=True)) for other in (int8, int4))
    assert 0 < off8 < off4  # the fewer bits, the further
    greedy = overlaps(sides["bfloat16"], "0")
    assert all(number == round(number) for number in greedy) and greedy != base
    page = tool.page()
    assert "Not computed yet: Q3_K_M, Q2_K, LoRA." in page and "Not computed yet: int8, q4." in page
    assert page.count("| int8 | all | 4 |") == page.count("| int4 | all | 4 |") == 2  # a table of each temperature
    monkeypatch.setattr(acceptance_drift, "side_part", lambda *_: pytest.fail("computed again"))
    tool.call("sides:bfloat16", "sides:int8", "sides:int4")
    assert tool.page() == page and str(tool.work) not in page
    assert read(tool.place, LIMIT + 1) == {"sides": {}, "pairs": {}}  # with other settings none is finished


def test_an_adapter_is_trained_merged_and_told(tool: SimpleNamespace) -> None:
    pytest.importorskip("peft", reason="peft is not installed: pip install 'specbench-lm[train]'")
    tool.call("sides:bfloat16", "sides:LoRA")
    sides = tool.parts("sides")
    made = sides["LoRA"]["made"]
    assert made["last_loss"] < made["first_loss"]
    assert sides["LoRA"]["side"]["target_revision"] != sides["bfloat16"]["side"]["target_revision"]
    assert overlaps(sides["LoRA"], "1") != overlaps(sides["bfloat16"], "1")
    assert f"rank 2 on all linear layers, 4 steps of AdamW over 2 sentence pairs of WMT22, German to English (loss "\
        f"{made['first_loss']:.2f} → {made['last_loss']:.2f})" in tool.page()  # fmt: skip
    assert (tool.work / "models" / "Qwen2.5-Coder-1.5B-Instruct-LoRA.json").is_file()


@pytest.mark.slow
def test_a_file_is_quantized_again_and_dequantized(tool: SimpleNamespace) -> None:
    gguf_files.needs_llama_cpp()
    (tool.models / QWEN_GGUF.folder).symlink_to(gguf_files.embedded("target"))
    tool.call("sides:bfloat16", "sides:Q3_K_M", "sides:Q2_K")
    sides = tool.parts("sides")
    base, q3, q2 = (overlaps(sides[name], "1") for name in ("bfloat16", "Q3_K_M", "Q2_K"))
    assert base != q3 != q2 != base
    assert sides["Q2_K"]["made"]["bytes"] < sides["Q3_K_M"]["made"]["bytes"]
    assert "| Q3_K_M | all | 4 |" in tool.page() and "| Q2_K | all | 4 |" in tool.page()


def record(tool: SimpleNamespace, specbench: Run, name: str, *options: str) -> None:
    """Measures a run in the work folder, and archives it as the cell of that name."""
    code, _, err = specbench(
        "run", "--task", "gsm8k", "--method", "sd", "--data", "sample", "--limit", "3", "--threads", "1",
        "--set", "generation.max_new_tokens=8", "--output", f"cells/{name}", *options,
    )  # fmt: skip
    assert code == 0, err
    pack(tool.work / "cells" / name, tool.root / "leaderboards" / "real" / f"{name}.tar.xz")


def check_pair(tool: SimpleNamespace, name: str) -> None:
    """Asserts that each side's decoded τ is that of its first records, and that the page has both."""
    report = tool.parts("pairs")[name]["report"]
    whole = report["groups"][0]
    assert whole["num_prompts"] == LIMIT
    for side, run in (("before", BASE_RUN), ("after", PAIRS[name][0])):
        assert report[side]["run"] == f"real/{run}:sd"
        lines = (tool.work / "cells" / run / "records.jsonl").read_text(encoding="utf-8").splitlines()[:LIMIT]
        steps = [step for line in lines for step in json.loads(line)["methods"]["sd"]["steps"]]
        tau = sum(step[-1] for step in steps) / len(steps)
        assert whole[side]["decoded"]["mean_acceptance_length"]["value"] == pytest.approx(tau)
    page = tool.page()
    assert f"| {PAIRS[name][1]} | " in page and f"| {name} | before | " in page and "|  | after | " in page


@pytest.mark.slow
def test_two_recorded_runs_are_a_pair(
    tool: SimpleNamespace, specbench: Run, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="some parts are not computed"):
        tool.call("pairs:int8")
    assert "pairs:int8: no archive of gsm8k-chains, gsm8k-int8: measure it with tools.real" in capsys.readouterr().out
    monkeypatch.chdir(tool.work)
    pair = ("--target", QWEN.path, "--drafter", QWEN_DRAFTER.path, "--dtype", "bfloat16")
    record(tool, specbench, BASE_RUN, *pair)
    record(tool, specbench, "gsm8k-int8", *pair, "--quantize", "int8")
    tool.call("pairs:int8")
    check_pair(tool, "int8")


@pytest.mark.slow
def test_a_run_of_files_is_the_other_side_of_a_pair(
    tool: SimpleNamespace, specbench: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    gguf_files.needs_llama_cpp()
    for model, name in ((QWEN_GGUF, "target"), (QWEN_DRAFTER_GGUF, "drafter")):
        (tool.models / model.folder).symlink_to(gguf_files.embedded(name))
    tool.call("sides:bfloat16")  # the links of the models
    monkeypatch.chdir(tool.work)
    record(tool, specbench, BASE_RUN, "--target", QWEN.path, "--drafter", QWEN_DRAFTER.path, "--dtype", "bfloat16")
    record(tool, specbench, "gsm8k-q4", "--target", QWEN_GGUF.path, "--drafter", QWEN_DRAFTER_GGUF.path,
           "--engine", "llama.cpp", "--tokenizer", QWEN.path, "--drafter-tokenizer", QWEN_DRAFTER.path)  # fmt: skip
    tool.call("pairs:q4")
    check_pair(tool, "q4")
