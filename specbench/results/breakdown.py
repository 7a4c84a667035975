"""The time per emitted token of each method by part, and why a method that accepts more may be slower."""

from collections.abc import Mapping, Sequence
from itertools import permutations

from specbench.core.table import Table, numbers, words
from specbench.results.captions import bridges, why_unranked
from specbench.results.metrics import expected_speedup
from specbench.results.row import Row
from specbench.results.tables import acceptance_heading
from specbench.results.units import NULL, number, short

PARTS = {
    "draft": "draft_seconds", "verify": "verify_seconds", "rule and sampling": "rule_seconds",
    "tokenizer": "tokenizer_seconds", "other": "other_seconds",
}  # fmt: skip
MILLISECONDS = 1000.0
SAME = 0.02  # acceptance rates that differ by less, and speed-ups that differ by a smaller share, count as equal


def breakdown_table(rows: Sequence[Row]) -> Table:
    """Returns a table of one task and subset with a line per method: milliseconds per emitted token after the first, in
    all and by part."""
    plain = token_pass(rows)
    spent = ("all", "draft", "verify", "rule and\nsampling", "tokenizer", "other", "draft\nshare")
    figures = (*spent, acceptance_heading(rows), "draft\ncost c", "verify\ncost v")
    return Table(
        f"{short(rows[0].task)} · {rows[0].subset} · ms per token", (*words("method"), *numbers(*figures)),
        [_cells(row, plain) for row in rows], _caption(rows),
    )  # fmt: skip


def per_token(row: Row) -> dict[str, float | None]:
    """Returns milliseconds per emitted token by part; None for a part that the records lack. "all" is 1000 ÷ tok/s, and
    the parts are scaled to sum to it."""
    speed = row.value("tokens_per_second")
    spent = [row.value(name) for name in ("draft_seconds", "verify_seconds", "overhead_seconds")]
    whole = None if not speed else MILLISECONDS / speed
    if whole is None or None in spent or not (total := sum(filter(None, spent))):
        return {"all": whole, **dict.fromkeys(PARTS)}
    parts = {part: row.value(name) for part, name in PARTS.items()}
    scale = whole / total
    return {"all": whole, **{part: None if seconds is None else scale * seconds for part, seconds in parts.items()}}


def explanation_line(rows: Sequence[Row]) -> str | None:
    """Returns a line on the method with the highest acceptance rate that is slower than a method with a lower one, and
    on the part that takes it most additional time. If there is none, a line on the largest part of the slowest method
    that is slower than the baseline. None if there is none either.

    Acceptance rates do not compare across bridges, nor with prescribed ones. If the intervals of two speed-ups overlap,
    neither method is slower.
    """
    needed = ("acceptance_rate", "speedup", "draft_seconds")
    known = [row for row in rows if all(row.value(name) is not None for name in needed) and why_unranked(row) is None]
    beaten = [pair for pair in permutations(known, 2) if _accepts_more_and_is_slower(*pair)]
    if beaten:
        slow, fast = max(beaten, key=lambda pair: (_number(pair[0], "acceptance_rate"), _number(pair[1], "speedup")))
        return _explain_slower(slow, fast, token_pass(rows))
    slower = [row for row in known if (row.metric("speedup").high or _number(row, "speedup")) < 1]
    return _explain_slowest(min(slower, key=lambda row: _number(row, "speedup")), token_pass(rows)) if slower else None


def _accepts_more_and_is_slower(row: Row, other: Row) -> bool:
    """Returns whether `row` accepts more than `other` and is slower. Rows with different bridges or engines do not
    compare."""
    if bridges(row) != bridges(other) or row.engine != other.engine:
        return False
    if _number(row, "acceptance_rate") <= _number(other, "acceptance_rate") + SAME:
        return False
    high, low = row.metric("speedup").high, other.metric("speedup").low
    if high is not None and low is not None:
        return high < low
    return _number(row, "speedup") < (1 - SAME) * _number(other, "speedup")


def _explain_slower(slow: Row, fast: Row, plain: float | None) -> str:
    spent, spent_fast = per_token(slow), per_token(fast)
    more = {part: (spent[part] or 0.0) - (spent_fast[part] or 0.0) for part in PARTS}
    part = max(more, key=lambda name: more[name])
    numbers = _in_brackets(*(_explaining_numbers(part, row, plain) for row in (slow, fast)))
    reason = f"{slow.method_name} takes {more[part]:.1f} ms more per token for {part}{numbers}"
    return f"{_summary(slow)}, {_summary(fast)}: {reason}"


def _explain_slowest(row: Row, plain: float | None) -> str:
    spent = per_token(row)
    part = max(PARTS, key=lambda name: spent[name] or 0.0)
    share = (spent[part] or 0.0) / (spent["all"] or 1.0)
    return f"{_summary(row)}: {part} takes {share:.0%} of its time{_in_brackets(_explaining_numbers(part, row, plain))}"


def _explaining_numbers(part: str, row: Row, plain: float | None) -> dict[str, str]:
    """Returns the numbers that explain a part: the draft cost for drafting; τ and the verification cost for
    verifying."""
    numbers = {
        "draft": {"c": row.value("cost_ratio")},
        "verify": {"τ": row.value("mean_acceptance_length"), "v": verification_cost(row, plain)},
    }.get(part, {})
    return {sign: f"{value:.2f}" for sign, value in numbers.items() if value is not None}


def _in_brackets(numbers: Mapping[str, str], other: Mapping[str, str] = {}) -> str:
    """Returns the numbers in brackets, each with the number of another method if it differs."""
    texts = [
        f"{sign} = {value}" + (f", not {other[sign]}" if other.get(sign, value) != value else "")
        for sign, value in numbers.items()
    ]
    return f" ({'; '.join(texts)})" if texts else ""


def _summary(row: Row) -> str:
    return f"{row.method_name} has α {_number(row, 'acceptance_rate'):.2f} and {_number(row, 'speedup'):.2f}×"


def _cells(row: Row, plain: float | None) -> list[str]:
    spent = per_token(row)
    draft, whole = spent["draft"], spent["all"]
    share = NULL if draft is None or not whole else f"{draft / whole:.0%}"
    return [
        row.method_name,
        *(number(spent[part], 2) for part in ("all", *PARTS)),
        share,
        number(row.metric("acceptance_rate"), 3),
        number(row.metric("cost_ratio"), 3),
        number(verification_cost(row, plain), 2),
    ]


def _caption(rows: Sequence[Row]) -> list[str]:
    parts = [
        "tokenizer: retokenization and stop strings; other: Python and caches",
        "draft cost c: the median draft pass in median target passes",
        "verification cost v: the mean verifying pass ÷ the mean pass of ar",
    ]
    plain = token_pass(rows)
    warnings = [expensive_verification(rows), explanation_line(rows), *(skewed_cost(row, plain) for row in rows)]
    return [*parts, *filter(None, warnings)]


SKEWED = 1.5  # a mean draft cost ÷ c from here on is reported
NEGLIGIBLE = 0.05  # an effect on a step below this, in passes of the baseline, is not reported
EXPENSIVE = 1.25  # a verification cost from here on, in passes of the baseline, is reported


def token_pass(rows: Sequence[Row]) -> float | None:
    """Returns the mean seconds of a pass of the baseline; None if the rows do not include the baseline."""
    plain = next((row for row in rows if row.method_name == "ar" and row.accepted_tokens_per_step), None)
    return None if plain is None else _number(plain, "verify_seconds") / sum(plain.accepted_tokens_per_step or ())


def verification_cost(row: Row, plain: float | None) -> float | None:
    """Returns the verification cost v: the mean verifying pass ÷ `plain`, the mean seconds of a pass of the baseline.
    None if the steps of the method are unknown."""
    whole, num_passes = row.value("verify_seconds"), sum(row.accepted_tokens_per_step or ())
    return whole / num_passes / plain if whole and num_passes and plain else None


def expensive_verification(rows: Sequence[Row]) -> str | None:
    """Returns a line with the expected speed-ups at the measured verification costs, for methods whose cost is well
    above the one pass that the formula assumes; None without such a method."""
    plain = token_pass(rows)
    expected = []
    for row in rows:
        cost = verification_cost(row, plain)
        if cost and cost >= EXPENSIVE and row.value("speedup_expected") is not None:
            rate, cost_ratio = _number(row, "acceptance_rate"), _number(row, "cost_ratio")
            speedup = expected_speedup(rate, row.num_draft_tokens, cost_ratio, cost)
            expected.append(f"{row.method_name} {speedup:.2f}")
    if not expected:
        return None
    return (
        f"the expected speed-up assumes that a verifying pass costs as much as a pass of ar; with v instead it is "
        f"{', '.join(expected)}"
    )


def skewed_cost(row: Row, plain: float | None) -> str | None:
    """Returns a line if the mean draft cost is well above the median draft cost c; otherwise None. The mean is a lower
    bound, since it counts every step as if it had drafted all its tokens. It is unknown for drafts as text."""
    cost, whole = row.value("cost_ratio"), row.value("draft_seconds")
    num_passes = row.num_draft_tokens * sum(row.accepted_tokens_per_step or ())
    if not (cost and whole and num_passes and plain) or row.value("speedup_expected") is None:
        return None
    mean = whole / num_passes / plain
    if mean < SKEWED * cost or row.num_draft_tokens * (mean - cost) < NEGLIGIBLE:
        return None
    return (
        f"{row.method_name}: c = {cost:.3f} is a ratio of medians, but its draft passes took {mean:.3f} target passes "
        "on average: a few took far longer than most (a busy machine?), which the expected speed-up does not include"
    )


def _number(row: Row, name: str) -> float:
    return row.value(name) or 0.0
