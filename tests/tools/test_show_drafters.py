"""The parts of the page on trained drafters that compute: slopes, gains, and what is said of a claim."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from specbench.analysis.fairness.fairness import NumberChange
from specbench.embedded import read_manifest
from specbench.statistics.bootstrap import Estimate
from tools.commands import ROOT
from tools.drafters.cells import interval, number, table
from tools.drafters.claims import Claim, changes, section, verdict
from tools.drafters.document import revision_of
from tools.drafters.scaling import Columns, Point, combined
from tools.drafters.workplace import Workplace


def column(rate: float, num_prompts: int = 40) -> np.ndarray:
    """Columns [2, num_prompts] whose ratio of sums is the rate; prompts differ a little around it."""
    noise = np.resize([0.95, 1.05], num_prompts)
    return np.array([rate * noise, np.ones(num_prompts)])


def change(before: float, after: float, low: float, high: float) -> NumberChange:
    difference = Estimate(value=after - before, low=low, high=high)
    return NumberChange(
        before=Estimate(value=before), after=Estimate(value=after), difference=difference, percent=Estimate()
    )


def test_a_slope_is_that_of_least_squares() -> None:
    tokens, rates = [100, 400, 1600, 6400], [0.2, 0.3, 0.45, 0.5]
    names = [f"m{count}" for count in tokens]
    columns = Columns({}, {name: column(rate) for name, rate in zip(names, rates, strict=True)}, {})
    speeds = {name: np.vstack([column(2 * rate), column(1.0)]) for name, rate in zip(names, rates, strict=True)}
    points = [Point(n, "F", 0, count, 1e-3, *[Estimate()] * 3) for n, count in zip(names, tokens, strict=True)]
    speedup, rate = Columns(speeds, columns.rates, {}).slopes(points)
    expected = np.polyfit(np.log(tokens), rates, 1)[0]
    assert rate.value == pytest.approx(expected) and speedup.value == pytest.approx(2 * expected)
    assert rate.low is not None and rate.high is not None and rate.low < expected < rate.high


def test_a_gain_is_of_the_same_prompts() -> None:
    same = Columns({}, {"a": column(0.5), "b": column(0.5)}, {}).gain("a", "b")
    assert same.value == pytest.approx(0) and same.low == same.high == pytest.approx(0)  # paired: their noise is one
    assert combined([column(0.8), column(0.5)], np.array([1.0, -1.0])).value == pytest.approx(0.3)


def comparison(*groups: str, excluded: float = 0.0, **family: NumberChange) -> Any:
    forced = SimpleNamespace(excluded=excluded)
    drafter = SimpleNamespace(groups={group: SimpleNamespace(forced=forced) for group in groups})
    named = {key.replace("__", "."): value for key, value in family.items()}
    return SimpleNamespace(drafters=[drafter], comparison=SimpleNamespace(groups=dict.fromkeys(groups), family=named))


def test_a_claim_is_judged_by_the_interval_of_the_difference() -> None:
    report = comparison(
        "en", "sw", unfairness=change(2.0, 1.0, -1.2, -0.8), acceptance_rate__mean=change(0.5, 0.4, -0.2, -0.01),
        speedup__mean=change(1.0, 1.1, -0.1, 0.3),
    )  # fmt: skip
    expected = {"a": {"unfairness": "falls", "acceptance_rate.mean": "rises", "speedup.mean": "rises"}}
    claim = Claim("it works", "How it was tried.", {"a": report}, expected)
    assert verdict(claim) == "**Of 3 claimed changes: 1 shown, 1 reversed, 1 not separable.**"
    lines = list(changes(claim, "a"))
    assert [line[1] for line in lines] == ["𝒰", "mean α", "mean speed-up"]
    assert [line[-2:] for line in lines] == [["falls", "falls"], ["rises", "falls"], ["rises", "not separable"]]
    assert "2.0000 → 1.0000: -1.0000 [-1.2000, -0.8000]" in section(claim)


def test_what_says_nothing_is_left_out() -> None:
    family = {"unfairness": change(2, 1, -2, -1), "acceptance_rate__variance": change(0, 0, 0, 0),
              "speedup__mean": change(1, 2, 0.5, 1.5)}  # fmt: skip
    reports = {"alone": comparison("en", **family), "excluding": comparison("en", "sw", excluded=0.01, **family)}
    claim = Claim("it works", "How it was tried.", reports, {})
    assert [line[1] for line in changes(claim, "alone")] == ["mean speed-up"]  # one group has no spread
    assert [line[1] for line in changes(claim, "excluding")] == ["variance of α", "mean speed-up"]
    assert not list(changes(Claim("", "", reports, {}, ("cross_entropy.mean",)), "alone"))


def test_cells() -> None:
    assert number(None) == number(Estimate()) == "–" and interval(Estimate(value=1.0)) == "1.00"
    assert table(["a", "b"], [["1", "2"]]) == "| a | b |\n| --- | --: |\n| 1 | 2 |\n"


def test_what_another_command_made_is_refused(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Workplace, "_run", lambda self, words: "made")
    place = Workplace(tmp_path)
    assert place.report("reports/a.json", "fairness", "run") == "made"
    assert place.report("reports/a.json", "fairness", "run") == "made"
    with pytest.raises(SystemExit, match="was made by another command"):
        place.report("reports/a.json", "fairness", "other")


def test_the_page_is_of_the_shipped_members() -> None:
    page = (ROOT / "docs" / "measured" / "drafters.md").read_text(encoding="utf-8")
    members = {
        name: entry for name, entry in read_manifest().items() if entry["role"] in ("target", "drafter", "ngram")
    }
    for name in members:
        assert f"`{name}` {revision_of(name)[:12]}" in page, f"{name} was rebuilt: run python -m tools.drafters"
