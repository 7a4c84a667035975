"""The warnings of a row: reasons to doubt its speed-up, each with its number and a remedy."""

import math
from collections.abc import Sequence

import numpy as np
from scipy import special

from specbench.core.console import counted
from specbench.results.bootstrap import SMALL_SAMPLE, Metric
from specbench.results.captions import has_few_prompts, is_baseline, num_timed
from specbench.results.log_ratios import TAILS, Array
from specbench.results.row import Row, RowWarning
from specbench.results.units import with_interval
from specbench.running.records import ACCEPTED, DRAFTED, Record

MIN_PROMPTS = 5  # in each third; with fewer, one slow prompt would look like a drift
MANY_PROMPTS = SMALL_SAMPLE // 3  # in each third; with fewer, the jackknife errors are too uncertain
TOLERATED = 1.05  # a smaller drift is ignored: the method, measured alternately with the baseline, drifts alike


def drift_of(seconds: Array, tokens: Array, prompt_tokens: Array, prompts: np.ndarray) -> Metric:
    """Returns AR's speed in the last third of the run ÷ in the first third, with its interval; null if a third has
    fewer than MIN_PROMPTS prompts, or fewer than MANY_PROMPTS and prompts have several answers. All arrays are
    [num_answers], in the order of measurement. `prompts`: the number of each answer's prompt, from 0."""
    size = len(seconds) // 3
    nums = [len(set(third.tolist())) for third in (prompts[:size], prompts[len(seconds) - size :])]
    has_many, is_repeated = min(nums) >= MANY_PROMPTS, len(set(prompts.tolist())) < len(prompts)
    if min(nums) < MIN_PROMPTS or (is_repeated and not has_many) or not (seconds > 0).all():
        return Metric()
    place = np.arange(len(seconds))
    last = place >= len(seconds) - size
    columns = [prompt_tokens + tokens / 2, 1 / tokens, (place >= size) & ~last, last]
    design = np.column_stack([np.ones(len(seconds)), *(_scaled(np.asarray(c, dtype=np.float64)) for c in columns)])
    speeds = np.log(seconds / tokens)
    drift, error, num_free = (
        (*_last_coefficient(design, speeds, prompts), sum(nums) - 2) if has_many else _least_squares(design, speeds)
    )
    # the last column is 1 in the last third and was scaled to a width of 1, so its coefficient is the log ratio
    half = special.stdtrit(num_free, TAILS[1]) * error
    ends = [float(np.exp(-drift + sign * half)) for sign in (-1, 1)]
    return Metric(value=float(np.exp(-drift)), low=ends[0], high=ends[1]) if np.isfinite(ends).all() else Metric()


def has_drifted(ratio: Metric) -> bool:
    """Returns whether the whole interval lies beyond TOLERATED on one side."""
    if ratio.low is None or ratio.high is None:
        return False
    return ratio.low > TOLERATED or ratio.high < 1 / TOLERATED


def _scaled(column: Array) -> Array:
    """Returns a column centred and scaled to a width of 1; zeros for a column of equal values."""
    width = np.ptp(column)
    return (column - column.mean()) / width if width > 1e-9 * abs(column).max() else np.zeros_like(column)


def _last_coefficient(design: Array, values: Array, prompts: np.ndarray) -> tuple[float, float]:
    """Returns the least squares coefficient of the last column, and its standard error by the jackknife over
    prompts."""
    num_prompts, num_columns = int(prompts.max()) + 1, design.shape[1]
    products, targets = np.zeros((num_prompts, num_columns, num_columns)), np.zeros((num_prompts, num_columns))
    np.add.at(products, prompts, design[:, :, None] * design[:, None, :])
    np.add.at(targets, prompts, design * values[:, None])
    whole, target = products.sum(axis=0), targets.sum(axis=0)
    coefficient = float((np.linalg.pinv(whole, hermitian=True) @ target)[-1])
    without = np.linalg.pinv(whole - products, hermitian=True) @ (target - targets)[:, :, None]
    deviations = without[:, -1, 0] - coefficient
    return coefficient, float(np.sqrt((num_prompts - 1) / num_prompts * np.square(deviations).sum()))


def _least_squares(design: Array, values: Array) -> tuple[float, float, int]:
    """Returns the least squares coefficient of the last column, its standard error for independent errors of equal
    variance, and the degrees of freedom."""
    inverse = np.linalg.pinv(design.T @ design, hermitian=True)
    coefficients = inverse @ design.T @ values
    num_free = len(values) - int(np.linalg.matrix_rank(design))
    errors = values - design @ coefficients
    return float(coefficients[-1]), float(np.sqrt(errors @ errors / num_free * inverse[-1, -1])), num_free


WIDE = 1.25  # high ÷ low of an interval that is too wide to separate a method from one that is a quarter faster


def warnings_of(row: Row, records: Sequence[Record], num_trained_on: int = 0) -> tuple[RowWarning, ...]:
    """Returns the warnings of a row. `records`: the row's. `num_trained_on`: the number of measured prompts on which
    its drafter was trained."""
    num_processes = len({record.get("process") for record in records})
    found = (
        wide_interval(row), few_prompts(row), drift(row, num_processes), unsteady_start(row),
        trained_on_test(row, num_trained_on), misread_head(row, records),
    )  # fmt: skip
    return tuple(each for each in found if each is not None)


def wide_interval(row: Row) -> RowWarning | None:
    """Warns of a speed-up whose interval ends are more than a factor of WIDE apart. The width on the log scale falls
    with the root of the number of prompts (or of turns of servers), so (width ÷ wanted width)² times as many are
    needed.
    """
    speedup = row.metric("speedup")
    if not speedup.low or not speedup.high or speedup.low < 0 or speedup.high / speedup.low <= WIDE:
        return None
    ratio, turns = speedup.high / speedup.low, row.served.turns if row.served is not None else None
    resampled, number = ("turns", turns) if turns else ("prompts", num_timed(row))
    needed = math.ceil(number * ((math.log(speedup.high) - math.log(speedup.low)) / math.log(WIDE)) ** 2)
    text = (
        f"the speed-up's interval is wide, {speedup.low:.2f} to {speedup.high:.2f} (× {ratio:.2f}): for × {WIDE} "
        f"measure about {needed} {resampled} instead of {number}, or on a quieter machine"
    )
    return RowWarning(code="wide_interval", text=text)


def few_prompts(row: Row) -> RowWarning | None:
    """Warns of a speed-up from so few prompts that its interval may be too narrow or absent."""
    if not has_few_prompts(row):
        return None
    num, speedup = num_timed(row), row.metrics["speedup"]
    prompts = counted(num, "prompt")
    problem = (
        f"the speed-up rests on {prompts} and has no interval"
        if speedup.low is None
        else f"the speed-up's interval rests on {prompts} and may be too narrow"
    )
    text = f"{problem}: measure {SMALL_SAMPLE} or more"
    return RowWarning(code="few_prompts", text=text)


def drift(row: Row, num_processes: int) -> RowWarning | None:
    """Warns of a baseline whose speed changed during the run. The effect on the speed-up is unknown, since the method
    ran alternately with the baseline, and may gain or lose from the same change. The baseline gets no such warning."""
    ratio = row.metric("ar_drift")
    if row.metric("speedup").low is None or not has_drifted(ratio):
        return None
    resumed = f", {num_processes} processes one after the other," if num_processes > 1 else ""
    text = (
        f"in the last third of the run{resumed} the baseline ran at {with_interval(ratio)} times its speed in the "
        "first third, so load or clock changed: measure again into another folder, without a break and with nothing "
        "else running"
    )
    return RowWarning(code="ar_drift", text=text)


def unsteady_start(row: Row) -> RowWarning | None:
    """Warns of a method or a baseline whose speed was not steady at the start of the measurement."""
    if is_baseline(row) or row.warm_up is None or row.warm_up.steady:
        return None
    return RowWarning(code="not_steady", text=not_steady(row.warm_up.blocks, row.warm_up.seconds))


def not_steady(blocks: int, seconds: float) -> str:
    """Returns the warning of a warm-up that ended before the speed was steady."""
    return (
        f"the speed was not steady after the warm-up ({blocks} blocks, {seconds:.0f} s): measure again, into another "
        "folder, with nothing else running"
    )


def trained_on_test(row: Row, num_prompts: int) -> RowWarning | None:
    if not num_prompts:
        return None
    text = (
        f"the drafter was trained on {num_prompts} of the {row.n} measured prompts, as its training.json says, so "
        "it may know them better than others: measure prompts that it was not trained on, or train it on others"
    )
    return RowWarning(code="trained_on_test", text=text)


HEADS = ("eagle", "eagle_tree", "medusa", "mtp")  # drafters that read a draft head
USUAL, MIN_JUDGED = 0.3, 50  # the usual share of accepted first draft tokens; the number of tokens needed to judge it


def misread_head(row: Row, records: Sequence[Record]) -> RowWarning | None:
    """Warns of a draft head whose tokens are rarely accepted: its checkpoint may belong to another target, or have a
    layout that was read wrongly. In draft trees only the first child of each judged node counts, since one of many
    children may be accepted by chance."""
    kind = row.options.get("drafter", {}).get("type")
    if kind not in HEADS:
        return None
    name = row.method.partition("@")[0]
    own = [record["methods"][name] for record in records]
    if any("tree_nodes" in generation for generation in own):
        firsts = [generation["tree_ranks"][0] for generation in own if generation.get("tree_ranks")]
        num_judged, num_accepted = (sum(pair[place] for pair in firsts) for place in (0, 1))
        token, cases = "the first child of a node", "judged nodes"
    else:
        drafted = [step for generation in own for step in generation["steps"] if step[DRAFTED]]
        num_judged, num_accepted = len(drafted), sum(step[ACCEPTED] > 0 for step in drafted)
        token, cases = "the first draft token", "steps"
    if num_judged < MIN_JUDGED or num_accepted / num_judged >= USUAL:
        return None
    cause = (
        "the layer of the target may be read wrongly"
        if kind == "mtp"
        else "its checkpoint may be of another target, or read wrongly: check drafter.path"
    )
    text = (
        f"{token} of its head is accepted in only {num_accepted / num_judged:.0%} of {num_judged} {cases}, "
        f"and heads usually reach {USUAL:.0%}: {cause} (docs/notes/heads.md)"
    )
    return RowWarning(code="misread_head", text=text)
