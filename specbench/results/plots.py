"""Rows → a picture: speed-up with its interval and acceptance rate, by subset, one panel per method."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from specbench.core.errors import ConfigError
from specbench.results.bootstrap import Metric
from specbench.results.row import Row


def check_plot(path: Path) -> None:
    """Raise ConfigError where no picture can be drawn into a file of this name. Called before anything is measured."""
    figure = pyplot().figure()
    kinds = figure.canvas.get_supported_filetypes()
    pyplot().close(figure)
    if path.suffix.lstrip(".") not in kinds:
        raise ConfigError(f"--plot {path}: no kind of picture: end the name in one of .{', .'.join(sorted(kinds))}")


def draw(groups: Sequence[Sequence[Row]], path: Path) -> None:
    """Write the picture; every group holds the rows of one task and one method, a row per subset."""
    figure, panels = pyplot().subplots(len(groups), figsize=(9, 3.2 * len(groups)), squeeze=False, layout="constrained")
    with saved(figure, path, "; the rows are kept"):
        for panel, rows in zip(panels[:, 0], groups, strict=True):
            _draw_panel(panel, rows)


@contextmanager
def saved(figure: Any, path: Path, kept: str = "") -> Iterator[None]:
    """Draws a figure inside the block, then writes it. Raises ConfigError, which ends in `kept`, where it cannot be
    written."""
    try:
        yield
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=150)
    except OSError as error:
        raise ConfigError(f"--plot {path}: cannot be written ({error.strerror or error}){kept}") from error
    finally:
        pyplot().close(figure)


def reach(metrics: Sequence[Metric]) -> list[list[float]]:
    """Returns the lengths of the intervals below and above their values; 0 without an interval."""
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


def pyplot() -> Any:
    """Returns the pyplot of matplotlib, which draws into files. Raises ConfigError where matplotlib is not
    installed."""
    try:
        import matplotlib
    except ImportError as error:
        raise ConfigError("--plot needs matplotlib: pip install 'specbench[plots]'") from error
    matplotlib.use("agg")
    from matplotlib import pyplot as found

    return found
