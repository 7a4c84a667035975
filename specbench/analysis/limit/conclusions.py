"""Timings, work and rates → the report: medians over rounds, of ratios too, which have intervals."""

from collections.abc import Sequence
from statistics import median, quantiles
from typing import Any

import numpy as np

from specbench.analysis.limit.report import (
    RATES,
    BestLength,
    Costs,
    Described,
    DrafterLimit,
    LimitReport,
    ModelLimit,
    Point,
    Ratio,
    Spread,
    StepLimit,
    best,
)
from specbench.analysis.limit.timings import NUM_DRAFT_TOKENS, Measured, Points, Steps, Timings
from specbench.analysis.limit.work import Work
from specbench.results.bootstrap import MIN_PROMPTS
from specbench.results.log_ratios import NUM_RESAMPLES, TAILS, Array
from specbench.results.row import RowWarning
from specbench.results.warnings import WIDE

MIN_ROUNDS = MIN_PROMPTS


class Draws:
    """Draws of rounds: first all as they were, then NUM_RESAMPLES with replacement."""

    def __init__(self, num_rounds: int, seed: int) -> None:
        self.num_rounds = num_rounds
        drawn = np.random.default_rng(seed).integers(num_rounds, size=(NUM_RESAMPLES, num_rounds))
        self._draws = np.vstack([np.arange(num_rounds), drawn])

    def ratios(self, above: Sequence[float], below: Sequence[float]) -> Array:
        """The median of what two quantities, [num_rounds], are ÷ one another, in each draw: [1 + NUM_RESAMPLES]."""
        by_round = np.asarray(above, dtype=np.float64) / np.asarray(below, dtype=np.float64)
        return np.asarray(np.median(by_round[self._draws], axis=1))

    def ratio(self, values: Array) -> Ratio:
        """What was computed from such medians, [1 + NUM_RESAMPLES], with its interval."""
        if self.num_rounds < MIN_ROUNDS:
            return Ratio(value=float(values[0]))
        low, high = np.quantile(values[1:], TAILS)
        return Ratio(value=float(values[0]), low=float(low), high=float(high))


TOO_WIDE = 2.0  # end ÷ start of an interval that leaves a figure undecided


def verdict(report: LimitReport) -> str:
    """How near AR and drafting are to their bounds, and what verifying and drafting cost, with intervals."""
    ar, own = (model.at(1, report.context).bound_name for model in (report.target, report.drafter))
    length = report.step.num_draft_tokens + 1
    share, drafting = report.target.share_of_bound, report.drafter.share_of_bound_drafting
    verifying = report.verification_cost[length]
    clauses = (
        clause(f"AR runs at {{}} of the {ar}", f"AR's share of the {ar}", share),
        clause(f"drafting runs at {{}} of its {own}", f"drafting's share of its {own}", drafting),
        clause(
            f"verification of {length} tokens costs {{}} single passes",
            f"what verifying {length} tokens costs",
            verifying,
        ),
        clause("a draft pass costs {}", "what a draft pass costs", report.cost_ratio),
    )
    few = "" if report.repeats >= MIN_ROUNDS else f" (no intervals below {MIN_ROUNDS} rounds)"
    return "{}, {}; {}, {}{}.".format(*clauses, few)


def clause(said: str, subject: str, ratio: Ratio) -> str:
    """What is said of a figure with its interval; of one whose interval is too wide, that nothing can be."""
    if ratio.width <= TOO_WIDE:
        return said.format(ratio.text)
    return f"{subject} is undecided (rounds differ too much: {ratio.span})"


def warnings(report: LimitReport) -> list[RowWarning]:
    """Of every figure of the verdict whose interval is wide."""
    length = report.step.num_draft_tokens + 1
    figures = {
        "AR's share of its bound": report.target.share_of_bound,
        "drafting's share of its bound": report.drafter.share_of_bound_drafting,
        f"what verifying {length} tokens costs": report.verification_cost[length],
        "what a draft pass costs": report.cost_ratio,
    }
    return [
        RowWarning(code="wide_interval", text=(
            f"the interval of {name} is wide, {ratio.span} (× {ratio.width:.2f}): measure with nothing beside it, "
            "or give more --repeats"
        ))
        for name, ratio in figures.items()
        if ratio.width > WIDE
    ]  # fmt: skip


Subject = tuple[Described, Work]


def conclude(
    target: Subject, drafter: Subject, parts: Sequence[Measured], points: Points, *,
    environment: dict[str, Any], seed: int, repeats: int,
) -> LimitReport:  # fmt: skip
    """The report on a pair. `parts`: what was measured at the points; generations belong to the first."""
    draws, context, main = Draws(repeats, seed), points.context, parts[0]
    single = main.target.passes[1, context]
    costs = Costs(
        draws.ratios(main.drafter.passes[1, context], single),
        {length: draws.ratios(main.target.passes[length, context], single) for length in points.query_lengths},
    )
    report = LimitReport(
        environment=environment, seed=seed, repeats=repeats, context=context,
        target=model_limit(target, [part.target for part in parts], context, draws),
        drafter=drafter_limit(drafter, [part.drafter for part in parts], main.steps, context, draws),
        step=StepLimit(
            num_draft_tokens=NUM_DRAFT_TOKENS, seconds=spread(main.steps.per_step),
            outside_passes=spread(main.steps.outside_passes),
        ),
        cost_ratio=draws.ratio(costs.cost_ratio),
        verification_cost={length: draws.ratio(cost) for length, cost in costs.verifying.items()},
        best=[best_length(costs, rate, draws) for rate in RATES],
        verdict="", warnings=[],
    )  # fmt: skip
    return report.model_copy(update={"verdict": verdict(report), "warnings": warnings(report)})


def model_limit(subject: Subject, parts: Sequence[Timings], context: int, draws: Draws) -> ModelLimit:
    (model, work), main = subject, parts[0]
    rates = main.rates
    return ModelLimit(
        model=model, bytes_read=work.bytes_read(1, context), operations=work.operations(1, context),
        bytes_per_second=spread([each.bytes_per_second for each in rates]),
        read_bytes_per_second=spread([each.read_bytes_per_second for each in rates]),
        operations_per_second=spread([each.operations_per_second for each in rates]),
        per_token=spread(main.per_token), outside_passes=spread(main.outside_passes),
        share_of_bound=draws.ratio(draws.ratios(bounds(work, main, context), main.per_token)),
        points=sorted(
            (point for timings in parts for point in points_of(timings, work)),
            key=lambda point: (point.query_length, point.context),
        ),
    )  # fmt: skip


def drafter_limit(subject: Subject, parts: Sequence[Timings], steps: Steps, context: int, draws: Draws) -> DrafterLimit:
    share = draws.ratios(bounds(subject[1], parts[0], context), steps.per_draft_token)
    return DrafterLimit(
        **dict(model_limit(subject, parts, context, draws)),
        per_draft_token=spread(steps.per_draft_token), share_of_bound_drafting=draws.ratio(share),
    )  # fmt: skip


def bounds(work: Work, timings: Timings, context: int) -> list[float]:
    """Seconds of a pass over one token, by the rates of each round."""
    num_bytes, operations = work.bytes_read(1, context), work.operations(1, context)
    return [max(num_bytes / each.bytes_per_second, operations / each.operations_per_second) for each in timings.rates]


def points_of(timings: Timings, work: Work) -> list[Point]:
    """Passes beside the bounds by the rates of the same rounds."""
    per_byte = median(1 / each.bytes_per_second for each in timings.rates)
    per_operation = median(1 / each.operations_per_second for each in timings.rates)
    return [
        Point(
            query_length=length, context=context, seconds=spread(values),
            bandwidth_seconds=work.bytes_read(length, context) * per_byte,
            arithmetic_seconds=work.operations(length, context) * per_operation,
        )
        for (length, context), values in timings.passes.items()
    ]  # fmt: skip


def spread(values: Sequence[float]) -> Spread:
    low, _, high = quantiles(values, n=4, method="inclusive") if len(values) > 1 else [values[0]] * 3
    return Spread(median=median(values), low=low, high=high)


def best_length(costs: Costs[Array], rate: float, draws: Draws) -> BestLength:
    """The draft lengths that are best by the medians of all rounds; intervals of the speed-ups at these lengths."""
    free = Costs(costs.cost_ratio, dict.fromkeys(costs.verifying, np.ones_like(costs.cost_ratio)))
    length, free_length = (best(as_measured(each), rate) for each in (costs, free))
    return BestLength(
        acceptance_rate=rate, num_draft_tokens=length, speedup=draws.ratio(costs.speedup(rate, length)),
        free_num_draft_tokens=free_length, free_speedup=draws.ratio(free.speedup(rate, free_length)),
    )  # fmt: skip


def as_measured(costs: Costs[Array]) -> Costs[float]:
    """By the first draw, which has all rounds."""
    return Costs(float(costs.cost_ratio[0]), {length: float(cost[0]) for length, cost in costs.verifying.items()})
