"""Rows → tables for a terminal of 100 columns."""

from collections.abc import Sequence

from rich import box
from rich.table import Table
from rich.text import Text

from specbench.results.captions import (
    FEW,
    caption,
    computed_on,
    drafter_kind,
    heading,
    lossless_word,
    notes,
    prescribed,
    rests_on_few,
    sampling_of,
    verdict_word,
)
from specbench.results.row import Row
from specbench.results.units import NULL, number, pair, short, speed, unit_of, with_interval

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


__all__ = [
    "NULL", "drafter_kind", "lossless_word", "number", "run_table", "sampling_of", "short", "speed", "with_interval",
]  # fmt: skip


def run_table(rows: Sequence[Row]) -> Table:
    """One task and one method: a line per subset, then "all". Raises ValueError for rows of several or of none."""
    if len({(row.task, row.method) for row in rows}) != 1:
        raise ValueError("a table shows the rows of one task and one method")
    lines = sorted(rows, key=lambda row: row.subset == "all")
    method = short(lines[0].method)
    table = Table(
        title=Text(f"{short(lines[0].task)} · {method}"),
        caption=Text("\n".join([caption(lines), *doubt_lines(lines, [row.subset for row in lines]), *notes(lines)])),
        caption_justify="left",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        collapse_padding=True,
    )
    table.add_column("subset", overflow="fold")
    headers = ("n", "α", "τ", "tok/s\nar", f"tok/s\n{method.partition('@')[0]}", "speed-up\n95 % interval",
               "expected\nspeed-up", f"{heading(lines)}\nar → method")  # fmt: skip
    for header in headers:
        table.add_column(header, justify="right", overflow="fold", no_wrap=not header.startswith("tok/s"))
    for row in lines:
        if row.subset == "all" and len(lines) > 1:
            table.add_section()
        table.add_row(*(Text(cell) for cell in _cells(row)))
    return table


def _cells(row: Row) -> list[str]:
    metrics = row.metrics
    return [
        row.subset,
        str(row.n),
        number(metrics.get("acceptance_rate"), 3),
        number(metrics.get("mean_acceptance_length"), 2),
        speed(metrics.get("tokens_per_second_ar")),
        speed(metrics.get("tokens_per_second")),
        speedup_cell(row),
        number(metrics.get("speedup_expected"), 2),
        pair(metrics, row.quality),
    ]


WIDTH_OF_DRAFTERS = 13  # longer names are folded


def comparison_table(rows: Sequence[Row]) -> Table:
    """One task and subset, every row another method: `rows` begins with the baseline."""
    table = Table(
        title=Text(f"{short(rows[0].task)} · {rows[0].subset} · {len(rows)} methods"),
        caption=Text(_comparison_caption(rows)),
        caption_justify="left",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        collapse_padding=True,
    )
    table.add_column("method", no_wrap=True)
    score = heading(rows).replace(" ", "\n")
    headers = ("verdict", "drafter", "γ", "α", "τ", "c", "tok/s", "speed-up\n95 % interval", score)
    cells = [_comparison_cells(row) for row in rows]
    for header in headers:
        justify = "left" if header in ("drafter", "verdict") else "right"
        table.add_column(header, justify=justify, overflow="fold", no_wrap=header not in ("drafter", "verdict"))  # type: ignore[arg-type]
    verdict, drafter = table.columns[1:3]
    verdict.min_width = max(len(word) for row in cells for word in row[1].split())
    drafter.width = min(max(len(row[2]) for row in cells), WIDTH_OF_DRAFTERS)
    for row in cells:
        table.add_row(*(Text(cell) for cell in row))
    return table


def _comparison_cells(row: Row) -> list[str]:
    metrics, unit = row.metrics, unit_of(row.quality)
    return [
        short(row.method).partition("@")[0],
        verdict_word(row),
        "by language" if "routes" in row.options else _short_drafter(row),
        str(row.num_draft_tokens),
        number(metrics.get("acceptance_rate"), 3),
        number(metrics.get("mean_acceptance_length"), 2),
        number(metrics.get("cost_ratio"), 3),
        speed(metrics.get("tokens_per_second")),
        speedup_cell(row),
        number(metrics.get(row.quality or ""), unit.digits, unit.factor),
    ]


def _short_drafter(row: Row) -> str:
    return (row.drafter or drafter_kind(row)).rpartition("/")[2].rpartition(":")[2]


def _comparison_caption(rows: Sequence[Row]) -> str:
    row = rows[0]
    return "\n".join(
        [
            f"target {row.target}, n = {row.n}; {sampling_of(row)}; {computed_on(row)}",
            "greedy equal: its outputs are AR's on these prompts; `specbench audit` tests draws as well"
            if any(each.verdict != "not audited" for each in rows)
            else "not audited: `specbench audit` tests what is drawn at a temperature",
            *([FEW] if any(map(rests_on_few, rows)) else []),
            *_of_engines(rows),
            *doubt_lines(rows, [short(each.method).partition("@")[0] for each in rows]),
            "acceptance rates do not compare across bridges: rank by τ and tok/s",
            *(
                f"{short(each.method).partition('@')[0]} ranks with none: {reason}"
                for each in rows
                if (reason := prescribed(each))
            ),
        ]
    )


def _of_engines(rows: Sequence[Row]) -> list[str]:
    """Which methods another engine runs than the first row's."""
    others = [short(row.method).partition("@")[0] for row in rows if row.engine != rows[0].engine]
    if not others:
        return []
    return [f"compiled target, eager drafter: {', '.join(others)}; compare no row of one engine with another's"]


def overview_table(groups: Sequence[Sequence[Row]]) -> Table:
    """`groups`: of each task one row per method, over all its subsets, the baseline first."""
    table = Table(
        title=Text(f"{len(groups)} tasks · all subsets"),
        caption=Text("\n".join(_overview_caption(groups))),
        caption_justify="left",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        collapse_padding=True,
    )
    table.add_column("task", overflow="fold")
    table.add_column("n", justify="right")
    table.add_column("method", overflow="fold")
    for header in ("α", "τ", "tok/s", "speed-up\n95 % interval", "score"):
        table.add_column(header, justify="right", no_wrap=header != "score")
    table.add_column("of", overflow="fold")
    for rows in groups:
        for place, row in enumerate(rows):
            task = [short(row.task).partition("@")[0], str(row.n)] if place == 0 else ["", ""]
            table.add_row(
                *(Text(cell) for cell in (*task, *_overview_cells(row), heading(rows) if row.quality else ""))
            )
        table.add_section()
    return table


def _overview_caption(groups: Sequence[Sequence[Row]]) -> list[str]:
    rows = [row for group in groups for row in group]
    names = [" ".join(short(name).partition("@")[0] for name in (row.task, row.method)) for row in rows]
    return ["α does not compare across bridges, nor a score with that of another task", *doubt_lines(rows, names)]


def _overview_cells(row: Row) -> list[str]:
    metrics, unit = row.metrics, unit_of(row.quality)
    return [
        short(row.method).partition("@")[0],
        number(metrics.get("acceptance_rate"), 3),
        number(metrics.get("mean_acceptance_length"), 2),
        speed(metrics.get("tokens_per_second")),
        speedup_cell(row),
        number(metrics.get(row.quality or ""), unit.digits, unit.factor),
    ]
