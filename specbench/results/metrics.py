"""Records → metrics: every number of a result row is recomputed here from the raw records, and from nothing else.

An interval is a paired bootstrap over prompts (repeats of one prompt are summed first); totals and medians have none.
"""

from collections.abc import Sequence
from statistics import median
from typing import Any

from specbench.results.bootstrap import Metric, Prompts
from specbench.results.counts import new_tokens, target_passes, timed_tokens, tokens_of_passes
from specbench.running.record_check import ACCEPTED, DRAFTED, JUDGED, check_counts, step_sum
from specbench.running.records import Generation, Record

PER_PASS = (
    "draft_prefill_seconds", "draft_seconds", "verify_seconds", "overhead_seconds", "overhead_share", "cost_ratio",
)  # fmt: skip
CUTS = ("length", "context")  # the ends that a generation did not choose itself
__all__ = ["Metric", "expected_speedup", "summarize"]


def summarize(
    records: Sequence[Record],
    method: str,
    *,
    num_draft_tokens: int,
    verification: dict[str, Any],
    decodes_with: str = "target",
    seed: int = 0,
) -> dict[str, Metric]:
    """Every metric of one method over the records, each paired to AR on the same prompts.

    `verification` is the rule with its options, flat: {"rule": "fuzzy", "threshold": 0.3, …}. `decodes_with` is
    "drafter" where the drafter decodes alone: then every pass is a draft pass, and the target makes none.
    Raises ValueError naming the record when its counts contradict each other.
    """
    for record in records:
        check_counts(record, "ar", 0)
        check_counts(record, method, num_draft_tokens)
    alone = decodes_with == "drafter"
    own = [_drafted_alone(record["methods"][method]) if alone else record["methods"][method] for record in records]
    baseline = [record["methods"]["ar"] for record in records]
    prompts = Prompts.of(records, seed)
    metrics = {
        **_speed(prompts, own, baseline, is_baseline=method == "ar"),
        **_time(prompts, own, baseline),
        **_acceptance(prompts, own, verification),
        **_quality(prompts, own, baseline),
    }
    if alone:
        metrics["target_passes_per_token"] = Metric(value=0.0 if records else None)
        metrics["mean_acceptance_length"] = Metric()  # there is no target pass to emit tokens
        metrics["draft_prefill_seconds"] = Metric()  # part of ttft_seconds, and not measured apart
    if any("external" in generation for generation in own):
        metrics |= {name: Metric() for name in PER_PASS}  # its passes are its own affair
    metrics["speedup_expected"] = Metric(
        value=_expected(metrics["acceptance_rate"].value, num_draft_tokens, metrics["cost_ratio"].value)
    )
    return metrics


def expected_speedup(acceptance_rate: float, num_draft_tokens: int, cost_ratio: float) -> float:
    """f(α, γ, c) = (1 − α^{γ+1}) / ((1 − α)(γc + 1)) as the sum Σ_{k=0..γ} α^k / (γc + 1), which holds at α = 1 too.

    arXiv:2211.17192, theorem 3.8.
    """
    tokens_per_step = sum(acceptance_rate**k for k in range(num_draft_tokens + 1))
    return tokens_per_step / (num_draft_tokens * cost_ratio + 1)


def _drafted_alone(generation: Generation) -> Generation:
    """The generation with its model's passes where they belong: the decode loop knows only one model and calls it the
    target."""
    return {**generation, "passes": {"target": [], "draft": generation["passes"]["target"]}}


def _speed(
    prompts: Prompts, own: Sequence[Generation], baseline: Sequence[Generation], *, is_baseline: bool
) -> dict[str, Metric]:
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
        "new_tokens": Metric(value=sum(new_tokens(g) for g in own)),
        "tokens_per_second": prompts.ratio(*own_speed),
        "tokens_per_second_ar": prompts.ratio(*baseline_speed),
        "speedup": same if is_baseline else prompts.ratio(*own_speed, *baseline_speed),
        "speedup_e2e": same if is_baseline else prompts.ratio(*end_to_end(own), *end_to_end(baseline)),
    }


def _time(prompts: Prompts, own: Sequence[Generation], baseline: Sequence[Generation]) -> dict[str, Metric]:
    draft_passes = [seconds for g in own for _, seconds in g["passes"]["draft"]]
    token_passes = [seconds for g in baseline for length, seconds in g["passes"]["target"] if length == 1]
    draft_pass, token_pass = _median(draft_passes), _median(token_passes)
    return {
        "ttft_seconds": Metric(value=_known_median([g["ttft_seconds"] for g in own])),
        "draft_prefill_seconds": Metric(value=_known_median([g["draft_prefill_seconds"] for g in own])),
        "tpot_seconds": Metric(
            value=_median([g["decode_seconds"] / timed_tokens(g) for g in own if timed_tokens(g) > 0])
        ),
        "draft_seconds": Metric(value=sum(draft_passes)),
        "verify_seconds": Metric(value=sum(seconds for g in own for _, seconds in g["passes"]["target"])),
        "overhead_seconds": Metric(value=sum(_overhead(g) for g in own)),
        "overhead_share": prompts.ratio([_overhead(g) for g in own], [g["decode_seconds"] for g in own]),
        "overhead_share_ar": prompts.ratio([_overhead(g) for g in baseline], [g["decode_seconds"] for g in baseline]),
        "cost_ratio": Metric(value=draft_pass / token_pass if draft_pass is not None and token_pass else None),
    }


def _acceptance(prompts: Prompts, own: Sequence[Generation], verification: dict[str, Any]) -> dict[str, Metric]:
    drafted, judged, accepted = ([step_sum(g, column) for g in own] for column in (DRAFTED, JUDGED, ACCEPTED))
    num_steps = [len(g["steps"]) for g in own]
    passes = [target_passes(g) for g in own]
    verified = [tokens_of_passes(g) for g in own]
    num_new = [new_tokens(g) for g in own]
    any_judged = sum(judged) > 0  # where nothing is judged (ar, draft-only) there is no acceptance to speak of
    threshold = verification.get("threshold") if verification.get("rule") == "fuzzy" else None

    def per_position(key: str) -> Metric:
        lists = [[value for value in g["positions"].get(key) or [] if value is not None] for g in own]
        return prompts.ratio([sum(values) for values in lists], [len(values) for values in lists])

    return {
        "acceptance_rate": prompts.mean([a / j if j else None for a, j in zip(accepted, judged, strict=True)]),
        "acceptance_rate_pooled": prompts.ratio(accepted, judged),
        "acceptance_rate_expected": per_position("overlap"),
        "draft_efficiency": prompts.mean([a / d if d else None for a, d in zip(accepted, drafted, strict=True)]),
        "mean_acceptance_length": prompts.ratio([tokens for tokens, _ in verified], [n for _, n in verified]),
        "accepted_length": prompts.ratio(accepted, num_steps) if any_judged else Metric(),
        "drafter_share": prompts.ratio(accepted, num_new) if any_judged else Metric(),
        # the prefill is the target pass that gives the first token
        "target_passes_per_token": prompts.ratio(
            [n or 0 for n in passes], [t * (n is not None) for t, n in zip(num_new, passes, strict=True)]
        ),
        # new_tokens · drafter_share · T of each example, as published: arXiv:2502.20704; its own caveats apply
        "divergence_bound": Metric() if threshold is None else prompts.mean([a * threshold for a in accepted]),
        "mean_divergence": per_position("divergence"),
    }


def _quality(prompts: Prompts, own: Sequence[Generation], baseline: Sequence[Generation]) -> dict[str, Metric]:
    pairs = [(a["score"], b["score"]) for a, b in zip(own, baseline, strict=True)]
    scored = [pair if None not in pair else (None, None) for pair in pairs]
    return {
        "accuracy": prompts.mean([a for a, _ in scored]),
        "accuracy_ar": prompts.mean([b for _, b in scored]),
        "accuracy_difference": prompts.mean([None if a is None or b is None else a - b for a, b in scored]),
        **{f"share_cut_by_{end}": prompts.mean([float(g["finish"] == end) for g in own]) for end in CUTS},
    }


def _expected(acceptance_rate: float | None, num_draft_tokens: int, cost_ratio: float | None) -> float | None:
    if acceptance_rate is None or cost_ratio is None:
        return None
    return expected_speedup(acceptance_rate, num_draft_tokens, cost_ratio)


def _overhead(generation: Generation) -> float:
    passes = generation["passes"]["target"] + generation["passes"]["draft"]
    return float(generation["decode_seconds"] - sum(seconds for _, seconds in passes))


def _known_median(values: Sequence[float | None]) -> float | None:
    return _median([value for value in values if value is not None])


def _median(values: Sequence[float]) -> float | None:
    return median(values) if values else None
