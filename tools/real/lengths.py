"""Draft lengths that vary, against the best fixed one on a mix of two tasks whose best lengths differ: code, which a
small model of the same family drafts well, and translation, which it does not.

On prompts that are not measured, a draft that never ends by itself is recorded. From its records follow the costs of
the machine, and for each policy the threshold with the most tokens per cost over both tasks.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np

from specbench.analysis.draft_lengths import candidate_lengths, length_name, replayed_rates
from specbench.records.folder import read_method_specs
from specbench.records.records import Record
from specbench.results.answers import BASELINE, Answer, answers_of, length_columns, speed_columns
from specbench.results.draft_lengths import costs_of_widths, length_metrics
from specbench.results.metrics import times
from specbench.results.runs import RecordedRun
from specbench.statistics.bootstrap import Estimate, Resampler

from .cells import CALIBRATED, MOST_DRAFTED

SEED = 0
RECORDED = "sd-recorded"


def calibrated(runs: Sequence[RecordedRun]) -> dict[str, dict[str, Any]]:
    """Returns the content of the method files CALIBRATED: of each policy the length with the most tokens per cost over
    the recorded runs."""
    chosen: dict[str, dict[str, Any]] = {}
    rates = rates_of(runs)
    for length, _ in sorted(rates, key=lambda each: each[1], reverse=True):
        chosen.setdefault(length["policy"], length)
    drafting = {"drafter": {"type": "model"}, "verification": {"rule": "rejection"}, "num_draft_tokens": MOST_DRAFTED}
    return {
        name: {"name": name, "version": 1, "title": f"Draft length {length_name(chosen[policy])}", **drafting,
               "draft_length": chosen[policy]}
        for name, policy in CALIBRATED.items()
    }  # fmt: skip


def rates_of(runs: Sequence[RecordedRun]) -> list[tuple[dict[str, Any], float]]:
    """Returns all draft lengths that are tried, each with its emitted tokens per pass of AR, replayed."""
    records = [record for run in runs for record in run.records.values()]
    baseline, drafting = answers_of(records, BASELINE), answers_of(records, RECORDED)
    names = [name for name in runs[0].methods if name != BASELINE]
    costs = costs_of_widths([answer for name in names for answer in answers_of(records, name)], baseline)
    draft_cost = times(Resampler.of(drafting, SEED), drafting, baseline)["cost_ratio"].value or 0.0
    verify_costs = [float(cost) for cost in costs(np.arange(1, MOST_DRAFTED + 2))]
    tried = candidate_lengths(draft_cost, verify_costs)
    most_tokens = {
        (task.name, subset): task.subset(subset).generation.max_new_tokens
        for run in runs for task in run.tasks for subset in task.subset_names
    }  # fmt: skip
    (method,) = (spec for spec in read_method_specs(runs[0].path) if spec.name == RECORDED)
    rates = replayed_rates(records, method, tried, most_tokens, draft_cost, costs)
    return [(length, rates[length_name(length)]) for length in tried]


@dataclass(frozen=True)
class Mix:
    """Answers to the prompts of several tasks together. `fixed`: the methods of fixed lengths."""

    records: Sequence[Record]
    fixed: Sequence[str]
    _answers: dict[str, list[Answer]] = field(default_factory=dict)

    def answers(self, name: str) -> list[Answer]:
        if name not in self._answers:
            self._answers[name] = answers_of(self.records, name)
        return self._answers[name]

    def speed(self, name: str) -> Estimate:
        """Returns tokens/s."""
        own = self.answers(name)
        return Resampler.of(own, SEED).ratio(*speed_columns([own]))

    def fastest(self) -> str:
        """Returns the fastest fixed length, chosen with the same prompts, which favours it."""
        return max(self.fixed, key=lambda name: self.speed(name).value or 0.0)

    def ratio(self, name: str, other: str) -> Estimate:
        """Returns the speed of a method ÷ that of another, paired by prompt."""
        own = self.answers(name)
        return Resampler.of(own, SEED).ratio(*speed_columns([own, self.answers(other)]))

    def metrics(self, name: str) -> Mapping[str, Estimate]:
        """Returns the speed-up, τ, the draft length, and the share of the oracle's rate."""
        own, baseline = self.answers(name), self.answers(BASELINE)
        prompts = Resampler.of(own, SEED)
        return {
            "speedup": self.ratio(name, BASELINE),
            "mean_acceptance_length": prompts.ratio(*length_columns([own])),
            **length_metrics(prompts, own, baseline, times(prompts, own, baseline)["cost_ratio"].value),
        }


@dataclass(frozen=True)
class StepCosts:
    """What a step of a chain costs, in AR's passes over one token.

    draft_passes: the mean number of draft passes, or look-ups. c: the median one. v: the mean verifying pass. emitted:
    τ.
    """

    draft_passes: float
    c: float
    v: float
    emitted: float

    @classmethod
    def of(cls, own: Sequence[Answer], baseline: Sequence[Answer]) -> Self:
        drafts, plain = (
            np.concatenate([getattr(answer, name) for answer in side])
            for side, name in ((own, "draft_passes"), (baseline, "token_passes"))
        )
        num_steps = sum(answer.num_steps for answer in own)
        seconds, number = sum((answer.passes_by_width.sum(axis=1) for answer in own), start=np.zeros(2))
        c = float(np.median(drafts) / np.median(plain)) if len(drafts) else 0.0
        emitted = sum(answer.num_emitted for answer in own)
        return cls(len(drafts) / num_steps, c, float(seconds / number / plain.mean()), emitted / num_steps)

    @property
    def speedup(self) -> float:
        """τ ÷ (k · c + v): the speed-up if nothing but passes took time."""
        return self.emitted / (self.draft_passes * self.c + self.v)
