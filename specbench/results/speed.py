"""Recorded generations → tokens per second, speed-ups, and where the time went."""

from collections.abc import Sequence
from statistics import median

from specbench.results.acceptance import new_tokens, timed_tokens
from specbench.results.bootstrap import Metric, Prompts
from specbench.results.row import Row
from specbench.results.shares import SHARE
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


UNEVEN = 1.5  # times c that the mean of draft passes may be before that is said
LITTLE = 0.05  # passes of the baseline that a step may take longer for that, and nothing is said
DEAR = 1.25  # passes of the baseline that a verifying pass may take before that is said


def token_pass(rows: Sequence[Row]) -> float | None:
    """The mean seconds of a pass of the baseline, where it stands among the rows."""
    plain = next((row for row in rows if name_of(row) == "ar" and row.accepted_lengths), None)
    return None if plain is None else number_of(plain, "verify_seconds") / sum(plain.accepted_lengths or ())


def verifying_cost(row: Row, plain: float | None) -> float | None:
    """v: the mean verifying pass in mean passes of the baseline, which take `plain` seconds; None where the steps of a
    method are not known."""
    whole, num_passes = value_of(row, "verify_seconds"), sum(row.accepted_lengths or ())
    return whole / num_passes / plain if whole and num_passes and plain else None


def dear(rows: Sequence[Row]) -> str | None:
    """Where verifying a draft costs more than one pass of the baseline, which the expected speed-up takes it for: a
    line that says what is expected with it."""
    plain = token_pass(rows)
    told = [
        f"{name_of(row)} {_expected(row, cost):.2f}"
        for row in rows
        if (cost := verifying_cost(row, plain)) and cost >= DEAR and value_of(row, "speedup_expected") is not None
    ]
    if not told:
        return None
    return f"the expected speed-up takes a verifying pass for one pass of ar; with v it is {', '.join(told)}"


def _expected(row: Row, cost: float) -> float:
    rate, cost_ratio = number_of(row, "acceptance_rate"), number_of(row, "cost_ratio")
    return expected_speedup(rate, row.num_draft_tokens, cost_ratio, cost)


def uneven(row: Row, plain: float | None) -> str | None:
    """Where c, which is of median passes, is not what drafting took on average: a line that says both. The mean is the
    least that it can be, as if every step had drafted all its tokens; of drafts as text it is not known."""
    cost, whole = value_of(row, "cost_ratio"), value_of(row, "draft_seconds")
    num_passes = row.num_draft_tokens * sum(row.accepted_lengths or ())
    if not (cost and whole and num_passes and plain) or value_of(row, "speedup_expected") is None:
        return None
    mean = whole / num_passes / plain
    if mean < UNEVEN * cost or row.num_draft_tokens * (mean - cost) < LITTLE:
        return None
    return (
        f"{name_of(row)}: c = {cost:.3f} is of medians, but its draft passes took {mean:.3f} of a target pass on "
        "average: a few took far longer than most (a busy machine?), which the expected speed-up leaves out"
    )


def name_of(row: Row) -> str:
    return row.method_name


def value_of(row: Row, name: str) -> float | None:
    return row.metrics.get(name, Metric()).value


def number_of(row: Row, name: str) -> float:
    return value_of(row, name) or 0.0
