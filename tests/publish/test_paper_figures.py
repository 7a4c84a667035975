"""Figures for papers: what is drawn and written beside it, type sizes, texts that do not overlap, mistakes."""

import csv
import io
import json
import os
import subprocess
import sys
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import cache
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from specbench.analysis.profile.profile import profile_of_runs
from specbench.core.errors import ConfigError
from specbench.publish.paper.drawing import Drawing, Mark, Panel
from specbench.publish.paper.figures import KINDS, pass_costs, read_drawing
from specbench.publish.paper.rows import Selection, read_rows
from specbench.results.row import Row, RowLoad, RowServing
from specbench.results.runs import RecordedRun
from specbench.statistics.bootstrap import Estimate
from tests.support.paper_rows import METHODS, TASKS, paper_board, paper_rows
from tests.support.rooflines import known_report
from tests.support.rows import row

DEMO = Path(__file__).parents[2] / "leaderboards/demo.json"
EVERYTHING = Selection()
SHORT = Selection(tasks=("csqa",), methods=("sd", "pld", "ngram"))


def drawing(kind: str, path: Path, selection: Selection = EVERYTHING, metric: str | None = None) -> Drawing:
    return read_drawing(kind, [path], selection, metric)


# 1. What is drawn.


def test_methods_stand_side_by_side_by_task_with_their_intervals(tmp_path: Path) -> None:
    made = drawing("methods", paper_board(tmp_path))
    (panel,) = made.panels
    assert panel.categories == list(TASKS) and made.series == list(METHODS) and panel.reference == 1.0
    rows = {(row.task_name, row.method_name): row.metric("speedup") for row in paper_rows()}
    assert {(mark.x, mark.series): mark.y for mark in panel.marks} == {
        place: speedup for place, speedup in rows.items() if place[1] != "ar"
    }
    assert [(mark.x, mark.series) for mark in panel.marks if mark.is_flagged] == [("gsm8k", "sd")]
    assert "† sd (gsm8k): AR became slower" in made.caption
    lines = made.data()
    assert len(lines) == len(panel.marks) == 30
    first = {"value": panel.marks[0].y.value, "low": panel.marks[0].y.low, "high": panel.marks[0].y.high}
    assert lines[0] == first | {
        "panel": "", "method": "sd", "group": "gsm8k", "task": "gsm8k", "metric": "speedup", "n": 40,
        "n_of": "prompts", "subset": "all", "target": "org/target", "warnings": "ar_drift",
    }  # fmt: skip


def test_a_warning_about_times_does_not_mark_acceptance(tmp_path: Path) -> None:
    made = drawing("methods", paper_board(tmp_path), metric="mean_acceptance_length")
    assert not any(mark.is_flagged for mark in made.panels[0].marks) and not any("†" in line for line in made.caption)


def test_order_and_names_are_the_users(tmp_path: Path) -> None:
    selection = Selection.of(["mgsm", "gsm8k"], ["pld", "sd"], [], [], ["pld=PLD", "gsm8k=GSM8K"])
    (panel,) = drawing("methods", paper_board(tmp_path), selection).panels
    assert [(mark.x, mark.series) for mark in panel.marks] == [
        ("mgsm", "PLD"), ("mgsm", "sd"), ("GSM8K", "PLD"), ("GSM8K", "sd")
    ]  # fmt: skip


def test_a_single_task_has_the_methods_as_categories_and_ar_where_it_is_not_one(tmp_path: Path) -> None:
    board = paper_board(tmp_path)
    (panel,) = drawing("methods", board, Selection(tasks=("mgsm",))).panels
    assert panel.names_its_series and panel.categories == list(METHODS)
    (panel,) = drawing("methods", board, Selection(tasks=("mgsm",)), "tokens_per_second").panels
    assert panel.categories == ["ar", *METHODS] and panel.reference is None


def test_other_conditions_are_another_group(tmp_path: Path) -> None:
    rows = [row.model_copy(update={"dtype": dtype}) for dtype in ("float32", "int8") for row in paper_rows(("gsm8k",))]
    (panel,) = drawing("methods", paper_board(tmp_path, rows)).panels
    assert panel.categories == ["gsm8k, float32", "gsm8k, int8"]
    named = drawing("methods", tmp_path / "board.json", Selection(names={"int8": "8 bits"}))
    assert named.panels[0].categories == ["gsm8k, float32", "gsm8k, 8 bits"]


def test_the_frontier_has_ar_and_its_corners_are_the_best_scores_by_speed(tmp_path: Path) -> None:
    made = drawing("frontier", paper_board(tmp_path), Selection(tasks=("gsm8k",)))
    (panel,) = made.panels
    rows = [row for row in paper_rows() if row.task_name == "gsm8k"]
    places = {row.method_name: (row.value("speedup"), 100 * row.value("accuracy")) for row in rows}
    assert {mark.series: mark.x for mark in panel.marks} == {name: place[0] for name, place in places.items()}
    assert [mark.y.value for mark in panel.marks] == pytest.approx([places[mark.series][1] for mark in panel.marks])
    best = [a for a in places.values() if not any(b[0] >= a[0] and b[1] >= a[1] and a != b for b in places.values())]
    assert np.array(panel.front) == pytest.approx(np.array(sorted(best)))
    assert "memory: not recorded, as of servers" in made.caption
    line = made.data()[1]
    assert {"speedup", "speedup_low", "speedup_high", "on_front"} <= line.keys() and line["n"] == 40


def with_memory(rows: list[Row], gib: Mapping[str, float]) -> list[Row]:
    """Returns the rows with peaks of the process in GiB, by method."""
    return [
        each.model_copy(update={"metrics": each.metrics | {
            "peak_host_bytes": Estimate(value=gib[each.method_name] * 2**30)}})
        for each in rows if each.method_name in gib
    ]  # fmt: skip


def test_the_frontier_has_memory_beside_quality(tmp_path: Path) -> None:
    gib = {"ar": 2.0, "sd": 3.0, "pld": 2.5}
    rows = with_memory(paper_rows(("gsm8k", "mgsm")), gib)
    made = drawing("frontier", paper_board(tmp_path, rows))
    assert [(panel.heading, panel.metric, panel.is_beside) for panel in made.panels] == [
        ("gsm8k", "accuracy", False), ("gsm8k", "peak_gib", True),
        ("mgsm", "accuracy", False), ("mgsm", "peak_gib", True),
    ]  # fmt: skip
    score, memory = made.panels[:2]
    assert {mark.series: mark.y.value for mark in memory.marks} == gib
    assert [mark.x for mark in memory.marks] == [mark.x for mark in score.marks] and memory.from_zero
    # A point is on a front if no other is faster with as little memory; on that of all three, also as good.
    values = {mark.series: (float(mark.x), mark.y.value or 0.0, -gib[mark.series]) for mark in score.marks}

    def beaten(own: tuple[float, ...], others: Iterable[tuple[float, ...]]) -> bool:
        return any(all(a >= b for a, b in zip(each, own, strict=True)) and each != own for each in others)

    pairs = {name: (speed, bytes_) for name, (speed, _, bytes_) in values.items()}
    for mark in memory.marks:
        assert mark.cells["on_front"] == (not beaten(pairs[mark.series], pairs.values()))
        assert mark.cells["on_front_of_all_three"] == (not beaten(values[mark.series], values.values()))
    assert {line["peak_gib"] for line in made.data()} == {*gib.values()}
    pytest.importorskip("matplotlib")
    from specbench.publish.paper.render import _settings, figure_of

    with _settings("png"):
        figure = figure_of(made, 5.5)  # three panels would fit into a line: a pair stays together
        lines = [[axes.get_ylabel() for axes in figure.axes[start : start + 2]] for start in (0, 2)]
        assert lines == [["accuracy %", "peak memory (GiB)"]] * 2
        heights = [round(axes.get_position().y0, 3) for axes in figure.axes]
        assert heights[0] == heights[1] > heights[2] == heights[3]
        assert figure.axes[1].get_ylim()[0] == 0


def test_a_lower_score_is_better_on_the_front_of_perplexity(tmp_path: Path) -> None:
    rows = [
        each.model_copy(update={"quality": "perplexity", "metrics": {
            **each.metrics, "perplexity": Estimate(value=worse), "speedup": Estimate(value=speed)}})
        for each, worse, speed in zip(paper_rows(("gsm8k",))[:3], (5.0, 6.0, 7.0), (1.0, 2.0, 1.5), strict=True)
    ]  # fmt: skip
    (panel,) = drawing("frontier", paper_board(tmp_path, rows)).panels
    assert panel.front == ((1.0, 5.0), (2.0, 6.0))


def test_positions_are_counted_in_the_records() -> None:
    made = drawing("positions", DEMO, SHORT)
    (panel,) = made.panels
    run = RecordedRun(DEMO.parent / "demo/csqa")
    accepted, verified, is_cut = np.zeros(6), np.zeros(6), False
    for record in run.records.values():
        for step in record.methods["sd"].steps:
            accepted[1 : step.accepted + 1] += 1
            verified[1 : step.verified + 1] += 1
            is_cut |= 0 < step.emitted <= step.accepted
    assert is_cut, "the end of a text cuts a draft"
    marks = [mark for mark in panel.marks if mark.series == "sd"]
    assert [mark.x for mark in marks] == [1, 2, 3, 4, 5]
    for mark in marks:
        assert mark.y.value == pytest.approx(accepted[mark.x] / verified[mark.x])
        assert mark.cells["accepted"] == accepted[mark.x] and mark.cells["verified"] == verified[mark.x]
        assert mark.y.low <= mark.y.value <= mark.y.high
    whole = [m for m in drawing("positions", DEMO, SHORT, "unconditional").panels[0].marks if m.series == "sd"]
    assert [m.y.value for m in whole] == pytest.approx(np.cumprod(accepted[1:] / verified[1:]))


@pytest.mark.parametrize("metric", ["conditional", "unconditional"])
def test_positions_are_those_of_the_profile(metric: str) -> None:
    (panel,) = drawing("positions", DEMO, SHORT, metric).panels
    for name in ("sd", "pld"):
        (entry,) = profile_of_runs([f"{DEMO}:{name}"], ["csqa"]).entries
        expected = {each.position: getattr(each, metric) for each in entry.cell().positions if each.verified >= 10}
        assert {mark.x: mark.y for mark in panel.marks if mark.series == name} == expected


def test_costs_are_mean_passes_by_their_number_of_tokens() -> None:
    made = drawing("costs", DEMO, SHORT)
    costs, drafts = made.panels
    run = RecordedRun(DEMO.parent / "demo/csqa")
    passes: dict[int, list[float]] = {}
    plain: list[float] = []
    for record in run.records.values():
        for length, seconds in record.methods["sd"].passes.target:
            passes.setdefault(length, []).append(seconds)
        plain += [seconds for length, seconds in record.methods["ar"].passes.target if length == 1]
    marks = {mark.x: mark for mark in costs.marks if mark.series == "sd"}
    assert set(marks) == {length for length, found in passes.items() if len(found) >= 10}
    for length, mark in marks.items():
        assert mark.y.value == pytest.approx(np.mean(passes[length]) / np.mean(plain))
        assert mark.cells["passes"] == len(passes[length])
    by_row = {row.method_name: row.value("cost_ratio") for row in run_rows() if row.task_name == "csqa"}
    assert {mark.series: mark.y.value for mark in drafts.marks} == {
        name: by_row[name] for name in ("sd", "pld", "ngram") if by_row[name] is not None
    }


@cache
def run_rows() -> list[Any]:
    return [each for each, _ in read_rows([DEMO], EVERYTHING).chosen]


def test_costs_of_a_report_of_the_roofline(tmp_path: Path) -> None:
    report = known_report(5)
    (tmp_path / "report.json").write_text(report.model_dump_json())
    costs, drafts = drawing("costs", tmp_path / "report.json").panels
    assert {mark.x: mark.y.value for mark in costs.marks} == {
        length: cost.value for length, cost in report.verification_cost.items()
    }  # fmt: skip
    assert [mark.y.value for mark in drafts.marks] == [report.cost_ratio.value]
    assert {mark.n for mark in costs.marks} == {report.repeats}


def served_rows(speedups: Mapping[tuple[int, int | None], float]) -> list[Any]:
    """Rows of AR and of a method, with the method's speed-up at each concurrency and context."""
    found = []
    for method in ("ar", "draft"):
        for (level, context), speedup in speedups.items():
            load = RowLoad(kind="concurrency", level=level, windows=7, requests=8, context=context)
            served = RowServing(
                acceptance_source="steps", caches="verified empty", memory="same KV", load=load, settings="0"
            )
            around = Estimate(value=speedup, low=speedup * 0.95, high=speedup * 1.05)
            metrics = {"speedup": around if method != "ar" else Estimate(value=1.0)}
            found.append(row(method=f"{method}@1:0", served=served, metrics=metrics, options={}))
    return found


def load_rows() -> list[Any]:
    return served_rows({(1, None): 2.0, (4, None): 1.5, (16, None): 0.5})


def test_loads_are_curves_over_levels_with_the_break_even_in_the_caption(tmp_path: Path) -> None:
    made = drawing("load", paper_board(tmp_path, load_rows()))
    (panel,) = made.panels
    assert [(mark.x, mark.y.value, mark.n) for mark in panel.marks] == [(1, 2.0, 7), (4, 1.5, 7), (16, 0.5, 7)]
    assert panel.scale == "log2" and panel.reference == 1.0 and made.data()[0]["n_of"] == "windows"
    assert "draft: as fast as ar at 8.0 [7.4, 8.5] (interpolated)" in made.caption


def map_rows() -> list[Any]:
    return served_rows({(1, 512): 2.0, (8, 512): 1.3, (1, 4096): 1.02, (8, 4096): 0.5})


def test_a_map_has_a_cell_for_each_pair_and_hatches_those_below_one(tmp_path: Path) -> None:
    board = paper_board(tmp_path, map_rows())
    made = drawing("map", board)
    (panel,) = made.panels
    assert {(mark.x, mark.y_place): mark.y.value for mark in panel.marks} == {
        (1, 512): 2.0, (8, 512): 1.3, (1, 4096): 1.02, (8, 4096): 0.5
    }  # fmt: skip
    lines = {(line["level"], line["context"]): line for line in made.data()}
    assert {place: line["ar"] for place, line in lines.items()} == {
        (1, 512): "faster", (8, 512): "faster", (1, 4096): "not separable", (8, 4096): "slower"
    }  # fmt: skip
    assert lines[8, 4096]["n"] == 7 and lines[8, 4096]["n_of"] == "windows"
    assert "draft: ↓ slower than ar: 8 × 4096" in made.caption
    curves = drawing("load", board).panels
    assert [[mark.x for mark in panel.marks] for panel in curves] == [[1, 8], [1, 8]]
    pytest.importorskip("matplotlib")
    from specbench.publish.paper.render import _settings, figure_of

    with _settings("png"):
        figure = figure_of(made, 3.25)
        check_looks(figure, 3.25)
        (axes,) = figure.axes
        assert [bool(patch.get_hatch()) for patch in axes.patches] == [False, False, False, True]
        assert [text.get_text() for text in axes.texts][-1] == "0.50\n[0.47, 0.53]"


def test_languages_are_the_subsets_of_a_task(tmp_path: Path) -> None:
    speedup = Estimate(value=1.5, low=1.4, high=1.6)
    rows = [
        row(subset=subset, language=subset, method=f"{method}@1:0", options={}, metrics={"speedup": speedup}, n=n)
        for method in ("sd", "pld") for subset, n in (("en", 40), ("ja", 30), ("sw", 35))
    ]  # fmt: skip
    whole = row(subset="all", language=None, subsets={"en": 40, "ja": 30, "sw": 35}, n=105, method="sd@1:0", options={})
    made = drawing("languages", paper_board(tmp_path, [*rows, whole]))
    (panel,) = made.panels
    assert [(mark.x, mark.series, mark.n) for mark in panel.marks] == [
        ("en", "sd", 40), ("en", "pld", 40), ("ja", "sd", 30), ("ja", "pld", 30), ("sw", "sd", 35), ("sw", "pld", 35)
    ]  # fmt: skip
    assert [line["language"] for line in made.data()] == ["en", "en", "ja", "ja", "sw", "sw"]


# 2. How it looks.


def texts_of(figure: Any) -> list[Any]:
    from matplotlib.text import Text

    figure.draw_without_rendering()
    beyond = []  # numbers beyond the ends of an axis are not drawn
    for axis in [axis for axes in figure.axes for axis in (axes.xaxis, axes.yaxis)]:
        low, high = sorted(axis.get_view_interval())
        beyond += [tick.label1 for tick in axis.get_major_ticks() if not low <= tick.get_loc() <= high]
    texts = [each for each in figure.findobj(Text) if each.get_visible() and each.get_text().strip()]
    return [each for each in texts if each not in beyond]


def check_looks(figure: Any, width: float) -> None:
    """The width is exact, type has 6 points or more, and all texts are inside the figure, none on another."""
    texts = texts_of(figure)
    assert figure.get_figwidth() == width and min(each.get_fontsize() for each in texts) >= 6
    boxes = [(each.get_text(), each.get_window_extent()) for each in texts if each.get_rotation() in (0, 90)]
    edge = figure.bbox
    for text, box in boxes:
        assert edge.x0 - 2 <= box.x0 and box.x1 <= edge.x1 + 2 and edge.y0 - 2 <= box.y0 and box.y1 <= edge.y1 + 2, text
    for (text, box), (other, beside) in combinations(boxes, 2):
        if "†" not in (text, other):
            assert not box.padded(-1).overlaps(beside.padded(-1)), (text, other)
    titles = [axes.get_title() for axes in figure.axes] + [figure.get_suptitle()]
    assert not any(titles), "a title inside the graphic"


def test_six_methods_on_five_tasks_fit_into_a_column(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    from specbench.publish.paper.render import _settings, figure_of

    width = 3.03
    with _settings("png"):
        figure = figure_of(drawing("methods", paper_board(tmp_path)), width)
        check_looks(figure, width)
        styles = {(line.get_color(), line.get_marker()) for line in figure.legends[0].get_lines()}
        assert len(styles) == len({marker for _, marker in styles}) == 6, "markers differ, for print in grey"
        assert {text.get_text() for text in figure.legends[0].get_texts()} == {*METHODS}
        assert sum(text.get_text() == "†" for text in texts_of(figure)) == 1
        heights = [axes.get_window_extent().height / figure.dpi for axes in figure.axes]
        assert min(heights) > 0.8
        (first, *others) = figure.axes
        assert all(axes.get_ylim() == first.get_ylim() for axes in others)
        low = min(each.y.low for each in drawing("methods", paper_board(tmp_path)).panels[0].marks)
        assert first.get_ylim()[0] < low


def test_groups_of_as_many_marks_are_as_wide_unless_a_name_needs_more() -> None:
    from specbench.publish.paper.render import _settings, figure_of

    def drawn(names: tuple[str, ...], width: float) -> tuple[Any, float, float]:
        """Returns the axes, and how far the line between two groups is from the middle of each."""
        value = Estimate(value=1.0, low=0.9, high=1.1)
        marks = tuple(Mark(each, name, value, 30) for name in names for each in ("sd", "pld", "fsd"))
        with _settings("png"):
            figure = figure_of(Drawing((Panel("", "task", "speed-up", "speedup", marks),), "task", "n", []), width)
            figure.draw_without_rendering()
        (axes,) = figure.axes
        (line,) = (line.get_xdata()[0] for line in axes.lines if line.get_color() == "#cccccc")
        first, second = axes.get_xticks()
        return axes, line - first, second - line

    for width in (3.25, 5.5, 6.75):
        _, left, right = drawn(("mt", "humaneval"), width)
        assert left == pytest.approx(right), width
    axes, left, right = drawn(("mt", "multilingual_translation_of_text"), 3.25)
    assert left < right
    first, second = (label.get_window_extent() for label in axes.get_xticklabels())
    assert first.x1 < second.x0 and second.x1 < axes.figure.bbox.x1


@pytest.mark.slow
def test_another_process_writes_the_same_bytes(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    board = paper_board(tmp_path)
    for number in (1, 2):
        for end in ("pdf", "svg", "png"):
            words = ["plot", "methods", str(board), "--output", str(tmp_path / f"{number}.{end}")]
            environment = {**os.environ, "PYTHONHASHSEED": str(number)}
            subprocess.run([sys.executable, "-m", "specbench", *words], check=True, env=environment, timeout=120)
    assert "<dc:date>" not in (tmp_path / "1.svg").read_text()
    for end in ("pdf", "svg", "png", "csv"):
        assert (tmp_path / f"1.{end}").read_bytes() == (tmp_path / f"2.{end}").read_bytes(), end


# 3. The command.


def test_plot_writes_the_figure_and_its_data_and_prints_the_caption(specbench: Any, tmp_path: Path) -> None:
    matplotlib = pytest.importorskip("matplotlib")
    before = dict(matplotlib.rcParams)
    code, out, err = specbench("plot", "methods", paper_board(tmp_path), "--output", "new/speed.pdf")
    assert code == 0, err
    assert before == dict(matplotlib.rcParams)
    pdf = (tmp_path / "new/speed.pdf").read_bytes()
    assert b"/FontFile2" in pdf and b"/Type3" not in pdf and b"CreationDate" not in pdf
    assert b"/MediaBox [ 0 0 234 " in pdf, "3.25 inches are 234 points"
    lines = list(csv.DictReader(io.StringIO((tmp_path / "new/speed.csv").read_text())))
    assert len(lines) == 30 and float(lines[0]["low"]) < float(lines[0]["value"]) < float(lines[0]["high"])
    assert "† sd (gsm8k): AR became slower" in out and "n = 40" in out


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("method", "B"), "method: no kind of figure: did you mean 'methods'?"),
        (("methods", "B", "--metric", "speedups"), "--metric speedups: "),
        (("methods", "B", "--method", "sdd"), "--method sdd: "),
        (("methods", "B", "--task", "gsm"), "--task gsm: "),
        (("methods", "B", "--name", "sd"), "--name sd: write it as KEY=TEXT"),
        (("methods", "B", "--name", "dd=x"), "--name dd=x: no task, method or condition has this name: "),
        (("methods", "B", "--width", "colum"), "--width colum: did you mean 'column'?"),
        (("methods", "B", "--width", "1"), "--width 1: give 2 to 20 inches"),
        (("methods", "B", "--format", "jpg"), "--format jpg: "),
        (("methods", "B", "--format", "svg"), "--format svg: but --output "),
        (("positions", "B"), "no records, which this figure needs"),
        (("costs", "B"), "no records, which this figure needs"),
        (("costs", "B", "--metric", "speedup"), "--metric speedup: costs has no choice of it"),
        (("positions", "B", "--metric", "joint"), "--metric joint: the choices are conditional, unconditional"),
        (("load", "B"), "no row is of a load"),
        (("map", "B"), "no row is of a load"),
        (("languages", "B"), "no task has subsets in several languages"),
        (("methods", "nothing"), "nothing"),
    ],
)
def test_mistakes_are_one_line(words: tuple[str, ...], says: str, specbench: Any, tmp_path: Path) -> None:
    board = paper_board(tmp_path)
    before = {path.name for path in tmp_path.iterdir()}
    code, out, err = specbench("plot", *(str(board) if word == "B" else word for word in words), "--output", "a.png")
    assert (code, out) == (2, "") and err.startswith("error: ") and len(err.splitlines()) == 1
    assert says in err
    assert {path.name for path in tmp_path.iterdir()} == before, "nothing is written"


def test_without_matplotlib(specbench: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specbench.core.environment.is_installed", lambda package: package != "matplotlib")
    code, _, err = specbench("plot", "methods", paper_board(tmp_path), "--output", "a.png")
    assert code == 2 and err == "error: plot: needs matplotlib: pip install 'specbench-lm[plots]'\n"


def test_a_pgf_needs_latex(specbench: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib")
    monkeypatch.setenv("PATH", "/nowhere")
    code, _, err = specbench("plot", "methods", paper_board(tmp_path), "--output", "a.pgf")
    assert code == 2 and "--format pgf: needs LaTeX" in err


def test_more_methods_than_can_be_told_apart(tmp_path: Path) -> None:
    board = paper_board(tmp_path, paper_rows(("gsm8k",), tuple(f"m{number}" for number in range(15))))
    with pytest.raises(ConfigError, match=r"15 methods, but at most 14 .*--method"):
        drawing("methods", board)


def test_a_row_measured_twice(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    first = paper_board(tmp_path / "a", paper_rows(("gsm8k",)))
    later = [each.model_copy(update={"created": "2026-03-03T00:00:00Z"}) for each in paper_rows(("gsm8k",))]
    second = paper_board(tmp_path / "b", later)
    with pytest.raises(ConfigError, match=r"gsm8k@1 all sd@1 was measured twice, at 2026-01-01.* and 2026-03-03"):
        read_drawing("methods", [first, second], EVERYTHING, None)


def test_another_commit_brings_no_second_baseline_and_no_second_method(tmp_path: Path) -> None:
    """Each run of several methods has a row of AR: that of the newest run is drawn."""
    rows = paper_rows(("gsm8k",))
    later = [each.model_copy(update={"commit": "b" * 40, "created": "2026-03-03T00:00:00Z"}) for each in rows]
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    boards = [paper_board(tmp_path / "a", rows[:2]), paper_board(tmp_path / "b", [later[0], *later[2:]])]
    (panel,) = read_drawing("methods", boards, EVERYTHING, "tokens_per_second").panels
    assert [mark.series for mark in panel.marks] == ["ar", *METHODS]
    assert panel.marks[0].row is not None and panel.marks[0].row.created == later[0].created  # type: ignore[attr-defined]
    with pytest.raises(ConfigError, match=r"gsm8k@1 all sd@1 was measured twice"):
        read_drawing(
            "methods", [paper_board(tmp_path / "a", rows), paper_board(tmp_path / "b", later)], EVERYTHING, None
        )


def test_five_panels_are_three_and_two() -> None:
    pytest.importorskip("matplotlib")
    from specbench.publish.paper.render import _rows_of_panels

    panel = Panel("", "", "", "m", (Mark("a", 1, Estimate(value=1.0), 1),), "linear")
    beside = replace(panel, is_beside=True)
    wide = replace(panel, scale="categories")
    for panels, width, sizes in (
        ([panel] * 5, 6.75, [3, 2]), ([panel] * 4, 6.75, [4]), ([panel] * 5, 3.25, [2, 2, 1]), ([panel], 2.0, [1]),
        ([panel, beside] * 3, 6.75, [4, 2]), ([panel, beside] * 3, 5.5, [2, 2, 2]),
        ([panel] * 5 + [wide], 6.75, [3, 2, 1]),
    ):  # fmt: skip
        assert [len(line) for line in _rows_of_panels(panels, width)] == sizes


def test_every_kind_is_in_the_help(specbench: Any) -> None:
    _, out, _ = specbench("plot", "--help")
    assert all(f"{kind}:" in " ".join(out.split()) for kind in KINDS)


def test_pass_costs_of_a_row_without_records_are_none() -> None:
    from specbench.results.paired import RowWithRecords

    assert not [*pass_costs(RowWithRecords(row()))]


def test_json_that_is_no_report(tmp_path: Path) -> None:
    (tmp_path / "report.json").write_text(json.dumps({"verification_cost": {}, "cost_ratio": 1}))
    with pytest.raises(ConfigError, match=r"report\.json: .*write it again by `specbench roofline --output`"):
        drawing("costs", tmp_path / "report.json")
