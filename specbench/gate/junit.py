"""The report as JUnit XML, which continuous checks show as tests: one for each thing that was compared."""

from xml.etree import ElementTree

from specbench.gate.findings import Compared, Report

SUITE = "specbench check"


def junit(report: Report) -> str:
    """Returns a test case for each finding, for each problem (an error), and for what was not compared (skipped)."""
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


def _cases(suite: ElementTree.Element, compared: Compared) -> None:
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
