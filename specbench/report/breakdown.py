"""Rows → milliseconds per token by part: a table, and a line on a method that accepts more and is slower."""

from collections.abc import Sequence
from itertools import permutations

from specbench.core.table import Table
from specbench.report.captions import MARK, bridges, marked, marked_warnings, why_unranked
from specbench.report.columns import COST, METHOD, RowColumn, acceptance_column, cells_of
from specbench.results.metric_format import NULL, number, without_digest
from specbench.results.row import Row

# Each part with its metric and its heading.
PARTS = {
    "draft": ("draft_seconds", "draft"), "verify": ("verify_seconds", "verify"),
    "rule and sampling": ("rule_seconds", "rule and\nsampling"), "tokenizer": ("tokenizer_seconds", "tokenizer"),
    "other": ("other_seconds", "other"),
}  # fmt: skip
MILLISECONDS = 1000.0


def per_token(row: Row) -> dict[str, float | None]:
    """Returns milliseconds per emitted token by part; None for a part that the records lack. "all" is 1000 ÷ tok/s, and
    the parts are scaled to sum to it."""
    speed = row.value("tokens_per_second")
    spent = [row.value(name) for name in ("draft_seconds", "verify_seconds", "overhead_seconds")]
    whole = None if not speed else MILLISECONDS / speed
    if whole is None or None in spent or not (total := sum(filter(None, spent))):
        return {"all": whole, **dict.fromkeys(PARTS)}
    parts = {part: row.value(metric) for part, (metric, _) in PARTS.items()}
    return {"all": whole, **{part: None if own is None else own * whole / total for part, own in parts.items()}}


def breakdown_table(rows: Sequence[Row]) -> Table:
    """Returns a table of one task and subset with a line per method: milliseconds per emitted token after the first, in
    all and by part."""
    baseline = next((row for row in rows if row.is_baseline), None)

    def part_column(part: str, heading: str) -> RowColumn:
        return RowColumn(heading, True, cell=lambda row: number(per_token(row)[part], 2))

    def draft_share(row: Row) -> str:
        spent = per_token(row)
        return NULL if spent["draft"] is None or not spent["all"] else f"{spent['draft'] / spent['all']:.0%}"

    def verification_cost(row: Row) -> str:
        own, plain = _seconds_per_pass(row), baseline and _seconds_per_pass(baseline)
        return marked(number(own / plain if own and plain else None, 2), row, {"cheap_passes"})

    columns = [
        METHOD, part_column("all", "all"), *(part_column(part, heading) for part, (_, heading) in PARTS.items()),
        RowColumn("draft\nshare", True, cell=draft_share), acceptance_column(rows),
        RowColumn("draft\ncost c", True, cell=COST.cell), RowColumn("verify\ncost v", True, cell=verification_cost),
    ]  # fmt: skip
    explanation = explanation_line(rows)
    has_marks = any({"cheap_passes", "uneven_drafts"} & marked_warnings(row).keys() for row in rows)
    caption = [
        "tokenizer: retokenization and stop strings; other: Python and caches",
        "draft cost c: the median draft pass in median target passes",
        "verification cost v: the mean verifying pass ÷ the mean pass of ar; the expected speed-up assumes 1",
        *([f"{MARK} at c or v: see its line below the table of speed-ups"] if has_marks else []),
        *([explanation] if explanation else []),
    ]
    title = f"{without_digest(rows[0].task)} · {rows[0].subset} · ms per token"
    return Table(title, columns, cells_of(rows, columns), caption)


def _seconds_per_pass(row: Row) -> float | None:
    """Returns the mean seconds of a target pass after the prefill; None if the passes are unknown, or if there is
    none, as all answers have one token."""
    seconds = row.value("verify_seconds")
    num_passes = sum(row.accepted_tokens_per_step or ())
    return seconds / num_passes if seconds and num_passes else None


SAME = 0.02  # acceptance rates that differ by less, and speed-ups that differ by a smaller share, count as equal


def explanation_line(rows: Sequence[Row]) -> str | None:
    """Returns a line on the method with the highest acceptance rate that is slower than a method with a lower one or
    than AR, and on the part that takes most of the difference; None without such a method.

    Acceptance rates do not compare across bridges or engines, nor with prescribed ones. If the intervals of two
    speed-ups overlap, neither method is slower.
    """

    def rate(row: Row) -> float:
        return row.value("acceptance_rate") or 0.0

    def accepts_more_and_is_slower(row: Row, other: Row) -> bool:
        comparable = other.is_baseline or (bridges(row) == bridges(other) and row.engine == other.engine)
        own, its = row.metric("speedup"), other.metric("speedup")
        high, low = own.high or own.value or 0.0, its.low or its.value or 0.0
        return comparable and rate(row) > rate(other) + SAME and high < (1 - SAME) * low

    timed = [
        row for row in rows
        if row.value("speedup") and per_token(row)["draft"] is not None and why_unranked(row) is None
    ]  # fmt: skip
    pairs = [pair for pair in permutations(timed, 2) if accepts_more_and_is_slower(*pair)]
    if not pairs:
        return None
    slow, fast = max(pairs, key=lambda pair: (rate(pair[0]), pair[1].value("speedup")))
    spent, less = per_token(slow), per_token(fast)
    more = {part: (spent[part] or 0.0) - (less[part] or 0.0) for part in PARTS}
    part = max(more, key=lambda name: more[name])
    first, second = (
        f"{row.method_name} (α {number(row.metric('acceptance_rate'), 2)}, {number(row.metric('speedup'), 2)}×)"
        for row in (slow, fast)
    )
    return f"{first} is slower than {second}: {more[part]:.1f} ms more per token for {part}"
