"""Pictures: one panel per method, written where asked; a name that is not a picture is refused before a run."""

from pathlib import Path

import pytest

from specbench.core.errors import ConfigError
from specbench.report.display import check_plot, draw, picture_of
from specbench.statistics.bootstrap import Estimate
from tests.support.report_rows import METRICS, row

pytest.importorskip("matplotlib")


def test_a_panel_per_method_with_a_bar_and_a_dot_per_subset(tmp_path: Path) -> None:
    nothing = {**METRICS, "acceptance_rate": Estimate()}
    groups = [
        [row(subset=subset, metrics=METRICS, n=5) for subset in ("en", "ja", "all")],
        [row(subset="en", metrics=nothing, n=5, method="draft-only@1:abc")],
    ]
    draw(groups, tmp_path / "new" / "speed.png")
    assert (tmp_path / "new" / "speed.png").read_bytes().startswith(b"\x89PNG")
    first, second, rates = picture_of(groups).axes
    assert [bar.get_height() for bar in first.patches] == [METRICS["speedup"].value] * 3
    assert list(rates.lines[0].get_ydata()) == [METRICS["acceptance_rate"].value] * 3
    assert len(second.patches) == 1
    assert [label.get_text() for label in first.get_xticklabels()] == ["en", "ja", "all"]


def test_names_that_are_no_picture_are_refused() -> None:
    check_plot(Path("speed.svg"))
    with pytest.raises(ConfigError, match=r"--plot speed\.doc: unknown picture format.*\.png"):
        check_plot(Path("speed.doc"))


def test_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(ConfigError, match="cannot be written"):
        draw([[row(subset="en", metrics=METRICS, n=5)]], tmp_path / "file" / "speed.png")


def test_speed_ups_without_intervals_have_no_whiskers() -> None:
    few = {**METRICS, "speedup": Estimate(value=2.0)}
    with_whiskers, without = picture_of([[row(subset="en", metrics=found, n=5)] for found in (METRICS, few)]).axes[:2]
    assert with_whiskers.get_legend().get_texts()[0].get_text() == "speed-up, 95 %" and with_whiskers.collections
    assert without.get_legend().get_texts()[0].get_text() == "speed-up, no interval" and not without.collections
