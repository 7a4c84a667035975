"""`specbench sweep`: every value measured, or for fuzzy methods one recorded run replayed at every setting."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from rich.console import Console

from specbench.analysis.estimates import OnePassSweep, Recording, SettingEstimate, check_of
from specbench.analysis.trials import (
    LENGTH,
    THRESHOLD,
    MeasuredValue,
    SweptValue,
    TrialRun,
    Trials,
    TuningReport,
    check_files,
    finish,
    fuzzy_at,
    open_trials,
    shown,
    trial_spec,
    with_value,
)
from specbench.analysis.tuning_tables import checks_table, draw_estimates, draw_values, estimates_table, values_table
from specbench.core.console import say
from specbench.core.errors import ConfigError, nearest
from specbench.running.request import Request
from specbench.specs import components as dotted
from specbench.specs import yaml_files
from specbench.specs.method import MethodSpec

# Not what a method does, or what makes it another method with other options.
FIXED = ("name", "version", "title", "paper", "calibration", "decodes_with", "drafter.type", "decoder.type")
MIN_CHECKS = 3


def run_sweep(
    request: Request, path: str | None, values: str | None, *, measure_all: bool, num_checks: int, console: Console
) -> TuningReport:
    """Run what is not recorded yet. Raises ConfigError for bad input, before anything is measured."""
    check_files(request)
    spec = trial_spec(request, "sweep", console)
    method = spec.methods[1]
    by_path = values_by_path(method, path, values)
    settings = [  # one path at a time: crossing the paths would need the product of their numbers of values
        SweptValue(key, value, with_value(method, key, value, place=f"--path {key}, value {shown(value)}"))
        for key, of_key in by_path.items() for value in of_key
    ]  # fmt: skip
    if measure_all or not fits_one_pass(method, by_path):
        trials = open_trials(spec, request, console, "sweep")
        measured = measured_sweep(trials, settings)
        data = [
            {"path": each.path, "value": each.value, "estimate": False, "folder": str(each.run.folder),
             "metrics": each.run.shown_metrics(each.method.name)}
            for each in measured
        ]  # fmt: skip
        runs, tables = [each.run for each in measured], [values_table(trials, measured)]
        return finish(request, trials, runs, {"measured": data}, tables, partial(draw_values, measured))
    thresholds = sorted({each.method.verification.options["threshold"] for each in settings if each.path == THRESHOLD})
    lengths = sorted({each.method.num_draft_tokens for each in settings if each.path == LENGTH})
    least = min(MIN_CHECKS, len(thresholds))
    if num_checks < least:
        raise ConfigError(f"--checks {num_checks}: an estimate is shown with its error: give at least {least}")
    trials = open_trials(spec, request, console, "sweep")
    sweep = one_pass(trials, thresholds, lengths or [method.num_draft_tokens], spread(thresholds, num_checks))
    runs, tables = [check.run for check in sweep.checks], [estimates_table(trials, sweep), checks_table(sweep.checks)]
    return finish(request, trials, runs, sweep.as_json(), tables, partial(draw_estimates, sweep))


def values_by_path(method: MethodSpec, path: str | None, values: str | None) -> dict[str, list[Any]]:
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


def fits_one_pass(method: MethodSpec, values: Mapping[str, Sequence[Any]]) -> bool:
    """Returns whether one run's records suffice: for a sweep of the threshold, or of threshold and draft length."""
    is_fuzzy = method.routes is None and method.verification.rule == "fuzzy"
    return is_fuzzy and THRESHOLD in values and set(values) <= {THRESHOLD, LENGTH}


def measured_sweep(trials: Trials, settings: Sequence[SweptValue]) -> list[MeasuredValue]:
    """Measure every value with AR, each in its own folder; equal methods are measured once."""
    runs: dict[str, TrialRun] = {}
    measured = []
    for number, each in enumerate(settings, start=1):
        meaning = each.method.model_dump_json()
        say(trials.console, f"[{number}/{len(settings)}] {each.path} = {shown(each.value)}")
        if meaning not in runs:
            runs[meaning] = trials.run(each.name, [each.method])
        measured.append(MeasuredValue(each.path, each.value, each.method, runs[meaning]))
    return measured


def recorded_run(trials: Trials, threshold: float, num_draft_tokens: int) -> tuple[TrialRun, Recording]:
    """Measure a run that keeps the divergences of all drafted positions."""
    method = fuzzy_at(trials.base, threshold, num_draft_tokens)
    say(trials.console, f"recording at threshold {threshold:g} with {num_draft_tokens} draft tokens")
    run = trials.run(f"record-{_folder_name(threshold, num_draft_tokens)}", [method], keep=method.name)
    return run, Recording.of(run, method.name)


def _folder_name(threshold: float, num_draft_tokens: int) -> str:
    return f"{THRESHOLD}={threshold:g}-{LENGTH}={num_draft_tokens}"


def one_pass(
    trials: Trials, thresholds: Sequence[float], lengths: Sequence[int], checked: Sequence[float]
) -> OnePassSweep:
    """Record once, replay every threshold × draft length, and run the `checked` thresholds for the error.

    Recorded at the smallest threshold, whose answers are nearest to the target's own, so that the answers of all other
    thresholds begin as they do; and at the longest draft, which holds the shorter ones. A check is run at the draft
    length with the best estimated speed: the setting that one would choose.
    """
    run, recording = recorded_run(trials, thresholds[0], lengths[-1])
    estimates = [recording.estimate(threshold, length) for threshold in thresholds for length in lengths]
    checks = []
    for threshold in checked:
        best = max((each for each in estimates if each.threshold == threshold), key=_speed)
        method = fuzzy_at(trials.base, threshold, best.num_draft_tokens)
        setting = f"threshold {threshold:g} with {best.num_draft_tokens} draft tokens"
        say(trials.console, f"checking the estimate for {setting}")
        real = trials.run(_folder_name(threshold, best.num_draft_tokens), [method])
        checks.append(check_of(recording, best, real, method.name))
    return OnePassSweep(run.method(trials.base.name), run, estimates, checks)


def _speed(estimate: SettingEstimate) -> float:
    return estimate.metrics["tokens_per_second"].value or 0.0


def spread(values: Sequence[float], count: int) -> list[float]:
    """Returns `count` of the values from first to last, evenly by rank; all of them where there are no more."""
    if count >= len(values):
        return list(values)
    if count == 1:
        return [values[len(values) // 2]]
    return [values[round(i * (len(values) - 1) / (count - 1))] for i in range(count)]
