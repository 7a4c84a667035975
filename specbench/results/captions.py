"""Rows → what a reader must know beside their numbers, in words."""

from collections.abc import Sequence

from specbench.results.leaderboard import Row

SMALL_SAMPLE = 30
MANY_CUT = 0.1  # a larger share of answers that ended at the limit makes the accuracy one of cut answers


def caption(rows: Sequence[Row]) -> str:
    """What was run and on what, a line each; then what makes the numbers weak."""
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
        f"drafter {drafter}, {_part_of_drafter(row)}, {lossless}{_options(row)}",
        f"{_samplings(rows)}; {row.dtype} on {row.device}",
        f"data: {row.data_source} ({_locations(places)})",
    ]
    if row.verdict != "not audited":
        sentences.insert(3, f"outputs beside AR's on these prompts: {rows[-1].verdict}")
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


def _part_of_drafter(row: Row) -> str:
    """What the drafter does in every query, or in how many it does all."""
    if "drafter_share" in row.options:
        return f"alone with {row.options['drafter_share']:.0%} of the queries, drawn at random"
    return f"{row.num_draft_tokens} draft tokens"


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
