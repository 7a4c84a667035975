"""Prints a table after the attacks: of each group how many were tried, and how many held."""

from collections import Counter
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Prints the table. A group is a file of this folder: `test_yaml_files.py` is "yaml files". Skipped tests and those
    called `test_a_control…` are not attacks."""
    held, tried = Counter[str](), Counter[str]()
    for outcome in ("passed", "failed"):
        for report in terminalreporter.getreports(outcome):
            is_attack = FOLDER.name in Path(report.fspath).parts and "::test_a_control" not in report.nodeid
            if report.when == "call" and is_attack:
                group = Path(report.fspath).stem.removeprefix("test_").replace("_", " ")
                tried[group] += 1
                held[group] += outcome == "passed"
    if not tried:
        return
    terminalreporter.section("attacks")
    width = max(map(len, tried))
    terminalreporter.write_line(f"{'group':{width}}  tried  held")
    for group in sorted(tried):
        terminalreporter.write_line(f"{group:{width}}  {tried[group]:5}  {held[group]:4}")
    terminalreporter.write_line(f"{'all':{width}}  {tried.total():5}  {held.total():4}")
