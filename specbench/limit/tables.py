"""A report → tables for a terminal of 100 columns."""

from collections.abc import Sequence

from rich import box
from rich.table import Table
from rich.text import Text

from specbench.limit.report import LimitReport, ModelLimit, Point, Seconds, share_of_bound
from specbench.results.cells import NULL

MS, MEGA, GIGA = 1e3, 1e-6, 1e-9


def tables(report: LimitReport) -> list[Table]:
    """The bounds beside what was measured; passes by query length and by context; draft lengths."""
    return [bounds_table(report), lengths_table(report), contexts_table(report), drafts_table(report)]


def bounds_table(report: LimitReport) -> Table:
    """One token behind the context, by the hardware, by the bare pass and by the decode loop; a column per model."""
    table = plain(f"one token behind {report.context} · {report.engine}", "", "target", "drafter")
    models = (report.target, report.drafter)
    points = [model.at(1, report.context) for model in models]
    lines = {
        "weights and cache that a pass reads, MB": [f"{MEGA * model.bytes_read:.1f}" for model in models],
        "copies of as many bytes, GB/s": [f"{GIGA * model.bytes_per_second:.1f}" for model in models],
        "products of matrices, GFLOP/s": [f"{GIGA * model.operations_per_second:.0f}" for model in models],
        "bandwidth bound, ms": [ms(point.bandwidth_seconds) for point in points],
        "arithmetic bound, ms": [ms(point.arithmetic_seconds) for point in points],
        "bare pass, ms [quartiles]": [spread(point.seconds) for point in points],
        "decoding alone, ms per token": [spread(model.per_token) for model in models],
        "  of it outside of passes": [f"{m.outside_passes.median / m.per_token.median:.0%}" for m in models],
        "  bound ÷ decoding": [f"{share_of_bound(model, report.context):.2f}" for model in models],
    }
    for name, cells in lines.items():
        add(table, name, *cells)
    told = (
        f"target {report.target.name}, drafter {report.drafter.name}",
        f"{report.target.dtype} on {report.device}; medians of {report.repeats} rounds, all in turn",
        report.verdict,
    )
    table.caption = Text("\n".join(told))
    return table


def lengths_table(report: LimitReport) -> Table:
    """A line per query length behind the context."""
    heading = ("tokens", "target", "single\npasses", "bound", "drafter", "bound")
    table = plain(f"passes behind {report.context} · ms", *heading)
    for point in report.target.points:
        if point.context == report.context:
            single = f"{report.verification_cost[point.query_length]:.2f}"
            add(table, str(point.query_length), spread(point.seconds), single, ms(point.bound_seconds),
                *beside(report.drafter, point))  # fmt: skip
    return table


def contexts_table(report: LimitReport) -> Table:
    """A line per context: one token behind it."""
    table = plain("one token by context · ms", "context", "target", "bound", "drafter", "bound")
    for point in report.target.points:
        if point.query_length == 1:
            add(
                table,
                str(point.context),
                spread(point.seconds),
                ms(point.bound_seconds),
                *beside(report.drafter, point),
            )
    return table


def drafts_table(report: LimitReport) -> Table:
    """A line per acceptance rate: the best draft length by the measured costs, and if verifying cost one pass."""
    table = plain("best draft length", "α", "γ", "speed-up", "γ, free\nverification", "speed-up, free\nverification")
    for best in report.best:
        add(table, f"{best.acceptance_rate:g}", str(best.num_draft_tokens), f"{best.speedup:.2f}",
            str(best.free_num_draft_tokens), f"{best.free_speedup:.2f}")  # fmt: skip
    table.caption = Text(
        f"Σ α^k / (γc + v(γ+1)), c = {report.cost_ratio:.3f}, v as measured above; γ = 0: drafting does not pay"
    )
    return table


def beside(model: ModelLimit, point: Point) -> Sequence[str]:
    """The drafter's cells of a point."""
    own = model.at(point.query_length, point.context)
    return spread(own.seconds), ms(own.bound_seconds)


def ms(seconds: float) -> str:
    return f"{MS * seconds:.3g}" if seconds else NULL


def spread(seconds: Seconds) -> str:
    return f"{MS * seconds.median:.3g} [{MS * seconds.low:.3g}, {MS * seconds.high:.3g}]"


def plain(title: str, *columns: str) -> Table:
    table = Table(title=Text(title), box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True, caption_justify="left")
    for number, column in enumerate(columns):
        table.add_column(column, justify="right" if number else "left", no_wrap=True)
    return table


def add(table: Table, *cells: str) -> None:
    table.add_row(*map(Text, cells))
