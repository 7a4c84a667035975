"""All methods of a run in one table: a line per method, over all subsets of a task."""

from collections.abc import Sequence

from rich import box
from rich.table import Table
from rich.text import Text

from specbench.results.captions import FEW, computed_on, rests_on_few, verdict_word
from specbench.results.doubts import doubt_lines, speedup_cell
from specbench.results.drafters import prescribed
from specbench.results.notes import heading
from specbench.results.row import Row
from specbench.results.tables import drafter_kind, number, sampling_of, short, speed
from specbench.results.units import unit_of

WIDTH_OF_DRAFTERS = 13  # longer names are folded


def comparison_table(rows: Sequence[Row]) -> Table:
    """One task and subset, every row another method: `rows` begins with the baseline."""
    table = Table(
        title=Text(f"{short(rows[0].task)} · {rows[0].subset} · {len(rows)} methods"),
        caption=Text(_caption(rows)),
        caption_justify="left",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        collapse_padding=True,
    )
    table.add_column("method", no_wrap=True)
    score = heading(rows).replace(" ", "\n")
    headers = ("verdict", "drafter", "γ", "α", "τ", "c", "tok/s", "speed-up\n95 % interval", score)
    cells = [_cells(row) for row in rows]
    for header in headers:
        justify = "left" if header in ("drafter", "verdict") else "right"
        table.add_column(header, justify=justify, overflow="fold", no_wrap=header not in ("drafter", "verdict"))  # type: ignore[arg-type]
    verdict, drafter = table.columns[1:3]
    verdict.min_width = max(len(word) for row in cells for word in row[1].split())
    drafter.width = min(max(len(row[2]) for row in cells), WIDTH_OF_DRAFTERS)
    for row in cells:
        table.add_row(*(Text(cell) for cell in row))
    return table


def _cells(row: Row) -> list[str]:
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


def _caption(rows: Sequence[Row]) -> str:
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
