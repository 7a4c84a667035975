"""One `specbench sweep` or `specbench tune`: what was asked for → runs → tables, JSON, files."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from specbench.analysis.tuning import sweep
from specbench.analysis.tuning.calibration import choose_slice, described
from specbench.analysis.tuning.method_files import check_output, check_replaceable, write_presets
from specbench.analysis.tuning.picture import draw_estimates, draw_values
from specbench.analysis.tuning.sweep import swept_values, variants
from specbench.analysis.tuning.tables import checks_table, estimates_table, presets_table, values_table
from specbench.analysis.tuning.trials import Measured, Trials, asked_for, open_trials
from specbench.analysis.tuning.tune import Tuner, check_quality, checked_lengths, is_fuzzy, tune
from specbench.core.console import say
from specbench.core.resources import EMBEDDED
from specbench.core.threads import set_threads
from specbench.results.adding import add_rows
from specbench.results.environment import check_takes
from specbench.results.plots import check_plot
from specbench.running.request import Request


@dataclass(frozen=True)
class Report:
    """What a command shows."""

    data: dict[str, Any]
    tables: Sequence[Table]
    folder: Path


def run_sweep(
    request: Request, path: str | None, values: str | None, *, every: bool, num_checks: int, console: Console
) -> Report:
    """Run what is not recorded yet. Raises ConfigError for bad input, before anything is measured."""
    check_files(request)
    spec = asked_for(request, "sweep", console)
    swept = swept_values(spec.methods[1], path, values)
    chosen = variants(spec.methods[1], swept)
    if every or not sweep.fits_one_pass(spec.methods[1], swept):
        trials = open_trials(spec, request, console, "sweep")
        return _measured(trials, sweep.measured_sweep(trials, chosen), request)
    grid = sweep.grid(spec.methods[1], chosen, num_checks)
    trials = open_trials(spec, request, console, "sweep")
    return _one_pass(trials, sweep.one_pass(trials, grid), request)


def check_files(request: Request) -> None:
    """Raise ConfigError for a picture that cannot be written, and a leaderboard that cannot take the rows."""
    if request.plot is not None:
        check_plot(request.plot)
    if request.leaderboard is not None:
        options = request.options
        set_threads(options.threads, (options.target or EMBEDDED).startswith(EMBEDDED))
        check_takes(request.leaderboard, options.device)


def _one_pass(trials: Trials, found: sweep.OnePass, request: Request) -> Report:
    keep_rows(request, [check.run for check in found.checks])
    if request.plot is not None:
        draw_estimates(found, request.plot)
    tables = [estimates_table(trials, found), checks_table(found.checks)]
    return Report(found.as_json(), tables, trials.folder)


def _measured(trials: Trials, found: Sequence[sweep.MeasuredValue], request: Request) -> Report:
    keep_rows(request, [value.run for value in found])
    if request.plot is not None:
        draw_values(found, request.plot)
    return Report({"measured": [each.as_json() for each in found]}, [values_table(trials, found)], trials.folder)


def keep_rows(request: Request, runs: Sequence[Measured]) -> None:
    """Measured rows go to the leaderboard; estimates never do."""
    if request.leaderboard is not None:
        for run in runs:
            add_rows(request.leaderboard, run.rows, run.folder)


def run_tune(
    request: Request, output: Path, *, amount: str, lengths: Sequence[str], step: float, console: Console
) -> Report:
    """Tune and write the method files. Raises ConfigError for bad input, before anything is measured."""
    check_output(output)
    spec = asked_for(request, "tune", console)
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
    return Report(data, [presets_table(trials, presets, paths)], trials.folder)
