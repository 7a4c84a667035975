"""The published page of coverages is that of the method as it is: a change of the method asks for a new page."""

import pytest
from scipy import stats

from tools.coverage import ENOUGH, HEAD, LEAST, NUM_RUNS, PAGE, SIZES, coverage, method_digest, sample_of
from tools.populations import POPULATIONS

TEXT = PAGE.read_text(encoding="utf-8")
QUICK = (0,)  # populations of the fast tests
LONG = ("variance between 5 languages, n texts each", "corpus score")  # that take seconds
AGAIN = "the method has changed: `python -m tools.coverage --write` computes the page anew"


def published():
    """Population, prompts, runs and specbench's share of the page's first table."""
    table = TEXT.partition("## What a test")[0]
    lines = [line.strip("| ").split(" | ") for line in table.splitlines() if line.startswith("| ")][2:]
    return [(name, int(n), int(runs), float(ours) / 100) for name, n, runs, _, _, ours, *_ in lines]


def test_the_page_names_the_method_of_now():
    assert f"Method {method_digest()}," in TEXT, AGAIN
    assert TEXT.startswith(HEAD), AGAIN


def test_the_page_has_every_population_at_every_size():
    places = [(population.name, n, min(NUM_RUNS, population.most)) for population in POPULATIONS for n in SIZES]
    assert [each[:3] for each in published()] == places
    assert {n for _, n, _, _ in published()} >= {16, 30, 100, 250}


def test_from_100_prompts_on_every_interval_holds_the_truth_in_93_percent():
    """Of fewer than 5,000 runs as far as these can tell: two standard errors."""
    for name, n, runs, share in published():
        error = 0 if runs >= NUM_RUNS else 2 * (LEAST * (1 - LEAST) / runs) ** 0.5
        assert n < ENOUGH or share >= LEAST - error, (name, n)
    plain = [line for line in TEXT.splitlines() if line.startswith(f"| {POPULATIONS[0].name} | {ENOUGH} ")]
    assert float(plain[0].split(" | ")[3]) < 100 * LEAST, "control: plain percentiles do not"


@pytest.mark.parametrize(
    "population",
    [pytest.param(each, id=each.name, marks=[pytest.mark.slow] * (each.name in LONG)) for each in POPULATIONS],
)
def test_a_part_of_the_page_is_computed_again(population):
    assert f"| {' | '.join(sample_of(population))} |" in TEXT.splitlines(), AGAIN


@pytest.mark.parametrize(
    "population",
    [
        pytest.param(each, id=each.name, marks=[pytest.mark.slow] * (number not in QUICK))
        for number, each in enumerate(POPULATIONS[:6])
    ],
)
def test_a_part_of_the_coverage_is_computed_again(population):
    """300 runs: a share of 93 % stays above the bound in 999 of 1,000 times."""
    covered = coverage(population, ENOUGH, 300, seed=1)["specbench"][0]
    assert covered >= stats.binom.ppf(0.001, 300, LEAST) / 300
