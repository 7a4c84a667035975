"""A vocabulary report as tables for a terminal of 100 columns."""

from collections.abc import Iterator, Sequence

from specbench.analysis.vocab import VocabReport
from specbench.analysis.vocab_acceptance import MethodAcceptance
from specbench.analysis.vocab_overlap import CountSummary, Decompositions, LengthSummary
from specbench.core.table import Table, numbers, words
from specbench.results.units import NULL, interval, number

BAR_WIDTH = 30
MANY_LENGTHS = 20


def parts(report: VocabReport) -> Iterator[Table | str]:
    """Yields the tables, and the lines below them."""
    yield f"T: {report.target}\nD: {report.drafter}\n"
    yield sizes_table(report)
    yield text_shares(report)
    yield injectivity_table(report)
    yield from changed_texts(report)
    yield decompositions_table(report.decompositions)
    yield lengths_table(report.decompositions.by_length[:MANY_LENGTHS])
    yield from longer_tokens(report.decompositions.by_length[MANY_LENGTHS:])
    if report.acceptance is not None:
        yield acceptance_table(report.acceptance)
        yield from (f"{of.method}: not computed: {of.problem}\n" for of in report.acceptance if of.problem)
    yield methods_table(report)


def text_shares(report: VocabReport) -> str:
    """Returns the shares of the tokens in texts that the other vocabulary has."""
    texts = report.text_overlap
    return (
        f"texts: {report.texts}; of the tokens as they appear there, the drafter has {texts.share_of_target:.1%} of "
        f"the target's and\nthe target {texts.share_of_drafter:.1%} of the drafter's\n"
    )


def sizes_table(report: VocabReport) -> Table:
    """Returns the sizes of both vocabularies and of their intersection."""
    both, texts = report.overlap, report.text_overlap
    shared_plain = both.intersection / max(1, both.target_plain)
    rows = [
        _cells("all", both.target_size, both.drafter_size, both.intersection, f"{both.ratio:.3f}"),
        _cells("plain, by the bytes they write", both.target_plain, both.drafter_plain, both.intersection,
               f"{shared_plain:.3f}"),
        _cells(f"in {texts.num_texts} texts", texts.target_tokens, texts.drafter_tokens, texts.intersection,
               f"{texts.ratio:.3f}"),
    ]  # fmt: skip
    return Table("vocabularies", words("tokens") + numbers("T", "D", "T ∩ D", "T ∩ D / T", folds=True), rows)


def injectivity_table(report: VocabReport) -> Table:
    """Returns how many texts come back from their tokens."""
    rows = [
        _cells(side, found.num_texts, found.num_changed, found.num_changed_by_bridges,
               "yes, on these" if found.injective else "no")
        for side, found in (("T", report.target_injectivity), ("D", report.drafter_injectivity))
    ]  # fmt: skip
    columns = words("") + numbers("texts", "changed", "by bridges", "injective", folds=True)
    return Table("texts that come back from their tokens", columns, rows)


def changed_texts(report: VocabReport) -> Iterator[str]:
    """Yields the first text that changes on each side."""
    for side, found in (("T", report.target_injectivity), ("D", report.drafter_injectivity)):
        if found.first is not None:
            yield f"{side}: {found.first.text!r} comes back as {found.first.comes_back!r}\n"


def decompositions_table(found: Decompositions) -> Table:
    """Returns the distribution of the decompositions and draft passes over the target's tokens."""
    summaries: dict[str, CountSummary] = {
        "length in bytes": found.length,
        "decompositions into D": found.number,
        "draft passes for ψ, at least": found.passes,
    }
    rows = [
        _cells(name, of.mean, of.sd, of.min, of.quartile_1, of.median, of.quartile_3, of.max)
        for name, of in summaries.items()
    ]
    impossible = f", {found.num_impossible:,} of them not at all" if found.num_impossible else ""
    title = f"how D can write the {found.num_tokens:,} plain tokens of T{impossible}"
    columns = words("per token") + numbers("mean", "sd", "min", "25 %", "median", "75 %", "max", folds=True)
    return Table(title, columns, rows)


def lengths_table(found: Sequence[LengthSummary]) -> Table:
    """Returns the median by the length of the token, with a bar for its logarithm."""
    longest_bar = max((of.median.bit_length() for of in found), default=0)
    rows = [
        _cells(str(of.length), of.num_tokens, of.median, of.max,
               "█" * round(BAR_WIDTH * of.median.bit_length() / max(1, longest_bar)))
        for of in found
    ]  # fmt: skip
    columns = words("bytes") + numbers("tokens", "median", "max", folds=True) + words("log of median")
    return Table("decompositions by the length of the token", columns, rows)


def longer_tokens(found: Sequence[LengthSummary]) -> Iterator[str]:
    """Yields a line about the lengths that the table leaves out, if any."""
    if found:
        yield (
            f"and {sum(of.num_tokens for of in found):,} tokens of {found[0].length} to {found[-1].length} bytes, with "
            f"up to {_count(max(of.max for of in found))} decompositions (--json lists them)\n"
        )


def acceptance_table(found: Sequence[MethodAcceptance]) -> Table:
    """Returns the expected acceptance of each method."""
    rows = [
        _cells(of.method, number(of.value, 3), interval(of.value, 3) or NULL, of.num_positions, of.num_drafted)
        for of in found
    ]
    columns = words("method") + numbers("acceptance", "95 % interval", "positions", "drafted", folds=True)
    return Table("expected acceptance of the next token at temperature 1", columns, rows)


def methods_table(report: VocabReport) -> Table:
    """Returns the verdict on each method."""
    rows = [[fit.method, "yes" if fit.runs else "no", fit.verdict, fit.reason] for fit in report.methods]
    title = "methods for this pair, if the drafter is accurate"
    return Table(title, words("method", "runs", "verdict", "why"), rows)


def _cells(*cells: str | float) -> list[str]:
    return [cell if isinstance(cell, str) else _count(cell) for cell in cells]


def _count(value: float) -> str:
    """Returns a count with separators, a huge one as a power of ten, any other number with two decimals."""
    if isinstance(value, float):
        return f"{value:,.2f}" if value < 10**6 else f"{value:.2e}"
    if value < 10**9:
        return f"{value:,}"
    digits = str(value)
    return f"{digits[0]}.{digits[1]}e{len(digits) - 1}"
