"""Sweeps as tables for a terminal of 100 columns. What was not run is marked ≈ and never called measured."""

from collections.abc import Sequence
from pathlib import Path

from rich.table import Table

from specbench.analysis.tuning.estimates import Check
from specbench.analysis.tuning.formats import (
    Metrics,
    add_columns,
    conditions,
    names,
    new_table,
    number_of,
    with_interval,
)
from specbench.analysis.tuning.sweep import MeasuredValue, OnePass, shown
from specbench.analysis.tuning.trials import Trials
from specbench.analysis.tuning.tune import Preset
from specbench.results.units import NULL, pair, unit_of


def values_table(trials: Trials, values: Sequence[MeasuredValue]) -> Table:
    """A line per value that was run."""
    quality = values[0].run.quality
    table = new_table(
        f"{names(trials)}: every value measured",
        f"One key at a time, the others as in the method's file.\n{conditions(trials)}",
    )
    table.add_column("key", overflow="fold")
    add_columns(table, "value", "α", "τ", "tok/s\nar", "tok/s", "speed-up\n95 % interval", heading(quality, "method"))
    for number, value in enumerate(values):
        if number and values[number - 1].variant.path != value.variant.path:
            table.add_section()
        metrics = value.metrics
        table.add_row(
            value.variant.path, shown(value.variant.value), number_of(metrics["acceptance_rate"], 3),
            number_of(metrics["mean_acceptance_length"], 2), number_of(metrics["tokens_per_second_ar"], 1),
            number_of(metrics["tokens_per_second"], 1), with_interval(metrics["speedup"], 2), pair(metrics, quality),
        )  # fmt: skip
    return table


def estimates_table(trials: Trials, sweep: OnePass) -> Table:
    """A line per setting that was walked, none of which was run."""
    recorded = sweep.recorded_at
    threshold = shown(recorded.verification.options["threshold"])
    caption = (
        f"≈ estimated, not measured: from one recorded run at threshold {threshold} with {recorded.num_draft_tokens} "
        "draft tokens. Counts are exact in the share of steps of the last column (up to the first token that would be "
        "another) and estimated behind it; seconds are modelled from that run's passes. The next table has the error "
        f"against real runs.\n{conditions(trials)}"
    )
    table = new_table(f"{names(trials)}: one run, all thresholds", caption)
    add_columns(table, "threshold", "draft\ntokens", "≈ α", "≈ τ", "≈ share of\ndrafter %", "≈ tok/s", "≈ speed-up",
                "exact\nsteps %")  # fmt: skip
    for number, estimate in enumerate(sweep.estimates):
        if number and sweep.estimates[number - 1].threshold != estimate.threshold:
            table.add_section()
        metrics = estimate.metrics
        exact = 100 * estimate.num_exact / max(1, estimate.num_steps)
        table.add_row(
            shown(estimate.threshold), str(estimate.num_draft_tokens), number_of(metrics["acceptance_rate"], 3),
            number_of(metrics["mean_acceptance_length"], 2), number_of(metrics["drafter_share"], 1, 100),
            number_of(metrics["tokens_per_second"], 1), number_of(metrics["speedup"], 2), f"{exact:.0f}",
        )  # fmt: skip
    return table


def checks_table(checks: Sequence[Check]) -> Table:
    """Estimates beside real runs at the same settings."""
    quality = checks[0].run.quality if checks else None
    exact = sum(check.estimate.num_exact for check in checks)
    confirmed = sum(check.num_confirmed for check in checks)
    said = f"{confirmed} of {exact} exact steps were the same in the real runs"
    if confirmed < exact:
        said += ": rounding, or a model whose output hangs on the length of its passes"
    errors = [metric for check in checks for metric in check.errors.values()]
    interval = ", with 95 % interval over prompts" if any(error.low is not None for error in errors) else ""
    table = new_table(
        "the estimates against real runs",
        f"error: ≈ / run − 1{interval}. {said}. Speed-ups are over the AR of the same run; quality is measured only.",
    )
    add_columns(table, "thres-\nhold", "draft\ntokens", "τ\n≈ → run", "error of\nτ %", "≈ speed-\nup",
                "speed-up, run\n95 % interval", "error of\nspeed-up %", heading(quality, "run"))  # fmt: skip
    for check in checks:
        estimated, metrics = check.estimate.metrics, check.metrics
        table.add_row(
            shown(check.estimate.threshold), str(check.estimate.num_draft_tokens),
            f"{_of(estimated, 'mean_acceptance_length', 2)} → {_of(metrics, 'mean_acceptance_length', 2)}",
            with_interval(check.errors["mean_acceptance_length"], 0, 100), _of(estimated, "speedup", 2),
            with_interval(metrics["speedup"], 2), with_interval(check.errors["speedup"], 0, 100),
            pair(metrics, quality),
        )  # fmt: skip
    return table


def presets_table(trials: Trials, presets: Sequence[Preset], files: Sequence[Path]) -> Table:
    """What was chosen, with its measurement on the calibration slice."""
    quality = trials.quality
    table = new_table(
        f"{names(trials)}: tuned",
        "Measured on the calibration slice, on which the choice was made: evaluate on other examples. "
        + conditions(trials),
    )
    table.add_column("file", overflow="fold")
    add_columns(table, "threshold", "draft\ntokens", "accepted %", "tok/s", "speed-up\n95 % interval",
                heading(quality, "method"))  # fmt: skip
    for preset, file in zip(presets, files, strict=True):
        metrics, threshold = preset.metrics, preset.method.verification.options.get("threshold")
        table.add_row(
            file.name, NULL if threshold is None else shown(threshold), str(preset.method.num_draft_tokens),
            number_of(metrics["draft_efficiency"], 1, 100), number_of(metrics["tokens_per_second"], 1),
            with_interval(metrics["speedup"], 2), pair(metrics, quality),
        )  # fmt: skip
    return table


def heading(quality: str | None, to: str) -> str:
    return f"{unit_of(quality).label}\nar → {to}"


def _of(metrics: Metrics, name: str, digits: int) -> str:
    return number_of(metrics[name], digits)
