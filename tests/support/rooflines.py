"""A report of `specbench limit` on a pair whose every figure is known."""

from specbench.analysis.roofline.report import Machine, ModelConditions, RooflineReport
from specbench.analysis.roofline.roofline import (
    ModelTimings,
    PairTimings,
    Rates,
    Work,
    make_report,
)

WORK = {
    "target": Work(weight_bytes=7_100_000, matmul_weights=1_000),
    "drafter": Work(weight_bytes=500_000, matmul_weights=1_000_000),
}
ENVIRONMENT = {
    "device": "Some CPU, 1 thread", "engine": "eager", "commit": "0123456789abcdef-dirty-00000000",
    "versions": {"torch": "2.1", "transformers": "5.1", "specbench": "0.1"},
}  # fmt: skip


def known_timings(single: float, longer: float, per_token: float, rates: list[Rates]) -> ModelTimings:
    """Passes over 1 and 6 tokens behind 256, once a round; every other round the pass over 6 takes half as long or
    twice as long."""
    num_rounds = len(rates)
    timings = ModelTimings(per_token=[per_token] * num_rounds, overhead=[per_token - single] * num_rounds, rates=rates)
    factors = [(1.0, 0.5, 2.0)[number % 3] for number in range(num_rounds)]
    timings.passes = {1: [single] * num_rounds, 6: [longer * each for each in factors]}
    return timings


def known_report(num_rounds: int = 3, rates: list[Rates] | None = None) -> RooflineReport:
    """A target that reads 7.1 MB where 1 GB/s are copied, and decodes a token in 10 ms; a drafter that multiplies a
    million weights at 1 GFLOP/s, and decodes alone in 2.5 ms."""
    rates = rates or [Rates(1e9, 1e9)] * num_rounds
    measured = PairTimings(
        target=known_timings(0.008, 0.00864, 0.010, rates),
        drafter=known_timings(0.0024, 0.003, 0.0025, rates),
        per_step=[0.030] * num_rounds, step_overhead=[0.0015] * num_rounds,
    )  # fmt: skip
    subjects = [
        (
            ModelConditions(name=f"org/{role}", revision="0123456", dtype="float32", attention="sdpa", capacity=None),
            work,
        )
        for role, work in WORK.items()
    ]
    return make_report(subjects[0], subjects[1], measured, 256, environment=Machine.model_validate(ENVIRONMENT), seed=7)
