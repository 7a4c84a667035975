"""Rows → what a reader must know beside their numbers, in words."""

from collections.abc import Callable, Sequence

from specbench.results.bootstrap import SMALL_SAMPLE, Metric
from specbench.results.drafters import decodes_alone, draft_length, drafter_of, model_name, prescribed
from specbench.results.row import Evidence, Row

FEW = f"numbers rest on few prompts: less than {SMALL_SAMPLE}"
FORECAST = ("acceptance_rate", "cost_ratio", "speedup_expected")
MANY_CUT = 0.1  # a larger share of answers that ended at the limit makes the accuracy one of cut answers
OWN_OUTPUTS = "by this run's outputs beside AR's"
SOURCES = {
    "greedy equal": "this run's outputs are AR's",
    "lossy by design": "as its rule declares",
}


def caption(rows: Sequence[Row]) -> str:
    """What was run and on what, a line each; then what makes the numbers weak."""
    row = rows[0]
    places = [each.data_location for each in rows if len(rows) == 1 or each.subset != "all"]
    lossless = {
        "yes": "lossless", "no": "lossy: the output is not the target's own",
        "claimed": "claimed lossless, not verified here", "not claimed": "not claimed to be lossless",
    }[lossless_word(row)]  # fmt: skip
    sentences = [
        f"target {model_name(row.target, row.target_revision)}",
        *_code(row),
        f"drafter {drafter_of(row)}, {draft_length(row)}, {lossless}{_options(row)}",
        *([f"ranked beside no other row: {reason}"] if (reason := prescribed(row)) else []),
        f"{_by_subset(rows, sampling_of)}; {computed_on(row)}",
        f"verdict: {_by_subset(rows[-1:] if rows[-1].subset == 'all' else rows, verdict_of)}",
        f"data: {row.data_source} ({_locations(places)})",
    ]
    cut = [r.subset for r in rows if _value(r, "share_cut_by_length") > MANY_CUT]
    if cut:
        sentences.append(f"more than {MANY_CUT:.0%} of the answers were cut at max_new_tokens in {', '.join(cut)}")
    reason = next(filter(None, map(no_forecast, rows)), None)
    if reason is not None:
        sentences.append(f"no expected speed-up: {reason}")
    small = [r.subset if num_timed(r) == r.n else f"{r.subset} ({num_timed(r)} of {r.n} with a speed)"
             for r in rows if rests_on_few(r)]  # fmt: skip
    if small:
        sentences.append(f"{FEW} in {', '.join(small)}")
    return "\n".join(sentences)


def rests_on_few(row: Row) -> bool:
    """Whether the speed-up is one of so few prompts that its interval may be too narrow, or that it has none; not of
    the baseline, whose speed-up over itself is exact."""
    speedup = row.metrics.get("speedup")
    return speedup is not None and speedup.value is not None and num_timed(row) < SMALL_SAMPLE and not is_baseline(row)


def no_forecast(row: Row) -> str | None:
    """Why the expected speed-up of a row is null though its acceptance rate is known; else None."""
    rate, cost, expected = (row.metrics.get(name, Metric()).value for name in FORECAST)
    if rate is None or expected is not None or is_baseline(row):
        return None
    if cost is None:
        return "its formula needs one cost ratio c, and these records have none"
    return "its formula assumes one draft pass per judged token, which drafted text and copies do not have"


def is_baseline(row: Row) -> bool:
    return row.method.partition("@")[0] == "ar"


def verdict_word(row: Row) -> str:
    """The verdict as tables have it: outputs of the baseline are compared with nothing but themselves."""
    return "baseline" if is_baseline(row) else row.verdict


def num_timed(row: Row) -> int:
    """Returns how many prompts the speed-up rests on."""
    return int(_value(row, "num_prompts_timed", row.n))


def verdict_of(row: Row) -> str:
    """Returns the verdict and what it rests on: an audit with its evidence, the rule, or the run's own outputs. These
    never say "lossless", and of a sampled run nothing."""
    if row.verdict == "not audited":
        return row.verdict
    if row.evidence is not None:
        return f"{row.verdict}, by an audit: {_evidence(row.evidence)}"
    if row.verdict not in SOURCES and (row.verdict in ("lossless", "undecided") or row.sampling.temperature):
        return f"{row.verdict}, stated without evidence"
    return f"{row.verdict}, {SOURCES.get(row.verdict, OWN_OUTPUTS)}"


def _evidence(found: Evidence) -> str:
    draws = f"{found.num_draws} draws at temperature {found.temperature:g}, p = {found.p_value:.2g}"
    parts = [
        *([f"greedy on {found.num_prompts} prompts"] if found.num_prompts is not None else []),
        *([draws] if found.num_draws is not None else []),
    ]
    report = "stated: its report was not kept" if found.report is None else f"its report: {found.report}"
    return f"{', '.join(parts)} ({found.task}: {', '.join(found.subsets)}); {report}"


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


def _value(row: Row, name: str, default: float = 0.0) -> float:
    metric = row.metrics.get(name)
    return default if metric is None or metric.value is None else metric.value


def _locations(locations: Sequence[str]) -> str:
    first, *others = dict.fromkeys(locations)
    return f"{first} and {len(others)} more" if others else first


def _options(row: Row) -> str:
    """The options of the verification rule (or of external code), such as the threshold, that the numbers hang on."""
    if decodes_alone(row):
        return ""
    options = row.options.get("verification", row.options.get("decoder", {}).get("options", {}))
    return f" ({', '.join(f'{name} {value}' for name, value in options.items())})" if options else ""


def _by_subset(rows: Sequence[Row], text_of: Callable[[Row], str]) -> str:
    """What is said of rows, with the subsets of each saying where there are several."""
    subsets: dict[str, list[str]] = {}
    for row in rows:
        subsets.setdefault(text_of(row), []).append(row.subset)
    if len(subsets) == 1:
        return next(iter(subsets))
    return "; ".join(f"{text} in {', '.join(names)}" for text, names in subsets.items())


def computed_on(row: Row) -> str:
    """In which dtype, on which machine, and by which engine, where it is not the usual one."""
    return f"{row.dtype} on {row.device}" + ("" if row.engine == "eager" else f", {row.engine}")


def sampling_of(row: Row) -> str:
    """How tokens are drawn."""
    sampling = row.sampling
    if sampling.temperature == 0:
        return "greedy"
    limits = (("top-k", sampling.top_k), ("top-p", sampling.top_p))
    parts = [
        f"temperature {sampling.temperature:g}",
        *(f"{name} {value:g}" for name, value in limits if value is not None),
    ]
    return ", ".join(parts)
