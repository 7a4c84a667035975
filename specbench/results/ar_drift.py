"""Whether the baseline's own clock drifted: AR's tokens/s in the last third of the measured order ÷ in the first third.

Answers of the two thirds are not the same, so a plain ratio would mix the drift with their lengths: AR reads a longer
cache for a longer context, and what an answer costs once weighs more on a short one. Both are covariates of a least
squares fit of log seconds per token, in which the middle and the last third have a level of their own:

    log(seconds ÷ tokens) = level + a · context + b ÷ tokens + drift of the middle third + drift of the last third

context: the prompt's tokens and half of the answer's. The ratio is exp(−drift of the last third). Its interval is
Student's t around it, with the standard error of the delete-one jackknife over prompts (CR3; MacKinnon, Nielsen and
Webb, Journal of Applied Econometrics 38, 2023), each with its repeats and turns. Where context and order go together
the fit cannot tell them apart, and the interval is wide. Noise is taken to be of each prompt by itself: load that
lasts for several answers is told as a drift more often, which it is, for these thirds (noise of 0.1 that is correlated
by 0.3 from answer to answer: in 2.4 % of runs of 30 and 0.2 % of 100 answers; by 0.9: in 36 and 35 %).

How often the ratio is said to have drifted (`has_drifted`), in % of 1,000 simulated runs each (± 0.6), whose baseline
was so many times slower in the last third; answers of log-normal length, noise of t with three degrees of freedom.
`held`: how often the interval of a run without drift holds 1. `python -m tests.show_drift` prints this table:

    contexts of one kind
    noise    n   held     × 1  × 1.05   × 1.1   × 1.2   × 1.3
     0.05   30   96.7     0.0     1.5    55.6    98.3    99.3
     0.05   60   95.3     0.0     1.6    83.4    99.7    99.9
     0.05  100   95.9     0.0     2.2    95.3   100.0   100.0
     0.05  250   96.0     0.0     2.2    99.3   100.0   100.0
      0.1   30   96.1     0.0     1.1    18.9    81.3    97.0
      0.1   60   96.0     0.0     2.1    33.0    96.4    99.5
      0.1  100   96.3     0.0     1.7    51.8    99.1    99.8
      0.1  250   95.2     0.0     3.0    86.9   100.0   100.0
      0.2   30   96.2     0.6     2.0     6.1    34.6    67.2
      0.2   60   95.9     0.3     1.9    13.2    58.4    90.1
      0.2  100   96.6     0.0     2.4    17.8    78.6    97.6
      0.2  250   95.0     0.0     2.1    36.5    97.5    99.8
    three subsets, contexts ever longer
    noise    n   held     × 1  × 1.05   × 1.1   × 1.2   × 1.3
     0.05   30   96.2     0.4     3.0    31.1    86.5    96.5
     0.05   60   96.4     0.0     5.0    58.5    97.6    99.6
     0.05  100   94.3     0.0     5.2    79.1    99.7   100.0
     0.05  250   90.6     0.0     9.6    98.0   100.0   100.0
      0.1   30   97.2     0.3     2.0     9.8    45.3    75.8
      0.1   60   95.4     0.3     2.7    21.9    78.3    96.9
      0.1  100   95.9     0.1     3.2    34.4    93.4    99.2
      0.1  250   95.5     0.0     4.7    67.7    99.4   100.0
      0.2   30   97.5     0.9     2.8     4.7    14.5    33.1
      0.2   60   96.5     0.2     2.5     7.0    33.3    64.1
      0.2  100   96.2     0.4     2.7    10.8    51.4    82.5
      0.2  250   95.7     0.3     3.1    23.0    85.0    98.7
"""

from collections.abc import Sequence

import numpy as np
from scipy import special

from specbench.results.bootstrap import SMALL_SAMPLE, Metric
from specbench.results.counts import timed_tokens
from specbench.results.resampling import TAILS, Array
from specbench.running.records import Record

MIN_PROMPTS = SMALL_SAMPLE // 3  # in each third: of fewer, one slow prompt is a drift
TOLERATED = 1.05  # as an interleaved baseline drifts, so does the method: less moves no speed-up that anyone would tell


def ar_drift(records: Sequence[Record]) -> Metric:
    """The ratio with its interval; null where a record does not say when it was measured (`measured_at`), and where
    a third has fewer than MIN_PROMPTS prompts with a timed token."""
    if any(record.get("measured_at") is None for record in records):
        return Metric()
    ordered = sorted(records, key=lambda record: float(record["measured_at"]))
    timed = [record for record in ordered if timed_tokens(record["methods"]["ar"]) > 0]
    numbers: dict[tuple[str, int], int] = {}
    prompts = np.array([numbers.setdefault((r["subset"], r["example"]), len(numbers)) for r in timed], dtype=np.int64)
    baseline = [record["methods"]["ar"] for record in timed]
    return drift_of(
        np.array([g["decode_seconds"] for g in baseline], dtype=np.float64),
        np.array([timed_tokens(g) for g in baseline], dtype=np.float64),
        np.array([record["prompt_tokens"] for record in timed], dtype=np.float64),
        prompts,
    )


def drift_of(seconds: Array, tokens: Array, prompt_tokens: Array, prompts: np.ndarray) -> Metric:
    """All [num_answers] in the order in which they were measured; prompts: 0 to their number."""
    size = len(seconds) // 3
    thirds = (prompts[:size], prompts[len(seconds) - size :])
    num_prompts = sum(len(set(third.tolist())) for third in thirds)
    if any(len(set(third.tolist())) < MIN_PROMPTS for third in thirds) or not (seconds > 0).all():
        return Metric()
    place = np.arange(len(seconds))
    last = place >= len(seconds) - size
    columns = [prompt_tokens + tokens / 2, 1 / tokens, (place >= size) & ~last, last]
    design = np.column_stack([np.ones(len(seconds)), *(_scaled(np.asarray(c, dtype=np.float64)) for c in columns)])
    drift, error = _last_coefficient(design, np.log(seconds / tokens), prompts)
    # the last column is of ones where the third is the last, and was scaled to a width of 1: its coefficient is the log
    half = special.stdtrit(num_prompts - 2, TAILS[1]) * error
    ends = [float(np.exp(-drift + sign * half)) for sign in (-1, 1)]
    return Metric(value=float(np.exp(-drift)), low=ends[0], high=ends[1]) if np.isfinite(ends).all() else Metric()


def has_drifted(ratio: Metric) -> bool:
    """Whether the whole interval lies beyond what is TOLERATED, to either side."""
    if ratio.low is None or ratio.high is None:
        return False
    return ratio.low > TOLERATED or ratio.high < 1 / TOLERATED


def _scaled(column: Array) -> Array:
    """Centred, with a width of 1; a column of equal values is 0."""
    width = np.ptp(column)
    return (column - column.mean()) / width if width > 1e-9 * abs(column).max() else np.zeros_like(column)


def _last_coefficient(design: Array, values: Array, prompts: np.ndarray) -> tuple[float, float]:
    """The least squares coefficient of the last column, and its standard error by leaving out each prompt in turn."""
    num_prompts, num_columns = int(prompts.max()) + 1, design.shape[1]
    products, targets = np.zeros((num_prompts, num_columns, num_columns)), np.zeros((num_prompts, num_columns))
    np.add.at(products, prompts, design[:, :, None] * design[:, None, :])
    np.add.at(targets, prompts, design * values[:, None])
    whole, target = products.sum(axis=0), targets.sum(axis=0)
    coefficient = float((np.linalg.pinv(whole, hermitian=True) @ target)[-1])
    without = np.linalg.pinv(whole - products, hermitian=True) @ (target - targets)[:, :, None]
    deviations = without[:, -1, 0] - coefficient
    return coefficient, float(np.sqrt((num_prompts - 1) / num_prompts * np.square(deviations).sum()))
