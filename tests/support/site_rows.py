"""Rows for tests of the site: tasks of several languages, methods, a sweep of thresholds; and hostile ones."""

import random

from specbench.results.row import Row
from specbench.statistics.bootstrap import INTERVALS, Estimate
from tests.support.rows import row

HOSTILE = "</script><img src=x onerror=\"document.title='owned'\">&<b>'"
SUBSETS = ("en", "ja", "sw", "all")


def metrics(rng: random.Random, base: float = 1.0, predicted: float = 1.2) -> dict[str, Estimate]:
    speedup, quality, alpha = base * rng.uniform(0.9, 1.1), rng.uniform(0.4, 0.9), rng.uniform(0.3, 0.9)
    return {
        "speedup": Estimate(value=speedup, low=speedup * 0.93, high=speedup * 1.08),
        "speedup_expected": Estimate(value=speedup * predicted),
        "tokens_per_second": Estimate(value=100 * speedup, low=95 * speedup, high=105 * speedup),
        "tokens_per_second_ar": Estimate(value=100.0),
        "mean_acceptance_length": Estimate(value=1 + 3 * alpha),
        "acceptance_rate": Estimate(value=alpha, low=alpha - 0.02, high=alpha + 0.02),
        "accuracy": Estimate(value=quality, low=quality - 0.05, high=quality + 0.05),
        "accuracy_ar": Estimate(value=0.8),
        "accuracy_difference": Estimate(value=quality - 0.8, low=quality - 0.9, high=quality - 0.7),
        "new_tokens": Estimate(value=1000.0),
        "draft_seconds": Estimate(value=0.5),
        "verify_seconds": Estimate(value=2.5),
        "overhead_seconds": Estimate(value=0.25),
        "num_prompts_timed": Estimate(value=40.0),
    }


def some_rows(num_tasks: int = 2, seed: int = 0) -> list[Row]:
    """Per task and subset AR, a lossless method and a fuzzy one at three thresholds."""
    rng = random.Random(seed)
    made = []
    for number in range(num_tasks):
        for subset in SUBSETS:
            same = {
                "task": f"task{number}@1:0123456789ab", "subset": subset, "quality": "accuracy", "n": 40,
                "language": None if subset == "all" else subset, "command": f"specbench run --task task{number}",
                "intervals": INTERVALS,
            }  # fmt: skip
            baseline = metrics(rng) | {"speedup": Estimate(value=1.0), "speedup_expected": Estimate()}
            made += [
                row(**same, method="ar@1:00", num_draft_tokens=0, drafter=None, options={}, metrics=baseline),
                row(**same, method="sd@1:11", lossless=True, verdict="greedy equal", metrics=metrics(rng, 1.8)),
                *(
                    row(**same, options={"verification": {"rule": "fuzzy", "threshold": threshold}},
                        verdict="lossy by design", metrics=metrics(rng, 1.5 + threshold, predicted=2 * threshold))
                    for threshold in (0.1, 0.3, 0.5)
                ),
            ]  # fmt: skip
    return made


def many_rows(count: int) -> list[Row]:
    """As many rows, in groups of eight methods."""
    rng, found = random.Random(1), []
    for number in range(count):
        method, seed, subset = number % 8, number // 32, SUBSETS[number // 8 % 4]
        found.append(
            row(task=f"task{seed % 12}@1:0", subset=subset, method=f"method{method}@1:0", seed=seed, quality="accuracy",
                n=40, metrics=metrics(rng, 1 + method / 5))
        )  # fmt: skip
    return found


def hostile_row() -> Row:
    """Every text of it would be a program if a page did not escape it."""
    return row(
        task=f"{HOSTILE}@1:0", subset=HOSTILE, language=HOSTILE, method=f"{HOSTILE}@1:1", target=HOSTILE,
        drafter=HOSTILE, device=HOSTILE, command=HOSTILE, data_location=HOSTILE, commit=HOSTILE, verdict=HOSTILE,
        options={HOSTILE: HOSTILE}, signatures={HOSTILE: HOSTILE}, created=HOSTILE, quality=HOSTILE,
        metrics={"speedup": Estimate(value=1.5), HOSTILE: Estimate(value=0.5, low=0.4, high=0.6)},
    )  # fmt: skip
