"""Records → metrics: every number of a result row is recomputed here from the raw records, and from nothing else.

Intervals (see `results.bootstrap`) are over prompts, each with its repeats and with AR's answers to it. Totals and
medians have none.
"""

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from specbench.results.acceptance import (
    acceptance,
    accepted_tokens_per_step,
    allocated_share,
    new_tokens,
    timed_tokens,
    with_own_passes,
)
from specbench.results.bootstrap import SHARE, Metric, Prompts
from specbench.results.quality import ScoringSpec, quality
from specbench.results.warnings import ar_drift
from specbench.running.records import Generation, Record, check_counts, name_of
from specbench.running.run_folder import RecordedMethod
from specbench.specs.method import MethodSpec

PER_PASS = (
    "draft_prefill_seconds", "draft_seconds", "verify_seconds", "overhead_seconds", "overhead_share", "cost_ratio",
)  # fmt: skip


def speeds(
    prompts: Prompts, own: Sequence[Generation], baseline: Sequence[Generation], *, is_baseline: bool
) -> dict[str, Metric]:
    """Returns tokens, tokens per second, and speed-ups over the baseline on the same prompts."""
    # The clock starts at the first token, so that token is not counted. A pair with a generation of one token has no
    # speed and is left out on both sides: speedup is then the ratio of the two speeds shown beside it.
    timed = [min(timed_tokens(a), timed_tokens(b)) > 0 for a, b in zip(own, baseline, strict=True)]

    def per_second(generations: Sequence[Generation]) -> tuple[list[float], list[float]]:
        kept = list(zip(generations, timed, strict=True))
        return ([timed_tokens(g) * keep for g, keep in kept], [g["decode_seconds"] * keep for g, keep in kept])

    def end_to_end(generations: Sequence[Generation]) -> tuple[list[float], list[float]]:
        seconds = [(g["ttft_seconds"] or 0.0) + g["decode_seconds"] for g in generations]
        return [new_tokens(g) for g in generations], seconds

    own_speed, baseline_speed = per_second(own), per_second(baseline)
    same = Metric(value=1.0)  # AR beside itself: exact, not measured
    return {
        "num_prompts_timed": Metric(value=len(set(prompts.cluster[timed].tolist()))),
        "new_tokens": Metric(value=sum(new_tokens(g) for g in own)),
        "tokens_per_second": prompts.ratio(*own_speed),
        "tokens_per_second_ar": prompts.ratio(*baseline_speed),
        "speedup": same if is_baseline else prompts.ratio(*own_speed, *baseline_speed),
        "speedup_e2e": same if is_baseline else prompts.ratio(*end_to_end(own), *end_to_end(baseline)),
    }


def times(prompts: Prompts, own: Sequence[Generation], baseline: Sequence[Generation]) -> dict[str, Metric]:
    """Returns seconds by part, and the cost ratio. The passes of an external decoder are unknown."""
    draft_passes = [seconds for g in own for _, seconds in g["passes"]["draft"]]
    token_passes = [seconds for g in baseline for length, seconds in g["passes"]["target"] if length == 1]
    draft_pass, token_pass = _median(draft_passes), _median(token_passes)
    found = {
        "ttft_seconds": Metric(value=_known_median([g["ttft_seconds"] for g in own])),
        "draft_prefill_seconds": Metric(value=_known_median([g["draft_prefill_seconds"] for g in own])),
        "tpot_seconds": Metric(
            value=_median([g["decode_seconds"] / timed_tokens(g) for g in own if timed_tokens(g) > 0])
        ),
        "draft_seconds": Metric(value=sum(draft_passes)),
        "verify_seconds": Metric(value=sum(seconds for g in own for _, seconds in g["passes"]["target"])),
        "overhead_seconds": Metric(value=sum(_overhead(g) for g in own)),
        **_parts_of_overhead(own),
        "overhead_share": _overhead_share(prompts, own),
        "overhead_share_ar": _overhead_share(prompts, baseline),
        "cost_ratio": Metric(value=draft_pass / token_pass if draft_pass is not None and token_pass else None),
    }
    if any("external" in generation for generation in own):
        found |= {name: Metric() for name in PER_PASS}
    return found


def _parts_of_overhead(own: Sequence[Generation]) -> dict[str, Metric]:
    """Returns the parts of the overhead; None where an answer does not record them."""
    told: dict[str, list[float | None]] = {
        name: [g.get(name) for g in own] for name in ("rule_seconds", "tokenizer_seconds")
    }
    sums = {name: sum(filter(None, values)) if None not in values else None for name, values in told.items()}
    known = [value for value in sums.values() if value is not None]
    other = sum(_overhead(g) for g in own) - sum(known) if len(known) == len(sums) else None
    return {name: Metric(value=value) for name, value in (sums | {"other_seconds": other}).items()}


def expected_speedup(
    acceptance_rate: float, num_draft_tokens: int, cost_ratio: float, verification_cost: float = 1.0
) -> float:
    """Returns f(α, γ, c) = (1 − α^{γ+1}) / ((1 − α)(γc + 1)) as the sum Σ_{k=0..γ} α^k / (γc + 1), which holds at α = 1
    too.

    It assumes one draft pass for each of the γ draft tokens. Source: arXiv:2211.17192, theorem 3.8, where a verifying
    pass costs one target pass; `verification_cost` replaces that one.
    """
    tokens_per_step = sum(acceptance_rate**k for k in range(num_draft_tokens + 1))
    return tokens_per_step / (num_draft_tokens * cost_ratio + verification_cost)


def _overhead_share(prompts: Prompts, generations: Sequence[Generation]) -> Metric:
    return prompts.ratio(
        [_overhead(g) for g in generations], [g["decode_seconds"] for g in generations], bounds=SHARE
    )  # fmt: skip


def _overhead(generation: Generation) -> float:
    passes = generation["passes"]["target"] + generation["passes"]["draft"]
    return float(generation["decode_seconds"] - sum(seconds for _, seconds in passes))


def _known_median(values: Sequence[float | None]) -> float | None:
    return _median([value for value in values if value is not None])


def _median(values: Sequence[float]) -> float | None:
    return median(values) if values else None


def metrics_of(
    records: Sequence[Record], method: MethodSpec, seed: int = 0, asked: Mapping[str, ScoringSpec] | None = None
) -> dict[str, Metric]:
    """Returns every metric of a method over the records, by its specification. `asked`: scorer and language by
    subset."""
    taken = routes_taken(records, method)
    part = method.route(taken[0]) if len(taken) == 1 else method
    return summarize(
        records, method.name, num_draft_tokens=part.most_draft_tokens, verification=method.verification.model_dump(),
        decodes_with=method.decodes_with, drafts_token_by_token=part.drafts_token_by_token, seed=seed,
        asked=asked,
    )  # fmt: skip


def accepted_tokens_per_step_of(
    records: Sequence[Record], method: MethodSpec | RecordedMethod
) -> tuple[int, ...] | None:
    """Returns how often a target pass accepted 0, 1, … draft tokens, up to the draft length."""
    own = [_own(record, method.name, method.decodes_with) for record in records]
    return accepted_tokens_per_step(own, method.most_draft_tokens)


def routes_taken(records: Sequence[Record], method: MethodSpec) -> list[str]:
    """Returns the routes of a method that the records took, in the order of its file; none for a method without routes.

    Raises ValueError naming a record of an unknown route.
    """
    if method.routes is None:
        return []
    found = {record["methods"][method.name].get("route"): record for record in records}
    for route, record in found.items():
        if route not in method.routes:
            raise ValueError(f"record of {name_of(record)}: {method.name}: route {route!r} is none of the method's")
    return [route for route in method.routes if route in found]


def summarize(
    records: Sequence[Record],
    method: str,
    *,
    num_draft_tokens: int,
    verification: dict[str, Any],
    decodes_with: str = "target",
    drafts_token_by_token: bool = True,
    seed: int = 0,
    asked: Mapping[str, ScoringSpec] | None = None,
) -> dict[str, Metric]:
    """Returns every metric of one method over the records, each paired to AR on the same prompts.

    `verification`: the rule with its options, flat: {"rule": "fuzzy", "threshold": 0.3, …}. `decodes_with`: "drafter"
    where the drafter decodes alone: every pass is then a draft pass; "random" where it does so in the queries whose
    record has `decoded_by` the drafter. Speeds and scores are over all queries, `mean_acceptance_length` over those
    with target passes. `drafts_token_by_token`: needed for `speedup_expected`, which assumes a draft pass for each
    draft token. `asked`: scorer and language by subset; without it the one score of each record is its accuracy.

    Where queries took several routes, each with a drafter of its own, `cost_ratio` and all that is computed from it are
    null.

    Raises ValueError naming the record where counts contradict each other.
    """
    for record in records:
        check_counts(record, "ar", 0)
        check_counts(record, method, num_draft_tokens)
    own = [_own(record, method, decodes_with) for record in records]
    baseline = [record["methods"]["ar"] for record in records]
    prompts, expected = Prompts.of(records, seed), Metric()
    scores = quality(prompts, records, own, baseline, asked or {})
    if method == "ar":  # beside itself: exact, not measured
        same = {name for name, metric in scores.items() if name.endswith("_difference") and metric.value == 0}
        scores |= dict.fromkeys(same, Metric(value=0.0))
    metrics = {
        **speeds(prompts, own, baseline, is_baseline=method == "ar"),
        **times(prompts, own, baseline),
        "ar_drift": ar_drift(records),
        **acceptance(prompts, own, verification),
        **scores,
    }
    if decodes_with == "random":
        metrics["drafter_share"] = allocated_share(prompts, own)
    if decodes_with != "target":
        metrics["draft_prefill_seconds"] = Metric()  # part of ttft_seconds, and not measured apart
    if len({generation.get("route") for generation in own}) > 1:
        metrics["cost_ratio"] = Metric()
    rate, cost = metrics["acceptance_rate"].value, metrics["cost_ratio"].value
    if drafts_token_by_token and rate is not None and cost is not None:
        expected = Metric(value=expected_speedup(rate, num_draft_tokens, cost))
    return {**metrics, "speedup_expected": expected}


def _own(record: Record, method: str, decodes_with: str) -> Generation:
    try:
        return with_own_passes(record["methods"][method], decodes_with)
    except ValueError as error:
        raise ValueError(f"record of {name_of(record)}: {method}: {error}") from error
