"""Agreement of two runs, and the variance between several, against numbers from other sources and simulated runs."""

import math

import numpy as np
import pytest
from scipy import stats

from specbench.statistics.between_runs import normalized_error, random_effects, variances_on_same_units
from specbench.statistics.bootstrap import Estimate


def test_normalized_error() -> None:
    """E_n = |x₁ − x₂| ÷ U, on the log scale."""
    assert normalized_error(Estimate(value=1.1, low=1.0, high=1.21)) == pytest.approx(1.0)
    assert normalized_error(Estimate(value=1 / 1.1, low=1 / 1.21, high=1.0)) == pytest.approx(1.0)
    assert normalized_error(Estimate(value=1.0, low=1.0, high=1.0)) == 0.0
    assert normalized_error(Estimate(value=1.2)) is None
    assert normalized_error(Estimate(value=1.2, low=1.2, high=1.2)) is None, "no noise was seen, and yet they differ"


# Seven log odds ratios of aspirin after myocardial infarction (Fleiss, Stat. Methods in Medical Research 2, 1993):
# deaths and patients, treated and not.
DEATHS = ((49, 615, 67, 624), (44, 758, 64, 771), (102, 832, 126, 850), (32, 317, 38, 309), (85, 810, 52, 406),
          (246, 2267, 219, 2257), (1570, 8587, 1720, 8600))  # fmt: skip


def test_random_effects_of_the_aspirin_trials() -> None:
    """R's `meta` gives an odds ratio of 0.8763, σ² 0.0096 and I² 39.7 % for them (DerSimonian and Laird)."""
    counts = np.array(DEATHS, dtype=float)
    dead, alive = counts[:, [0, 2]], counts[:, [1, 3]] - counts[:, [0, 2]]
    logs = np.log(dead[:, 0] / alive[:, 0] / (dead[:, 1] / alive[:, 1]))
    variances = (1 / dead + 1 / alive).sum(axis=1)
    found = random_effects(logs, variances)
    assert found.mean.value == pytest.approx(0.8763, abs=2e-4)
    assert found.variance == pytest.approx(0.0096, abs=1e-4) and found.heterogeneity == pytest.approx(0.397, abs=1e-3)
    # The intervals, from the same mean and weights, written down once more.
    weights = 1 / (variances + found.variance)
    mean = np.average(logs, weights=weights)
    error = math.sqrt(max(1, (weights * (logs - mean) ** 2).sum() / 6) / weights.sum())
    ends = mean + np.array([-1, 1]) * stats.t.ppf(0.975, 6) * error
    assert (found.mean.low, found.mean.high) == pytest.approx(tuple(np.exp(ends)))
    ends = mean + np.array([-1, 1]) * stats.t.ppf(0.975, 5) * math.sqrt(error**2 + found.variance + variances.mean())
    assert found.prediction == pytest.approx(tuple(np.exp(ends)))


def test_equal_runs_have_no_variance_between_them() -> None:
    found = random_effects(np.log([2.0, 2.0, 2.0]), np.zeros(3))
    assert (found.variance, found.heterogeneity) == (0.0, 0.0)
    assert found.prediction == pytest.approx((2.0, 2.0)) and found.mean.value == pytest.approx(2.0)
    with pytest.raises(ValueError, match="2 runs"):
        random_effects(np.zeros(2), np.ones(2))


def drawn(rng: np.random.Generator, num_runs: int, between: float, num_prompts: int = 200) -> list[np.ndarray]:
    """Tokens and seconds of runs on the same prompts: prompts differ, times have noise, and runs have an effect."""
    tokens = rng.lognormal(3, 1, num_prompts)
    pace = rng.lognormal(0, 0.5, num_prompts)
    effects = rng.normal(0, between, num_runs)
    return [np.stack([tokens, tokens * pace * np.exp(effect + rng.normal(0, 0.05, num_prompts))]) for effect in effects]


@pytest.mark.parametrize("between", [0.0, 0.05])
def test_the_variance_between_simulated_runs(between: float) -> None:
    """On average σ²_between is the one that was put in; what prompts have in common is not part of it. One more run
    lies in its interval about as often as it says."""
    rng = np.random.default_rng(0)
    found, own, inside, num = [], [], 0, 300

    def chance(squares: float) -> float:
        return max(0.0, squares / 5 - 1)

    for _ in range(num):
        *columns, more = drawn(rng, 6, between)
        logs = np.array([math.log(each[0].sum() / each[1].sum()) for each in columns])
        own.append(variances_on_same_units(columns).mean())
        effects = random_effects(logs, variances_on_same_units(columns))
        found.append(effects.variance)
        low, high = effects.prediction
        inside += low <= more[0].sum() / more[1].sum() <= high
    # Never below 0, so that without any it has the mean of a truncated χ² of five degrees of freedom.
    assert np.mean(found) == pytest.approx(between**2 or np.mean(own) * stats.chi2.expect(chance, (5,)), rel=0.2)
    assert inside / num > 0.93


def test_variances_are_those_of_runs_apart_from_their_prompts() -> None:
    """The variance of the log ratios of many runs on one set of prompts, of speed-ups too."""
    rng = np.random.default_rng(1)
    columns = drawn(rng, 2000, 0.0)
    logs = np.array([math.log(each[0].sum() / each[1].sum()) for each in columns])
    assert variances_on_same_units(columns[:400]).mean() == pytest.approx(logs.var(), rel=0.1)
    pairs = [np.concatenate(each) for each in zip(columns[::2], columns[1::2], strict=True)]
    logs = np.array([math.log(each[0].sum() / each[1].sum() / (each[2].sum() / each[3].sum())) for each in pairs])
    assert variances_on_same_units(pairs[:400]).mean() == pytest.approx(logs.var(), rel=0.1)
