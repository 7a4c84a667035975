"""The picture of `specbench advise`: quality and memory of its ways against its goal."""

from specbench.analysis.advice.advise import GOAL_TEXTS, Advice, times
from specbench.analysis.advice.tables import runs_on_line
from specbench.core.errors import ConfigError
from specbench.publish.paper.drawing import MOST_SERIES, Drawing
from specbench.publish.paper.frontier import Point, frontier_panels, memory_line
from specbench.report.captions import warning_lines
from specbench.results.metric_format import bounds_of, metric_of
from specbench.statistics.bootstrap import Estimate


def drawing_of_advice(advice: Advice) -> Drawing:
    """Returns the frontier of the ways that are ranked. A name says what is replayed or computed. Raises ConfigError if
    fewer than two have a score or a memory."""
    shown = advice.ranked[:MOST_SERIES]
    quality = None if advice.quality is None else metric_of(advice.quality)
    factor = 1.0 if quality is None else quality.factor
    points = [
        Point(
            way.name + ("" if way.basis == "measured" else f" ({way.basis})"), way.value,
            Estimate() if quality is None else times(way.quality, factor), way.peak_bytes, way.n, way,
            {"target": way.target, "precision": way.precision, "engine": way.engine, "load": way.load,
             "num_draft_tokens": way.num_draft_tokens, "basis": way.basis, "run": way.run},
        )
        for way in shown
    ]  # fmt: skip
    possible = None if quality is None else bounds_of(quality.name)
    panels = frontier_panels(
        "", points, GOAL_TEXTS[advice.goal], "" if quality is None else quality.label.replace("_", " "),
        advice.quality or "", less_is_better=advice.goal == "cost",
        lower_scores_are_better=quality is not None and quality.lower_is_better,
        bounds=None if possible is None else (factor * possible[0], factor * possible[1]),
    )  # fmt: skip
    if not panels:
        raise ConfigError(
            f"--plot: fewer than two ways of {advice.task} are ranked and have a score or a memory, which a picture of "
            "quality, speed and memory needs"
        )
    names = [point.series for point in points]
    caption = [
        f"{advice.task} on {advice.device}: quality and memory against {GOAL_TEXTS[advice.goal]}, with 95 % intervals "
        "over prompts; line: the Pareto front of each panel",
        memory_line(panels),
        *([f"{len(advice.ranked) - len(shown)} ways behind the first {MOST_SERIES} are not drawn"]
          if len(advice.ranked) > len(shown) else []),
        *warning_lines(shown, names, for_readers=True),
        *runs_on_line([name for way, name in zip(shown, names, strict=True) if way.runs_on]),
    ]  # fmt: skip
    return Drawing(tuple(panels), advice.goal, "prompts", caption)
