"""One `specbench sweep` or `specbench tune`: a request → runs → tables, JSON and files; the slice that is tuned on."""

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from random import Random

from rich.console import Console

from specbench.analysis.method_files import check_output, check_replaceable, write_presets
from specbench.analysis.sweep import (
    MeasuredValue,
    OnePassSweep,
    fits_one_pass,
    grid,
    measured_sweep,
    one_pass,
    swept_values,
    values_to_sweep,
)
from specbench.analysis.trials import Trials, TuningReport, check_files, keep_rows, open_trials, trial_spec
from specbench.analysis.tune import Tuner, check_quality, checked_lengths, is_fuzzy, tune
from specbench.analysis.tuning_tables import (
    checks_table,
    draw_estimates,
    draw_values,
    estimates_table,
    presets_table,
    values_table,
)
from specbench.core.console import say
from specbench.core.errors import ConfigError
from specbench.decoding.decoder import stream_seed
from specbench.results.bootstrap import MIN_PROMPTS
from specbench.running.blocks import prompt_digest
from specbench.running.calibration import Loaded
from specbench.running.request import Request
from specbench.specs.method import CalibrationSpec


def run_sweep(
    request: Request, path: str | None, values: str | None, *, every: bool, num_checks: int, console: Console
) -> TuningReport:
    """Run what is not recorded yet. Raises ConfigError for bad input, before anything is measured."""
    check_files(request)
    spec = trial_spec(request, "sweep", console)
    swept = swept_values(spec.methods[1], path, values)
    chosen = values_to_sweep(spec.methods[1], swept)
    if every or not fits_one_pass(spec.methods[1], swept):
        trials = open_trials(spec, request, console, "sweep")
        return _measured(trials, measured_sweep(trials, chosen), request)
    chosen_grid = grid(spec.methods[1], chosen, num_checks)
    trials = open_trials(spec, request, console, "sweep")
    return _one_pass(trials, one_pass(trials, chosen_grid), request)


def _one_pass(trials: Trials, found: OnePassSweep, request: Request) -> TuningReport:
    keep_rows(request, [check.run for check in found.checks])
    if request.plot is not None:
        draw_estimates(found, request.plot)
    tables = [estimates_table(trials, found), checks_table(found.checks)]
    return TuningReport(found.as_json(), tables, trials.folder)


def _measured(trials: Trials, found: Sequence[MeasuredValue], request: Request) -> TuningReport:
    keep_rows(request, [value.run for value in found])
    if request.plot is not None:
        draw_values(found, request.plot)
    return TuningReport({"measured": [each.as_json() for each in found]}, [values_table(trials, found)], trials.folder)


def run_tune(
    request: Request, output: Path, *, amount: str, lengths: Sequence[str], step: float, console: Console
) -> TuningReport:
    """Tune and write the method files. Raises ConfigError for bad input, before anything is measured."""
    check_output(output)
    spec = trial_spec(request, "tune", console)
    check_replaceable(output, ("", "low", "med", "high") if is_fuzzy(spec.methods[1]) else ("",))
    tried = checked_lengths(lengths, spec.methods[1])
    check_quality(spec, step)
    trials = open_trials(spec, request, console, "tune")
    chosen = choose_slice(trials.loaded, amount, spec.seed)
    trials = replace(trials, loaded=chosen)
    say(console, f"calibration slice: {', '.join(f'{len(d.examples)} of {subset}' for _, subset, d in chosen)}")
    tuner = Tuner(trials, tried, step)
    presets = tune(tuner)
    calibration = described(chosen)
    paths = write_presets(output, trials, presets, calibration, tuner.notes)
    data = {
        "files": [str(path) for path in paths], "decisions": tuner.notes, "calibration": calibration.model_dump(),
        "presets": [
            {"preset": preset.label, "method": preset.method.model_dump(mode="json"),
             "metrics": {name: metric.model_dump() for name, metric in preset.metrics.items()}}
            for preset in presets
        ],
    }  # fmt: skip
    return TuningReport(data, [presets_table(trials, presets, paths)], trials.folder)


def choose_slice(loaded: Loaded, amount: str, seed: int) -> Loaded:
    """Returns the examples to tune on, drawn from each subset by the seed. `amount`: a share (0.25) or a number (8) of
    each subset's examples.

    Raises ConfigError for an amount that leaves nothing to evaluate, or too few examples for an interval.
    """
    chosen = []
    for task, subset, data in loaded:
        count = _count(amount, len(data.examples), subset)
        drawn = Random(stream_seed("calibration", seed, task.name, subset)).sample(data.examples, count)
        chosen.append((task, subset, replace(data, examples=tuple(sorted(drawn, key=lambda e: e.index)))))
    total = sum(len(data.examples) for _, _, data in chosen)
    if total < MIN_PROMPTS:
        raise ConfigError(
            f"--calibration {amount}: gives {total} examples in all, but an interval needs {MIN_PROMPTS}: give more, "
            "a larger --limit or more subsets"
        )
    return chosen


def _count(amount: str, num_examples: int, subset: str) -> int:
    try:
        number = float(amount)
    except ValueError:
        number = math.nan
    is_share = 0 < number < 1
    if not is_share and not (number >= 1 and number.is_integer()):
        raise ConfigError(f"--calibration {amount}: give a share between 0 and 1, such as 0.25, or a number such as 8")
    count = math.ceil(number * num_examples) if is_share else int(number)
    if count >= num_examples:
        raise ConfigError(
            f"--calibration {amount}: takes all {num_examples} examples of subset '{subset}', so that none is left to "
            "evaluate: give less, or a larger --limit"
        )
    return count


def described(chosen: Loaded) -> CalibrationSpec:
    """Returns the slice as the tuned method's file states it."""
    task, _, data = chosen[0]
    return CalibrationSpec(
        task=task.name, data=f"{data.source} {data.location}", revision=data.revision,
        prompts={
            subset: tuple(prompt_digest(example, turn=0) for example in data.examples) for _, subset, data in chosen
        },
    )  # fmt: skip
