"""The report as Markdown, for the comment on a pull request."""

from specbench.gate.findings import Report
from specbench.gate.lines import HEADERS, cells, headline, sections
from specbench.results.markdown import escaped, table


def markdown(report: Report) -> str:
    """A heading, a table, and the reasons as lists."""
    headers = ["task", *(header.replace("\n", " ") for header in HEADERS)]
    rows = [list(map(escaped, [each.task, *cells(each)])) for each in report.compared]
    lines = [f"### specbench check: {escaped(headline(report))}", ""]
    if rows:
        lines += [table(list(map(escaped, headers)), rows), ""]
    for heading, texts in sections(report):
        lines += [f"**{heading}**", "", *(f"- {escaped(text)}" for text in texts), ""]
    lines.append(f"baseline `{report.baseline}`, candidate `{report.candidate}`")
    return "\n".join(lines)
