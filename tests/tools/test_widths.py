"""The tool that measures how public models depend on the width of a pass, on an embedded model."""

import json
from pathlib import Path
from typing import get_args

import pytest

from specbench.core.environment import PACKAGE
from specbench.core.errors import ConfigError
from specbench.models.batch_width import BatchWidth, Compared, WidthChange
from tools import widths
from tools.widths import KINDS, WAYS, classes, equal, measure_parts, read

WEIGHTS = PACKAGE / "embedded" / "weights"


def changed(width: int, num_equal: int, same_as: int) -> WidthChange:
    return WidthChange(
        compared="chain", width=width, num_positions=10, num_equal=num_equal, median_change=0.1, max_change=0.2,
        max_gap_change=0.2, flip_gaps=(), total_variation=0.0, divergence=0.0, same_as=same_as,
    )  # fmt: skip


def test_the_guide_quotes_the_costs_of_one_thread() -> None:
    docs = PACKAGE.parent / "docs"
    measured = json.loads((docs / "measured" / "widths.json").read_text(encoding="utf-8"))["parts"]
    guide = " ".join((docs / "guide" / "gguf.md").read_text(encoding="utf-8").split())
    for model, name in (("smollm2-135m", "SmolLM2 135M"), ("qwen-coder-0.5b", "0.5B"), ("gemma3-270m", "Gemma 3 270M")):
        part = measured[model]["llama.cpp, float16 K/V"]
        (cost,) = [
            each["cost"] for each in part["batch_width"]["changes"]
            if (each["compared"], each["width"], each["prefix"]) == ("chain", 6, "short")
        ]  # fmt: skip
        assert part["device"].endswith(", 1 thread") and f"{cost:.1f} ({name})" in guide


def test_equal_rows_are_told_with_the_number_of_all() -> None:
    assert equal([]) == "–" and equal([changed(2, 10, 1), changed(3, 9, 3)]) == "19/20"


def test_every_kind_of_pass_has_a_column() -> None:
    assert set(KINDS) == set(get_args(Compared))


def test_classes_of_widths() -> None:
    same = {2: 1, 3: 3, 4: 3, 5: 5, 6: 3}
    assert classes([changed(width, 0, other) for width, other in same.items()]) == "1–2 · 3 4 6 · 5"


def test_finished_parts_are_kept_and_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"MODELS": ("target",), "NUM_TOKENS": 4, "PROMPTS": {"prose": "One two three"}}.items():
        monkeypatch.setattr(widths, name, value)
    ways = [way for way in WAYS if way.name in ("eager float32", "eager float32, --pass-width 6")]
    measure_parts(WEIGHTS, tmp_path, ["target"], ways)
    monkeypatch.setattr(widths, "measure", None)  # what is finished is not measured again
    measure_parts(WEIGHTS, tmp_path, ["target"], ways)
    page = (tmp_path / "widths.md").read_text(encoding="utf-8")
    lines = {line.split(" | ")[0].strip("| "): line for line in page.splitlines() if line.startswith("| eager")}
    assert list(lines) == [way.name for way in ways]
    ending = " | 1–3 | 0 | 0 | 0 | 0 | 0 of 1 |"
    cells = lines["eager float32, --pass-width 6"].removesuffix(ending).split(" | ")[1:]
    assert len(cells) == len(KINDS) and lines["eager float32, --pass-width 6"].endswith(ending)
    for pair in (cell.split(" · ") for cell in cells):
        assert all(found == "–" or len({*found.split("/")}) == 1 for found in pair)  # all rows are equal
    assert cells[0] != "– · –"
    assert "Not measured yet: eager bfloat16; " in page
    monkeypatch.setattr(widths, "measure", lambda *_: pytest.fail("measured again"))
    with pytest.raises(pytest.fail.Exception, match="measured again"):
        measure_parts(WEIGHTS, tmp_path, ["target"], ways, again=True)
    found = json.loads((tmp_path / "widths.json").read_text(encoding="utf-8"))
    assert set(found["parts"]["target"]) == set(lines) and found["num_tokens"] == 4


def test_a_model_that_cannot_be_compiled_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def measure(*_: object) -> BatchWidth:
        raise ConfigError("--engine compiled: it gives\nother logits")

    monkeypatch.setattr(widths, "MODELS", ("target",))
    monkeypatch.setattr(widths, "measure", measure)
    measure_parts(WEIGHTS, tmp_path, ["target"], WAYS[4:5])
    assert read(tmp_path)["target"]["compiled float32"]["problem"] == "--engine compiled: it gives other logits"
    assert "compiled float32: --engine compiled: it gives other logits." in (tmp_path / "widths.md").read_text()


def test_parts_of_other_settings_are_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert read(tmp_path) == {}
    monkeypatch.setattr(widths, "MODELS", ("target",))
    parts = {"target": {"eager float32": {"problem": "none", "device": "x", "commit": None, "versions": {}}}}
    widths.write(parts, tmp_path)
    assert read(tmp_path) == parts
    monkeypatch.setattr(widths, "NUM_TOKENS", 4)
    assert read(tmp_path) == {}
