"""The tables of a load: throughput, latencies and speed-ups by level."""

from collections.abc import Sequence

from specbench.core.console import counted
from specbench.core.table import RULE, Table, number_columns, text_columns
from specbench.report.captions import marked, untested_lines, warning_lines
from specbench.results.concurrency import BASELINE, break_even, is_faster, load_groups, load_of, rows_by_server
from specbench.results.metric_format import NULL, number, speed, with_interval
from specbench.results.row import Row

# The ratios in the table of each kind of load, with their headings.
RATIOS = {
    "concurrency": {"speedup": "speed-up\n95 %"},
    "rate": {"tpot_ratio": "TPOT ratio\n95 %", "e2e_ratio": "E2E ratio\n95 %"},
}
BY_RATE = (
    "TPOT and E2E ratio: medians of windows of ar ÷ those of the server, above 1 if it is faster; there is no speed-up "
    "in tok/s, since below saturation both servers write as fast as requests come"
)


def load_tables(rows: Sequence[Row]) -> list[Table]:
    return [_table(group) for group in load_groups(rows)]


def _table(rows: Sequence[Row]) -> Table:
    lines: list[Sequence[str]] = []
    for row in rows:
        if row.method_name == BASELINE and lines:
            lines.append(RULE)
        lines.append(_cells(row))
    first, load = rows[0], load_of(rows[0])
    names = [f"{row.method_name} at {load_of(row).level:g}" for row in rows]
    unit = "in flight" if load.kind == "concurrency" else "per s"
    columns = (
        *number_columns(f"requests\n{unit}"), *text_columns("server", folds=False),
        *number_columns(
            "total\ntok/s", *RATIOS[load.kind].values(), "tok/s\nper user", "τ", "pass ÷\nAR's", "TTFT ms\nmedian",
            "p99", "TPOT ms\nmedian", "p99",
        ),
    )  # fmt: skip
    caption = [
        f"{counted(load.windows, 'window')} of each server at each level, in turns; intervals resample windows",
        "total tok/s: under full load, without ramp-up and drain; latencies: of all answers",
        *([BY_RATE] if load.kind == "rate" else []),
        "per user, speed-up = τ ÷ (pass ÷ AR's): the gain of speculation ÷ the cost of its passes at this load",
        *filter(None, (_break_even_line(own) for own in rows_by_server(rows)[1:])),
        *untested_lines(rows, names),
        *warning_lines(rows, names),
    ]
    return Table(f"{first.task_name} · {first.subset} · load by {load.kind}", columns, lines, caption, num_keys=2)


def _cells(row: Row) -> list[str]:
    is_baseline = row.method_name == BASELINE
    ratios = [with_interval(row.metric(name)) for name in RATIOS[load_of(row).kind]]
    return [
        f"{load_of(row).level:g}", row.method_name, speed(row.metric("tokens_per_second")),
        *([NULL] * len(ratios) if is_baseline else [marked(ratio, row) for ratio in ratios]),
        speed(row.metric("tokens_per_second_user")),
        *(NULL if is_baseline else number(row.metric(name), 2) for name in ("mean_acceptance_length", "pass_ratio")),
        *(number(row.metric(f"ttft_{kind}"), 0, 1000) for kind in ("seconds", "p99_seconds")),
        *(number(row.metric(f"tpot_{kind}"), 2, 1000) for kind in ("seconds", "p99_seconds")),
    ]  # fmt: skip


def _break_even_line(rows: Sequence[Row]) -> str:
    if len(rows) < 2 or load_of(rows[0]).kind == "rate":
        return ""
    level, found = break_even(rows), {is_faster(row) for row in rows}
    if level is not None:
        return f"{rows[0].method_name}: as fast as ar at {level:.1f} (interpolated)"
    outcomes = {True: "faster than ar", False: "slower than ar", None: "not separable from ar"}
    seen = [text for outcome, text in outcomes.items() if outcome in found]
    if len(seen) == 1:
        return f"{rows[0].method_name}: {seen[0]} at {'any' if None in found else 'every'} measured level"
    return f"{rows[0].method_name}: {' at some levels, '.join(seen)} at others"
