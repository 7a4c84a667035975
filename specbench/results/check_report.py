"""The report of a check as text, Markdown and JUnit XML."""

from collections.abc import Iterator, Sequence
from xml.etree import ElementTree

from specbench.core.table import Table, escaped_markdown, markdown_table, numbers, words
from specbench.results.check_findings import LENGTH, OUTPUTS, PASSES, RATE, CheckReport, MethodFindings
from specbench.results.check_speed import FALSE_ALARMS, SPEED, SPEEDUP
from specbench.results.units import NULL, names_by_text, with_interval

MAX_LINES = 8  # of a section; further lines are counted


def headers(report: CheckReport) -> tuple[str, ...]:
    """Returns the headings of the table of a check."""
    counts = ("outputs\nequal", "τ", "α", "target passes\nper token")
    return ("method", *counts, speed_name(report), "ratio of them\n[interval]", "result")


def speed_name(report: CheckReport) -> str:
    """Returns the name of the judged number: speed-up, or speed if the runs took turns."""
    return SPEED if report.in_turns else SPEEDUP


def headline(report: CheckReport) -> str:
    """Returns the result with the number of comparisons."""
    num_regressions = sum(len(each.regressions) for each in report.compared)
    num_findings = sum(len(each.findings) for each in report.compared)
    if report.result == "regressed":
        return f"regressed: {num_regressions} of {num_findings} comparisons"
    if report.result == "cannot compare":
        return "cannot compare: the reasons are listed below"
    if report.result == "identical":
        return "identical: both sides hold the same rows and the same records"
    return f"fine: {num_findings} comparisons, nothing is worse"


def cells(compared: MethodFindings) -> list[str]:
    """Returns a line of the table under `headers`, with the lowest ratio of speeds."""
    ratios = [
        f for f in compared.findings if f.what in (SPEED, SPEEDUP) and f.ratio is not None and f.ratio.value is not None
    ]
    lowest = min(ratios, key=lambda f: f.ratio.value if f.ratio and f.ratio.value else 0.0, default=None)
    speed, ratio = NULL, NULL
    if lowest is not None and lowest.ratio is not None:
        speed = f"{float(lowest.baseline):.2f} → {float(lowest.candidate):.2f}"
        ratio = with_interval(lowest.ratio, 3)
    shown = [compared.cells.get(name, NULL) for name in (OUTPUTS, LENGTH, RATE, PASSES)]
    return [compared.method, *shown, speed, ratio, compared.result]


def sections(report: CheckReport) -> list[tuple[str, list[str]]]:
    """Returns the sections below the table: a heading and at most MAX_LINES lines each."""
    several = len({each.task for each in report.compared}) > 1
    every = [(each.name if several else each.method, each) for each in report.compared]
    found = {
        "regressed": [f"{name}, {finding}" for name, each in every for finding in each.regressions],
        "cannot compare": [*report.problems, *group_texts([(n, text) for n, each in every for text in each.problems])],
        "not compared": group_texts([(name, text) for name, each in every for text in each.not_compared]),
        "notes": [
            *group_texts([(n, text) for n, each in every for text in each.notes]),
            *report.notes,
            *decision_line(report),
        ],
    }
    return [(heading, shorten(lines)) for heading, lines in found.items() if lines]


def group_texts(pairs: Sequence[tuple[str, str]]) -> list[str]:
    """Returns each text once with its methods. `pairs`: (method, text)."""
    return [f"{', '.join(names)}: {text}" for text, names in names_by_text(pairs).items()]


def shorten(lines: Sequence[str]) -> list[str]:
    rest = len(lines) - MAX_LINES
    return list(lines) if rest <= 1 else [*lines[:MAX_LINES], f"and {rest} more"]


def decision_line(report: CheckReport) -> list[str]:
    """Returns a line on how ratios are judged; an empty list if there are none."""
    if not report.num_tolerant:
        return []
    return [
        f"a {speed_name(report)} has regressed if its whole interval lies below {1 - report.max_regression:.3g}; "
        f"intervals are {report.widening:.2f} times as wide as 95 % intervals, so that at most about "
        f"{FALSE_ALARMS:.0%} of checks with {report.num_tolerant} intervals and no regression fail; any worse count "
        "is a regression"
    ]


def markdown(report: CheckReport) -> str:
    """Returns the report as Markdown: a heading, a table, and the sections as lists."""
    headings = ["task", *(heading.replace("\n", " ") for heading in headers(report))]
    rows = [list(map(escaped_markdown, [each.task, *cells(each)])) for each in report.compared]
    lines = [f"### specbench check: {escaped_markdown(headline(report))}", ""]
    if rows:
        lines += [markdown_table(list(map(escaped_markdown, headings)), rows), ""]
    for heading, texts in sections(report):
        lines += [f"**{heading}**", "", *(f"- {escaped_markdown(text)}" for text in texts), ""]
    lines.append(f"baseline `{report.baseline}`, candidate `{report.candidate}`")
    return "\n".join(lines)


def screen(report: CheckReport) -> Iterator[Table | str]:
    """Yields the report for a terminal: the result, a table for each task, and the sections."""
    yield headline(report)
    first, *figures, last = headers(report)
    columns = (*words(first), *numbers(*figures), *words(last))
    for task in dict.fromkeys(each.task for each in report.compared):
        rows = [cells(each) for each in report.compared if each.task == task]
        yield Table(f"{task}: baseline → candidate", columns, rows)
    for heading, lines in sections(report):
        yield f"{heading}:"
        yield "\n".join(f"  {line}" for line in lines)


SUITE = "specbench check"


def junit(report: CheckReport) -> str:
    """Returns JUnit XML: a test case for each finding, problem (an error), and value not compared (skipped)."""
    suite = ElementTree.Element("testsuite", name=SUITE)
    if report.identical:
        _case(suite, SUITE, "identical", None, "")
    for problem in report.problems:
        _case(suite, SUITE, "comparable", "error", problem)
    for each in report.compared:
        _cases(suite, each)
    counts = {"tests": "testcase", "failures": "testcase/failure", "errors": "testcase/error",
              "skipped": "testcase/skipped"}  # fmt: skip
    for name, path in counts.items():
        suite.set(name, str(len(suite.findall(path))))
    suites = ElementTree.Element("testsuites")
    suites.append(suite)
    ElementTree.indent(suites)
    return ElementTree.tostring(suites, encoding="unicode", xml_declaration=True)


def _cases(suite: ElementTree.Element, compared: MethodFindings) -> None:
    group = f"{compared.task}.{compared.method}"
    for finding in compared.findings:
        outcome = "failure" if finding.regressed else None
        _case(suite, group, f"{finding.what} of {finding.subset}", outcome, str(finding))
    for problem in compared.problems:
        _case(suite, group, "comparable", "error", problem)
    for text in compared.not_compared:
        _case(suite, group, text, "skipped", text)


def _case(suite: ElementTree.Element, group: str, name: str, outcome: str | None, message: str) -> None:
    case = ElementTree.SubElement(suite, "testcase", classname=group, name=name)
    if outcome is not None:
        ElementTree.SubElement(case, outcome, message=message)
