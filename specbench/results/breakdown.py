"""Where the time of each method goes, per emitted token, and why a method that accepts more may be slower."""

from collections.abc import Sequence
from typing import Any

from specbench.core.table import Table, numbers, words
from specbench.results.captions import prescribed
from specbench.results.row import Row
from specbench.results.speed import dear, name_of, number_of, token_pass, uneven, value_of, verifying_cost
from specbench.results.units import NULL, number, short

PARTS = {
    "draft": "draft_seconds", "verify": "verify_seconds", "rule and sampling": "rule_seconds",
    "tokenizer": "tokenizer_seconds", "other": "other_seconds",
}  # fmt: skip
MILLISECONDS = 1000.0
SAME = 0.02  # acceptance rates closer than that, and speed-ups by that share, are not told apart in words


def breakdown_table(rows: Sequence[Row]) -> Table:
    """One task and subset, a line per method: milliseconds per emitted token after the first, and what they are spent
    on; the parts sum to the whole."""
    plain = token_pass(rows)
    figures = ("all", "draft", "verify", "rule and\nsampling", "tokenizer", "other", "draft\nshare", "α", "c", "v")
    return Table(
        f"{short(rows[0].task)} · {rows[0].subset} · ms per token", (*words("method"), *numbers(*figures)),
        [_cells(row, plain) for row in rows], _caption(rows),
    )  # fmt: skip


def per_token(row: Row) -> dict[str, float | None]:
    """Milliseconds per emitted token by part; a part is null where the records do not tell it. "all" is what tok/s
    says."""
    speed = value_of(row, "tokens_per_second")
    spent = [value_of(row, name) for name in ("draft_seconds", "verify_seconds", "overhead_seconds")]
    whole = None if not speed else MILLISECONDS / speed
    if whole is None or None in spent or not (total := sum(filter(None, spent))):
        return {"all": whole, **dict.fromkeys(PARTS)}
    parts = {part: value_of(row, name) for part, name in PARTS.items()}
    scale = whole / total
    return {"all": whole, **{part: None if seconds is None else scale * seconds for part, seconds in parts.items()}}


def why(rows: Sequence[Row]) -> str | None:
    """One line: of the methods that accept more than another and are slower, the one with the highest rate, and the
    part that takes it the most time more; where there is none, what takes the time of the slowest that is slower than
    the baseline. None where there is neither. Acceptance rates do not compare across bridges, nor with prescribed ones;
    and of two speed-ups whose intervals overlap neither is the slower."""
    needed = ("acceptance_rate", "speedup", "draft_seconds")
    known = [row for row in rows if all(value_of(row, name) is not None for name in needed) and prescribed(row) is None]
    beaten = [
        (slow, fast)
        for slow in known
        for fast in known
        if _comparable(slow, fast) and _accepts_more(slow, fast) and _is_slower(slow, fast)
    ]
    if beaten:
        slow, fast = max(
            beaten, key=lambda pair: (number_of(pair[0], "acceptance_rate"), number_of(pair[1], "speedup"))
        )
        return _compared(slow, fast, token_pass(rows))
    slower = [row for row in known if (_high(row) or number_of(row, "speedup")) < 1]
    return _explained(min(slower, key=lambda row: number_of(row, "speedup")), token_pass(rows)) if slower else None


def _accepts_more(row: Row, other: Row) -> bool:
    return number_of(row, "acceptance_rate") > number_of(other, "acceptance_rate") + SAME


def _comparable(row: Row, other: Row) -> bool:
    """Whether their α and their seconds are of one kind: the same bridge and engine."""
    return (_bridge(row), row.engine) == (_bridge(other), other.engine)


def _bridge(row: Row) -> Any:
    return row.options.get("bridge", "shared")


def _high(row: Row) -> float | None:
    return row.metrics["speedup"].high


def _is_slower(row: Row, other: Row) -> bool:
    high, low = _high(row), other.metrics["speedup"].low
    if high is not None and low is not None:
        return high < low
    return number_of(row, "speedup") < (1 - SAME) * number_of(other, "speedup")


def _compared(slow: Row, fast: Row, plain: float | None) -> str:
    mine, other = per_token(slow), per_token(fast)
    more = {part: (mine[part] or 0.0) - (other[part] or 0.0) for part in PARTS}
    part = max(more, key=lambda name: more[name])
    beside = _hangs_on(part, fast, plain)
    numbers = [
        f"{sign} = {value}" if beside.get(sign, value) == value else f"{sign} = {value}, not {beside[sign]}"
        for sign, value in _hangs_on(part, slow, plain).items()
    ]
    told = f"{name_of(slow)} takes {more[part]:.1f} ms more per token for {part}{_in_brackets(numbers)}"
    return f"{_said(slow)}, {_said(fast)}: {told}"


def _explained(row: Row, plain: float | None) -> str:
    spent = per_token(row)
    part = max(PARTS, key=lambda name: spent[name] or 0.0)
    share = (spent[part] or 0.0) / (spent["all"] or 1.0)
    numbers = [f"{sign} = {value}" for sign, value in _hangs_on(part, row, plain).items()]
    return f"{_said(row)}: {part} takes {share:.0%} of its time{_in_brackets(numbers)}"


def _hangs_on(part: str, row: Row, plain: float | None) -> dict[str, str]:
    """The numbers of a part: of drafting the cost ratio, of verifying the tokens and the cost of a pass."""
    numbers = {
        "draft": {"c": value_of(row, "cost_ratio")},
        "verify": {"τ": value_of(row, "mean_acceptance_length"), "v": verifying_cost(row, plain)},
    }.get(part, {})
    return {sign: f"{value:.2f}" for sign, value in numbers.items() if value is not None}


def _in_brackets(numbers: Sequence[str]) -> str:
    return f" ({'; '.join(numbers)})" if numbers else ""


def _said(row: Row) -> str:
    return f"{name_of(row)} has α {number_of(row, 'acceptance_rate'):.2f} and {number_of(row, 'speedup'):.2f}×"


def _cells(row: Row, plain: float | None) -> list[str]:
    spent = per_token(row)
    draft, whole = spent["draft"], spent["all"]
    share = NULL if draft is None or not whole else f"{draft / whole:.0%}"
    return [
        name_of(row),
        *(NULL if spent[part] is None else f"{spent[part]:.2f}" for part in ("all", *PARTS)),
        share,
        number(row.metrics.get("acceptance_rate"), 3),
        number(row.metrics.get("cost_ratio"), 3),
        NULL if (cost := verifying_cost(row, plain)) is None else f"{cost:.2f}",
    ]


def _caption(rows: Sequence[Row]) -> list[str]:
    told = "rule and sampling: rules, draws; tokenizer: cutting texts anew, stop strings; other: Python, caches"
    ratio = (
        "c is of the median passes, and the times are of all: where passes were slow at times, these hold more of it; "
        "v: the mean verifying pass in mean passes of ar"
    )
    plain = token_pass(rows)
    return [told, ratio, *filter(None, [dear(rows), why(rows), *(uneven(row, plain) for row in rows)])]
