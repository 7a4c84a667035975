"""The tolerant tier: speed-ups, which are measured and have noise.

What is compared is the ratio of two speed-ups, each over the AR of its own run. It has regressed where its whole
interval lies below 1 − max_regression. With records of both sides that interval is paired: prompts are drawn with all
that both runs measured of them, so that their lengths and contents cancel; and beside it the ratio of a typical prompt
is judged (`typical`), which sees smaller falls. From rows alone the two intervals are joined
as if the runs had nothing in common, which is wide.

Many such intervals at once would often fail: they are widened, on the scale of their logs, so that of 100 checks
without any regression about one fails at most, whatever max_regression is, on a quiet machine; what other work beside a
run adds, `control` and a max_regression of some percent are for. With fewer than MIN_PROMPTS prompts that would not
hold: they have no verdict.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import special

from specbench.gate.findings import Finding
from specbench.gate.typical import Array, medians, typical
from specbench.results.bootstrap import Metric, Prompts, ratio
from specbench.results.log_ratios import MIN_STUDENTIZED
from specbench.results.paired_columns import length_columns, speed_columns
from specbench.results.ratios import widened
from specbench.results.resampling import TAILS
from specbench.running.records import Generation, Record

FALSE_ALARMS = 0.01  # of whole checks
MIN_PROMPTS = MIN_STUDENTIZED  # of 5 prompts and 5 methods 5 % of the checks would fail
SPEEDUP, TYPICAL, LENGTH = "speed-up", "speed-up of a typical prompt", "τ, all outputs"
Sides = tuple[Sequence[Record], Sequence[Record]]  # of the baseline and of the candidate, the same keys in one order


@dataclass(frozen=True)
class Measured:
    """A number of both runs. `ratio` gives the candidate's ÷ the baseline's; its argument is how much longer than that
    of 95 % the interval is. `num_prompts`: those that have a value on both sides."""

    values: tuple[Metric, Metric]
    ratio: Callable[[float], Metric]
    num_prompts: int


def joined(values: tuple[Metric, Metric], found: Metric, num_prompts: int) -> Measured:
    """Of a ratio whose interval can only be widened on the scale of its logs."""
    return Measured(values, lambda by: widened(found, by), num_prompts)


def speedups(records: Sides, method: str) -> dict[str, Measured]:
    """The speed-ups of all prompts together, and of a typical one; nothing where none has a speed. Records with a
    generation of one token on any side have no speed, and are left out of all."""
    sides = [[r["methods"][name] for r in side] for side in records[::-1] for name in (method, "ar")]
    kept = np.array(speed_columns(sides))
    return ratios_of_speedups(Prompts.of(records[0], seed=0), kept) if kept.any() else {}


def ratios_of_speedups(prompts: Prompts, kept: Array) -> dict[str, Measured]:
    """kept [8, num_records]: tokens and seconds of the method and of AR in the candidate, then in the baseline."""
    now, before = (prompts.ratio(*half).model_copy(update={"low": None, "high": None}) for half in (kept[:4], kept[4:]))
    summed = per_prompt(prompts, kept)
    num_prompts = int((summed > 0).all(axis=0).sum())
    found = {SPEEDUP: joined((before, now), prompts.ratio(*kept), num_prompts)}
    if num_prompts >= MIN_PROMPTS and typical(summed).value is not None:
        found[TYPICAL] = Measured(medians(summed), lambda by: typical(summed, by), num_prompts)
    return found


def per_prompt(prompts: Prompts, columns: Array) -> Array:
    """[num_columns, num_records] → [num_columns, num_prompts]."""
    return np.array([np.bincount(prompts.cluster, weights=column) for column in columns])


def speed_of_baseline(records: Sides) -> Metric:
    """The candidate's tokens/s of AR ÷ the baseline's: of a typical prompt where that has an interval, or of all."""
    sides = [[r["methods"]["ar"] for r in side] for side in records[::-1]]
    return ratio_of_speeds(Prompts.of(records[0], seed=0), np.array(speed_columns(sides)))


def ratio_of_speeds(prompts: Prompts, columns: Array) -> Metric:
    """columns [4, num_records]: tokens and seconds in the candidate, then in the baseline."""
    found = typical(per_prompt(prompts, columns))
    return prompts.ratio(*columns) if found.high is None else found


def lengths(baseline: Sequence[Generation], candidate: Sequence[Generation], prompts: Prompts) -> Measured:
    """τ of outputs that are not the same: of each side, and their ratio where both have target passes."""
    columns = length_columns([candidate, baseline])
    before, now = (Metric(value=ratio(list(map(np.array, length_columns([side]))))) for side in (baseline, candidate))
    num_prompts = len(set(prompts.cluster[np.array(columns[1]) > 0].tolist()))
    return joined((before, now), prompts.ratio(*columns), num_prompts)


def widening(num_intervals: int) -> float:
    """How much longer intervals are, on the scale of their logs, so that of so many at once the upper ends of all lie
    below the truth in FALSE_ALARMS of the cases at most (Bonferroni); at least as long as those of 95 %."""
    normal = special.ndtri(1 - FALSE_ALARMS / max(1, num_intervals))
    return max(1.0, float(normal / special.ndtri(TAILS[1])))


def judged(
    what: str,
    subset: str,
    values: tuple[Metric, Metric],
    ratio: Metric,
    max_regression: float,
    paired: bool,
    load: float = 1.0,
) -> Finding:
    """The finding on a ratio with the interval that decides. `load`: by how many times it may have fallen with AR's
    speed, so that only a larger fall would be seen."""
    regressed = ratio.high is not None and ratio.high < 1 - max_regression
    baseline, candidate = ("–" if metric.value is None else f"{metric.value:.3f}" for metric in values)
    return Finding(what, subset, baseline, candidate, regressed, _detail(ratio, max_regression, paired, load), ratio)


def _detail(ratio: Metric, max_regression: float, paired: bool, load: float) -> str:
    """The ratio, its interval, and how large a fall such an interval would show."""
    if ratio.value is None or ratio.high is None:
        return "no interval"
    told = f"ratio {ratio.value:.3f} [{ratio.low:.3f}, {ratio.high:.3f}]{'' if paired else ', not paired'}"
    seen = 1 - (1 - max_regression) * ratio.value / ratio.high / load
    return f"{told}; a fall of {100 * seen:.1f} % would be seen"
