"""The report as Markdown, for the comment on a pull request."""

from specbench.gate.findings import Report
from specbench.gate.lines import HEADERS, cells, headline, sections


def markdown(report: Report) -> str:
    """A heading, a table, and the reasons as lists."""
    headers = ["task", *(header.replace("\n", " ") for header in HEADERS)]
    rows = [[each.task, *cells(each)] for each in report.compared]
    lines = [f"### specbench check: {_escaped(headline(report))}", ""]
    if rows:
        lines += [_row(headers), _row(["---"] * len(headers)), *map(_row, rows), ""]
    for heading, texts in sections(report):
        lines += [f"**{heading}**", "", *(f"- {_escaped(text)}" for text in texts), ""]
    lines.append(f"baseline `{report.baseline}`, candidate `{report.candidate}`")
    return "\n".join(lines)


def _row(cells_: list[str]) -> str:
    return f"| {' | '.join(_escaped(cell) for cell in cells_)} |"


def _escaped(text: str) -> str:
    """Names of users may hold what Markdown takes for its own."""
    for character in ("\\", "|", "*", "_", "`", "<", "["):
        text = text.replace(character, f"\\{character}")
    return text
