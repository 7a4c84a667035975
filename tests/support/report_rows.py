"""Rows with the metrics that tables show."""

from specbench.statistics.bootstrap import Estimate
from tests.support.rows import row as leaderboard_row

METRICS = {
    "acceptance_rate": Estimate(value=0.7426, low=0.7, high=0.8),
    "mean_acceptance_length": Estimate(value=3.219),
    "tokens_per_second_ar": Estimate(value=1234.56),
    "tokens_per_second": Estimate(value=12345.67),
    "speedup": Estimate(value=10.0012, low=9.876, high=11.119),
    "speedup_expected": Estimate(value=2.345),
    "accuracy_ar": Estimate(value=1.0),
    "accuracy": Estimate(value=0.6251),
}
SCORED = {"quality": "accuracy"}


def row(**changes):
    return leaderboard_row(**{**SCORED, **changes})
