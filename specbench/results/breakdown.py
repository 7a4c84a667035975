"""Where the time of each method goes, per emitted token, and why a method that accepts more may be slower."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text

from specbench.results.bootstrap import Metric
from specbench.results.cells import NULL, number, short
from specbench.results.drafters import prescribed
from specbench.results.row import Row

PARTS = {
    "draft": "draft_seconds", "verify": "verify_seconds", "rule and sampling": "rule_seconds",
    "tokenizer": "tokenizer_seconds", "other": "other_seconds",
}  # fmt: skip
MILLISECONDS = 1000.0
UNEVEN = 1.5  # times c that the mean of draft passes may be before that is said
SAME = 0.02  # acceptance rates closer than that, and speed-ups by that share, are not told apart in words


def breakdown_table(rows: Sequence[Row]) -> Table:
    """One task and subset, a line per method: milliseconds per emitted token after the first, and what they are spent
    on; the parts sum to the whole."""
    table = Table(
        title=Text(f"{short(rows[0].task)} · {rows[0].subset} · ms per token"),
        caption=Text(_caption(rows)),
        caption_justify="left",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        collapse_padding=True,
    )
    table.add_column("method", overflow="fold")
    for header in ("all", "draft", "verify", "rule and\nsampling", "tokenizer", "other", "draft\nshare", "α", "c"):
        table.add_column(header, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(*(Text(cell) for cell in _cells(row)))
    return table


def per_token(row: Row) -> dict[str, float | None]:
    """Milliseconds per emitted token by part; a part is null where the records do not tell it. "all" is what tok/s
    says."""
    speed = _value(row, "tokens_per_second")
    spent = [_value(row, name) for name in ("draft_seconds", "verify_seconds", "overhead_seconds")]
    whole = None if not speed else MILLISECONDS / speed
    if whole is None or None in spent or not (total := sum(filter(None, spent))):
        return {"all": whole, **dict.fromkeys(PARTS)}
    parts = {part: _value(row, name) for part, name in PARTS.items()}
    scale = whole / total
    return {"all": whole, **{part: None if seconds is None else scale * seconds for part, seconds in parts.items()}}


def why(rows: Sequence[Row]) -> str | None:
    """One line: of the methods that accept more than another and are slower, the one with the highest rate, and the
    part that takes it the most time more; where there is none, what takes the time of the slowest that is slower than
    the baseline. None where there is neither. Acceptance rates do not compare across bridges, nor with prescribed ones;
    and of two speed-ups whose intervals overlap neither is the slower."""
    needed = ("acceptance_rate", "speedup", "draft_seconds")
    known = [row for row in rows if all(_value(row, name) is not None for name in needed) and prescribed(row) is None]
    beaten = [
        (slow, fast)
        for slow in known
        for fast in known
        if _compare(slow, fast) and _accepts_more(slow, fast) and _is_slower(slow, fast)
    ]
    if beaten:
        return _compared(*max(beaten, key=lambda pair: (_of(pair[0], "acceptance_rate"), _of(pair[1], "speedup"))))
    slower = [row for row in known if (_high(row) or _of(row, "speedup")) < 1]
    return _explained(min(slower, key=lambda row: _of(row, "speedup"))) if slower else None


def _accepts_more(row: Row, other: Row) -> bool:
    return _of(row, "acceptance_rate") > _of(other, "acceptance_rate") + SAME


def _compare(row: Row, other: Row) -> bool:
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
    return _of(row, "speedup") < (1 - SAME) * _of(other, "speedup")


def _compared(slow: Row, fast: Row) -> str:
    mine, other = per_token(slow), per_token(fast)
    more = {part: (mine[part] or 0.0) - (other[part] or 0.0) for part in PARTS}
    part = max(more, key=lambda name: more[name])
    told = f"{_name(slow)} takes {more[part]:.1f} ms more per token for {part}{_detail(part, slow, fast)}"
    return f"{_said(slow)}, {_said(fast)}: {told}"


def _explained(row: Row) -> str:
    spent = per_token(row)
    part = max(PARTS, key=lambda name: spent[name] or 0.0)
    share = (spent[part] or 0.0) / (spent["all"] or 1.0)
    return f"{_said(row)}: {part} takes {share:.0%} of its time{_detail(part, row, None)}"


def _detail(part: str, row: Row, beside: Row | None) -> str:
    """The number that a part hangs on: of drafting the cost ratio, of verifying the tokens per pass."""
    metric = {"draft": "cost_ratio", "verify": "mean_acceptance_length"}.get(part)
    if metric is None or _value(row, metric) is None:
        return ""
    sign = {"cost_ratio": "c", "mean_acceptance_length": "τ"}[metric]
    said = f"{_of(row, metric):.2f}"
    other = said if beside is None or _value(beside, metric) is None else f"{_of(beside, metric):.2f}"
    return f" ({sign} = {said})" if other == said else f" ({sign} = {said}, not {other})"


def _said(row: Row) -> str:
    return f"{_name(row)} has α {_of(row, 'acceptance_rate'):.2f} and {_of(row, 'speedup'):.2f}×"


def _cells(row: Row) -> list[str]:
    spent = per_token(row)
    draft, whole = spent["draft"], spent["all"]
    share = NULL if draft is None or not whole else f"{draft / whole:.0%}"
    return [
        _name(row),
        *(NULL if spent[part] is None else f"{spent[part]:.2f}" for part in ("all", *PARTS)),
        share,
        number(row.metrics.get("acceptance_rate"), 3),
        number(row.metrics.get("cost_ratio"), 3),
    ]


def _caption(rows: Sequence[Row]) -> str:
    told = "rule and sampling: rules, draws; tokenizer: cutting texts anew, stop strings; other: Python, caches"
    ratio = (
        "c is of the median passes, and the times are of all: where passes were slow at times, these hold more of it"
    )
    token_pass = _token_pass(rows)
    return "\n".join([told, ratio, *filter(None, [why(rows), *(uneven(row, token_pass) for row in rows)])])


def _token_pass(rows: Sequence[Row]) -> float | None:
    """The mean seconds of a pass of the baseline, where it stands among the rows."""
    plain = next((row for row in rows if _name(row) == "ar" and row.accepted_lengths), None)
    return None if plain is None else _of(plain, "verify_seconds") / sum(plain.accepted_lengths or ())


def uneven(row: Row, token_pass: float | None) -> str | None:
    """Where c, which is of median passes, is not what drafting took on average: a line that says both. The mean is the
    least that it can be, as if every step had drafted all its tokens; of drafts as text it is not known."""
    cost, whole = _value(row, "cost_ratio"), _value(row, "draft_seconds")
    num_passes = row.num_draft_tokens * sum(row.accepted_lengths or ())
    if not (cost and whole and num_passes and token_pass) or _value(row, "speedup_expected") is None:
        return None
    mean = whole / num_passes / token_pass
    if mean < UNEVEN * cost:
        return None
    return (
        f"{_name(row)}: c = {cost:.3f} is of medians, but its draft passes took {mean:.3f} of a target pass on "
        "average: a few took far longer than most (a busy machine?), which the expected speed-up leaves out"
    )


def _name(row: Row) -> str:
    return short(row.method).partition("@")[0]


def _value(row: Row, name: str) -> float | None:
    metrics: Mapping[str, Metric] = row.metrics
    return metrics.get(name, Metric()).value


def _of(row: Row, name: str) -> float:
    return _value(row, name) or 0.0
