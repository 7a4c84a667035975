"""The distribution test: are many draws of a few tokens from fixed prompts draws from the target's own distribution?

Nothing is compared with draws of AR, whose noise would add to the method's: the target's exact probabilities after
every prefix that was drawn are known. Two statistics:

- counts: for every prefix that several draws share, Pearson's χ² of the token that comes next, cells of fewer than five
  expected draws merged. Given the prefixes these are independent multinomials, so they add up over prefixes and
  prompts; the sum of each token position is judged by a gamma distribution with its exact mean and variance (Haldane
  1937), and the positions are combined by Fisher's method, which holds because each is uniform given the ones before.
- log p: the sum of ln p of all drawn tokens, against its exact mean, variance and skewness (Pearson III), two-sided,
  after one rarest token's worth is forgiven. This one also uses the prefixes that were drawn only once.

The p-value is the smaller of the two times two (Bonferroni). Both forgive the rounding noise that `noise.py` measured.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from scipy import stats

from specbench.audit.exact import LOWEST_LOG_P, MIN_EXPECTED, Key, Row, Tokens

SMALLEST = 1e-300  # a p-value that is still a number


@dataclass
class Sum:
    """A statistic summed over independent parts, with its exact mean and variance."""

    value: float = 0.0
    mean: float = 0.0
    variance: float = 0.0

    def add(self, value: float, mean: float, variance: float) -> None:
        self.value += value
        self.mean += mean
        self.variance += variance


class Outlier(NamedTuple):
    """The cell that is farthest from its expectation, in standard deviations."""

    score: float
    key: Key
    token: int
    num_observed: int
    num_expected: float


@dataclass(frozen=True)
class Judgement:
    """p-values, and the mean log p of the drawn tokens with its expectation and standard error, in nats."""

    p_value: float
    p_by_token: list[float | None]
    num_tokens: int
    mean_log_p: float
    expected_log_p: float
    standard_error: float
    outlier: Outlier | None


@dataclass
class _Counts:
    by_token: dict[int, Sum] = field(default_factory=lambda: defaultdict(Sum))
    outlier: Outlier | None = None


def judge(sequences: Sequence[Sequence[Tokens]], rows: Mapping[Key, Row], noise: float) -> Judgement:
    """Test the drawn sequences, one list per prompt; `noise` is E_p[(Δ ln p)²] of a correct method's probabilities."""
    nexts: dict[Key, Counter[int]] = defaultdict(Counter)
    for prompt, drawn in enumerate(sequences):
        for tokens in drawn:
            for length, token in enumerate(tokens):
                nexts[prompt, tokens[:length]][token] += 1
    counts = _Counts()
    log_p, third, num_tokens = Sum(), 0.0, 0
    for key, counter in nexts.items():
        row, total = rows[key], counter.total()
        num_tokens += total
        value = sum(count * row.log_p[token] for token, count in counter.items())
        log_p.add(value, total * row.mean, total * row.variance)
        third += total * row.third
        add_counts(counts, key, counter, row, noise)
    longest = max(len(tokens) for drawn in sequences for tokens in drawn)
    by_token = [gamma_p(counts.by_token[k]) if k in counts.by_token else None for k in range(longest)]
    known = [max(p, SMALLEST) for p in by_token if p is not None]
    p_counts = float(stats.combine_pvalues(known, method="fisher").pvalue) if known else 1.0
    p_log = log_p_value(log_p, third, math.sqrt(noise * num_tokens))
    return Judgement(
        p_value=min(1.0, 2 * min(p_counts, p_log)), p_by_token=by_token, num_tokens=num_tokens,
        mean_log_p=log_p.value / num_tokens, expected_log_p=log_p.mean / num_tokens,
        standard_error=math.sqrt(log_p.variance) / num_tokens, outlier=counts.outlier,
    )  # fmt: skip


def add_counts(counts: _Counts, key: Key, counter: Counter[int], row: Row, noise: float) -> None:
    """Add the χ² of the tokens after one prefix, when its draws fill at least two cells."""
    total = counter.total()
    chosen = row.probs * total >= MIN_EXPECTED
    probs = row.probs[chosen]
    observed = np.array([counter[int(token)] for token in row.tokens[chosen]], dtype=np.float64)
    rest = 1.0 - float(probs.sum())
    if rest * total >= MIN_EXPECTED:
        probs, observed = np.append(probs, rest), np.append(observed, total - observed.sum())
    elif len(probs):  # too rare for a cell of its own
        smallest = int(probs.argmin())
        probs[smallest] += rest
        observed[smallest] += total - observed.sum()
    if len(probs) < 2:
        return
    expected = probs * total
    value = float(((observed - expected) ** 2 / expected).sum())
    num_cells = len(probs)
    variance = 2 * (num_cells - 1) + float((1 / probs).sum() - num_cells**2 - 2 * num_cells + 2) / total
    shift = noise * total
    counts.by_token[len(key[1])].add(value, num_cells - 1 + shift, variance + 4 * shift)
    scores = np.abs(observed - expected) / np.sqrt(expected * (1 - probs))
    worst = int(scores[: int(chosen.sum())].argmax()) if chosen.any() else -1
    if worst >= 0 and (counts.outlier is None or scores[worst] > counts.outlier.score):
        token = int(row.tokens[chosen][worst])
        counts.outlier = Outlier(
            float(scores[worst]), key, token, counter[token], total * float(row.probs[chosen][worst])
        )


def gamma_p(total: Sum) -> float:
    """The probability of a sum at least as large, by the gamma distribution of its mean and variance."""
    return float(stats.gamma.sf(total.value, total.mean**2 / total.variance, scale=total.variance / total.mean))


def log_p_value(total: Sum, third: float, noise_deviations: float) -> float:
    """Two-sided, by Pearson III, after forgiving one token of the lowest log p and the noise."""
    deviation = math.sqrt(total.variance)
    distance = total.value - total.mean
    excess = abs(distance) - abs(LOWEST_LOG_P) - noise_deviations * deviation
    if excess <= 0:
        return 1.0
    if deviation == 0:
        return 0.0
    score = math.copysign(excess / deviation, distance)
    law = stats.pearson3(third / deviation**3)
    return min(1.0, 2 * float(law.sf(score) if score > 0 else law.cdf(score)))
