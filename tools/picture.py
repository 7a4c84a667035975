"""Draws the speed-ups of the boards demo and real, by task and method, into docs/pictures, and writes into the README
what its picture shows and its table of the real pair. Only rows that are there.

Speed-ups of two runs are not measured beside each other. So a panel has as many methods as it can of one run, and says
which are of others.
"""

import argparse
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from specbench.report.captions import MARK, RUNS_ON, marked, marked_speedup, runs_on, verdict_word
from specbench.results.leaderboard import load
from specbench.results.metric_format import number, score_pair, speed
from specbench.results.row import Row
from tools.drafters.cells import table
from tools.real.measured import label
from tools.real.models import QWEN
from tools.real.notes import TITLES

ROOT = Path(__file__).resolve().parents[1]
PICTURES = ROOT / "docs" / "pictures"
README = ROOT / "README.md"


@dataclass(frozen=True)
class Picture:
    """`tasks`: the title of each panel by its task. `target`: of the rows; None: all are of one."""

    board: Path
    file: Path
    tasks: Mapping[str, str]
    methods: Sequence[str]
    target: str | None = None

    def panels(self, rows: Sequence[Row]) -> dict[str, dict[str, Row]]:
        """Returns the rows of each task, over all its subsets, by method: those of the run that has most methods, of
        the others those of the run that has most of these, and so on. Runs with fewer prompts come last."""
        panels = {}
        for task in self.tasks:
            own = [row for row in rows if row.task_name == task and row.dtype in DTYPES
                   and row.subset in ("all", "default") and self.target in (None, row.target)]  # fmt: skip
            panel: dict[str, Row] = {}
            while left := [row for row in own if row.method_name in self.methods and row.method_name not in panel]:
                most = max(row.n for row in left)
                (run, _), *_ = Counter(row.run for row in left if row.n == most).most_common(1)
                panel |= {row.method_name: row for row in left if (row.run, row.n) == (run, most)}
            if panel:
                panels[task] = panel | {"ar": max((row for row in own if row.is_baseline), key=lambda row: row.n)}
        return panels

    def shown(self, panels: Mapping[str, Mapping[str, Row]]) -> list[str]:
        """Returns the methods that have a row."""
        return [name for name in self.methods if any(name in panel for panel in panels.values())]


def sources(task: str, panel: Mapping[str, Row], methods: Sequence[str]) -> dict[str, list[str]]:
    """Returns the methods of a panel by the run that measured them, whose name is without the task's."""
    found: dict[str, list[str]] = {}
    for name in methods:
        if name in panel:
            run = (panel[name].run or "").rpartition("/")[2].removeprefix(f"{task.replace('_', '-')}-")
            found.setdefault(run, []).append(label(name).partition(" (")[0])
    return found


def axis_of(panels: Mapping[str, Mapping[str, Row]]) -> "Axis":
    """Returns the axis on which every interval of the picture fits."""
    bounds = [interval(row) for panel in panels.values() for row in panel.values() if not row.is_baseline]
    return Axis(math.floor(2 * min(low for low, _, _ in bounds)), math.ceil(2 * max(high for _, _, high in bounds)))


def interval(row: Row) -> tuple[float, float, float]:
    """Returns the lower end, the value and the upper end of a row's speed-up."""
    metric = row.metrics["speedup"]
    assert metric.value is not None and metric.low is not None and metric.high is not None
    return metric.low, metric.value, metric.high


@dataclass(frozen=True)
class Axis:
    """`low`, `high`: its ends, in halves."""

    low: int
    high: int

    def place(self, speedup: float) -> float:
        """Returns the horizontal place of a speed-up within its panel, in pixels."""
        return (2 * speedup - self.low) / (self.high - self.low) * WIDTH


DTYPES = ("float32", "bfloat16")  # and no quantized ones
DEMO = Picture(
    ROOT / "leaderboards" / "demo.json", PICTURES / "speedups.svg",
    {"mgsm": "mgsm: math in 11 languages", "wmt": "wmt: translation", "humaneval": "humaneval: Python"},
    ("sd", "fsd", "slem", "tli", "ngram", "pld"),
)  # fmt: skip
REAL = Picture(
    ROOT / "leaderboards" / "real.json", PICTURES / "real.svg",
    {"gsm8k": "gsm8k: math", "humaneval": "humaneval: Python", "spec_bench": "spec_bench: six kinds"},
    ("sd", "fsd-low", "fsd-med", "fsd-high", "sd-tree", "slem", "tli", "pld", "ngram-general", "lookahead",
     "token-recycling", "rest-general"),
    QWEN.path,
)  # fmt: skip
TOP, WIDTH, LINE, GAP = 46, 236, 24, 34  # of a panel, in pixels
COLOURS = {True: "#2b6a99", False: "#b5493a"}  # lossless or not


def text(x: float, y: float, words: str, anchor: str = "middle", size: int = 12) -> str:
    """Returns a text at a place."""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}">{words}</text>'


def line(x: float, y: float, to_x: float, to_y: float, colour: str, width: float = 1) -> str:
    """Returns a line between two places."""
    ends = f'x1="{x:.1f}" y1="{y:.1f}" x2="{to_x:.1f}" y2="{to_y:.1f}"'
    return f'<line {ends} stroke="{colour}" stroke-width="{width:g}"/>'


def drawn_panel(title: str, panel: Mapping[str, Row], methods: Sequence[str], axis: Axis, left: float) -> list[str]:
    """Returns the picture of one task: a dot with its interval for each method."""
    bottom = TOP + LINE * len(methods)
    found = [text(left + WIDTH / 2, TOP - 18, title, size=13)]
    for tick in (half / 2 for half in range(axis.low, axis.high + 1)):
        colour = "#555555" if tick == 1 else "#dddddd"
        found += [line(left + axis.place(tick), TOP - 6, left + axis.place(tick), bottom, colour)]
        found += [text(left + axis.place(tick), bottom + 16, f"{tick:g}", size=11)]
    for place, method in enumerate(methods):
        if method not in panel:
            continue
        row = panel[method]
        (low, value, high), y = interval(row), TOP + LINE * (place + 0.5)
        colour = COLOURS[row.lossless]
        found += [line(left + axis.place(low), y, left + axis.place(high), y, colour, 2)]
        found += [f'<circle cx="{left + axis.place(value):.1f}" cy="{y:.1f}" r="4.5" fill="{colour}"/>']
        if marks := marks_of(row, panel["ar"]):
            found += [text(left + axis.place(high) + 5, y + 4, marks, "start", size=11)]
    return found


def marks_of(row: Row, baseline: Row) -> str:
    """Returns the marks that the row's speed-up has in tables."""
    return MARK * (marked("", row) != "") + RUNS_ON * runs_on(row, baseline)


def picture(drawn: Picture) -> str | None:
    """Returns the SVG; None if the board has no row for it."""
    panels = drawn.panels(load(drawn.board))
    if not (methods := drawn.shown(panels)):
        return None
    names, axis = list(map(label, methods)), axis_of(panels)
    first = 18 + 7 * max(map(len, names))  # of the panels, in pixels
    told = {MARK: "not to be trusted yet", RUNS_ON: "answers run on where AR's end"}
    used = "".join(marks_of(row, panel["ar"]) for panel in panels.values() for row in panel.values())
    legend = ["red: not lossless", *(f"{mark} {meaning}" for mark, meaning in told.items() if mark in used)]
    captions = ["; ".join(legend), *captions_of(panels, methods)]
    bottom = TOP + LINE * len(methods) + 36
    width, height = first + len(panels) * (WIDTH + GAP), bottom + 10 + 18 * len(captions)
    parts = [text(first - 10, TOP + LINE * (place + 0.5) + 4, name, "end") for place, name in enumerate(names)]
    for place, (task, panel) in enumerate(panels.items()):
        parts += drawn_panel(drawn.tasks[task], panel, methods, axis, first + place * (WIDTH + GAP))
    parts.append(text(width / 2, bottom, "speed-up over autoregressive decoding, with 95 % intervals over prompts"))
    parts += [text(width / 2, bottom + 18 * (place + 1), caption, size=11) for place, caption in enumerate(captions)]
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif">',
            f'<rect width="{width}" height="{height}" fill="white"/>',
            *parts,
            "</svg>\n",
        ]
    )


def captions_of(panels: Mapping[str, Mapping[str, Row]], methods: Sequence[str]) -> list[str]:
    """Returns which run measured which dots of a panel; nothing if each panel is of one run."""
    by_task = {task: sources(task, panel, methods) for task, panel in panels.items()}
    if all(len(runs) < 2 for runs in by_task.values()):
        return []
    lines = ["No run has all methods. Dots compare within a run, whose methods were measured beside the same AR:"]
    for task, runs in by_task.items():
        parts = [f"{run} has {', '.join(own)}" for run, own in runs.items()]
        lines.append(f"{task}: {'; '.join(parts)}")
    return lines


def main() -> None:
    """Writes the pictures."""
    argparse.ArgumentParser(prog="python -m tools.picture", description=__doc__).parse_args()
    PICTURES.mkdir(parents=True, exist_ok=True)
    for drawn in (DEMO, REAL):
        if (content := picture(drawn)) is not None:
            drawn.file.write_text(content, encoding="utf-8")
    README.write_text(with_table(with_title(README.read_text(encoding="utf-8"))), encoding="utf-8")


def with_title(readme: str) -> str:
    """Returns the README with the number of methods and the tasks of its picture."""
    panels = REAL.panels(load(REAL.board))
    names = {"gsm8k": "school math", "humaneval": "programs", "spec_bench": "Spec-Bench"}
    title = f"Speed-up of {len(REAL.shown(panels))} methods on {' and '.join(names[task] for task in panels)}"
    place = REAL.file.relative_to(ROOT).as_posix()
    return re.sub(rf"!\[.*?\]\({re.escape(place)}\)", f"![{title}]({place})", readme)


IN_README = (("gsm8k", "sd"), ("gsm8k", "fsd-high"), ("humaneval", "sd"), ("humaneval", "pld"))
HEADINGS = ["task", "method", "α", "τ", "tok/s", "speed-up", "score %, ar → method", "verdict", "differ"]


def with_table(readme: str) -> str:
    """Returns the README with the lines of the real pair in their table, from the board."""
    panels, lines = REAL.panels(load(REAL.board)), []
    for task, method in IN_README:
        row, baseline = panels[task][method], panels[task]["ar"]
        differing = "" if row.differences is None else f"{row.differences.answers} of {row.differences.compared}"
        lines.append([
            TITLES[task], method, number(row.metric("acceptance_rate"), 3),
            number(row.metric("mean_acceptance_length"), 2), speed(row.metric("tokens_per_second")),
            marked_speedup(row, baseline), score_pair(row.metrics, row.quality), verdict_word(row), differing,
        ])  # fmt: skip
    fresh = table(HEADINGS, lines, 2)
    return re.sub(
        rf"^{re.escape(fresh.splitlines()[0])}\n(\|.*\n)+", lambda _: fresh.rstrip("\n") + "\n", readme, flags=re.M
    )


if __name__ == "__main__":
    main()
