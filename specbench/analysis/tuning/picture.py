"""A sweep as a picture: what was measured as points with intervals, what was estimated as lines."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from specbench.analysis.tuning.estimates import Check
from specbench.analysis.tuning.sweep import LENGTH, MeasuredValue, OnePass, shown
from specbench.results.bootstrap import Metric
from specbench.results.plots import pyplot, reach, saved
from specbench.results.units import unit_of


def draw_estimates(sweep: OnePass, path: Path) -> None:
    """Speed-up against the threshold: a line per draft length (estimates), and the real runs as points with their
    score. The name of the file is checked by plots.check_plot."""

    def panel(axes: Any) -> None:
        for length in sorted({estimate.num_draft_tokens for estimate in sweep.estimates}):
            line = [e for e in sweep.estimates if e.num_draft_tokens == length]
            heights = [e.metrics["speedup"].value for e in line]
            axes.plot([e.threshold for e in line], heights, "--", marker=".", label=f"≈ {length} draft tokens")
        _points(
            axes,
            [check.estimate.threshold for check in sweep.checks],
            [c.metrics for c in sweep.checks],
            sweep.run.quality,
        )
        for check in sweep.checks:
            axes.annotate(f"{check.estimate.num_draft_tokens}", _place(check), xytext=(5, 5), fontsize=8,
                          textcoords="offset points")  # fmt: skip
        axes.set_xlabel("threshold   (≈ estimated from one run; points: real runs, with their draft length)")

    draw_panels([panel], path)


def draw_values(values: Sequence[MeasuredValue], path: Path) -> None:
    """One panel per key: speed-up with its interval, and the score, at every value that was run."""

    def panel_of(key: str) -> Any:
        chosen = [value for value in values if value.variant.path == key]

        def panel(axes: Any) -> None:
            _points(axes, range(len(chosen)), [value.metrics for value in chosen], chosen[0].run.quality)
            axes.set_xticks(range(len(chosen)), [shown(value.variant.value) for value in chosen])
            axes.set_xlabel("draft tokens" if key == LENGTH else key)

        return panel

    draw_panels([panel_of(key) for key in dict.fromkeys(value.variant.path for value in values)], path)


def _points(
    axes: Any, places: Sequence[float], metrics: Sequence[dict[str, Metric] | Any], quality: str | None
) -> None:
    speedups = [each["speedup"] for each in metrics]
    heights = [speedup.value or 0.0 for speedup in speedups]
    axes.errorbar(places, heights, yerr=reach(speedups), fmt="o", color="black", capsize=3,
                  label="measured speed-up, 95 %")  # fmt: skip
    axes.axhline(1.0, color="black", linewidth=0.8, linestyle=":")
    axes.set_ylabel("speed-up over AR")
    unit = unit_of(quality)
    values = [each[quality].value if quality else None for each in metrics]
    scored = [(place, unit.factor * value) for place, value in zip(places, values, strict=True) if value is not None]
    if scored:
        right = axes.twinx()
        right.plot(*zip(*scored, strict=True), "s", color="#b5493a", label=f"measured {unit.label}")
        right.set_ylim(0, max(1.02 * unit.factor * unit.most, *(1.02 * value for _, value in scored)))
        right.set_ylabel(unit.label, color="#b5493a")
    axes.legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=3, frameon=False)


def _place(check: Check) -> tuple[float, float]:
    return check.estimate.threshold, check.metrics["speedup"].value or 0.0


def draw_panels(panels: Sequence[Any], path: Path) -> None:
    """Write a picture of panels, each drawn by a function of its axes."""
    figure, axes = pyplot().subplots(len(panels), figsize=(9, 4 * len(panels)), squeeze=False, layout="constrained")
    with saved(figure, path, "; the runs are kept"):
        for panel, place in zip(panels, axes[:, 0], strict=True):
            panel(place)
