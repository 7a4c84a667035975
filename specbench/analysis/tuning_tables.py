"""Sweeps and presets as tables for a terminal of 100 columns, and as pictures."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text

from specbench.analysis.estimates import EstimateCheck
from specbench.analysis.sweep import LENGTH, MeasuredSweptValue, OnePass, shown
from specbench.analysis.trials import Trials
from specbench.analysis.tune import Preset
from specbench.results.bootstrap import Metric
from specbench.results.plots import pyplot, reach, saved
from specbench.results.units import NULL, pair, unit_of

Metrics = Mapping[str, Metric]


def number_of(metric: Metric, digits: int, factor: float = 1) -> str:
    return NULL if metric.value is None else f"{factor * metric.value:z.{digits}f}"


def with_interval(metric: Metric, digits: int, factor: float = 1) -> str:
    if metric.low is None or metric.high is None:
        return number_of(metric, digits, factor)
    low, high = (f"{factor * bound:z.{digits}f}" for bound in (metric.low, metric.high))
    return f"{number_of(metric, digits, factor)} [{low}, {high}]"


def score(metric: Metric, name: str) -> str:
    """A value of the metric `name` with its interval, in its unit."""
    unit = unit_of(name)
    return with_interval(metric, unit.digits, unit.factor)


def names(trials: Trials) -> str:
    return f"{trials.spec.tasks[0].name} · {trials.base.name}"


def conditions(trials: Trials) -> str:
    models, data = trials.models, trials.loaded
    subsets = ", ".join(subset for _, subset, _ in data)
    num_prompts = sum(len(each.examples) for _, _, each in data)
    return f"target {models.target.name}, drafter {drafters(trials)}; {num_prompts} prompts of {subsets}"


def drafters(trials: Trials) -> str:
    """What the method drafts with; of a method with routes each of them."""
    names = {part.name: part.drafter.type for part in trials.base.parts}
    names |= {name: model.name for name, model in trials.models.drafters.items() if name in names}
    return ", ".join(f"{name.partition('/')[2]} {drafter}".strip() for name, drafter in names.items())


def new_table(title: str, caption: str) -> Table:
    return Table(title=Text(title), caption=Text(caption), caption_justify="left", box=box.SIMPLE_HEAD, pad_edge=False,
                 collapse_padding=True)  # fmt: skip


def add_columns(table: Table, *headers: str) -> None:
    for header in headers:
        table.add_column(header, justify="right", overflow="fold")


def values_table(trials: Trials, values: Sequence[MeasuredSweptValue]) -> Table:
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


def checks_table(checks: Sequence[EstimateCheck]) -> Table:
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


def draw_estimates(sweep: OnePass, path: Path) -> None:
    """Speed-up against the threshold: a line per draft length (estimates), and the real runs as points with their
    score. The name of the file is checked by plots.check_plot."""

    def panel(axes: Any) -> None:
        for length in sorted({estimate.num_draft_tokens for estimate in sweep.estimates}):
            line = [e for e in sweep.estimates if e.num_draft_tokens == length]
            heights = [e.metrics["speedup"].value for e in line]
            axes.plot([e.threshold for e in line], heights, "--", marker=".", label=f"≈ {length} draft tokens")
        _points(
            axes,
            [check.estimate.threshold for check in sweep.checks],
            [c.metrics for c in sweep.checks],
            sweep.run.quality,
        )
        for check in sweep.checks:
            axes.annotate(f"{check.estimate.num_draft_tokens}", _place(check), xytext=(5, 5), fontsize=8,
                          textcoords="offset points")  # fmt: skip
        axes.set_xlabel("threshold   (≈ estimated from one run; points: real runs, with their draft length)")

    draw_panels([panel], path)


def draw_values(values: Sequence[MeasuredSweptValue], path: Path) -> None:
    """One panel per key: speed-up with its interval, and the score, at every value that was run."""

    def panel_of(key: str) -> Any:
        chosen = [value for value in values if value.variant.path == key]

        def panel(axes: Any) -> None:
            _points(axes, range(len(chosen)), [value.metrics for value in chosen], chosen[0].run.quality)
            axes.set_xticks(range(len(chosen)), [shown(value.variant.value) for value in chosen])
            axes.set_xlabel("draft tokens" if key == LENGTH else key)

        return panel

    draw_panels([panel_of(key) for key in dict.fromkeys(value.variant.path for value in values)], path)


def _points(
    axes: Any, places: Sequence[float], metrics: Sequence[dict[str, Metric] | Any], quality: str | None
) -> None:
    speedups = [each["speedup"] for each in metrics]
    heights = [speedup.value or 0.0 for speedup in speedups]
    axes.errorbar(places, heights, yerr=reach(speedups), fmt="o", color="black", capsize=3,
                  label="measured speed-up, 95 %")  # fmt: skip
    axes.axhline(1.0, color="black", linewidth=0.8, linestyle=":")
    axes.set_ylabel("speed-up over AR")
    unit = unit_of(quality)
    values = [each[quality].value if quality else None for each in metrics]
    scored = [(place, unit.factor * value) for place, value in zip(places, values, strict=True) if value is not None]
    if scored:
        right = axes.twinx()
        right.plot(*zip(*scored, strict=True), "s", color="#b5493a", label=f"measured {unit.label}")
        right.set_ylim(0, max(1.02 * unit.factor * unit.most, *(1.02 * value for _, value in scored)))
        right.set_ylabel(unit.label, color="#b5493a")
    axes.legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=3, frameon=False)


def _place(check: EstimateCheck) -> tuple[float, float]:
    return check.estimate.threshold, check.metrics["speedup"].value or 0.0


def draw_panels(panels: Sequence[Any], path: Path) -> None:
    """Write a picture of panels, each drawn by a function of its axes."""
    figure, axes = pyplot().subplots(len(panels), figsize=(9, 4 * len(panels)), squeeze=False, layout="constrained")
    with saved(figure, path, "; the runs are kept"):
        for panel, place in zip(panels, axes[:, 0], strict=True):
            panel(place)
