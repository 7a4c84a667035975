"""Timings, work and rates → what `specbench limit` says: bounds beside measurements, c, draft lengths, a verdict."""

from collections.abc import Mapping, Sequence
from statistics import median, quantiles

from pydantic import BaseModel

from specbench.limit.drafting import RATES, Costs
from specbench.limit.machine import Rates
from specbench.limit.passes import Points, Timings
from specbench.limit.work import Work

SHOWN_DRAFTS = 5  # draft tokens whose verification the verdict names


class Seconds(BaseModel):
    """A median with its quartiles."""

    median: float
    low: float
    high: float


class Point(BaseModel):
    """Passes over `query_length` tokens behind `context` cached ones: measured, and the least that memory and
    arithmetic allow."""

    query_length: int
    context: int
    seconds: Seconds
    bandwidth_seconds: float
    arithmetic_seconds: float

    @property
    def bound_seconds(self) -> float:
        return max(self.bandwidth_seconds, self.arithmetic_seconds)


class ModelLimit(BaseModel):
    """One model. `per_token`: autoregressive decoding through the loop; `outside_passes`: what of it is no pass."""

    name: str
    dtype: str
    bytes_read: float
    operations: float
    bytes_per_second: float
    operations_per_second: float
    per_token: Seconds
    outside_passes: Seconds
    points: list[Point]

    def at(self, query_length: int, context: int) -> Point:
        return next(p for p in self.points if (p.query_length, p.context) == (query_length, context))


class BestLength(BaseModel):
    """The best draft length at an acceptance rate; `free_…`: if verifying cost one single-token pass."""

    acceptance_rate: float
    num_draft_tokens: int
    speedup: float
    free_num_draft_tokens: int
    free_speedup: float


class LimitReport(BaseModel):
    """Everything that `specbench limit` says of a pair; times in seconds."""

    device: str
    engine: str
    repeats: int
    context: int
    target: ModelLimit
    drafter: ModelLimit
    cost_ratio: float
    verification_cost: dict[int, float]
    best: list[BestLength]
    verdict: str


def seconds_of(values: Sequence[float]) -> Seconds:
    low, _, high = quantiles(values, n=4, method="inclusive") if len(values) > 1 else [values[0]] * 3
    return Seconds(median=median(values), low=low, high=high)


def model_limit(name: str, dtype: str, work: Work, rates: Rates, timings: Timings, context: int) -> ModelLimit:
    """`bytes_read` and `operations` are those of a single-token pass behind `context` tokens."""
    points = [
        Point(
            query_length=length, context=behind, seconds=seconds_of(values),
            bandwidth_seconds=work.bytes_read(length, behind) / rates.bytes_per_second,
            arithmetic_seconds=work.operations(length, behind) / rates.operations_per_second,
        )
        for (length, behind), values in sorted(timings.passes.items())
    ]  # fmt: skip
    return ModelLimit(
        name=name, dtype=dtype, bytes_read=work.bytes_read(1, context), operations=work.operations(1, context),
        bytes_per_second=rates.bytes_per_second, operations_per_second=rates.operations_per_second,
        per_token=seconds_of(timings.per_token), outside_passes=seconds_of(timings.outside_passes), points=points,
    )  # fmt: skip


def make_report(
    target: ModelLimit, drafter: ModelLimit, points: Points, *, device: str, engine: str, repeats: int
) -> LimitReport:
    """The report on a pair that was measured at the same points."""
    single = target.at(1, points.context).seconds.median
    verifying = {
        length: target.at(length, points.context).seconds.median / single for length in sorted(points.query_lengths)
    }
    ratio = drafter.at(1, points.context).seconds.median / single
    return LimitReport(
        device=device, engine=engine, repeats=repeats, context=points.context, target=target, drafter=drafter,
        cost_ratio=ratio, verification_cost=verifying, best=best_lengths(ratio, verifying),
        verdict=verdict(target, drafter, points.context, verifying, ratio),
    )  # fmt: skip


def best_lengths(cost_ratio: float, verifying: Mapping[int, float]) -> list[BestLength]:
    real, free = Costs(cost_ratio, verifying), Costs(cost_ratio, dict.fromkeys(verifying, 1.0))
    found = []
    for rate in RATES:
        (length, speedup), (free_length, free_speedup) = real.best(rate), free.best(rate)
        found.append(
            BestLength(
                acceptance_rate=rate, num_draft_tokens=length, speedup=speedup,
                free_num_draft_tokens=free_length, free_speedup=free_speedup,
            )
        )  # fmt: skip
    return found


def verdict(
    target: ModelLimit, drafter: ModelLimit, context: int, verifying: Mapping[int, float], cost_ratio: float
) -> str:
    """How near AR and drafting are to their bounds, and what verifying costs, in one sentence."""
    length = SHOWN_DRAFTS + 1
    parts = [
        f"AR runs at {share_of_bound(target, context):.2f} of the {bound_name(target, context)} bound",
        f"the drafter alone at {share_of_bound(drafter, context):.2f} of its {bound_name(drafter, context)} bound",
        *(
            [f"verification of {length} tokens costs {verifying[length]:.2f} single passes"]
            if length in verifying
            else []
        ),
        f"a draft pass costs {cost_ratio:.2f}",
    ]
    return "; ".join(parts) + "."


def share_of_bound(model: ModelLimit, context: int) -> float:
    """The least seconds of a token that the hardware allows ÷ those of the decode loop."""
    return model.at(1, context).bound_seconds / model.per_token.median


def bound_name(model: ModelLimit, context: int) -> str:
    point = model.at(1, context)
    return "bandwidth" if point.bandwidth_seconds >= point.arithmetic_seconds else "arithmetic"
