"""Answers → metrics: every number of a row.

Intervals resample prompts, each with its repeats and AR's answers. Totals and medians have none.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import count, takewhile
from typing import TypeVar

import numpy as np

from specbench.records.records import Key
from specbench.results.answers import (
    BASELINE,
    Answer,
    acceptance_rates,
    end_to_end_columns,
    joined,
    length_columns,
    prompt_of,
    speed_columns,
    verified_tokens,
)
from specbench.results.draft_lengths import length_metrics
from specbench.results.latency import quantiles
from specbench.results.scores import ScoringSpec, quality
from specbench.results.warnings import drift_of
from specbench.specs.method import MethodSpec
from specbench.statistics.bootstrap import SHARE, Array, Bounds, Estimate, Resampler

Number = TypeVar("Number", float, Array)


def acceptance(prompts: Resampler, own: Sequence[Answer], verification: Mapping[str, object]) -> dict[str, Estimate]:
    """Returns the metrics of acceptance and of target passes. A query that the drafter decoded alone has no target
    pass, so it counts in `target_passes_per_token` but not in the acceptance length."""
    drafted, accepted = [a.num_drafted for a in own], [a.num_accepted for a in own]
    num_steps, num_new = [a.num_steps for a in own], [a.num_new_tokens for a in own]
    passes = [a.target_passes for a in own]
    any_verified = any(a.num_verified for a in own)  # ar and draft-only verify nothing, so that they have no acceptance
    threshold = verification.get("threshold") if verification.get("rule") == "fuzzy" else None
    bound = Estimate()
    if isinstance(threshold, int | float):
        # mean of new_tokens · drafter_share · T, as published in arXiv:2502.20704, with the caveats given there
        bound = prompts.mean([number * threshold for number in accepted])

    def per_position(pairs: Sequence[tuple[float, int]], bounds: Bounds | None = None) -> Estimate:
        return prompts.ratio([total for total, _ in pairs], [number for _, number in pairs], bounds=bounds)

    unconditional = {}
    if any(a.draw_overlap is not None for a in own):  # else it would equal acceptance_rate_expected
        overlaps = per_position([a.draw_overlap or (0.0, 0) for a in own], SHARE)
        unconditional["acceptance_rate_unconditional"] = overlaps
    return {
        "acceptance_rate": prompts.mean(acceptance_rates(own), SHARE),
        "acceptance_rate_pooled": prompts.ratio(*verified_tokens(own), bounds=SHARE),
        "acceptance_rate_expected": per_position([a.overlap for a in own], SHARE),
        **unconditional,
        "draft_efficiency": prompts.mean([a / d if d else None for a, d in zip(accepted, drafted, strict=True)], SHARE),
        "mean_acceptance_length": prompts.ratio(*length_columns([own])),
        "accepted_length": prompts.ratio(accepted, num_steps) if any_verified else Estimate(),
        "drafter_share": prompts.ratio(accepted, num_new, bounds=SHARE) if any_verified else Estimate(),
        # the prefill is the target pass that gives the first token
        "target_passes_per_token": prompts.ratio(
            [n or 0 for n in passes], [t * (n is not None) for t, n in zip(num_new, passes, strict=True)]
        ),
        "divergence_bound": bound,
        "mean_divergence": per_position([a.divergence for a in own]),
    }


def accepted_tokens_per_step(own: Sequence[Answer], num_draft_tokens: int) -> tuple[int, ...] | None:
    """Returns a histogram: element k is the number of target passes after the prefill that accepted k draft tokens, for
    k from 0 to `num_draft_tokens`. Queries that the drafter decoded alone are left out. Returns None for an external
    decoder, and if no answer has a target pass."""
    verified = [a for a in own if not a.is_drafted_alone]
    if not verified or any(a.is_external and not (a.is_served and a.num_steps) for a in verified):
        return None
    counts = [0] * (num_draft_tokens + 1)
    for answer in verified:
        for num_accepted, number in enumerate(answer.accepted_by_step[: len(counts)]):
            counts[num_accepted] += number
    return tuple(counts)


def loops(
    prompts: Resampler, own: Sequence[Answer], baseline: Sequence[Answer], looping: Collection[Key], *,
    is_baseline: bool, in_orders: bool = False,
) -> dict[str, Estimate]:  # fmt: skip
    """Returns the shares of answers with a loop and of tokens in loops. If any method of the run loops, also speed-up
    and τ without the prompts at which one does: the same prompts for all methods."""
    found = {}
    for suffix, side in (("", own), ("_ar", baseline)):
        found[f"share_looping{suffix}"] = prompts.mean([float(a.num_loop_tokens > 0) for a in side], SHARE)
        found[f"share_in_loops{suffix}"] = prompts.ratio(
            [a.num_loop_tokens for a in side], [a.num_new_tokens for a in side], bounds=SHARE
        )
    kept = [place for place, answer in enumerate(own) if prompt_of(answer.key) not in looping]
    if len(kept) == len(own):
        return found
    own, baseline = ([side[place] for place in kept] for side in (own, baseline))
    speedup = Estimate(value=1.0) if is_baseline and kept else Estimate()
    if kept and not is_baseline:
        speedup = Resampler.of_times(own, prompts.seed, in_orders).ratio(*speed_columns([own, baseline]))
    length = Resampler.of(own, prompts.seed, in_orders).ratio(*length_columns([own])) if kept else Estimate()
    return found | {"speedup_without_loops": speedup, "mean_acceptance_length_without_loops": length}


def own_answers(own: Sequence[Answer]) -> dict[str, Estimate]:
    """Returns the number of prompts to which the memory held an earlier answer, which the drafter left out; nothing for
    a drafter without a memory of other prompts."""
    if all(a.left_out_own is None for a in own):
        return {}
    return {"num_own_answers": Estimate(value=len({a.key[:3] for a in own if a.left_out_own}))}


def consumption(prompts: Resampler, own: Sequence[Answer], baseline: Sequence[Answer]) -> dict[str, Estimate]:
    """Returns joules per new token and peak memory of the method and of the baseline. A metric is missing if an answer
    does not record it."""
    found = {}
    for suffix, side in (("", own), ("_ar", baseline)):
        for place in ("cpu", "gpu"):
            if side and all(getattr(a, f"{place}_joules") is not None for a in side):
                joules = [getattr(a, f"{place}_joules") for a in side]
                found[f"{place}_joules_per_token{suffix}"] = prompts.ratio(joules, [a.num_new_tokens for a in side])
        for place in ("host", "device"):
            name = f"peak_{place}_bytes"
            if side and all(getattr(a, name) is not None for a in side):
                found[f"{name}{suffix}"] = Estimate(value=max(getattr(a, f"peak_{place}_bytes") for a in side))
    return found


PER_PASS = (
    "draft_prefill_seconds", "draft_seconds", "verify_seconds", "overhead_seconds", "overhead_share", "cost_ratio",
)  # fmt: skip


def speeds(
    prompts: Resampler, own: Sequence[Answer], baseline: Sequence[Answer], *, is_baseline: bool,
    resampled: Resampler | None = None,
) -> dict[str, Estimate]:  # fmt: skip
    """Returns tokens, tokens per second, and speed-ups over the baseline on the same prompts. `resampled`: the units
    that intervals resample, by default prompts."""
    resampled = resampled or prompts
    # both speeds and the speed-up, which is their ratio, cover the same answers
    columns = speed_columns([own, baseline])
    same = Estimate(value=1.0)  # AR compared with itself: exact, not measured
    return {
        "num_prompts_timed": Estimate(value=len(set(prompts.cluster[np.array(columns[0]) > 0].tolist()))),
        "new_tokens": Estimate(value=sum(a.num_new_tokens for a in own)),
        "tokens_per_second": resampled.ratio(*columns[:2]),
        "tokens_per_second_ar": resampled.ratio(*columns[2:]),
        "speedup": same if is_baseline else resampled.ratio(*columns),
        "speedup_e2e": same if is_baseline else resampled.ratio(*end_to_end_columns([own, baseline])),
    }


def times(prompts: Resampler, own: Sequence[Answer], baseline: Sequence[Answer]) -> dict[str, Estimate]:
    """Returns the times of the parts of decoding, and the cost ratio. An external decoder does not report passes."""
    draft_passes = joined(own, "draft_passes")
    draft_seconds, draft_pass = float(draft_passes.sum()), _median(draft_passes)
    del draft_passes  # of all answers of a large run, as the next ones
    token_pass = _median(joined(baseline, "token_passes"))
    overheads = [[a.decode_seconds - a.pass_seconds for a in side] for side in (own, baseline)]
    shares = [
        prompts.ratio(seconds, [a.decode_seconds for a in side], bounds=SHARE)
        for seconds, side in zip(overheads, (own, baseline), strict=True)
    ]
    parts = {name: [getattr(a, name) for a in own] for name in ("rule_seconds", "tokenizer_seconds")}
    sums = {name: None if None in column else sum(filter(None, column)) for name, column in parts.items()}
    other = None if None in sums.values() else sum(overheads[0]) - sum(filter(None, sums.values()))
    values = {
        "ttft_seconds": _median(a.ttft_seconds for a in own),
        "draft_prefill_seconds": _median(a.draft_prefill_seconds for a in own),
        "tpot_seconds": _median(a.decode_seconds / a.num_timed_tokens for a in own if a.num_timed_tokens > 0),
        "draft_seconds": draft_seconds,
        "verify_seconds": sum(a.target_seconds for a in own),
        "overhead_seconds": sum(overheads[0]),
        **sums,  # unknown where an answer does not record them
        "other_seconds": other,
    }  # fmt: skip
    found = {name: Estimate(value=value) for name, value in values.items()} | {
        "overhead_share": shares[0], "overhead_share_ar": shares[1],
        "cost_ratio": Estimate(value=draft_pass / token_pass if draft_pass is not None and token_pass else None),
    }  # fmt: skip
    if any(a.is_external for a in own):
        found |= {name: Estimate() for name in PER_PASS}
    if any(a.is_served for a in own):
        found |= served_metrics(prompts, own, baseline)
    return found


def ar_drift(baseline: Sequence[Answer]) -> Estimate:
    """Returns the change of AR's speed during the run (`warnings.drift_of`), over the answers with a timed token; null
    if a record has no `measured_at`."""
    if any(a.measured_at is None for a in baseline):
        return Estimate()
    timed = sorted((a for a in baseline if a.num_timed_tokens > 0), key=lambda a: a.measured_at or 0.0)
    return drift_of(
        np.array([a.decode_seconds for a in timed], dtype=np.float64),
        np.array([a.num_timed_tokens for a in timed], dtype=np.float64),
        np.array([a.prompt_tokens for a in timed], dtype=np.float64),
        Resampler.of_times(timed, seed=0).cluster,
    )


def expected_speedup(
    acceptance_rate: float, num_draft_tokens: int, cost_ratio: Number, verification_cost: Number | float = 1.0
) -> Number:
    """Returns f(α, γ, c) = (1 − α^{γ+1}) / ((1 − α)(γc + 1)), computed as Σ_{k=0..γ} α^k / (γc + 1), which also holds
    for α = 1. It assumes one draft pass for each of the γ draft tokens. Source: arXiv:2211.17192, theorem 3.8, where a
    verifying pass costs one target pass; here it costs `verification_cost`."""
    tokens_per_step = sum(acceptance_rate**k for k in range(num_draft_tokens + 1))
    return tokens_per_step / (num_draft_tokens * cost_ratio + verification_cost)


def _median(values: Iterable[float | None] | Array) -> float | None:
    """Returns the median of the known values; None without any. An array is sorted in part."""
    known = values if isinstance(values, np.ndarray) else np.array([value for value in values if value is not None])
    return float(np.median(known, overwrite_input=True)) if len(known) else None


def metrics_of(
    own: Sequence[Answer], baseline: Sequence[Answer], method: MethodSpec, seed: int = 0,
    scoring: Mapping[str, ScoringSpec] | None = None, looping: Collection[Key] = (), in_orders: bool = False,
) -> dict[str, Estimate]:  # fmt: skip
    """Returns every metric of a method, with its parameters taken from the specification (see `summarize`)."""
    taken = routes_taken(own, method)
    part = method.route(taken[0]) if len(taken) == 1 else method
    return summarize(
        own, baseline, is_baseline=method.name == BASELINE, num_draft_tokens=part.most_draft_tokens,
        verification=method.verification.model_dump(), decodes_with=method.decodes_with,
        drafts_token_by_token=part.drafts_token_by_token, has_draft_length=method.draft_length is not None, seed=seed,
        scoring=scoring, looping=looping, in_orders=in_orders,
    )  # fmt: skip


def routes_taken(own: Sequence[Answer], method: MethodSpec) -> list[str]:
    """Returns the routes that the answers took, in the order of the method's file; an empty list for a method without
    routes. Raises ValueError for an unknown route."""
    if method.routes is None:
        return []
    found = {a.route for a in own}
    for route in found:
        if route not in method.routes:
            raise ValueError(f"records of {method.name}: the method has no route {route!r}")
    return [route for route in method.routes if route in found]


def summarize(
    own: Sequence[Answer], baseline: Sequence[Answer], *, is_baseline: bool, num_draft_tokens: int,
    verification: Mapping[str, object], decodes_with: str = "target", drafts_token_by_token: bool = True,
    has_draft_length: bool = False, seed: int = 0, scoring: Mapping[str, ScoringSpec] | None = None,
    looping: Collection[Key] = (), in_orders: bool = False,
) -> dict[str, Estimate]:  # fmt: skip
    """Returns every metric of a method's answers, paired with AR's answers to the same prompts.

    `verification`: the rule with its options as one mapping: {"rule": "fuzzy", "threshold": 0.3, …}. `decodes_with`:
    "drafter" if the drafter decodes alone, so that every pass is a draft pass; "random" if it does so for the queries
    whose record names it in `decoded_by`. Speeds and scores cover all queries, `mean_acceptance_length` those with
    target passes. `drafts_token_by_token`: whether each draft token takes a draft pass, as `speedup_expected` assumes.
    `has_draft_length`: whether the method decides how many tokens a step drafts.
    `scoring`: scorer and language by subset; without it, the single score of a record is its accuracy. `looping`: the
    prompts to which any method of the run gave an answer with a loop (`RunAnswers.looping`). `in_orders`: whether each
    repeat has a random order of the prompts, which the numbers depend on.

    If queries took several routes, each with its own drafter, `cost_ratio` and all that depends on it are null.
    """
    prompts, expected = Resampler.of(own, seed, in_orders), Estimate()
    scores = quality(prompts, own, baseline, scoring or {})
    if is_baseline:  # AR compared with itself: exact, not measured
        same = {name for name, metric in scores.items() if name.endswith("_difference") and metric.value == 0}
        scores |= dict.fromkeys(same, Estimate(value=0.0))
    metrics = {
        **speeds(prompts, own, baseline, is_baseline=is_baseline, resampled=Resampler.of_times(own, seed, in_orders)),
        **times(prompts, own, baseline),
        "ar_drift": ar_drift(baseline),
        **consumption(prompts, own, baseline),
        **acceptance(prompts, own, verification),
        **loops(prompts, own, baseline, looping, is_baseline=is_baseline, in_orders=in_orders),
        **own_answers(own),
        **scores,
    }
    if any(a.is_tree for a in own):
        metrics |= tree_metrics(prompts, own, baseline, metrics)
    if decodes_with == "random":
        alone = [a.num_new_tokens * a.is_drafted_alone for a in own]
        metrics["drafter_share"] = prompts.ratio(alone, [a.num_new_tokens for a in own], bounds=SHARE)
    if decodes_with != "target":
        metrics["draft_prefill_seconds"] = Estimate()  # part of ttft_seconds, not measured separately
    if len({a.route for a in own}) > 1:
        metrics["cost_ratio"] = Estimate()
    if has_draft_length:
        metrics |= length_metrics(prompts, own, baseline, metrics["cost_ratio"].value)
    rate = metrics["acceptance_rate"].value
    cost = metrics["cost_ratio"].value
    if drafts_token_by_token and rate is not None and cost is not None:
        expected = Estimate(value=expected_speedup(rate, num_draft_tokens, cost))
    return {**metrics, "speedup_expected": expected}


COST = "verification_cost"
MIN_PASSES = 10
LEVEL_CHANCES = ("tree_acceptance_expected", "tree_acceptance_optimal")


def tree_metrics(
    prompts: Resampler, own: Sequence[Answer], baseline: Sequence[Answer], found: Mapping[str, Estimate]
) -> dict[str, Estimate]:
    """Returns the metrics that only draft trees have. `found`: the metrics that all methods have."""
    num_steps, num_plain_steps = ([a.num_steps for a in side] for side in (own, baseline))
    verifying, plain = ([a.target_seconds for a in side] for side in (own, baseline))
    trees = {
        "tree_nodes": prompts.ratio([a.num_drafted * a.is_tree for a in own], num_steps),
        "tree_depth": prompts.ratio([a.num_draft_levels for a in own], num_steps),
        "draft_passes_per_step": prompts.ratio([len(a.draft_passes) for a in own], num_steps),
        COST: prompts.ratio(verifying, num_steps, plain, num_plain_steps),
        **costs_by_length(prompts, own, (plain, num_plain_steps)),
        **rank_chances(prompts, own),
        **level_chances(prompts, own),
    }
    values = {name: metric.value for name, metric in {**found, **trees}.items()}
    speedup = None
    if sum(plain):
        target_pass = sum(plain) / sum(num_plain_steps)
        plain_step = sum(a.decode_seconds for a in baseline) / sum(num_plain_steps) / target_pass
        overhead = (values["overhead_seconds"] or 0.0) / (sum(num_steps) or 1) / target_pass
        speedup = speedup_of_costs(values, overhead, plain_step)
    return {**trees, "speedup_of_costs": Estimate(value=speedup)}


def speedup_of_costs(values: Mapping[str, float | None], overhead: float, plain_step: float) -> float | None:
    """Returns the speed-up that the costs explain: τ · `plain_step` ÷ (draft passes per step · c + v + `overhead`).
    `overhead`: the overhead of a step. `plain_step`: a step of the baseline. Both in target passes over one token."""
    names = ("mean_acceptance_length", "draft_passes_per_step", "cost_ratio", COST)
    length, passes, cost_ratio, verifying = (values[name] for name in names)
    if length is None or passes is None or cost_ratio is None or verifying is None:
        return None
    return length * plain_step / (passes * cost_ratio + verifying + overhead)


def costs_by_length(
    prompts: Resampler, own: Sequence[Answer], baseline: tuple[list[float], list[int]]
) -> dict[str, Estimate]:
    """Returns the verification cost by the number of tokens that a pass reads, in classes that end at powers of two.
    Classes of fewer than MIN_PASSES passes are left out. `baseline`: seconds and number of passes of AR's answers."""
    classes: dict[int, list[list[float]]] = {}
    for place, answer in enumerate(own):
        for most, (seconds, number) in answer.passes_by_length.items():
            sums = classes.setdefault(most, [[0.0] * len(own), [0.0] * len(own)])
            sums[0][place], sums[1][place] = seconds, number
    return {
        f"{COST}@{most}": prompts.ratio(seconds, num_passes, *baseline)
        for most, (seconds, num_passes) in sorted(classes.items()) if sum(num_passes) >= MIN_PASSES
    }  # fmt: skip


def rank_chances(prompts: Resampler, own: Sequence[Answer]) -> dict[str, Estimate]:
    """Returns for each rank, from 1 on: of the verified nodes with a child of this rank, the share whose child of this
    rank was accepted."""
    counts = [a.tree_ranks for a in own]
    ranks = [[each[rank] if rank < len(each) else (0, 0) for each in counts] for rank in range(max(map(len, counts)))]
    return {
        f"rank_chance@{rank}": prompts.ratio([pair[1] for pair in pairs], [pair[0] for pair in pairs], bounds=SHARE)
        for rank, pairs in enumerate(ranks, start=1)
    }


def level_chances(prompts: Resampler, own: Sequence[Answer]) -> dict[str, Estimate]:
    """Returns for each level, from 1 on, the mean chance of acceptance under the rule, and the optimal one, over the
    sampled steps."""
    found = {}
    for level in range(max(len(a.level_chances) for a in own)):
        sums = [a.level_chances[level] if level < len(a.level_chances) else (0.0, 0.0, 0) for a in own]
        for place, name in enumerate(LEVEL_CHANCES):
            found[f"{name}@{level + 1}"] = prompts.ratio(
                [each[place] for each in sums], [each[2] for each in sums], bounds=SHARE
            )
    return found


def numbered_metrics(metrics: Mapping[str, Estimate], name: str) -> list[Estimate]:
    """Returns the metrics NAME@1, NAME@2, … of a row."""
    found = (metrics.get(f"{name}@{number}") for number in count(1))
    return list(takewhile(lambda metric: metric is not None, found))  # type: ignore[arg-type]


def served_metrics(prompts: Resampler, own: Sequence[Answer], baseline: Sequence[Answer]) -> dict[str, Estimate]:
    """Returns the metrics that only served answers have: quantiles of times, accepted ÷ drafted tokens by the engine's
    counts (null if an answer has none), and the share of repeated answers of `ar` that changed. If any answer has
    reasoning, the time to the first token of the answer proper is among the times."""
    totals = [totals for a in own if (totals := a.reported.totals) is not None]
    share = Estimate()
    if len(totals) == len(own):
        share = prompts.ratio([total[2] for total in totals], [total[0] for total in totals], bounds=SHARE)
    again = [a.reported.same_again for a in baseline]
    changed = prompts.mean([None if same is None else float(not same) for same in again], SHARE)
    spans = {
        "ttft": [a.ttft_seconds for a in own if a.ttft_seconds is not None],
        "tpot": [a.decode_seconds / a.num_timed_tokens for a in own if a.num_timed_tokens > 0],
        "itl": joined(own, "token_gaps").tolist(),
        "e2e": [a.seconds for a in own],
    }
    if any(a.reasoning_tokens for a in own):
        spans["ttfa"] = [seconds for a in own if (seconds := a.reported.answer_seconds) is not None]
    return {**quantiles(spans), "accepted_per_drafted": share, "ar_changed": changed}
