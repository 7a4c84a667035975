"""The report of a check: its findings, its exit code, and its form as text, Markdown and JUnit XML."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal
from xml.etree import ElementTree

from specbench.core.table import Table, escaped_markdown, number_columns, text_columns
from specbench.models.near_ties import TokenDifference
from specbench.report.display import DisplayedResult
from specbench.results.answers import Answer, acceptance_rates, length_columns
from specbench.results.conditions import RowPair
from specbench.results.metric_format import NULL, names_by_text, with_interval
from specbench.results.row import Row
from specbench.statistics.bootstrap import Estimate

CheckResult = Literal["identical", "fine", "regressed", "cannot compare"]
EXIT_CODES: dict[CheckResult, int] = {"identical": 0, "fine": 0, "regressed": 1, "cannot compare": 2}
OUTPUTS, PASSES, DRAFTS, LENGTH, RATE = "outputs", "target passes per token", "draft passes per token", "τ", "α"
SPEED, SPEEDUP, ALL_LENGTH = "speed in tokens/s", "speed-up", "τ, all outputs"
FALSE_ALARMS = 0.01  # share of checks without a regression that fail


@dataclass(frozen=True)
class Finding:
    """One comparison: `what` of `subset` in the baseline and in the candidate. `ratio`: for numbers with noise, the
    candidate's value ÷ the baseline's, with the interval that decides."""

    what: str
    subset: str
    baseline: str
    candidate: str
    regressed: bool
    detail: str = ""
    ratio: Estimate | None = None

    def __str__(self) -> str:
        values = " → ".join(dict.fromkeys((self.baseline, self.candidate)))
        return f"{self.subset}: {self.what} {values}" + (f" ({self.detail})" if self.detail else "")


@dataclass(frozen=True)
class Ratio:
    """A number of both runs with noise, not judged yet. `values`: the baseline's and the candidate's. `ratio`: takes a
    factor, and returns the candidate's ÷ the baseline's with an interval that is wider by this factor. `num_prompts`:
    prompts with a value on both sides."""

    what: str
    subset: str
    values: tuple[Estimate, Estimate]
    ratio: Callable[[float], Estimate]
    num_prompts: int


@dataclass
class MethodFindings:
    """The findings on a method on a task. `ratios`: those still to be judged. `problems`: why required comparisons were
    impossible. `not_compared`: values that one side lacks. `cells`: the numbers over all subsets for the table, by
    heading."""

    task: str
    method: str
    findings: list[Finding] = field(default_factory=list)
    ratios: list[Ratio] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    not_compared: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    cells: dict[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return f"{self.task} {self.method}"

    @property
    def regressions(self) -> list[Finding]:
        return [finding for finding in self.findings if finding.regressed]

    @property
    def result(self) -> CheckResult:
        if self.regressions:
            return "regressed"
        return "cannot compare" if self.problems else "fine"


@dataclass(frozen=True)
class CheckReport:
    """The result of a check. `widening`: the factor that widens the intervals of `num_tolerant` ratios. `identical`:
    whether both sides have the same rows and records. `interleaved`: whether both were measured so, which compares
    speeds instead of speed-ups."""

    baseline: str
    candidate: str
    max_regression: float
    num_tolerant: int
    widening: float
    compared: tuple[MethodFindings, ...]
    problems: tuple[str, ...]
    notes: tuple[str, ...]
    identical: bool = False
    interleaved: bool = False

    @property
    def result(self) -> CheckResult:
        """The result of the check; a regression outweighs problems."""
        if self.identical:
            return "identical"
        results = {each.result for each in self.compared}
        if "regressed" in results:
            return "regressed"
        return "cannot compare" if self.problems or "cannot compare" in results else "fine"

    @property
    def exit_code(self) -> int:
        return EXIT_CODES[self.result]

    @property
    def speed_name(self) -> str:
        """The name of the judged number: speed-up, or speed if the runs were interleaved."""
        return SPEED if self.interleaved else SPEEDUP


def verdict_finding(pair: RowPair) -> list[Finding]:
    """Returns a finding if a method is no longer lossless, by its rule or compared with the AR of its run."""
    before, now = pair.baseline.verdict, pair.candidate.verdict
    made_lossy = pair.baseline.lossless and not pair.candidate.lossless
    if not made_lossy and (now != "diverged" or before == "diverged"):
        return []
    return [Finding("verdict", pair.subset, before, now, regressed=True)]


def output_finding(subset: str, num_equal: int, num_different: int, found: Sequence[TokenDifference] | None) -> Finding:
    """Returns the finding on outputs. `found`: the differences of a lossless method in a greedy run; None if outputs
    may differ."""
    before = f"of {num_equal + num_different}"
    if found is None:
        detail = "outputs of a lossy or sampling method may differ" if num_different else ""
        now = f"{num_equal} equal" + f", {num_different} other" * bool(num_different)
        return Finding(OUTPUTS, subset, before, now, regressed=False, detail=detail)
    serious = [each for each in found if not each.is_explained]
    counts = {"equal": num_equal, "near-ties": len(found) - len(serious), "other": len(serious)}
    now = ", ".join(f"{number} {name}" for name, number in counts.items() if number or name == "equal")
    detail = ""
    if serious and serious[0].prompt:
        old, new = (token or "the end" for token in (serious[0].ar_token, serious[0].method_token))
        detail = f"prompt {serious[0].prompt}, token {serious[0].position}: {old} before, {new} now"
    return Finding(OUTPUTS, subset, before, now, bool(serious), detail)


MORE_IS_BETTER = {PASSES: False, LENGTH: True, RATE: True, DRAFTS: False}
IN_ROWS = {PASSES: "target_passes_per_token", LENGTH: "mean_acceptance_length", RATE: "acceptance_rate"}
ROUNDING = 1e-9  # relative: the same sums in another order
Counts = Mapping[str, float | None]


def counts_of(own: Sequence[Answer]) -> Counts:
    """Returns τ, α and passes of answers; None if nothing is drafted, or the decoder does not report a count."""
    passes = [a.target_passes for a in own]
    tokens, steps = map(sum, length_columns([own]))
    rates = [rate for rate in acceptance_rates(own) if rate is not None]
    num_tokens = sum(a.num_new_tokens for a in own)
    num_drafts = sum(len(a.draft_passes) for a in own)
    known = own and not any(a.is_external for a in own)
    return {
        PASSES: None if None in passes or not own else sum(n or 0 for n in passes) / num_tokens,
        LENGTH: tokens / steps if steps else None,
        RATE: sum(rates) / len(rates) if rates else None,
        DRAFTS: num_drafts / num_tokens if known else None,
    }


def counts_of_row(row: Row) -> Counts:
    return {what: row.value(name) for what, name in IN_ROWS.items()}


def _known(baseline: Counts, candidate: Counts) -> Iterator[tuple[str, float, float]]:
    for what, before in baseline.items():
        now = candidate.get(what)
        if before is not None and now is not None:
            yield what, before, now


def compare_counts(subset: str, baseline: Counts, candidate: Counts, detail: str = "") -> Iterator[Finding]:
    """Yields a finding for every count that both sides have, with at least three digits, and enough to show a
    change."""
    for what, before, now in _known(baseline, candidate):
        worse = (before - now if MORE_IS_BETTER[what] else now - before) > ROUNDING * abs(before)
        digits = next((n for n in range(3, 10) if f"{before:.{n}f}" != f"{now:.{n}f}"), 3)
        values = f"{before:.{digits}f}", f"{now:.{digits}f}"
        yield Finding(what, subset, *values, worse, detail if worse else "")


def change_cells(baseline: Counts, candidate: Counts) -> dict[str, str]:
    """Returns the counts of both sides as cells of a table; a single number if they are equal."""
    return {
        what: " → ".join(dict.fromkeys((f"{before:.3f}", f"{now:.3f}")))
        for what, before, now in _known(baseline, candidate)
    }


MAX_LINES = 8  # of a section; further lines are counted


def headline(report: CheckReport) -> str:
    num_regressions = sum(len(each.regressions) for each in report.compared)
    num_findings = sum(len(each.findings) for each in report.compared)
    return {
        "regressed": f"regressed: {num_regressions} of {num_findings} comparisons",
        "cannot compare": "cannot compare: the reasons are listed below",
        "identical": "identical: both sides hold the same rows and the same records",
        "fine": f"fine: {num_findings} comparisons, nothing is worse",
    }[report.result]


def tables(report: CheckReport) -> Iterator[Table]:
    """Yields a table for each task, with the lowest ratio of speeds of each method."""
    counts = ("outputs\nequal", "τ", "α", "target passes\nper token")
    figures = number_columns(*counts, report.speed_name, "ratio of them\n[interval]")
    columns = (*text_columns("method"), *figures, *text_columns("result"))
    for task in dict.fromkeys(each.task for each in report.compared):
        rows = []
        for each in (each for each in report.compared if each.task == task):
            ratios = [
                (f.ratio.value, f) for f in each.findings
                if f.what in (SPEED, SPEEDUP) and f.ratio is not None and f.ratio.value is not None
            ]  # fmt: skip
            speed, ratio = NULL, NULL
            if ratios:
                lowest = min(ratios, key=lambda found: found[0])[1]
                speed = f"{float(lowest.baseline):.2f} → {float(lowest.candidate):.2f}"
                ratio = with_interval(lowest.ratio, 3)
            counted = [each.cells.get(name, NULL) for name in (OUTPUTS, LENGTH, RATE, PASSES)]
            rows.append([each.method, *counted, speed, ratio, each.result])
        yield Table(f"{task}: baseline → candidate", columns, rows)


def sections(report: CheckReport) -> list[tuple[str, list[str]]]:
    """Returns the sections below the table: a heading and at most MAX_LINES lines each."""
    several = len({each.task for each in report.compared}) > 1
    every = [(each.name if several else each.method, each) for each in report.compared]
    problems, not_compared, notes = (
        [
            f"{', '.join(names)}: {text}"
            for text, names in names_by_text(
                (name, text) for name, each in every for text in getattr(each, part)
            ).items()
        ]
        for part in ("problems", "not_compared", "notes")
    )
    found = {
        "regressed": [f"{name}, {finding}" for name, each in every for finding in each.regressions],
        "cannot compare": [*report.problems, *problems],
        "not compared": not_compared,
        "notes": [*notes, *report.notes],
    }
    if report.num_tolerant:
        found["notes"].append(
            f"a regression is any worse count, or a ratio of {report.speed_name} whose whole interval lies below "
            f"{1 - report.max_regression:.3g}; intervals are 95 % intervals widened by {report.widening:.2f} for "
            f"{report.num_tolerant} comparisons (false alarms in about {FALSE_ALARMS:.0%} of checks)"
        )
    return [(heading, shorten(lines)) for heading, lines in found.items() if lines]


def shorten(lines: Sequence[str]) -> list[str]:
    rest = len(lines) - MAX_LINES
    return list(lines) if rest <= 1 else [*lines[:MAX_LINES], f"and {rest} more"]


def screen(report: CheckReport) -> Iterator[Table | str]:
    yield headline(report)
    yield from tables(report)
    for heading, lines in sections(report):
        yield f"{heading}:"
        yield "\n".join(f"  {line}" for line in lines)


def markdown(report: CheckReport) -> str:
    parts = [f"### specbench check: {escaped_markdown(headline(report))}\n"]
    parts += [table.markdown() for table in tables(report)]
    for heading, lines in sections(report):
        parts.append(f"**{heading}**\n\n" + "".join(f"- {escaped_markdown(line)}\n" for line in lines))
    return "\n".join([*parts, f"baseline `{report.baseline}`, candidate `{report.candidate}`"])


SUITE = "specbench check"


def junit(report: CheckReport) -> str:
    """Returns JUnit XML: a test case for each finding, problem (an error), and value not compared (skipped)."""
    suite = ElementTree.Element("testsuite", name=SUITE)

    def add(group: str, name: str, outcome: str | None, message: str) -> None:
        case = ElementTree.SubElement(suite, "testcase", classname=group, name=name)
        if outcome is not None:
            ElementTree.SubElement(case, outcome, message=message)

    if report.identical:
        add(SUITE, "identical", None, "")
    for problem in report.problems:
        add(SUITE, "comparable", "error", problem)
    for each in report.compared:
        group = f"{each.task}.{each.method}"
        for finding in each.findings:
            outcome = "failure" if finding.regressed else None
            add(group, f"{finding.what} of {finding.subset}", outcome, str(finding))
        for problem in each.problems:
            add(group, "comparable", "error", problem)
        for text in each.not_compared:
            add(group, text, "skipped", text)
    counts = {"tests": "testcase", "failures": "testcase/failure", "errors": "testcase/error",
              "skipped": "testcase/skipped"}  # fmt: skip
    for name, path in counts.items():
        suite.set(name, str(len(suite.findall(path))))
    suites = ElementTree.Element("testsuites")
    suites.append(suite)
    ElementTree.indent(suites)
    return ElementTree.tostring(suites, encoding="unicode", xml_declaration=True)


class CheckedRuns(DisplayedResult, CheckReport):
    """A check of a run against a baseline. `result`: fine, regressed, identical or cannot compare."""

    def tables(self) -> Iterable[Table | str]:
        return screen(self)
