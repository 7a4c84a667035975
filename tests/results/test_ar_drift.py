"""The baseline's own clock: runs without drift are not said to have one, and a drift of 20 % is found."""

from typing import Any

import numpy as np
import pytest

from specbench.records.generation import Record
from specbench.results import metrics
from specbench.results.answers import answers_of
from specbench.results.warnings import MIN_PROMPTS, drift_of, has_drifted
from specbench.statistics.bootstrap import Estimate
from tests.support.records import autoregressive, changed, compared
from tools.drift import shares, simulated
from tools.warmup import H100

RUNS = 400


@pytest.mark.parametrize(
    ("size", "noise", "num_subsets"),
    [
        (30, 0.05, 1), (100, 0.1, 3),
        *(
            pytest.param(*each, marks=pytest.mark.slow)
            for each in ((30, 0.05, 3), (100, 0.1, 1), (250, 0.2, 1), (250, 0.2, 3))
        ),
    ],
)  # fmt: skip
def test_a_run_without_drift_is_hardly_ever_said_to_drift(size: int, noise: float, num_subsets: int) -> None:
    """At most 8 of 400; the intervals of such runs hold 1, in 95 % but for what 400 runs and a fit of few can miss."""
    told, held = shares(1.0, size, noise, RUNS, num_subsets)
    assert told * RUNS <= 8 and 0.9 <= held <= 0.995


@pytest.mark.parametrize(
    ("size", "noise", "num_subsets", "least"),
    [(30, 0.05, 1, 95), (100, 0.1, 1, 95), (100, 0.1, 3, 87), pytest.param(250, 0.2, 1, 92, marks=pytest.mark.slow)],
)
def test_a_drift_of_20_percent_is_found(size: int, noise: float, num_subsets: int, least: int) -> None:
    """Of 100 runs; faster in the end as well as slower."""
    for drift in (1.2, 1 / 1.2):
        assert shares(drift, size, noise, 100, num_subsets)[0] * 100 >= least


def test_what_an_h100_did_is_found_in_sixteen_answers() -> None:
    """AR sped up fivefold; answers of like length. Steady ones of as many prompts are not said to drift."""
    tokens, context = np.full(16, 64.0), np.full(16, 100.0)
    found = drift_of(np.array(H100), tokens, context, np.arange(16))
    assert has_drifted(found) and found.value == pytest.approx(1.97, abs=0.01)
    rng = np.random.default_rng(0)
    for lengths in (tokens, rng.integers(50, 80, 16).astype(float)):
        assert has_drifted(drift_of(np.array(H100) * lengths / 64, lengths, context, np.arange(16)))
    even = 0.7 * np.exp(rng.normal(0, 0.1, (200, 16)))
    assert sum(has_drifted(drift_of(seconds, tokens, context, np.arange(16))) for seconds in even) <= 4


@pytest.mark.parametrize(
    ("size", "num_subsets"),
    [(15, 3), (24, 1), *(pytest.param(*each, marks=pytest.mark.slow) for each in ((15, 1), (16, 1), (16, 3), (24, 3)))],
)
def test_a_steady_run_of_few_prompts_is_hardly_ever_said_to_drift(size: int, num_subsets: int) -> None:
    told, held = shares(1.0, size, 0.1, RUNS, num_subsets)
    assert told * RUNS <= 12 and 0.9 <= held <= 0.995


def test_less_than_is_tolerated_is_no_drift() -> None:
    assert shares(1.02, 100, 0.05, RUNS)[0] * RUNS <= 8


def test_longer_contexts_in_the_end_are_no_drift_though_tokens_come_more_slowly() -> None:
    """Control: the plain ratio of the thirds' tokens/s is far below what is tolerated."""
    rng = np.random.default_rng(1)
    size = 150
    tokens, context = np.full(size, 40.0), np.linspace(100, 6000, size)
    seconds = tokens * (0.02 + 4e-6 * (context + 20)) * np.exp(rng.normal(0, 0.02, size))
    plain = (tokens[100:].sum() / seconds[100:].sum()) / (tokens[:50].sum() / seconds[:50].sum())
    found = drift_of(seconds, tokens, context, np.arange(size))
    assert plain < 0.65 and not has_drifted(found)
    assert has_drifted(Estimate(value=plain, low=plain, high=plain))


def test_the_repeats_of_a_prompt_are_no_prompts_of_their_own() -> None:
    """Ten prompts per third, each ten times: with a speed of its own for each prompt, as a text may have, the error is
    that of ten."""
    rng = np.random.default_rng(2)
    prompts = np.repeat(np.arange(30), 10)
    tokens, context = np.full(300, 40.0), np.full(300, 100.0)
    told = 0
    for _ in range(100):
        seconds = np.exp(rng.normal(0, 0.1, 30)[prompts] + rng.normal(0, 0.01, 300))
        told += has_drifted(drift_of(seconds, tokens, context, prompts))
        alone = drift_of(seconds, tokens, context, np.arange(300))
        together = drift_of(seconds, tokens, context, prompts)
        assert alone.high and alone.low and together.high and together.low
        assert together.high / together.low > alone.high / alone.low
    assert told <= 2


def ar_drift(records: list[Record]) -> Estimate:
    return metrics.ar_drift(answers_of(records, "ar"))


def record(number: int, at: float | None, decode: float = 1.0, **fields: Any) -> Record:
    ar = autoregressive(41, decode_seconds=decode * (1 + number % 7 / 100))
    return compared(number, ar, prompt_tokens=50 + number % 5, measured_at=at, **fields)


def test_the_order_is_that_in_which_they_were_measured() -> None:
    """Whatever the order of the list: a run that was resumed has the examples of both starts mixed."""
    drifting = [record(n, 1000.0 + n, decode=1.0 if n < 30 else 1.3) for n in range(60)]
    mixed = [drifting[n // 2 + 30 * (n % 2)] for n in range(60)]
    found = ar_drift(mixed)
    assert found == ar_drift(drifting) and found.value == pytest.approx(1 / 1.3, rel=0.02) and has_drifted(found)
    even = [changed(each, measured_at=float(n)) for n, each in enumerate(mixed)]
    assert not has_drifted(ar_drift(even)), "the control: the same answers, fast and slow in turn"


def test_what_cannot_be_told_has_no_ratio() -> None:
    few = [record(n, float(n)) for n in range(3 * MIN_PROMPTS - 1)]
    assert ar_drift(few) == Estimate() == ar_drift([])
    enough = [*few, record(99, 99.0)]
    assert ar_drift(enough).low is not None
    assert ar_drift([*enough, record(100, None)]) == Estimate(), "measured by a version that did not say when"
    assert ar_drift([record(n % 10, float(n), repeat=n // 10) for n in range(90)]).low is not None
    assert ar_drift([record(n // 10, float(n), repeat=n % 10) for n in range(90)]) == Estimate(), (
        "three prompts a third"
    )


def test_a_drifting_simulation_is_of_the_ratio_that_it_says() -> None:
    rng = np.random.default_rng(3)
    values = [simulated(1.2, 100, 0.05, rng).value or 0.0 for _ in range(100)]
    assert np.mean(values) == pytest.approx(1 / 1.2, rel=0.01)
