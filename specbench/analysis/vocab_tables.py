"""A vocabulary report as tables for a terminal of 100 columns."""

from collections.abc import Iterator, Sequence

from rich import box
from rich.table import Table
from rich.text import Text

from specbench.analysis.vocab import VocabReport
from specbench.analysis.vocab_acceptance import MethodAcceptance
from specbench.analysis.vocab_overlap import CountSummary, Decompositions, Injectivity, LengthSummary
from specbench.results.bootstrap import Metric

BAR_WIDTH = 30
MANY_LENGTHS = 20


def parts(report: VocabReport) -> Iterator[Table | str]:
    """Tables, and the lines below them."""
    yield f"T: {report.target}\nD: {report.drafter}\n"
    yield sizes(report)
    yield seen_in_texts(report)
    yield injectivity(report)
    yield from differences(report)
    yield decompositions(report.decompositions)
    yield by_length(report.decompositions.by_length[:MANY_LENGTHS])
    yield from longer(report.decompositions.by_length[MANY_LENGTHS:])
    if report.acceptance is not None:
        yield acceptance(report.acceptance)
        yield from (f"{of.method}: not computed: {of.problem}\n" for of in report.acceptance if of.problem)
    yield methods(report)


def seen_in_texts(report: VocabReport) -> str:
    texts = report.text_overlap
    return (
        f"texts: {report.texts}; as tokens appear there, the drafter has {texts.share_of_target:.1%} of the target's "
        f"and\nthe target {texts.share_of_drafter:.1%} of the drafter's\n"
    )


def sizes(report: VocabReport) -> Table:
    both, texts = report.overlap, report.text_overlap
    table = new_table("vocabularies", "tokens", "T", "D", "T ∩ D", "T ∩ D / T")
    add(table, "all", both.target_size, both.drafter_size, both.intersection, f"{both.ratio:.3f}")
    add(table, "plain, by the bytes they write", both.target_plain, both.drafter_plain, both.intersection,
        f"{both.intersection / max(1, both.target_plain):.3f}")  # fmt: skip
    add(table, f"in {texts.num_texts} texts", texts.target_tokens, texts.drafter_tokens, texts.intersection,
        f"{texts.ratio:.3f}")  # fmt: skip
    return table


def injectivity(report: VocabReport) -> Table:
    table = new_table("texts that come back from their tokens", "", "texts", "changed", "by bridges", "injective")
    for side, found in (("T", report.target_injectivity), ("D", report.drafter_injectivity)):
        add(table, side, found.num_texts, found.num_changed, found.num_changed_by_bridges, verdict(found))
    return table


def differences(report: VocabReport) -> Iterator[str]:
    for side, found in (("T", report.target_injectivity), ("D", report.drafter_injectivity)):
        if found.first is not None:
            yield f"{side}: {found.first.text!r} comes back as {found.first.comes_back!r}\n"


def verdict(found: Injectivity) -> str:
    return "yes, on these" if found.injective else "no"


def decompositions(found: Decompositions) -> Table:
    columns = ("mean", "sd", "min", "25 %", "median", "75 %", "max")
    impossible = f", {found.num_impossible:,} of them not at all" if found.num_impossible else ""
    table = new_table(f"how D can write the {found.num_tokens:,} plain tokens of T{impossible}", "per token", *columns)
    summaries: dict[str, CountSummary] = {
        "length in bytes": found.length,
        "decompositions into D": found.number,
        "draft passes for ψ, at least": found.passes,
    }
    for name, of in summaries.items():
        add(table, name, of.mean, of.sd, of.min, of.quartile_1, of.median, of.quartile_3, of.max)
    return table


def by_length(found: Sequence[LengthSummary]) -> Table:
    """The median over the length, with a bar for its logarithm."""
    table = new_table("decompositions by the length of the token", "bytes", "tokens", "median", "max", "log of median")
    table.columns[-1].justify = "left"
    longest_bar = max((of.median.bit_length() for of in found), default=0)
    for of in found:
        bar = "█" * round(BAR_WIDTH * of.median.bit_length() / max(1, longest_bar))
        add(table, str(of.length), of.num_tokens, of.median, of.max, bar)
    return table


def longer(found: Sequence[LengthSummary]) -> Iterator[str]:
    if found:
        yield (
            f"and {sum(of.num_tokens for of in found):,} tokens of {found[0].length} to {found[-1].length} bytes, with "
            f"up to {number(max(of.max for of in found))} decompositions (--json lists them)\n"
        )


def acceptance(found: Sequence[MethodAcceptance]) -> Table:
    table = new_table("expected acceptance of the next token at temperature 1", "method", "acceptance",
                      "95 % interval", "positions", "drafted")  # fmt: skip
    for of in found:
        value = "–" if of.value.value is None else f"{of.value.value:.3f}"
        add(table, of.method, value, interval(of.value), of.num_positions, of.num_drafted)
    return table


def interval(metric: Metric) -> str:
    return "–" if metric.low is None or metric.high is None else f"[{metric.low:.3f}, {metric.high:.3f}]"


def methods(report: VocabReport) -> Table:
    table = new_table("methods for this pair, if the drafter is accurate", "method", "runs", "verdict", "why")
    for column in table.columns[1:]:
        column.justify = "left"
    for fit in report.methods:
        add(table, fit.method, "yes" if fit.runs else "no", fit.verdict, fit.reason)
    return table


def new_table(title: str, first: str, *headers: str) -> Table:
    table = Table(title=Text(title), box=box.SIMPLE_HEAD, pad_edge=False, title_justify="left")
    table.add_column(first, overflow="fold")
    for header in headers:
        table.add_column(header, justify="right", overflow="fold")
    return table


def add(table: Table, *cells: str | float) -> None:
    table.add_row(*(Text(cell if isinstance(cell, str) else number(cell)) for cell in cells))


def number(value: float) -> str:
    """A count with separators, a huge one as a power of ten, anything else with two digits."""
    if isinstance(value, float):
        return f"{value:,.2f}" if value < 10**6 else f"{value:.2e}"
    if value < 10**9:
        return f"{value:,}"
    digits = str(value)
    return f"{digits[0]}.{digits[1]}e{len(digits) - 1}"
