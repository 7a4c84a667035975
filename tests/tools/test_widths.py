"""The tool that measures how public models depend on the width of a pass, on an embedded model."""

import json
from pathlib import Path
from typing import get_args

import pytest

from specbench.core.environment import PACKAGE
from specbench.models.batch_width import Compared, WidthChange
from tools import widths
from tools.widths import KINDS, WAYS, classes, equal, finished, measure_parts, write

WEIGHTS = PACKAGE / "embedded" / "weights"


def changed(width: int, num_equal: int, same_as: int) -> WidthChange:
    return WidthChange(
        compared="chain", width=width, num_positions=10, num_equal=num_equal, median_change=0.1, max_change=0.2,
        max_gap_change=0.2, flip_gaps=(), total_variation=0.0, divergence=0.0, same_as=same_as,
    )  # fmt: skip


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
    write(tmp_path, tmp_path)
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
    found = json.loads((tmp_path / "widths.json").read_text(encoding="utf-8"))
    assert set(found["parts"]["target"]) == set(lines) and found["num_tokens"] == 4


def test_a_part_of_other_code_is_measured_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    way = WAYS[0]
    part = {"settings": widths.settings(way), "problem": "none"}
    widths.part_file(tmp_path, "target", way).write_text(json.dumps(part), encoding="utf-8")
    assert finished(tmp_path, "target", way) == part
    monkeypatch.setattr(widths, "code_digest", lambda: "another")
    assert finished(tmp_path, "target", way) is None
