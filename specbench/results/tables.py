"""Rows → tables for a terminal of 100 columns."""

from collections.abc import Sequence

from rich import box
from rich.table import Table
from rich.text import Text

from specbench.results.bootstrap import Metric
from specbench.results.leaderboard import Row

SMALL_SAMPLE = 30
MANY_CUT = 0.1  # a larger share of answers that ended at the limit makes the accuracy one of cut answers
NULL = "–"


def run_table(rows: Sequence[Row]) -> Table:
    """One task and one method: a line per subset, then "all". Raises ValueError for rows of several or of none."""
    if len({(row.task, row.method) for row in rows}) != 1:
        raise ValueError("a table shows the rows of one task and one method")
    lines = sorted(rows, key=lambda row: row.subset == "all")
    method = short(lines[0].method)
    table = Table(
        title=Text(f"{short(lines[0].task)} · {method}"),
        caption=Text(_caption(lines)),
        caption_justify="left",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        collapse_padding=True,
    )
    table.add_column("subset", overflow="fold")
    headers = ("n", "α", "τ", "tok/s\nar", f"tok/s\n{method.partition('@')[0]}", "speed-up\n95 % interval",
               "expected\nspeed-up", "accuracy %\nar → method")  # fmt: skip
    for header in headers:
        table.add_column(header, justify="right", overflow="fold", no_wrap=not header.startswith("tok/s"))
    for row in lines:
        if row.subset == "all" and len(lines) > 1:
            table.add_section()
        table.add_row(*(Text(cell) for cell in _cells(row)))
    return table


def _cells(row: Row) -> list[str]:
    metrics = row.metrics
    accuracy = [number(metrics.get(name), 1, 100) for name in ("accuracy_ar", "accuracy")]
    return [
        row.subset,
        str(row.n),
        number(metrics.get("acceptance_rate"), 3),
        number(metrics.get("mean_acceptance_length"), 2),
        speed(metrics.get("tokens_per_second_ar")),
        speed(metrics.get("tokens_per_second")),
        with_interval(metrics.get("speedup")),
        number(metrics.get("speedup_expected"), 2),
        NULL if accuracy == [NULL, NULL] else " → ".join(accuracy),
    ]


def _caption(rows: Sequence[Row]) -> str:
    row = rows[0]
    places = [each.data_location for each in rows if len(rows) == 1 or each.subset != "all"]
    drafter = _model(row.drafter, row.drafter_revision) if row.drafter else drafter_kind(row)
    lossless = {
        "yes": "lossless", "no": "lossy: the output is not the target's own",
        "claimed": "claimed lossless, not verified here", "not claimed": "not claimed to be lossless",
    }[lossless_word(row)]  # fmt: skip
    sentences = [
        f"target {_model(row.target, row.target_revision)}",
        *_code(row),
        f"drafter {drafter}, {row.num_draft_tokens} draft tokens, {lossless}{_options(row)}",
        f"{_samplings(rows)}; {row.dtype} on {row.device}",
        f"data: {row.data_source} ({_locations(places)})",
    ]
    cut = [r.subset for r in rows if _value(r, "share_cut_by_length") > MANY_CUT]
    if cut:
        sentences.append(f"more than {MANY_CUT:.0%} of the answers were cut at max_new_tokens in {', '.join(cut)}")
    small = [r.subset for r in rows if r.n < SMALL_SAMPLE]
    if small:
        sentences.append(f"intervals rest on few prompts: n < {SMALL_SAMPLE} in {', '.join(small)}")
    return "\n".join(sentences)


def lossless_word(row: Row) -> str:
    """Derived from the rule; of external code no more than a claim."""
    if "decoder" in row.options:
        return "claimed" if row.lossless else "not claimed"
    return "yes" if row.lossless else "no"


def _code(row: Row) -> list[str]:
    """The external code of a method, and how its clock was started where it did not report its first token."""
    decoder = row.options.get("decoder")
    if decoder is None:
        return []
    ttft = row.metrics.get("ttft_seconds")
    silent = ttft is None or ttft.value is None
    clock = "; it reports no first token, so its tok/s include the prompt" if silent else ""
    return [f"external decoder {decoder['entry']} ({str(decoder['revision']).removeprefix('local-')}){clock}"]


def drafter_kind(row: Row) -> str:
    """The kind of drafter."""
    if "decoder" in row.options:
        return "external"
    return str(row.options.get("drafter", {}).get("type", "none"))


def _value(row: Row, name: str) -> float:
    metric = row.metrics.get(name)
    return 0.0 if metric is None or metric.value is None else metric.value


def _locations(locations: Sequence[str]) -> str:
    first, *others = dict.fromkeys(locations)
    return f"{first} and {len(others)} more" if others else first


def _options(row: Row) -> str:
    """The options of the verification rule (or of external code), such as the threshold, that the numbers hang on."""
    options = row.options.get("verification", row.options.get("decoder", {}).get("options", {}))
    return f" ({', '.join(f'{name} {value}' for name, value in options.items())})" if options else ""


def _samplings(rows: Sequence[Row]) -> str:
    """How tokens are drawn, with the subsets of each way where there are several."""
    subsets: dict[str, list[str]] = {}
    for row in rows:
        subsets.setdefault(sampling_of(row), []).append(row.subset)
    if len(subsets) == 1:
        return next(iter(subsets))
    return "; ".join(f"{sampling} in {', '.join(names)}" for sampling, names in subsets.items())


def sampling_of(row: Row) -> str:
    sampling = row.sampling
    if sampling.temperature == 0:
        return "greedy"
    limits = (("top-k", sampling.top_k), ("top-p", sampling.top_p))
    parts = [
        f"temperature {sampling.temperature:g}",
        *(f"{name} {value:g}" for name, value in limits if value is not None),
    ]
    return ", ".join(parts)


def _model(name: str, revision: str | None) -> str:
    return f"{name} ({revision.removeprefix('local-')[:12]})" if revision else name


def short(versioned: str) -> str:
    """name@version:digest → name@version"""
    return versioned.partition(":")[0]


def number(metric: Metric | None, digits: int, factor: float = 1) -> str:
    if metric is None or metric.value is None:
        return NULL
    return f"{factor * metric.value:.{digits}f}"


def speed(metric: Metric | None) -> str:
    return number(metric, 1 if metric is None or (metric.value or 0) < 1000 else 0)


def with_interval(metric: Metric | None) -> str:
    if metric is None or metric.low is None or metric.high is None:
        return number(metric, 2)
    return f"{metric.value:.2f} [{metric.low:.2f}, {metric.high:.2f}]"
