"""The report in words, for every form that it is shown in."""

from collections.abc import Sequence

from specbench.gate.counts import LENGTH, PASSES, RATE
from specbench.gate.findings import Compared, Report
from specbench.gate.outcome import OUTPUTS
from specbench.gate.speed import FALSE_ALARMS, SPEEDUP
from specbench.results.cells import NULL

HEADERS = (
    "method", "outputs\nequal", "τ", "α", "target passes\nper token", "speed-up", "ratio of them\n[interval]", "result",
)  # fmt: skip
MOST = 8  # lines of a kind: the rest is counted


def headline(report: Report) -> str:
    """The verdict and what it counts."""
    num_regressions = sum(len(each.regressions) for each in report.compared)
    num_findings = sum(len(each.findings) for each in report.compared)
    if report.verdict == "regressed":
        return f"regressed: {num_regressions} of {num_findings} comparisons"
    if report.verdict == "cannot compare":
        return "cannot compare: the two were not measured alike"
    if report.verdict == "identical":
        return "identical: both sides hold the same rows and the same records"
    return f"fine: {num_findings} comparisons, nothing is worse"


def cells(compared: Compared) -> list[str]:
    """A line of the table, under HEADERS; of several ratios of speed-ups the lowest."""
    ratios = [f for f in compared.findings if f.what == SPEEDUP and f.ratio is not None and f.ratio.value is not None]
    lowest = min(ratios, key=lambda f: f.ratio.value if f.ratio and f.ratio.value else 0.0, default=None)
    speed, ratio = NULL, NULL
    if lowest is not None and lowest.ratio is not None:
        speed = f"{float(lowest.baseline):.2f} → {float(lowest.candidate):.2f}"
        ratio = f"{lowest.ratio.value:.3f} [{lowest.ratio.low:.3f}, {lowest.ratio.high:.3f}]"
    shown = [compared.cells.get(name, NULL) for name in (OUTPUTS, LENGTH, RATE, PASSES)]
    return [compared.method, *shown, speed, ratio, compared.verdict]


def sections(report: Report) -> list[tuple[str, list[str]]]:
    """What is to be said below the table: a heading and its lines, each at most MOST."""
    several = len({each.task for each in report.compared}) > 1
    every = [(each.name if several else each.method, each) for each in report.compared]
    found = {
        "regressed": [f"{name}, {finding}" for name, each in every for finding in each.regressions],
        "cannot compare": [*report.problems, *grouped([(n, text) for n, each in every for text in each.problems])],
        "not compared": grouped([(name, text) for name, each in every for text in each.not_compared]),
        "notes": [*grouped([(n, text) for n, each in every for text in each.notes]), *report.notes, *decided(report)],
    }
    return [(heading, shortened(lines)) for heading, lines in found.items() if lines]


def grouped(pairs: Sequence[tuple[str, str]]) -> list[str]:
    """The same text of several methods once."""
    methods: dict[str, list[str]] = {}
    for method, text in pairs:
        methods.setdefault(text, []).append(method)
    return [f"{', '.join(dict.fromkeys(names))}: {text}" for text, names in methods.items()]


def shortened(lines: Sequence[str]) -> list[str]:
    rest = len(lines) - MOST
    return list(lines) if rest <= 1 else [*lines[:MOST], f"and {rest} more"]


def decided(report: Report) -> list[str]:
    """How the tolerant tier decides."""
    if not report.num_tolerant:
        return []
    return [
        f"a speed-up has regressed where its whole interval lies below {1 - report.max_regression:.3g}; intervals are "
        f"{report.widening:.2f} times those of 95 %, so that of checks with {report.num_tolerant} of them and no "
        f"regression about {FALSE_ALARMS:.0%} fail at most; of counts that have no interval any fall is a regression"
    ]
