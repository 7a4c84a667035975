"""The tool that measures how public models depend on the width of a pass, on an embedded model."""

import json
import re
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


def tables_of(page: str, model: str) -> list[list[str]]:
    """The rows of the tables of a model."""
    section = page.partition(f"\n## {model}\n")[2].partition("\n## ")[0]
    blocks = [block.splitlines() for block in section.strip().split("\n\n")]
    return [block[2:] for block in blocks if block[0].startswith("| way | ")]


def test_the_committed_page_is_that_of_the_committed_parts() -> None:
    parts = read(widths.MEASURED)
    text = (widths.MEASURED / "widths.md").read_text(encoding="utf-8")
    assert text == widths.page(parts)
    assert max(line.count("|") for line in text.splitlines()) <= 10
    for model, by_way in parts.items():
        of_rows, of_changes = tables_of(text, model)
        assert len(of_rows) == len(of_changes) == sum("batch_width" in part for part in by_way.values())
        for way, part in by_way.items():
            if (cost := part.get("batch_width", {}).get("padding_cost")) is not None:
                assert re.search(rf"^\| {model} \| {way}( †)? \| {cost:.2f} \| ", text, re.M)


def test_rows_of_replaced_passes_are_marked_until_they_are_measured_again() -> None:
    """And so are fresh trees that were read behind one pass over all of the text."""
    part = read(widths.MEASURED)["smollm2-135m"]["eager bfloat16"]
    old, new = "785911c1000", "129dafcb000"

    def page(way: str, commit: str) -> str:
        return widths.page({"smollm2-135m": {way: part | {"commit": commit}}})

    replaced = page("compiled bfloat16", old)
    assert replaced.count("\n| compiled bfloat16 † | ") == 2 and "\n† The passes of this way were replaced" in replaced
    assert " * | " in replaced and "Those with a *" in replaced
    for text in (page("compiled bfloat16", new), page("eager bfloat16", new), page("eager bfloat16", old)):
        assert "†" not in text
    assert not any("*" in line for table in tables_of(page("compiled bfloat16", new), "smollm2-135m") for line in table)
    assert "Those with a *" not in page("compiled bfloat16", new) and "Those with a *" in page("eager bfloat16", old)


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
    rows, changes = ([line.strip("| ").split(" | ") for line in table] for table in tables_of(page, "target"))
    assert [row[0] for row in rows] == [row[0] for row in changes] == [way.name for way in ways]
    name, *shares, widths_alike = rows[1]
    assert len(shares) == len(KINDS) and widths_alike == "1–3" and shares[0] != "– · –"
    for pair in (cell.split(" · ") for cell in shares):
        assert all(found == "–" or len({*found.split("/")}) == 1 for found in pair)  # all rows are equal
    assert {*changes[1][1].split(" · ")} == {"0"}
    assert changes[1][2:] == ["0", "0", "0", "0 of 1", "0", "–"]  # an answer of four tokens has no pass over six
    (cost,) = (line.strip("| ").split(" | ") for line in page.splitlines() if line.startswith("| target | "))
    assert cost[:2] == ["target", name] and float(cost[2]) > 0 and cost[3:] == ["–", "–"]
    assert "Not measured yet: eager bfloat16; " in page
    monkeypatch.setattr(widths, "measure", lambda *_: pytest.fail("measured again"))
    with pytest.raises(pytest.fail.Exception, match="measured again"):
        measure_parts(WEIGHTS, tmp_path, ["target"], ways, again=True)
    found = json.loads((tmp_path / "widths.json").read_text(encoding="utf-8"))
    assert list(found["parts"]["target"]) == [way.name for way in ways] and found["num_tokens"] == 4


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
