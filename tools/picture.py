"""Draws the speed-ups of the boards demo and real, by task and method, into docs/pictures, and writes into the README
what its picture shows and its table of the real pair. Only rows that are there."""

import argparse
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from specbench.report.captions import MARK, RUNS_ON, marked, marked_speedup, runs_on, verdict_word
from specbench.results.leaderboard import load
from specbench.results.metric_format import number, score_pair, speed
from specbench.results.row import Row
from tools.drafters.cells import table
from tools.real.cells import LABELS
from tools.real.models import QWEN
from tools.real.page import TITLES

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

    def row(self, rows: Sequence[Row], task: str, method: str) -> Row | None:
        """Returns the row over all subsets of a task, of several that with the most prompts; None if it is not
        measured."""
        found = (
            row for row in rows if (row.task_name, row.method_name) == (task, method) and row.dtype in DTYPES
            and row.subset in ("all", "default") and self.target in (None, row.target)
        )  # fmt: skip
        return max(found, key=lambda row: row.n, default=None)

    def shown(self, rows: Sequence[Row]) -> tuple[list[str], list[str]]:
        """Returns the methods and the tasks that have a row."""
        methods = [name for name in self.methods if any(self.row(rows, task, name) for task in self.tasks)]
        return methods, [task for task in self.tasks if any(self.row(rows, task, name) for name in methods)]

    def axis(self, rows: Sequence[Row]) -> "Axis":
        """Returns the axis on which every interval of the picture fits."""
        found = (self.row(rows, task, method) for task in self.tasks for method in self.methods)
        bounds = [interval(row) for row in found if row is not None]
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


def panel(drawn: Picture, rows: Sequence[Row], methods: Sequence[str], task: str, left: float) -> list[str]:
    """Returns the picture of one task: a dot with its interval for each method."""
    bottom, axis = TOP + LINE * len(methods), drawn.axis(rows)
    found = [text(left + WIDTH / 2, TOP - 18, drawn.tasks[task], size=13)]
    for tick in (half / 2 for half in range(axis.low, axis.high + 1)):
        colour = "#555555" if tick == 1 else "#dddddd"
        found += [line(left + axis.place(tick), TOP - 6, left + axis.place(tick), bottom, colour)]
        found += [text(left + axis.place(tick), bottom + 16, f"{tick:g}", size=11)]
    for place, method in enumerate(methods):
        row = drawn.row(rows, task, method)
        if row is None:
            continue
        (low, value, high), y = interval(row), TOP + LINE * (place + 0.5)
        colour = COLOURS[row.lossless]
        found += [line(left + axis.place(low), y, left + axis.place(high), y, colour, 2)]
        found += [f'<circle cx="{left + axis.place(value):.1f}" cy="{y:.1f}" r="4.5" fill="{colour}"/>']
        if marks := marks_of(row, drawn.row(rows, task, "ar")):
            found += [text(left + axis.place(high) + 5, y + 4, marks, "start", size=11)]
    return found


def marks_of(row: Row, baseline: Row | None) -> str:
    """Returns the marks that the row's speed-up has in tables."""
    return MARK * (marked("", row) != "") + RUNS_ON * (baseline is not None and runs_on(row, baseline))


def picture(drawn: Picture) -> str | None:
    """Returns the SVG; None if the board has no row for it."""
    rows = load(drawn.board)
    methods, tasks = drawn.shown(rows)
    if not methods:
        return None
    names = [LABELS.get(method, method) for method in methods]
    first = 18 + 7 * max(map(len, names))  # of the panels, in pixels
    width, height = first + len(tasks) * (WIDTH + GAP), TOP + LINE * len(methods) + 64
    parts = [text(first - 10, TOP + LINE * (place + 0.5) + 4, name, "end") for place, name in enumerate(names)]
    for place, task in enumerate(tasks):
        parts += panel(drawn, rows, methods, task, first + place * (WIDTH + GAP))
    parts.append(
        text(width / 2, height - 28, "speed-up over autoregressive decoding, with 95 % intervals over prompts")
    )
    told = {MARK: "not to be trusted yet", RUNS_ON: "answers run on where AR's end"}
    used = "".join(marks_of(row, drawn.row(rows, task, "ar")) for task in tasks for name in methods
                   if (row := drawn.row(rows, task, name)) is not None)  # fmt: skip
    legend = ["red: not lossless", *(f"{mark} {meaning}" for mark, meaning in told.items() if mark in used)]
    parts.append(text(width / 2, height - 10, "; ".join(legend), size=11))
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif">',
            f'<rect width="{width}" height="{height}" fill="white"/>',
            *parts,
            "</svg>\n",
        ]
    )


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
    methods, tasks = REAL.shown(load(REAL.board))
    names = {"gsm8k": "school math", "humaneval": "programs", "spec_bench": "Spec-Bench"}
    title = f"Speed-up of {len(methods)} methods on {' and '.join(names[task] for task in tasks)}"
    place = REAL.file.relative_to(ROOT).as_posix()
    return re.sub(rf"!\[.*?\]\({re.escape(place)}\)", f"![{title}]({place})", readme)


IN_README = (("gsm8k", "sd"), ("gsm8k", "fsd-high"), ("humaneval", "sd"), ("humaneval", "pld"))
HEADINGS = ["task", "method", "α", "τ", "tok/s", "speed-up", "score %, ar → method", "verdict", "differ"]


def with_table(readme: str) -> str:
    """Returns the README with the lines of the real pair in their table, from the board."""
    rows, lines = load(REAL.board), []
    for task, method in IN_README:
        row, baseline = REAL.row(rows, task, method), REAL.row(rows, task, "ar")
        assert row is not None and baseline is not None
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
