"""Recorded generations → tokens per second, speed-ups, and where the time went."""

from collections.abc import Sequence
from statistics import median

from specbench.results.bootstrap import SHARE, Metric, Prompts
from specbench.results.counts import new_tokens, timed_tokens
from specbench.running.records import Generation

PER_PASS = (
    "draft_prefill_seconds", "draft_seconds", "verify_seconds", "overhead_seconds", "overhead_share", "cost_ratio",
)  # fmt: skip


def speeds(
    prompts: Prompts, own: Sequence[Generation], baseline: Sequence[Generation], *, is_baseline: bool
) -> dict[str, Metric]:
    """Tokens, tokens per second, and speed-ups over the baseline on the same prompts."""
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
    """Seconds by what they were spent on, and the cost ratio. An external decoder's passes are its own affair."""
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
    """What the overhead was spent on; null where an answer does not say it."""
    told: dict[str, list[float | None]] = {
        name: [g.get(name) for g in own] for name in ("rule_seconds", "tokenizer_seconds")
    }
    sums = {name: sum(filter(None, values)) if None not in values else None for name, values in told.items()}
    known = [value for value in sums.values() if value is not None]
    other = sum(_overhead(g) for g in own) - sum(known) if len(known) == len(sums) else None
    return {name: Metric(value=value) for name, value in (sums | {"other_seconds": other}).items()}


def expected_speedup(
    acceptance_rate: float, num_draft_tokens: int, cost_ratio: float, verifying_cost: float = 1.0
) -> float:
    """f(α, γ, c) = (1 − α^{γ+1}) / ((1 − α)(γc + 1)) as the sum Σ_{k=0..γ} α^k / (γc + 1), which holds at α = 1 too.

    It assumes that each of the γ draft tokens is a draft pass. arXiv:2211.17192, theorem 3.8; there a verifying pass
    costs one pass over a single token, `verifying_cost` is what it costs instead.
    """
    tokens_per_step = sum(acceptance_rate**k for k in range(num_draft_tokens + 1))
    return tokens_per_step / (num_draft_tokens * cost_ratio + verifying_cost)


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
