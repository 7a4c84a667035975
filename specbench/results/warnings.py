"""A row's numbers → what a reader must know before its speed-up is trusted, each with its figure and what to do."""

import math
from collections.abc import Sequence

from specbench.results.ar_drift import has_drifted
from specbench.results.bootstrap import SMALL_SAMPLE, Metric
from specbench.results.captions import num_timed, rests_on_few
from specbench.results.row import Row, Warning
from specbench.running.records import Record

WIDE = 1.25  # end ÷ start of an interval that is too wide to tell a method from one a quarter faster


def warnings_of(row: Row, records: Sequence[Record], num_trained_on: int = 0) -> tuple[Warning, ...]:
    """The warnings of a row, by what its metrics say. `records`: its own. `num_trained_on`: the measured prompts that
    its drafter was trained on."""
    num_processes = len({record.get("process") for record in records})
    found = (wide_interval(row), few_prompts(row), drift(row, num_processes), trained_on_test(row, num_trained_on))
    return tuple(each for each in found if each is not None)


def wide_interval(row: Row) -> Warning | None:
    """An interval of the speed-up whose ends are more than WIDE apart. Widths on the log scale fall with the root of
    the number of prompts, so that (width ÷ wanted width)² as many are needed."""
    speedup = row.metrics.get("speedup", Metric())
    if not speedup.low or not speedup.high or speedup.low < 0 or speedup.high / speedup.low <= WIDE:
        return None
    ratio, prompts = speedup.high / speedup.low, num_timed(row)
    needed = math.ceil(prompts * ((math.log(speedup.high) - math.log(speedup.low)) / math.log(WIDE)) ** 2)
    text = (
        f"the speed-up's interval is wide, {speedup.low:.2f} to {speedup.high:.2f} (× {ratio:.2f}): for × {WIDE} "
        f"measure about {needed} prompts instead of {prompts}, or on a quieter machine"
    )
    return Warning(code="wide_interval", text=text)


def few_prompts(row: Row) -> Warning | None:
    """A speed-up of so few prompts that its interval may be too narrow, or that it has none."""
    if not rests_on_few(row):
        return None
    num, speedup = num_timed(row), row.metrics["speedup"]
    prompts = f"{num} prompt{'s' * (num != 1)}"
    told = (
        f"the speed-up rests on {prompts} and has no interval"
        if speedup.low is None
        else f"the speed-up's interval rests on {prompts} and may be too narrow"
    )
    text = f"{told}: measure {SMALL_SAMPLE} or more"
    return Warning(code="few_prompts", text=text)


def drift(row: Row, num_processes: int) -> Warning | None:
    """A baseline that was faster or slower in the end. What it does to a speed-up is not known: the method was measured
    beside it all the time, and may gain or lose by another load or clock. Not of the baseline itself."""
    ratio = row.metrics.get("ar_drift", Metric())
    if row.metrics.get("speedup", Metric()).low is None or not has_drifted(ratio):
        return None
    resumed = f", {num_processes} processes one after the other," if num_processes > 1 else ""
    text = (
        f"the baseline ran at {ratio.value:.2f} [{ratio.low:.2f}, {ratio.high:.2f}] times its first speed in the last "
        f"third of the run{resumed} so load or clock changed: measure again, into another folder, in one go, with "
        "nothing beside it"
    )
    return Warning(code="ar_drift", text=text)


def trained_on_test(row: Row, num_prompts: int) -> Warning | None:
    if not num_prompts:
        return None
    text = (
        f"the drafter was trained on {num_prompts} of the {row.n} measured prompts, by its training.json, so it may "
        "know them better than others: measure prompts that it was not trained on, or train it on others"
    )
    return Warning(code="trained_on_test", text=text)
