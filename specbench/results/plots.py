"""Pictures: panels in a grid, written into a file; and rows as a picture of speed-up and acceptance by subset."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from specbench.core.errors import ConfigError
from specbench.core.extras import require
from specbench.results.bootstrap import Metric
from specbench.results.row import Row

Panel = Callable[[Any], None]  # draws into the axes of a picture


def check_plot(path: Path) -> None:
    """Raises ConfigError where no picture can be drawn into a file of this name; called before anything is measured."""
    kinds = new_figure().canvas.get_supported_filetypes()
    if path.suffix.lstrip(".") not in kinds:
        raise ConfigError(f"--plot {path}: no kind of picture: end the name in one of .{', .'.join(sorted(kinds))}")


def draw(groups: Sequence[Sequence[Row]], path: Path) -> None:
    """Writes the picture of rows into a file."""
    _write(picture_of(groups), path, "; the rows are kept")


def picture_of(groups: Sequence[Sequence[Row]]) -> Any:
    """Returns a figure of matplotlib; every group holds the rows of one task and one method, a row per subset."""
    panels = [[partial(_draw_panel, rows=rows)] for rows in groups]
    return _picture(panels, (9, 3.2 * len(groups)), "")


def save_picture(
    grid: Sequence[Sequence[Panel]], path: Path, *, size: tuple[float, float], title: str = "", kept: str = ""
) -> None:
    """Draws panels and writes the picture into a file.

    `grid`: rows of equally many panels, each a function that draws into its axes; a panel that stands several times is
    as wide as its places. `size`: in inches. Raises ConfigError where the file cannot be written; `kept` ends the
    message.
    """
    _write(_picture(grid, size, title), path, kept)


def _picture(grid: Sequence[Sequence[Panel]], size: tuple[float, float], title: str) -> Any:
    figure = new_figure(figsize=size, layout="constrained")
    axes = figure.subplot_mosaic([[id(panel) for panel in row] for row in grid])
    for panel in dict.fromkeys(panel for row in grid for panel in row):
        panel(axes[id(panel)])
    if title:
        figure.suptitle(title)
    return figure


def _write(figure: Any, path: Path, kept: str) -> None:
    """Writes a figure into a file. Raises ConfigError where that is not possible."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=150)
    except OSError as error:
        raise ConfigError(f"--plot {path}: cannot be written ({error.strerror or error}){kept}") from error


def reach(metrics: Sequence[Metric]) -> list[list[float]]:
    """Returns how far the intervals reach below and above their values: [2, num_metrics]; 0 where there is none."""
    pairs = [(metric.value or 0.0, metric) for metric in metrics]
    below = [0.0 if m.low is None else max(0.0, value - m.low) for value, m in pairs]
    above = [0.0 if m.high is None else max(0.0, m.high - value) for value, m in pairs]
    return [below, above]


def _draw_panel(panel: Any, rows: Sequence[Row]) -> None:
    places = range(len(rows))
    speedups = [row.metrics["speedup"] for row in rows]
    heights = [metric.value or 0.0 for metric in speedups]
    handles = [panel.bar(places, heights, yerr=reach(speedups), capsize=3, color="#7aa6c2", label="speed-up, 95 %")]
    panel.axhline(1.0, color="black", linewidth=0.8, linestyle=":")
    panel.set_xticks(places, [row.subset for row in rows])
    panel.set_ylabel("speed-up over AR")
    task, method = (name.partition(":")[0] for name in (rows[0].task, rows[0].method))
    panel.set_title(f"{task} · {method}", loc="left")
    rates = [(place, row.metrics["acceptance_rate"].value) for place, row in zip(places, rows, strict=True)]
    judged = [(place, rate) for place, rate in rates if rate is not None]
    if judged:
        right = panel.twinx()
        handles += right.plot(*zip(*judged, strict=True), "o", color="#b5493a", label="acceptance rate α")
        right.set_ylim(0, 1)
        right.set_ylabel("acceptance rate α")
    panel.legend(handles=handles, loc="lower right", bbox_to_anchor=(1, 1), ncols=2, frameon=False)


def new_figure(**options: Any) -> Any:
    """Returns an empty figure, which is drawn into files; what a notebook shows of other figures stays as it is. Raises
    ConfigError where matplotlib is not installed."""
    require("matplotlib", "--plot")
    from matplotlib.figure import Figure

    return Figure(**options)
