"""Quality, speed and memory of several ways to decode → two panels: score against speed, and beside it memory against
the same speed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from specbench.publish.paper.drawing import Mark, Panel
from specbench.publish.site.charts import front
from specbench.report.captions import PEAK_MEMORY, HasWarnings
from specbench.statistics.bootstrap import Bounds, Estimate

GIB, PEAK = 2**30, "peak_gib"


@dataclass(frozen=True)
class Point:
    """A way to decode. `speed`: or another goal, in the unit of its axis. `score`: in the unit of its axis; without a
    value it is only in the panel of memory. `n`: number of prompts. `row`: what it is of. `cells`: of its line of
    data."""

    series: str
    speed: Estimate
    score: Estimate
    peak_bytes: float | None
    n: int
    row: HasWarnings
    cells: Mapping[str, object]


def frontier_panels(
    heading: str, points: Sequence[Point], speed_label: str, score_label: str, score: str, *,
    bounds: Bounds | None = None, less_is_better: bool = False, lower_scores_are_better: bool = False,
) -> list[Panel]:  # fmt: skip
    """Returns the panels of one task; none if fewer than two points have a score or a memory. `score`: its name in the
    data. `less_is_better`: of the speed, such as dollars per token. Each line of data has all three values, and tells
    whether its point is on the front of the panel, and on that of all three."""
    sign, score_sign = -1.0 if less_is_better else 1.0, -1.0 if lower_scores_are_better else 1.0
    of_speed = [sign * (point.speed.value or 0.0) for point in points]
    of_score = [None if point.score.value is None else score_sign * point.score.value for point in points]
    of_memory = [None if point.peak_bytes is None else -point.peak_bytes for point in points]
    whole = _front([of_speed, of_score, of_memory])
    panels: list[Panel] = []
    for name, label, values in ((score, score_label, of_score), (PEAK, "peak memory (GiB)", of_memory)):
        known = [place for place, value in enumerate(values) if value is not None]
        if len(known) < 2:
            continue
        is_memory = name == PEAK
        best = _front([of_speed, values])
        marks = []
        for place in known:
            point = points[place]
            gib = None if point.peak_bytes is None else point.peak_bytes / GIB
            cells = {
                **point.cells, "score": point.score.value, PEAK: gib, "on_front": place in best,
                "on_front_of_all_three": place in whole if whole else None,
            }  # fmt: skip
            y = Estimate(value=gib) if is_memory else point.score
            marks.append(Mark(point.series, point.speed.value or 0.0, y, point.n, point.row, point.speed, cells))
        corners = tuple(sorted((float(mark.x), mark.y.value or 0.0) for mark in marks if mark.cells["on_front"]))
        panels.append(Panel(
            heading, speed_label, label, name, tuple(marks), "linear", front=corners, less_is_better=less_is_better,
            bounds=None if is_memory else bounds, from_zero=is_memory, is_beside=is_memory and bool(panels),
        ))  # fmt: skip
    return panels


def _front(columns: Sequence[Sequence[float | None]]) -> set[int]:
    """Returns the numbers of the points on the Pareto front of several columns, more being better; points that lack a
    value are left out."""
    whole = [(place, values) for place, values in enumerate(zip(*columns, strict=True)) if None not in values]
    best = front([tuple(value or 0.0 for value in values) for _, values in whole])
    return {whole[number][0] for number in best}


def memory_line(panels: Sequence[Panel]) -> str:
    """Returns the sentence of a caption about the panels of memory."""
    has_memory = any(panel.metric == PEAK for panel in panels)
    return f"memory: {PEAK_MEMORY}" if has_memory else "memory: not recorded, as of servers"
