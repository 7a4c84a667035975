"""A row's warnings where its speed-up is shown: a mark beside the number, and a line below the table."""

from collections.abc import Sequence

from specbench.results.cells import with_interval
from specbench.results.row import Row

MARK = "†"
SAID_APART = "few_prompts"  # every table has a line of its own for it, of older rows too


def speedup_cell(row: Row) -> str:
    """The speed-up with its interval, marked where a line below the table says why to doubt it."""
    return marked(with_interval(row.metrics.get("speedup")), row)


def marked(shown: str, row: Row) -> str:
    return f"{shown} {MARK}" if doubts(row) else shown


def doubts(row: Row) -> dict[str, str]:
    """The warnings that the mark stands for: text by code."""
    return {warning.code: warning.text for warning in row.warnings if warning.code != SAID_APART}


def doubt_lines(rows: Sequence[Row], names: Sequence[str]) -> list[str]:
    """A line for each kind of warning: the first row's, by its name, and which others have one of that kind."""
    found: dict[str, list[tuple[str, str]]] = {}
    for row, name in zip(rows, names, strict=True):
        for code, text in doubts(row).items():
            found.setdefault(code, []).append((name, text))
    return [_line(texts) for texts in found.values()]


def _line(texts: Sequence[tuple[str, str]]) -> str:
    (name, text), *others = texts
    same = [other for other, _ in others if other != name]
    return f"{MARK} {name}: {text}" + (f"; likewise {', '.join(dict.fromkeys(same))}" if same else "")
