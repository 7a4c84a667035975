"""Records → metrics: every number of a result row is recomputed here from the raw records, and from nothing else.

Intervals (see `results.bootstrap`) are over prompts, each with its repeats and with AR's answers to it; totals and
medians have none.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from specbench.results.acceptance import acceptance, accepted_lengths, allocated_share, with_own_passes
from specbench.results.bootstrap import Metric, Prompts
from specbench.results.quality import Asked, quality
from specbench.results.speed import expected_speedup, speeds, times
from specbench.results.warnings import ar_drift
from specbench.running.records import Generation, Record, check_counts, name_of
from specbench.specs.method import MethodSpec

__all__ = ["Metric", "expected_speedup", "metrics_of", "summarize"]


def metrics_of(
    records: Sequence[Record], method: MethodSpec, seed: int = 0, asked: Mapping[str, Asked] | None = None
) -> dict[str, Metric]:
    """Every metric of a method over the records, by what its specification says of it. `asked`: by subset."""
    taken = routes_taken(records, method)
    part = method.route(taken[0]) if len(taken) == 1 else method
    return summarize(
        records, method.name, num_draft_tokens=part.most_draft_tokens, verification=method.verification.model_dump(),
        decodes_with=method.decodes_with, drafts_token_by_token=part.drafts_token_by_token, seed=seed,
        asked=asked,
    )  # fmt: skip


def accepted_lengths_of(records: Sequence[Record], method: MethodSpec) -> tuple[int, ...] | None:
    """How often a target pass accepted 0, 1, … draft tokens (`acceptance.accepted_lengths`), up to the draft length."""
    return accepted_lengths([_own(r, method.name, method.decodes_with) for r in records], method.most_draft_tokens)


def routes_taken(records: Sequence[Record], method: MethodSpec) -> list[str]:
    """The routes of a method that records are of, in the order of its file; none for a method without routes.

    Raises ValueError naming a record that is of no route.
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
    asked: Mapping[str, Asked] | None = None,
) -> dict[str, Metric]:
    """Every metric of one method over the records, each paired to AR on the same prompts.

    `verification` is the rule with its options, flat: {"rule": "fuzzy", "threshold": 0.3, …}. `decodes_with` is
    "drafter" where the drafter decodes alone: then every pass is a draft pass, and the target makes none; "random"
    where it does so in the queries whose record says that they were `decoded_by` the drafter. Speeds and scores are
    over all queries, `mean_acceptance_length` over those with target passes. `speedup_expected` is null unless
    `drafts_token_by_token`: it assumes a draft pass for each draft token.
    `asked` says by subset what the answers were judged by; without it each record's one score is its accuracy.
    Where queries took several routes, each with a drafter of its own, there is no one `cost_ratio`, and what is
    computed from it is null too.
    Raises ValueError naming the record when its counts contradict each other.
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
