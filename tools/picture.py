"""Draws the speed-ups of leaderboards/demo.json, by task and method, into docs/pictures/speedups.svg."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from specbench.results.leaderboard import load
from specbench.results.row import Row

ROOT = Path(__file__).resolve().parents[1]
BOARD = ROOT / "leaderboards" / "demo.json"
PICTURE = ROOT / "docs" / "pictures" / "speedups.svg"
TASKS = {"mgsm": "mgsm: math in 11 languages", "wmt": "wmt: translation", "humaneval": "humaneval: Python"}
METHODS = ("sd", "fsd", "slem", "tli", "ngram", "pld")
LEFT, TOP, WIDTH, LINE, GAP = 58, 46, 236, 24, 22  # of a panel, in pixels
LOW, HIGH = 0.5, 3.0  # of the axis
COLOURS = {True: "#2b6a99", False: "#b5493a"}  # lossless or not


def place(speedup: float) -> float:
    """Returns the horizontal place of a speed-up within its panel, in pixels."""
    return (speedup - LOW) / (HIGH - LOW) * WIDTH


def text(x: float, y: float, words: str, anchor: str = "middle", size: int = 12) -> str:
    """Returns a text at a place."""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}">{words}</text>'


def line(x: float, y: float, to_x: float, to_y: float, colour: str, width: float = 1) -> str:
    """Returns a line between two places."""
    ends = f'x1="{x:.1f}" y1="{y:.1f}" x2="{to_x:.1f}" y2="{to_y:.1f}"'
    return f'<line {ends} stroke="{colour}" stroke-width="{width:g}"/>'


def panel(rows: Sequence[Row], task: str, left: float) -> list[str]:
    """Returns the picture of one task: a dot with its interval for each method."""
    bottom = TOP + LINE * len(METHODS)
    found = [text(left + WIDTH / 2, TOP - 18, TASKS[task], size=13)]
    for tick in (0.5, 1.0, 1.5, 2.0, 2.5, 3.0):
        colour = "#555555" if tick == 1 else "#dddddd"
        found += [line(left + place(tick), TOP - 6, left + place(tick), bottom, colour)]
        found += [text(left + place(tick), bottom + 16, f"{tick:g}", size=11)]
    for number, method in enumerate(METHODS):
        row = next(each for each in rows if each.task.startswith(f"{task}@") and each.method.startswith(f"{method}@")
                   and each.subset in ("all", "default"))  # fmt: skip
        metric, y = row.metrics["speedup"], TOP + LINE * (number + 0.5)
        assert metric.value is not None and metric.low is not None and metric.high is not None
        colour = COLOURS[row.lossless]
        found += [line(left + place(metric.low), y, left + place(metric.high), y, colour, 2)]
        found += [f'<circle cx="{left + place(metric.value):.1f}" cy="{y:.1f}" r="4.5" fill="{colour}"/>']
    return found


def picture() -> str:
    """Returns the SVG."""
    rows = load(BOARD)
    width, height = LEFT + len(TASKS) * (WIDTH + GAP), TOP + LINE * len(METHODS) + 48
    parts = [text(LEFT - 10, TOP + LINE * (number + 0.5) + 4, method, "end") for number, method in enumerate(METHODS)]
    for number, task in enumerate(TASKS):
        parts += panel(rows, task, LEFT + number * (WIDTH + GAP))
    told = "speed-up over autoregressive decoding, with 95 % intervals over prompts; red: not lossless"
    parts.append(text(width / 2, height - 12, told))
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif">',
            f'<rect width="{width}" height="{height}" fill="white"/>',
            *parts,
            "</svg>\n",
        ]
    )


def main() -> None:
    """Writes the picture."""
    argparse.ArgumentParser(prog="python -m tools.picture", description=__doc__).parse_args()
    PICTURE.parent.mkdir(parents=True, exist_ok=True)
    PICTURE.write_text(picture(), encoding="utf-8")


if __name__ == "__main__":
    main()
