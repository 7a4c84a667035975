"""Advice as a table for a terminal of 100 columns, and what it comes to in words."""

import math
from collections.abc import Iterator, Sequence

from specbench.analysis.advice.advise import GOAL_TEXTS, Advice, Way
from specbench.analysis.advice.memory import AtCapacity, LevelCheck, MemoryReport
from specbench.core.console import counted
from specbench.core.table import Table, number_columns, text_columns
from specbench.report.captions import PEAK_MEMORY, RUNS_ON, SHARES_OF_ANSWERS, marked, warning_lines
from specbench.results.metric_format import NULL, interval, metric_of, number, with_interval

GIB, MIB = 2**30, 2**20
BASES = {
    "replayed": "replayed: a shorter draft length from recorded verdicts and the pass costs of its own run; measure it "
    "before you rely on it",
    "computed": "computed: interpolated between the measured levels around it; measure that level before you rely on "
    "it",
}
INTERPOLATED = "≈"


def report_parts(advice: Advice) -> Iterator[Table | str]:
    yield ways_table(advice)
    yield from sentences(advice)


def ways_table(advice: Advice) -> Table:
    rows = []
    for place, way in enumerate(advice.ways, start=1):
        is_ranked = way.why_out is None
        rows.append([
            str(place) if is_ranked else NULL, advice.short_name(way),
            marked(way.basis, way) + f" {RUNS_ON}" * way.runs_on, value_text(way, advice),
            number(way.ratio, 2) if place == 1 else with_interval(way.ratio), with_interval(way.speedup),
            score_text(way, advice), NULL if way.peak_bytes is None else f"{way.peak_bytes / GIB:.1f}", way.verdict,
        ])  # fmt: skip
    quality = "score" if advice.quality is None else metric_of(advice.quality).label or advice.quality
    of_best = "best ÷ this" if advice.goal == "cost" else "÷ best"  # below 1 where a way is worse than the best one
    columns = (
        *number_columns("rank"), *text_columns("way", "basis"),
        *number_columns(GOAL_TEXTS[advice.goal].replace(" of", "\nof"), f"{of_best}\n[95 %]", "speed-up\nover its AR",
                        f"{quality}\n(difference)", "GiB"), *text_columns("verdict"),
    )  # fmt: skip
    unpaired = [way for way in advice.ranked[1:] if not way.paired]
    cut = {advice.short_name(way): way.share_cut_in_reasoning for way in advice.ways if way.share_cut_in_reasoning}
    caption = [
        f"{advice.task} on {advice.device}; the difference is from {advice.reference}, paired by prompt where records "
        "are there",
        *([f"all ways: {', '.join(advice.shared)}"] if advice.shared else []),
        *(text for basis, text in BASES.items() if any(way.basis == basis for way in advice.ways)),
        *(check_lines(advice.checks) if any(way.basis == "computed" for way in advice.ways) else []),
        *([f"GiB: {PEAK_MEMORY}"] if any(way.peak_bytes is not None for way in advice.ways) else []),
        *([f"{of_best} of {len(unpaired)} of the ways is from two intervals, not paired"] if unpaired else []),
        *(
            [
                f"{SHARES_OF_ANSWERS['share_cut_in_reasoning'].partition(',')[0]}: "
                + ", ".join(f"{name} {share:.0%}" for name, share in cut.items())
                + "; speeds and scores are of texts without an answer there: raise generation.max_new_tokens"
            ]
            if cut
            else []
        ),
        *(f"not ranked: {advice.short_name(way)}: {way.why_out}" for way in advice.ways if way.why_out is not None),
        *(f"left out: {name}: no {GOAL_TEXTS[advice.goal]}: {why}" for name, why in advice.without_value.items()),
        *warning_lines(advice.ways, list(map(advice.short_name, advice.ways))),
        *runs_on_line([advice.short_name(way) for way in advice.ways if way.runs_on]),
    ]
    return Table(f"advice for {advice.goal}: {GOAL_TEXTS[advice.goal]}", columns, rows, caption)


def runs_on_line(names: Sequence[str]) -> list[str]:
    """Returns the line about ways whose answers run on; none without such ways."""
    if not names:
        return []
    return [
        f"{RUNS_ON} {'; '.join(names)}: most answers go on to the limit on new tokens where those of ar end: the speed "
        "is that of longer, other texts"
    ]


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
    if best.method == "ar":
        yield "that is plain decoding, ahead of every method that was measured"
    alike = [advice.short_name(way) for way in advice.ranked[1:] if way.ratio.high is not None and way.ratio.high >= 1]
    unknown = [advice.short_name(way) for way in advice.ranked[1:] if way.ratio.high is None]
    if alike:
        yield f"not told apart from it: {'; '.join(alike)}"
    if unknown:
        yield f"without an interval, for which more prompts must be measured: {'; '.join(unknown)}"
    if same is None:
        yield "none of the ways writes what the target of the reference writes"
    elif same is not best:
        yield f"best with the answers of {same.target}, {same.precision}: {told(same, advice)}"
    plain = next((way for way in advice.ranked if way.method == "ar"), None)
    if plain is None or plain is best or same is None or same.method == "ar":
        return
    if advice.ranked.index(plain) < advice.ranked.index(same):
        yield f"plain decoding of {', '.join(plain.conditions)} is ahead of every method on {same.precision}"


def told(way: Way, advice: Advice) -> str:
    value = f"{way.name}: {value_text(way, advice)} {GOAL_TEXTS[advice.goal]}"
    basis = "" if way.basis == "measured" else f" ({way.basis})"
    change = way.quality_change
    if way.keeps or change.value is None or advice.quality is None:
        return value + basis
    metric = metric_of(advice.quality)
    return f"{value}{basis}; {advice.quality} {with_interval(change, metric.digits, metric.factor, sign='+')}"


def memory_parts(report: MemoryReport) -> Iterator[Table | str]:
    yield _capacity_table(report)
    if report.compared:
        yield _equal_memory_table(report)


def _capacity_table(report: MemoryReport) -> Table:
    cache = {model.name: model.request_bytes for model in report.models}
    rows = [
        [each.method, f"{each.weight_bytes / GIB:.2f}", f"{each.spare_bytes / GIB:.2f}",
         f"{each.request_bytes / MIB:.1f}", str(each.requests)]
        for each in report.capacities
    ]  # fmt: skip
    reserved = f", of which {report.reserved_bytes / GIB:g} GiB are reserved" if report.reserved_bytes else ""
    caption = [
        f"{report.total_bytes / GIB:g} GiB{reserved}; a request holds the keys and values of {report.tokens} tokens, "
        f"{cache['target'] / MIB:.1f} MiB of them of the target",
        *(f"{each.method}: its weights do not fit" for each in report.capacities if each.spare_bytes <= 0),
    ]
    heads = number_columns("weights\nGiB", "left for\ncaches GiB", "a request\nMiB", "requests\nat once")
    return Table("requests that the same memory holds", (*text_columns("method"), *heads), rows, caption)


def _equal_memory_table(report: MemoryReport) -> Table:
    unit, digits = ("tok/s", 1) if report.limits is None else ("answers/s", 2)
    rows, lacking = [], list[str]()
    for each in report.compared:
        place = ", ".join(filter(None, (f"{each.task}/{each.subset}", each.load)))
        for name, at in (("ar", each.ar), (each.method, each.own)):
            if at.basis is None:
                lacking.append(f"{place}: {name} was not measured up to {at.level} requests at once")
        bases = {at.basis or NULL for at in (each.ar, each.own)}
        rows.append([
            place, each.method, f"{each.ar.level} → {each.own.level}",
            f"{value_at_text(each.ar, digits)} → {value_at_text(each.own, digits)}", with_interval(each.ratio),
            with_interval(each.speedup),
            next(basis for basis in (NULL, "computed", "measured") if basis in bases),
        ])  # fmt: skip
    levels = sorted(
        {at.level for each in report.compared for at in (each.ar, each.own) if at.basis != "measured"} - {0}
    )
    limits = ", ".join(f"{name} {seconds:g} s" for name, seconds in (report.limits or {}).items())
    caption = [
        f"{report.quantity} of ar and of the method, each with as many requests at once as the memory holds"
        + (f"; limits: {limits}" if limits else ""),
        "method ÷ ar: from both intervals; same load: speed-up with the method's number of requests on both sides",
        *(
            [f"{INTERPOLATED} {BASES['computed'].replace('that level', 'those levels')}", *check_lines(report.checks)]
            if any("computed" in row for row in rows)
            else []
        ),
        *dict.fromkeys(lacking),
        *([f"to measure it: load: {{concurrency: [{', '.join(map(str, levels))}]}}"] if levels else []),
    ]
    heads = number_columns("requests\nat once", f"{unit}\nar → method", "method ÷ ar\n[95 %]", "same load\n[95 %]")
    columns = (*text_columns("task", "method"), *heads, *text_columns("basis"))
    return Table("at equal total memory", columns, rows, caption)


def value_at_text(at: AtCapacity, digits: int) -> str:
    """Returns a value at a capacity, with a mark if it is interpolated."""
    return INTERPOLATED * (at.basis == "computed") + number(at.value, digits)


def check_lines(checks: Sequence[LevelCheck]) -> Iterator[str]:
    """Yields what interpolating measured levels was off by: for each server the worst of its levels."""
    if not checks:
        yield (
            "the interpolation could not be checked: no server was measured at three levels or more with values above 0"
        )
        return
    worst: dict[str, LevelCheck] = {}
    for each in checks:
        if each.method not in worst or off_by(each) > off_by(worst[each.method]):
            worst[each.method] = each
    told = "; ".join(
        f"{each.method} at {each.level} (from {each.between[0]} and {each.between[1]}) "
        f"{each.interpolated.value:.4g} for {each.measured.value:.4g}, × {with_interval(each.ratio)}"
        for each in worst.values()
    )
    levels = counted(len(checks), "measured level")
    yield f"checked: {levels} interpolated from the levels around it; the worst of each server: {told}"


def off_by(check: LevelCheck) -> float:
    """Returns how far an interpolated value is from the measured one, on the scale of ratios."""
    return abs(math.log(check.ratio.value)) if check.ratio.value else math.inf
