"""Advice as a table for a terminal of 100 columns, and what it comes to in words."""

from collections.abc import Iterator

from specbench.analysis.advice.advise import GOAL_TEXTS, Advice, Way
from specbench.core.table import Table, number_columns, text_columns
from specbench.report.captions import marked, warning_lines
from specbench.results.metric_format import NULL, interval, metric_of, number, with_interval

GIB = 2**30


def report_parts(advice: Advice) -> Iterator[Table | str]:
    yield ways_table(advice)
    yield from sentences(advice)


def ways_table(advice: Advice) -> Table:
    rows = []
    for place, way in enumerate(advice.ways, start=1):
        is_ranked = way.why_out is None
        rows.append([
            str(place) if is_ranked else NULL, way.name + (f", {way.load}" if way.load else ""),
            marked(way.basis, way), value_text(way, advice),
            number(way.ratio, 2) if place == 1 else with_interval(way.ratio), with_interval(way.speedup),
            score_text(way, advice), NULL if way.peak_bytes is None else f"{way.peak_bytes / GIB:.1f}", way.verdict,
        ])  # fmt: skip
    quality = "score" if advice.quality is None else metric_of(advice.quality).label or advice.quality
    columns = (
        *number_columns("rank"), *text_columns("way", "basis"),
        *number_columns(GOAL_TEXTS[advice.goal].replace(" of", "\nof"), "÷ best\n[95 %]", "speed-up\nover its AR",
                        f"{quality}\n(difference)", "GiB"), *text_columns("verdict"),
    )  # fmt: skip
    unpaired = [way for way in advice.ranked[1:] if not way.paired]
    caption = [
        f"{advice.task} on {advice.device}; the difference is from {advice.reference}, paired by prompt where records "
        "are there",
        "replayed: a shorter draft length from recorded verdicts and the pass costs of its own run; measure it before "
        "you rely on it",
        *([f"÷ best of {len(unpaired)} of the ways is from two intervals, not paired"] if unpaired else []),
        *(f"not ranked: {way.name}: {way.why_out}" for way in advice.ways if way.why_out is not None),
        *warning_lines(advice.ways, [way.name for way in advice.ways]),
    ]
    return Table(f"advice for {advice.goal}: {GOAL_TEXTS[advice.goal]}", columns, rows, caption)


def value_text(way: Way, advice: Advice) -> str:
    digits = 2 if advice.goal in ("energy", "cost") else 1
    return f"{number(way.value, digits)} {interval(way.value, digits)}".rstrip()


def score_text(way: Way, advice: Advice) -> str:
    if advice.quality is None or way.quality.value is None:
        return NULL
    metric = metric_of(advice.quality)
    change = with_interval(way.quality_change, metric.digits, metric.factor, sign="+")
    return f"{number(way.quality, metric.digits, metric.factor)} ({change})"


def sentences(advice: Advice) -> Iterator[str]:
    """Yields what the table comes to: the best way, those that cannot be told from it, and the best one that writes
    what the reference's target writes, if that is another."""
    best, same = advice.best(), advice.best(keeps=True)
    if best is None:
        yield "no way is ranked: see the reasons above"
        return
    yield f"best for {advice.goal}: {told(best, advice)}"
    alike = [way.name for way in advice.ranked[1:] if way.ratio.high is None or way.ratio.high >= 1]
    if alike:
        yield f"not told apart from it: {'; '.join(alike)}"
    if same is None:
        yield "none of the ways writes what the target of the reference writes"
    elif same is not best:
        yield f"best with the answers of {same.target}, {same.precision}: {told(same, advice)}"
    plain = next((way for way in advice.ranked if way.method == "ar"), None)
    if plain is best:
        yield "it is plain decoding: no method that was measured is faster than it"
    elif plain is not None and same is not None and same.method != "ar" and rank(plain, advice) < rank(same, advice):
        yield f"plain decoding of {plain.name.removeprefix('ar, ')} is ahead of every method on {same.precision}"


def rank(way: Way, advice: Advice) -> int:
    return advice.ranked.index(way)


def told(way: Way, advice: Advice) -> str:
    value = f"{way.name}: {value_text(way, advice)} {GOAL_TEXTS[advice.goal]}"
    replay = " (replayed)" if way.basis == "replayed" else ""
    change = way.quality_change
    if way.keeps or change.value is None or advice.quality is None:
        return value + replay
    metric = metric_of(advice.quality)
    return f"{value}{replay}; {advice.quality} {with_interval(change, metric.digits, metric.factor, sign='+')}"
