"""`specbench sweep`: every value measured, or for fuzzy methods one recorded run replayed at every setting."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from specbench.analysis.estimates import EstimateCheck, Recording, SettingEstimate, check_of, shown_metrics
from specbench.analysis.trials import TrialRun, Trials
from specbench.core.console import say
from specbench.core.errors import ConfigError, nearest
from specbench.results.bootstrap import Metric
from specbench.specs import components as dotted
from specbench.specs import yaml_files
from specbench.specs.components import build
from specbench.specs.method import MethodSpec

THRESHOLD, LENGTH = "verification.threshold", "num_draft_tokens"
# Not what a method does, or what makes it another method with other options.
FIXED = ("name", "version", "title", "paper", "calibration", "decodes_with", "drafter.type", "decoder.type")


@dataclass(frozen=True)
class SweptValue:
    """One value of one path; all other keys are as in the method's file. `name` names its folder too."""

    path: str
    value: Any
    method: MethodSpec

    @property
    def name(self) -> str:
        return re.sub(r"[^\w.=+-]+", "_", f"{self.path}={shown(self.value)}")


def with_value(method: MethodSpec, path: str, value: Any, place: str = "") -> MethodSpec:
    """Returns the method with another value at a dotted path. Raises ConfigError: `place`, and what is wrong."""
    data = dotted.put(method.model_dump(exclude={"sweep"}), path, value)
    return build(MethodSpec, data, prefix=f"{place}: " if place else "")


def at(method: MethodSpec, threshold: float, num_draft_tokens: int, name: str | None = None) -> MethodSpec:
    """Returns a fuzzy method at another threshold and draft length."""
    changed = with_value(with_value(method, THRESHOLD, threshold), LENGTH, num_draft_tokens)
    return changed.model_copy(update={"name": name}) if name else changed


def swept_values(method: MethodSpec, path: str | None, values: str | None) -> dict[str, list[Any]]:
    """Returns values by path: those of the method's own `sweep`, or one path with its own values or the given ones.

    Raises ConfigError for a path that the method lacks, and where nothing is given to sweep.
    """
    if path is None:
        if values is not None:
            raise ConfigError(f"--values {values}: needs --path: which key they are for, such as --path {THRESHOLD}")
        if not method.sweep:
            raise ConfigError(f"method '{method.name}' has no `sweep`: give --path KEY --values A,B,C")
        return {key: list(listed) for key, listed in method.sweep.items()}
    leaves = dotted.leaves(method.model_dump(exclude={"sweep"}))
    known = [leaf for leaf in leaves if not leaf.startswith(FIXED) and not leaf.endswith(".drafter.type")]
    if path not in known:
        raise ConfigError(f"--path {path}: method '{method.name}' has no such key: {nearest(path, known)}")
    if values is None:
        if path not in method.sweep:
            raise ConfigError(f"--path {path}: method '{method.name}' sweeps no values of it: give --values A,B,C")
        return {path: list(method.sweep[path])}
    given = yaml_files.parse(f"[{values}]", f"--values {values}")
    if not given:
        raise ConfigError("--values: is empty: give values separated by commas")
    return {path: given}


def values_to_sweep(method: MethodSpec, swept: Mapping[str, Sequence[Any]]) -> list[SweptValue]:
    """Returns every value of one path at a time, all other keys as in the file: crossing the paths would need the
    product of their numbers of values."""
    return [
        SweptValue(path, value, with_value(method, path, value, place=f"--path {path}, value {shown(value)}"))
        for path, values in swept.items() for value in values
    ]  # fmt: skip


def shown(value: Any) -> str:
    """Returns a value as a table or a name shows it."""
    return f"{value:g}" if isinstance(value, float) else value if isinstance(value, str) else json.dumps(value)


MIN_CHECKS = 3


@dataclass(frozen=True)
class MeasuredValue:
    """A value that was run."""

    swept: SweptValue
    run: TrialRun

    @property
    def metrics(self) -> dict[str, Metric]:
        return self.run.metrics(self.swept.method.name)

    def as_json(self) -> dict[str, Any]:
        return {
            "path": self.swept.path, "value": self.swept.value, "estimate": False, "folder": str(self.run.folder),
            "metrics": shown_metrics(self.metrics, self.run.quality),
        }  # fmt: skip


@dataclass(frozen=True)
class OnePassSweep:
    """One recorded run, the estimates made from it, and the real runs that they were checked against."""

    recorded_at: MethodSpec
    run: TrialRun
    estimates: Sequence[SettingEstimate]
    checks: Sequence[EstimateCheck]

    def as_json(self) -> dict[str, Any]:
        return {
            "recorded": {
                "threshold": self.recorded_at.verification.options["threshold"],
                "num_draft_tokens": self.recorded_at.num_draft_tokens, "folder": str(self.run.folder),
            },
            "estimates": [estimate.as_json() for estimate in self.estimates],
            "measured": [check.as_json() for check in self.checks],
        }  # fmt: skip


def fits_one_pass(method: MethodSpec, swept: Mapping[str, Sequence[Any]]) -> bool:
    """Returns whether one run's records suffice: for a sweep of the threshold, or of threshold and draft length."""
    is_fuzzy = method.routes is None and method.verification.rule == "fuzzy"
    return is_fuzzy and THRESHOLD in swept and set(swept) <= {THRESHOLD, LENGTH}


def measured_sweep(trials: Trials, chosen: Sequence[SweptValue]) -> list[MeasuredValue]:
    """Measure every value with AR, each in its own folder; equal methods are measured once."""
    runs: dict[str, TrialRun] = {}
    for number, swept in enumerate(chosen, start=1):
        meaning = swept.method.model_dump_json()
        say(trials.console, f"[{number}/{len(chosen)}] {swept.path} = {shown(swept.value)}")
        if meaning not in runs:
            runs[meaning] = trials.run(swept.name, [swept.method])
    return [MeasuredValue(swept, runs[swept.method.model_dump_json()]) for swept in chosen]


def recorded_run(trials: Trials, threshold: float, num_draft_tokens: int) -> tuple[TrialRun, Recording]:
    """Measure a run that keeps the divergences of all drafted positions."""
    method = at(trials.base, threshold, num_draft_tokens)
    say(trials.console, f"recording at threshold {threshold:g} with {num_draft_tokens} draft tokens")
    run = trials.run(f"record-{THRESHOLD}={threshold:g}-{LENGTH}={num_draft_tokens}", [method], keep=method.name)
    return run, Recording.of(run, method.name)


@dataclass(frozen=True)
class SweepGrid:
    """The settings of a one-pass sweep: every threshold at every draft length; `checked`: the thresholds that are
    run."""

    thresholds: Sequence[float]
    lengths: Sequence[int]
    checked: Sequence[float]


def grid(method: MethodSpec, chosen: Sequence[SweptValue], num_checks: int) -> SweepGrid:
    """Returns the grid of the chosen values. Raises ConfigError for too few checks."""
    thresholds = {v.method.verification.options["threshold"] for v in chosen if v.path == THRESHOLD}
    lengths = {v.method.num_draft_tokens for v in chosen if v.path == LENGTH} or {method.num_draft_tokens}
    wanted = min(MIN_CHECKS, len(thresholds))
    if num_checks < wanted:
        raise ConfigError(f"--check {num_checks}: an estimate is shown with its error: give at least {wanted}")
    return SweepGrid(sorted(thresholds), sorted(lengths), spread(sorted(thresholds), num_checks))


def one_pass(trials: Trials, asked: SweepGrid) -> OnePassSweep:
    """Record once, replay every threshold × draft length, and run some of the thresholds for the error.

    Recorded at the smallest threshold, whose answers are nearest to the target's own, so that the answers of all other
    thresholds begin as they do; and at the longest draft, which holds the shorter ones. A check is run at the draft
    length with the best estimated speed: the setting that one would choose.
    """
    run, recording = recorded_run(trials, asked.thresholds[0], asked.lengths[-1])
    estimates = [recording.estimate(threshold, length) for threshold in asked.thresholds for length in asked.lengths]
    checks = [
        checked_estimate(trials, recording, best_of([e for e in estimates if e.threshold == threshold]))
        for threshold in asked.checked
    ]
    return OnePassSweep(run.method(trials.base.name), run, estimates, checks)


def checked_estimate(trials: Trials, recording: Recording, estimate: SettingEstimate) -> EstimateCheck:
    """Measure a real run at the setting of an estimate. Returns the error of the estimate."""
    method = at(trials.base, estimate.threshold, estimate.num_draft_tokens)
    where = f"threshold {estimate.threshold:g} with {estimate.num_draft_tokens} draft tokens"
    say(trials.console, f"checking the estimate for {where}")
    run = trials.run(f"{THRESHOLD}={estimate.threshold:g}-{LENGTH}={estimate.num_draft_tokens}", [method])
    return check_of(recording, estimate, run, method.name)


def best_of(estimates: Sequence[SettingEstimate]) -> SettingEstimate:
    """Returns the estimate with the highest speed."""
    return max(estimates, key=lambda estimate: estimate.metrics["tokens_per_second"].value or 0.0)


def spread(values: Sequence[float], count: int) -> list[float]:
    """Returns `count` of the values from first to last, evenly by rank; all of them where there are no more."""
    if count >= len(values):
        return list(values)
    if count == 1:
        return [values[len(values) // 2]]
    return [values[round(i * (len(values) - 1) / (count - 1))] for i in range(count)]
