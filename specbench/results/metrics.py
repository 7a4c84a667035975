"""Records → metrics: computes every number of a row from the raw records alone.

Intervals resample prompts, each with its repeats and AR's answers. Totals and medians have none.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain, count, takewhile, zip_longest
from statistics import median
from typing import TypeVar

import numpy as np

from specbench.records.folder import RecordedMethod
from specbench.records.records import Generation, Record
from specbench.results.answers import (
    ScoringSpec,
    acceptance_rates,
    length_columns,
    quality,
    speed_columns,
    verified_tokens,
    with_own_passes,
)
from specbench.results.warnings import drift_of
from specbench.specs.method import MethodSpec
from specbench.statistics.bootstrap import SHARE, Array, Bounds, Estimate, Resampler

Number = TypeVar("Number", float, Array)


def acceptance(
    prompts: Resampler, own: Sequence[Generation], verification: Mapping[str, object]
) -> dict[str, Estimate]:
    """Returns the metrics of acceptance and of target passes. A query that the drafter decoded alone has no target
    pass, so it counts in `target_passes_per_token` but not in the acceptance length."""
    drafted = [g.num_drafted for g in own]
    verified, accepted = [g.num_verified for g in own], [g.num_accepted for g in own]
    num_steps = [len(g.steps) for g in own]
    passes = [g.target_passes for g in own]
    num_new = [g.num_new_tokens for g in own]
    any_verified = sum(verified) > 0  # ar and draft-only verify nothing, so that they have no acceptance
    threshold = verification.get("threshold") if verification.get("rule") == "fuzzy" else None
    bound = Estimate()
    if isinstance(threshold, int | float):
        # mean of new_tokens · drafter_share · T, as published in arXiv:2502.20704, with the caveats given there
        bound = prompts.mean([number * threshold for number in accepted])

    def over_values(lists: Sequence[Sequence[float]], bounds: Bounds | None = None) -> Estimate:
        return prompts.ratio(list(map(sum, lists)), list(map(len, lists)), bounds=bounds)

    def per_position(key: str, bounds: Bounds | None = None) -> Estimate:
        columns: list[Sequence[float]] = [[] if g.is_tree else g.positions.get(key) or [] for g in own]
        for number, column in enumerate(columns):
            if math.isnan(sum(column)):
                columns[number] = [value for value in column if value == value]
        return over_values(columns, bounds)

    unconditional = {}
    if any(g.draw_overlap is not None for g in own):  # else it would equal acceptance_rate_expected
        overlaps: list[Sequence[float]] = [g.draw_overlap or [] for g in own]
        unconditional["acceptance_rate_unconditional"] = over_values(overlaps, SHARE)
    return {
        "acceptance_rate": prompts.mean(acceptance_rates(own), SHARE),
        "acceptance_rate_pooled": prompts.ratio(*verified_tokens(own), bounds=SHARE),
        "acceptance_rate_expected": per_position("overlap", SHARE),
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
        "mean_divergence": per_position("divergence"),
    }


def accepted_tokens_per_step(own: Sequence[Generation], num_draft_tokens: int) -> tuple[int, ...] | None:
    """Returns a histogram: element k is the number of target passes after the prefill that accepted k draft tokens, for
    k from 0 to `num_draft_tokens`. Queries that the drafter decoded alone are left out. Returns None for an external
    decoder, and if no answer has a target pass."""
    verified = [g for g in own if not g.is_drafted_alone]
    if not verified or any(g.is_external and not (g.is_served and g.steps) for g in verified):
        return None
    accepted = np.concatenate([g.steps.accepted for g in verified])
    return tuple(np.bincount(accepted, minlength=num_draft_tokens + 1)[: num_draft_tokens + 1].tolist())


def consumption(prompts: Resampler, own: Sequence[Generation], baseline: Sequence[Generation]) -> dict[str, Estimate]:
    """Returns joules per new token and peak memory of the method and of the baseline. A metric is missing if an answer
    does not record it."""
    found = {}
    for suffix, side in (("", own), ("_ar", baseline)):
        for place in ("cpu", "gpu"):
            if side and all(getattr(g, f"{place}_joules") is not None for g in side):
                joules = [getattr(g, f"{place}_joules") for g in side]
                found[f"{place}_joules_per_token{suffix}"] = prompts.ratio(joules, [g.num_new_tokens for g in side])
        for place in ("host", "device"):
            name = f"peak_{place}_bytes"
            if side and all(getattr(g, name) is not None for g in side):
                found[f"{name}{suffix}"] = Estimate(value=max(getattr(g, f"peak_{place}_bytes") for g in side))
    return found


PER_PASS = (
    "draft_prefill_seconds", "draft_seconds", "verify_seconds", "overhead_seconds", "overhead_share", "cost_ratio",
)  # fmt: skip


def speeds(
    prompts: Resampler, own: Sequence[Generation], baseline: Sequence[Generation], *, is_baseline: bool,
    resampled: Resampler | None = None,
) -> dict[str, Estimate]:  # fmt: skip
    """Returns tokens, tokens per second, and speed-ups over the baseline on the same prompts. `resampled`: the units
    that intervals resample, by default prompts."""
    resampled = resampled or prompts
    # both speeds and the speed-up, which is their ratio, cover the same answers
    columns = speed_columns([own, baseline])
    end_to_end: list[list[float]] = []
    for side in (own, baseline):
        end_to_end += [g.num_new_tokens for g in side], [(g.ttft_seconds or 0.0) + g.decode_seconds for g in side]
    same = Estimate(value=1.0)  # AR compared with itself: exact, not measured
    return {
        "num_prompts_timed": Estimate(value=len(set(prompts.cluster[np.array(columns[0]) > 0].tolist()))),
        "new_tokens": Estimate(value=sum(g.num_new_tokens for g in own)),
        "tokens_per_second": resampled.ratio(*columns[:2]),
        "tokens_per_second_ar": resampled.ratio(*columns[2:]),
        "speedup": same if is_baseline else resampled.ratio(*columns),
        "speedup_e2e": same if is_baseline else resampled.ratio(*end_to_end),
    }


def times(prompts: Resampler, own: Sequence[Generation], baseline: Sequence[Generation]) -> dict[str, Estimate]:
    """Returns the times of the parts of decoding, and the cost ratio. An external decoder does not report passes."""
    draft_passes = list(chain.from_iterable(g.passes.draft.seconds for g in own))
    token_passes = [
        np.asarray(g.passes.target.seconds)[np.asarray(g.passes.target.query_lengths) == 1] for g in baseline
    ]
    draft_pass, token_pass = _median(draft_passes), _median(chain.from_iterable(token_passes))
    overheads = [
        [float(g.decode_seconds - sum(chain(g.passes.target.seconds, g.passes.draft.seconds))) for g in side]
        for side in (own, baseline)
    ]
    shares = [
        prompts.ratio(seconds, [g.decode_seconds for g in side], bounds=SHARE)
        for seconds, side in zip(overheads, (own, baseline), strict=True)
    ]
    parts = {name: [getattr(g, name) for g in own] for name in ("rule_seconds", "tokenizer_seconds")}
    sums = {name: None if None in column else sum(filter(None, column)) for name, column in parts.items()}
    other = None if None in sums.values() else sum(overheads[0]) - sum(filter(None, sums.values()))
    values = {
        "ttft_seconds": _median(g.ttft_seconds for g in own),
        "draft_prefill_seconds": _median(g.draft_prefill_seconds for g in own),
        "tpot_seconds": _median(g.decode_seconds / g.num_timed_tokens for g in own if g.num_timed_tokens > 0),
        "draft_seconds": sum(draft_passes),
        "verify_seconds": sum(chain.from_iterable(g.passes.target.seconds for g in own)),
        "overhead_seconds": sum(overheads[0]),
        **sums,  # unknown where an answer does not record them
        "other_seconds": other,
    }  # fmt: skip
    found = {name: Estimate(value=value) for name, value in values.items()} | {
        "overhead_share": shares[0], "overhead_share_ar": shares[1],
        "cost_ratio": Estimate(value=draft_pass / token_pass if draft_pass is not None and token_pass else None),
    }  # fmt: skip
    if any(generation.is_external for generation in own):
        found |= {name: Estimate() for name in PER_PASS}
    if any(g.is_served for g in own):
        found |= served_metrics(prompts, own, baseline)
    return found


def ar_drift(records: Sequence[Record]) -> Estimate:
    """Returns the change of AR's speed during the run (`warnings.drift_of`), over the answers with a timed token; null
    if a record has no `measured_at`."""
    if any(record.measured_at is None for record in records):
        return Estimate()
    ordered = sorted(records, key=lambda record: record.measured_at or 0.0)
    timed = [record for record in ordered if record.methods["ar"].num_timed_tokens > 0]
    baseline = [record.methods["ar"] for record in timed]
    return drift_of(
        np.array([g.decode_seconds for g in baseline], dtype=np.float64),
        np.array([g.num_timed_tokens for g in baseline], dtype=np.float64),
        np.array([record.prompt_tokens for record in timed], dtype=np.float64),
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


def _median(values: Iterable[float | None]) -> float | None:
    """Returns the median of the known values; None without any."""
    known = [value for value in values if value is not None]
    return float(np.median(known)) if known else None


def metrics_of(
    records: Sequence[Record], method: MethodSpec, seed: int = 0, scoring: Mapping[str, ScoringSpec] | None = None
) -> dict[str, Estimate]:
    """Returns every metric of a method, with its parameters taken from the specification (see `summarize`)."""
    taken = routes_taken(records, method)
    part = method.route(taken[0]) if len(taken) == 1 else method
    return summarize(
        records, method.name, num_draft_tokens=part.most_draft_tokens, verification=method.verification.model_dump(),
        decodes_with=method.decodes_with, drafts_token_by_token=part.drafts_token_by_token, seed=seed, scoring=scoring,
    )  # fmt: skip


def accepted_tokens_per_step_of(
    records: Sequence[Record], method: MethodSpec | RecordedMethod
) -> tuple[int, ...] | None:
    own = [_own_generation(record, method.name, method.decodes_with) for record in records]
    return accepted_tokens_per_step(own, method.most_draft_tokens)


def routes_taken(records: Sequence[Record], method: MethodSpec) -> list[str]:
    """Returns the routes that the records took, in the order of the method's file; an empty list for a method without
    routes. Raises ValueError naming a record of an unknown route."""
    if method.routes is None:
        return []
    found = {record.methods[method.name].route: record for record in records}
    for route, record in found.items():
        if route not in method.routes:
            raise ValueError(f"record of {record.name}: {method.name}: the method has no route {route!r}")
    return [route for route in method.routes if route in found]


def summarize(
    records: Sequence[Record], method: str, *, num_draft_tokens: int, verification: Mapping[str, object],
    decodes_with: str = "target", drafts_token_by_token: bool = True, seed: int = 0,
    scoring: Mapping[str, ScoringSpec] | None = None,
) -> dict[str, Estimate]:  # fmt: skip
    """Returns every metric of one method over the records, paired with AR on the same prompts.

    `verification`: the rule with its options as one mapping: {"rule": "fuzzy", "threshold": 0.3, …}. `decodes_with`:
    "drafter" if the drafter decodes alone, so that every pass is a draft pass; "random" if it does so for the queries
    whose record names it in `decoded_by`. Speeds and scores cover all queries, `mean_acceptance_length` those with
    target passes. `drafts_token_by_token`: whether each draft token takes a draft pass, as `speedup_expected` assumes.
    `scoring`: scorer and language by subset; without it, the single score of a record is its accuracy.

    If queries took several routes, each with its own drafter, `cost_ratio` and all that depends on it are null.

    Raises ValueError naming a record whose counts contradict each other.
    """
    for record in records:
        record.check_counts("ar", 0)
        record.check_counts(method, num_draft_tokens)
    own = [_own_generation(record, method, decodes_with) for record in records]
    baseline = [record.methods["ar"] for record in records]
    prompts, expected = Resampler.of(records, seed), Estimate()
    scores = quality(prompts, records, own, baseline, scoring or {})
    if method == "ar":  # AR compared with itself: exact, not measured
        same = {name for name, metric in scores.items() if name.endswith("_difference") and metric.value == 0}
        scores |= dict.fromkeys(same, Estimate(value=0.0))
    metrics = {
        **speeds(prompts, own, baseline, is_baseline=method == "ar", resampled=Resampler.of_times(records, seed)),
        **times(prompts, own, baseline),
        "ar_drift": ar_drift(records),
        **consumption(prompts, own, baseline),
        **acceptance(prompts, own, verification),
        **scores,
    }
    if any(generation.is_tree for generation in own):
        metrics |= tree_metrics(prompts, own, baseline, metrics)
    if decodes_with == "random":
        alone = [g.num_new_tokens * g.is_drafted_alone for g in own]
        metrics["drafter_share"] = prompts.ratio(alone, [g.num_new_tokens for g in own], bounds=SHARE)
    if decodes_with != "target":
        metrics["draft_prefill_seconds"] = Estimate()  # part of ttft_seconds, not measured separately
    if len({generation.route for generation in own}) > 1:
        metrics["cost_ratio"] = Estimate()
    rate, cost = metrics["acceptance_rate"].value, metrics["cost_ratio"].value
    if drafts_token_by_token and rate is not None and cost is not None:
        expected = Estimate(value=expected_speedup(rate, num_draft_tokens, cost))
    return {**metrics, "speedup_expected": expected}


def _own_generation(record: Record, method: str, decodes_with: str) -> Generation:
    try:
        return with_own_passes(record.methods[method], decodes_with)
    except ValueError as error:
        raise ValueError(f"record of {record.name}: {method}: {error}") from error


COST = "verification_cost"
MIN_PASSES = 10
LEVEL_CHANCES = ("tree_acceptance_expected", "tree_acceptance_optimal")


def tree_metrics(
    prompts: Resampler, own: Sequence[Generation], baseline: Sequence[Generation], found: Mapping[str, Estimate]
) -> dict[str, Estimate]:
    """Returns the metrics that only draft trees have. `found`: the metrics that all methods have."""
    num_steps, num_plain_steps = ([len(g.steps) for g in side] for side in (own, baseline))
    verifying, plain = ([sum(seconds for _, seconds in g.passes.target) for g in side] for side in (own, baseline))
    trees = {
        "tree_nodes": prompts.ratio([sum(g.tree_nodes or ()) for g in own], num_steps),
        "tree_depth": prompts.ratio([g.num_draft_levels for g in own], num_steps),
        "draft_passes_per_step": prompts.ratio([len(g.passes.draft) for g in own], num_steps),
        COST: prompts.ratio(verifying, num_steps, plain, num_plain_steps),
        **costs_by_length(prompts, own, (plain, num_plain_steps)),
        **rank_chances(prompts, own),
        **level_chances(prompts, own),
    }
    values = {name: metric.value for name, metric in {**found, **trees}.items()}
    speedup = None
    if sum(plain):
        target_pass = sum(plain) / sum(num_plain_steps)
        plain_step = sum(g.decode_seconds for g in baseline) / sum(num_plain_steps) / target_pass
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
    prompts: Resampler, own: Sequence[Generation], baseline: tuple[list[float], list[int]]
) -> dict[str, Estimate]:
    """Returns the verification cost by the number of tokens that a pass reads, in classes that end at powers of two.
    Classes of fewer than MIN_PASSES passes are left out. `baseline`: seconds and number of passes of AR's answers."""
    classes: dict[int, list[list[float]]] = {}
    for place, generation in enumerate(own):
        for length, seconds in generation.passes.target:
            sums = classes.setdefault(1 << (length - 1).bit_length(), [[0.0] * len(own), [0.0] * len(own)])
            sums[0][place] += seconds
            sums[1][place] += 1
    return {
        f"{COST}@{most}": prompts.ratio(seconds, num_passes, *baseline)
        for most, (seconds, num_passes) in sorted(classes.items()) if sum(num_passes) >= MIN_PASSES
    }  # fmt: skip


def rank_chances(prompts: Resampler, own: Sequence[Generation]) -> dict[str, Estimate]:
    """Returns for each rank, from 1 on: of the verified nodes with a child of this rank, the share whose child of this
    rank was accepted."""
    counts = [g.tree_ranks or [] for g in own]
    ranks = [[each[rank] if rank < len(each) else (0, 0) for each in counts] for rank in range(max(map(len, counts)))]
    return {
        f"rank_chance@{rank}": prompts.ratio([pair[1] for pair in pairs], [pair[0] for pair in pairs], bounds=SHARE)
        for rank, pairs in enumerate(ranks, start=1)
    }


def level_chances(prompts: Resampler, own: Sequence[Generation]) -> dict[str, Estimate]:
    """Returns for each level, from 1 on, the mean chance of acceptance under the rule, and the optimal one, over the
    sampled steps."""
    levels = [list(zip_longest(*(g.tree_samples or []))) for g in own]
    found = {}
    for level in range(max(map(len, levels))):
        samples = [list(filter(None, each[level])) if level < len(each) else [] for each in levels]
        for place, name in enumerate(LEVEL_CHANCES):
            sums = [sum(pair[place] for pair in each) for each in samples]
            found[f"{name}@{level + 1}"] = prompts.ratio(sums, list(map(len, samples)), bounds=SHARE)
    return found


def numbered_metrics(metrics: Mapping[str, Estimate], name: str) -> list[Estimate]:
    """Returns the metrics NAME@1, NAME@2, … of a row."""
    found = (metrics.get(f"{name}@{number}") for number in count(1))
    return list(takewhile(lambda metric: metric is not None, found))  # type: ignore[arg-type]


def served_metrics(
    prompts: Resampler, own: Sequence[Generation], baseline: Sequence[Generation]
) -> dict[str, Estimate]:
    """Returns the metrics that only served answers have: the time from the request to the last token, accepted ÷
    drafted tokens by the engine's counts (null if an answer has none), and the share of repeated answers of `ar` that
    changed."""
    totals = [totals for generation in own if (totals := generation.reported.totals) is not None]
    share = Estimate()
    if len(totals) == len(own):
        share = prompts.ratio([total[2] for total in totals], [total[0] for total in totals], bounds=SHARE)
    again = [g.reported.same_again for g in baseline]
    changed = prompts.mean([None if same is None else float(not same) for same in again], SHARE)
    whole = median((generation.ttft_seconds or 0.0) + generation.decode_seconds for generation in own)
    return {"e2e_seconds": Estimate(value=whole), "accepted_per_drafted": share, "ar_changed": changed}
