"""The bars of a fairness report: measured and teacher-forced rates look different, and what has no value has none."""

from collections.abc import Iterator
from typing import Any

import pytest

from specbench.analysis.fairness.fairness import DrafterReport
from specbench.analysis.fairness.tables import draw_bars
from specbench.results.fairness import (
    BoundChain,
    Correlations,
    FairnessSummary,
    ForcedNumbers,
    GroupNumbers,
    MeasuredNumbers,
)
from specbench.statistics.bootstrap import Estimate


@pytest.fixture
def axes() -> Iterator[Any]:
    pyplot = pytest.importorskip("matplotlib.pyplot")
    figure, axes = pyplot.subplots()
    yield axes
    pyplot.close(figure)


def metric(value: float | None) -> Estimate:
    return Estimate() if value is None else Estimate(value=value, low=value - 0.1, high=value + 0.1)


def group(measured: float | str | None, forced: float | None, misfit: float | None = 0.5) -> GroupNumbers:
    """`measured`: "" for a drafter that no run has measured."""
    found = None if isinstance(measured, str) else MeasuredNumbers(
        acceptance_rate=metric(measured), mean_acceptance_length=Estimate(), speedup=Estimate()
    )  # fmt: skip
    names = ("cross_entropy", "kl", "tv", "target_misfit", "speedup_expected")
    rates: dict[str, Any] = {name: Estimate() for name in names}
    return GroupNumbers(
        task="mgsm", subset="x", language="x", num_prompts=3, measured=found,
        forced=ForcedNumbers(num_positions=5, acceptance_rate=metric(forced), draft_misfit=metric(misfit), excluded=0.0,
                      tokens_per_pass=BoundChain.model_construct(), **rates),
    )  # fmt: skip


def drafter(label: str, method: str | None, groups: dict[str, GroupNumbers]) -> DrafterReport:
    family = FairnessSummary(groups=tuple(groups), spreads={}, correlations=Correlations())
    return DrafterReport(
        label=label, drafter=label, revision=None, run=None, method=method, num_draft_tokens=5, cost_ratio=None,
        problem=None, groups=groups, family=family,
    )  # fmt: skip


def test_forced_bars_are_hatched_and_named_and_nothing_is_drawn_without_a_value(axes: Any) -> None:
    draw_bars(axes, [
        drafter("sd", "sd", {"en": group(0.8, 0.9), "sw": group(None, 0.7), "te": group(0.2, 0.3)}),
        drafter("mine", None, {"en": group("", 0.6), "sw": group("", None), "te": group("", 0.1)}),
    ])  # fmt: skip
    bars = [(round(bar.get_x() + bar.get_width() / 2, 6), bar.get_height(), bar.get_hatch()) for bar in axes.patches]
    assert bars == [(-0.2, 0.8, None), (1.8, 0.2, None), (0.2, 0.6, "//"), (2.2, 0.1, "//")]
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["sd", "mine: α_T, teacher-forced"]
    assert len({bar.get_facecolor() for bar in axes.patches}) == 2
