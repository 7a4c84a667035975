"""Speed-ups and other ratios of a check, which have noise.

A ratio is the candidate's speed-up ÷ the baseline's, each over the AR of its own run. It has regressed if its whole
interval lies below 1 − max_regression. With records of both sides the interval is paired: a resampled prompt keeps all
that both runs measured of it, so that its length and content cancel. The ratio of a typical prompt is judged too
(`typical_ratio`); it shows smaller falls. Without records the intervals of the two rows are joined as if the runs were
independent, which gives a wide interval.

With many such intervals, some check would often fail by chance. So the intervals are widened on the log scale: on a
quiet machine at most about one of 100 checks without a regression fails, whatever max_regression is. `SpeedControl` and
a max_regression of a few percent allow for other work on the machine. Fewer than MIN_PROMPTS prompts are not judged,
since their intervals cannot be widened reliably.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
from numpy.typing import NDArray
from scipy import special

from specbench.gate.report import ALL_LENGTH, FALSE_ALARMS, SPEED, SPEEDUP, Finding, MethodFindings, Ratio
from specbench.results.answers import length_columns
from specbench.results.conditions import BASELINE
from specbench.results.metric_format import interval, number, with_interval
from specbench.results.paired import Pairs, widen_ratio
from specbench.results.row import ALL
from specbench.statistics.bootstrap import MIN_STUDENTIZED, SIGNS, TAILS, Estimate, Resampler, bonferroni, ratio

MAX_PROMPTS = 2000  # they form two million pairs; with more prompts, the ratio of sums is precise enough
Array = NDArray[np.float64]
Columns = Sequence[Sequence[float]] | Array


def typical_ratio(columns: Array, by: float = 1.0) -> Estimate:
    """Returns the typical ratio of two speed-ups (Hodges–Lehmann) and its interval, `by` times as wide as a 95 %
    interval. There is no interval if the prompts are too few for this width, and no value if they are too many. columns
    [8, num_prompts]: tokens and seconds of the method and of AR in the candidate, then in the baseline; or without
    those of AR, for the ratio of two speeds."""
    logs = _logs(columns)
    if not 0 < logs.shape[1] <= MAX_PROMPTS:
        return Estimate()
    low, middle, high = hodges_lehmann(SIGNS[: len(logs)] @ logs, by)
    ends = {} if low is None or high is None else {"low": np.exp(low), "high": np.exp(high)}
    return Estimate(value=np.exp(middle), **ends)


def hodges_lehmann(values: Array, by: float = 1.0) -> tuple[float | None, float, float | None]:
    """Returns the low end of the interval, the estimate and the high end; values: [num_values]. A 95 % interval spans
    ± 1.96 standard deviations of the signed-rank statistic; `by` multiplies these. There are no ends if the statistic
    of so few values never lies that far out."""
    num_values = len(values)
    first, second = np.triu_indices(num_values)
    means = np.sort((values[first] + values[second]) / 2)
    deviation = np.sqrt(num_values * (num_values + 1) * (2 * num_values + 1) / 24)  # of the signed-rank statistic
    place = math.floor(len(means) / 2 + by * special.ndtri(TAILS[0]) * deviation)
    middle = float(np.median(means))
    return (float(means[place]), middle, float(means[-1 - place])) if place >= 0 else (None, middle, None)


def _logs(columns: Array) -> Array:
    """Returns the logs of the columns for the prompts with a speed on both sides."""
    return np.asarray(np.log(columns[:, (columns > 0).all(axis=0)]))


MIN_PROMPTS = MIN_STUDENTIZED  # with 5 prompts and 5 methods, 5 % of the checks would fail by chance
TYPICAL, TYPICAL_SPEED = "speed-up of a typical prompt", "tokens/s of a typical prompt"


def speed_ratios(pairs: Pairs, subset: str, over_ar: bool) -> list[Ratio]:
    """Returns the ratio of the speed-ups (`over_ar`) or speeds over all prompts, and that of a typical prompt; no ratio
    if no record has a speed. A record has none if one of its generations has only one token."""
    columns = pairs.speed_columns(with_ar=over_ar) if pairs.num_answers else []
    return ratios_of_speedups(pairs.times, columns, subset) if any(map(any, columns)) else []


def ratios_of_speedups(prompts: Resampler, columns: Columns, subset: str = ALL) -> list[Ratio]:
    """Returns the ratio of the speed-ups over all prompts and that of a typical prompt. columns [8, num_records]:
    tokens and seconds of the method and of AR in the candidate, then in the baseline. Without the columns of AR it
    returns the ratios of the speeds."""
    half = len(columns) // 2
    now, before = (Estimate(value=prompts.ratio(*side).value) for side in (columns[:half], columns[half:]))
    whole, each = (SPEEDUP, TYPICAL) if len(columns) == 8 else (SPEED, TYPICAL_SPEED)
    summed = per_prompt(prompts, columns)
    num_prompts = int((summed > 0).all(axis=0).sum())
    found = [Ratio(whole, subset, (before, now), partial(widen_ratio, prompts.ratio(*columns)), num_prompts)]
    if num_prompts >= MIN_PROMPTS and typical_ratio(summed).value is not None:
        medians = (np.exp(np.median(SIGNS[:half] @ logs)) for logs in np.split(_logs(summed), 2))
        now, before = (Estimate(value=float(median)) for median in medians)
        found.append(Ratio(each, subset, (before, now), partial(typical_ratio, summed), num_prompts))
    return found


def per_prompt(prompts: Resampler, columns: Columns) -> Array:
    """Returns the sums over prompts: [num_columns, num_records] → [num_columns, num_prompts]."""
    return np.array([np.bincount(prompts.cluster, weights=column) for column in columns])


def ratio_of_speeds(prompts: Resampler, columns: Columns) -> Estimate:
    """Returns the candidate's tokens/s ÷ the baseline's: of a typical prompt if that ratio has an interval, otherwise
    over all prompts. columns [4, num_records]: tokens and seconds of the candidate, then of the baseline."""
    found = typical_ratio(per_prompt(prompts, columns))
    return prompts.ratio(*columns) if found.high is None else found


def length_ratio(pairs: Pairs, subset: str) -> Ratio:
    """Returns τ over all outputs of each side, and their ratio over the records with target passes on both sides."""
    first, second = pairs.own
    columns = length_columns([second, first])
    before, now = (Estimate(value=ratio(list(map(np.array, length_columns([side]))))) for side in (first, second))
    num_prompts = len(set(pairs.prompts.cluster[np.array(columns[1]) > 0].tolist()))
    widened = partial(widen_ratio, pairs.prompts.ratio(*columns))
    return Ratio(ALL_LENGTH, subset, (before, now), widened, num_prompts)


SAME = 1.02  # a ratio nearer to 1 counts as no difference if it has no interval: two runs are hardly ever nearer
DRIFTED = 1.25  # AR this much faster or slower: the load differs so much that speed-ups do not compare
EXCESS = 0.5  # share of AR's change by which a speed-up may have changed, on the log scale
REMEDY = "measure both on the same machine, one after the other, with nothing else running"


@dataclass
class SpeedControl:
    """AR's speed on both sides, which shows a change of load or clock. `other_device`: the devices may differ, so that
    AR's speed shows nothing. `drifted`: for each such task the reason why speed-ups are not compared. `loads`: for each
    task the factor by which a speed-up may have fallen with AR's speed."""

    other_device: bool
    notes: list[str] = field(default_factory=list)
    drifted: dict[str, str] = field(default_factory=dict)
    loads: dict[str, float] = field(default_factory=dict)

    def add(self, task: str, ratio: Estimate) -> None:
        """Adds a task. `ratio`: AR's tokens/s in the candidate ÷ in the baseline."""
        if ratio.value is None:
            self.notes.append(f"{task}: {BASELINE} has no speed")
            return
        low, high = ratio.low or ratio.value, ratio.high or ratio.value
        speed = f"{ratio.value:.3f} times its speed in the baseline {interval(ratio, 3)}".rstrip()
        if not self.other_device:
            self.loads[task] = max(1.0, 1 / low) ** EXCESS
            if max(ratio.value, 1 / ratio.value) > DRIFTED:
                self.drifted[task] = f"{BASELINE} itself ran at {speed}, so that speed-ups do not compare: {REMEDY}"
                return
        same = low <= 1 <= high if ratio.low is not None else 1 / SAME < ratio.value < SAME
        if same:
            self.notes.append(f"{task}: {BASELINE} itself ran at {speed}: no difference")
            return
        by = f"{100 * abs(1 - ratio.value):.1f} % {'slower' if ratio.value < 1 else 'faster'}"
        self.notes.append(
            f"{task}: {BASELINE} itself is {by} ({speed}): the load or clock changed, or code that {BASELINE} and the "
            "methods share, such as the loop, whose changes no speed-up shows"
        )


def judge_all(
    compared: Sequence[MethodFindings], control: SpeedControl, max_regression: float, paired: bool = True
) -> tuple[int, float]:
    """Judges the ratios of all methods of a check. If AR has drifted in a task, its speed-ups are not judged, which is
    a problem of their methods. Returns the number of ratios with an interval, and the factor that widens these."""
    pending = []
    for method in compared:
        drifted = control.drifted.get(method.task)
        pending += [(method, each) for each in method.ratios if drifted is None or each.what == ALL_LENGTH]
        if drifted is not None and any(each.what != ALL_LENGTH for each in method.ratios):
            method.problems.append(drifted)
    num_tolerant = sum(each.num_prompts >= MIN_PROMPTS and each.ratio(1.0).high is not None for _, each in pending)
    factor = bonferroni(num_tolerant, FALSE_ALARMS)
    for method, each in pending:
        judge(method, each, factor, max_regression, paired, load=control.loads.get(method.task, 1.0))
    return num_tolerant, factor


def judge(
    method: MethodFindings, pending: Ratio, by: float, max_regression: float, paired: bool, load: float = 1.0
) -> None:
    """Adds a finding, whose interval is widened by the factor `by`, to the method. A ratio without a reliable interval
    is a problem, or the check would pass anything; the ratio of a typical prompt is then only left out. `load`: the
    factor by which a speed-up may have fallen with AR's speed; smaller falls are not judged."""
    what, num_prompts, place = pending.what, pending.num_prompts, f"{pending.what} of {pending.subset}"
    if pending.values[0].value is None:
        method.not_compared.append(f"{place}: the baseline has none")
        return
    if num_prompts < MIN_PROMPTS:
        method.problems.append(f"{place}: {num_prompts} prompts are too few: measure {MIN_PROMPTS} or more")
        return
    ratio = pending.ratio(by)
    if ratio.high is None or ratio.value is None:
        if what in (TYPICAL, TYPICAL_SPEED):
            method.not_compared.append(f"{place}: {num_prompts} prompts are too few for so many comparisons")
        else:
            method.problems.append(f"{place}: its ratio has no interval")
        return
    load = 1.0 if what == ALL_LENGTH else load
    regressed = ratio.high < 1 - max_regression
    seen = 1 - (1 - max_regression) * ratio.value / ratio.high / load
    detail = f"ratio {with_interval(ratio, 3)}{'' if paired else ', not paired'}"
    detail += f"; a fall of {100 * seen:.1f} % would be seen"
    before, now = (number(each, 3) for each in pending.values)
    found = Finding(what, pending.subset, before, now, regressed, detail, ratio)
    if regressed and ratio.high * load >= 1 - max_regression:
        method.problems.append(f"{found}: other work on the machine may explain this: {REMEDY}")
    else:
        method.findings.append(found)
