"""A report → a picture: passes by query length and by context beside their bounds, and speed-ups by draft length."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from specbench.analysis.limit.report import LimitReport, ModelLimit, Point
from specbench.results.plots import pyplot, reach, saved

MS = 1e3
COLOURS = {"target": "#2f6f94", "drafter": "#b5493a"}
SHOWN_RATES = (0.5, 0.7, 0.9)


def draw(report: LimitReport, path: Path) -> None:
    """Write the picture. Raises ConfigError where the file cannot be written."""
    figure, panels = pyplot().subplots(1, 3, figsize=(13, 4), layout="constrained")
    with saved(figure, path):
        roles = {"target": report.target, "drafter": report.drafter}
        for role, model in roles.items():
            lengths = [point for point in model.points if point.context == report.context]
            _lines(panels[0], role, lengths, [point.query_length for point in lengths])
            contexts = [point for point in model.points if point.query_length == 1]
            _lines(panels[1], role, contexts, [point.context for point in contexts])
        _label(panels[0], f"tokens in the pass, behind {report.context}", "ms")
        panels[0].legend(frameon=False, fontsize="small")
        _label(panels[1], "context of a pass over one token", "ms")
        _speedups(panels[2], report)
        engine, device = report.environment["engine"], report.environment["device"]
        figure.suptitle(f"{_short(report.target)} and {_short(report.drafter)}, {engine}: {device}")


def _lines(panel: Any, role: str, points: Sequence[Point], places: Sequence[int]) -> None:
    colour = COLOURS[role]
    panel.plot(places, [MS * p.seconds.median for p in points], "o-", markersize=3, color=colour, label=role)
    low, high = ([MS * getattr(p.seconds, end) for p in points] for end in ("low", "high"))
    panel.fill_between(places, low, high, color=colour, alpha=0.2, linewidth=0)
    panel.plot(places, [MS * p.bound_seconds for p in points], ":", color=colour, label=f"{role}: bound")


def _speedups(panel: Any, report: LimitReport) -> None:
    lengths = range(max(report.verification_cost))
    for best in report.best:
        rate = best.acceptance_rate
        if rate in SHOWN_RATES:
            [line] = panel.plot(lengths, [report.costs.speedup(rate, n) for n in lengths], label=f"α = {rate:g}")
            panel.errorbar(
                [best.num_draft_tokens], [best.speedup.value], reach([best.speedup]), fmt="o", capsize=3,
                color=line.get_color(),
            )  # fmt: skip
    panel.axhline(1.0, color="black", linewidth=0.8, linestyle=":")
    panel.set_xlabel("draft tokens γ")
    panel.set_ylabel("speed-up by the measured costs; best: 95 %")
    panel.legend(frameon=False)


def _label(panel: Any, across: str, up: str) -> None:
    panel.set_xscale("log", base=2)
    panel.set_yscale("log")
    panel.xaxis.set_major_formatter("{x:.0f}")
    panel.set_xlabel(across)
    panel.set_ylabel(up)


def _short(model: ModelLimit) -> str:
    return model.model.name.rpartition("/")[2]
