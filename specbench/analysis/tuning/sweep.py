"""`specbench sweep`: measures every value, or for fuzzy methods replays one recorded run at every setting; and the
recipes, which change more than one key (arXiv:2510.02128, figures 6 and 7)."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Any

import numpy as np
from rich.console import Console

from specbench.analysis.fairness.fairness import fairness_report
from specbench.analysis.fairness.groups import group_sums, measured_numbers
from specbench.analysis.fairness.tables import measured_table
from specbench.analysis.tuning.replay import EstimateCheck, Recording, check_estimate
from specbench.analysis.tuning.shared_runs import (
    LENGTH,
    THRESHOLD,
    Metrics,
    TrialRun,
    Trials,
    TuningReport,
    dumped,
    fuzzy_at,
    open_trials,
    score_heading,
    shown,
    shown_metrics,
    trial_spec,
    with_value,
)
from specbench.core import dotted
from specbench.core.console import say
from specbench.core.errors import ConfigError, nearest
from specbench.core.table import Table, in_sections, number_columns, text_columns
from specbench.report.display import Panel, draw_rows, reach
from specbench.results.metric_format import metric_of, number, score, score_pair, with_interval
from specbench.running.request import Request, check_samples
from specbench.specs import yaml_files
from specbench.specs.catalogue import with_overrides
from specbench.specs.components import MAX_TEMPERATURE, MIN_TEMPERATURE
from specbench.specs.method import MethodSpec
from specbench.specs.run import RunSpec
from specbench.statistics.bootstrap import Estimate

Setting = tuple[str, Any, MethodSpec]  # the path and the value that are swept, and the method with this value
# Keys that do not change what a method does, or that make it another method with other options.
FIXED = ("name", "version", "title", "paper", "calibration", "decodes_with", "drafter.type", "decoder.type")
MIN_CHECKS = 3


def run_sweep(
    request: Request, path: str | None, values: str | None, *, measure_all: bool, num_checks: int, console: Console
) -> TuningReport:
    """Measures what was not measured before. Raises ConfigError for bad input, before anything is measured."""
    spec = trial_spec(request, "sweep", console)
    method = spec.methods[1]
    by_path = values_by_path(method, path, values)
    settings = [  # one path at a time: the product of all values would be too many runs
        (key, value, with_value(method, key, value, place=f"--path {key}, value {shown(value)}"))
        for key, key_values in by_path.items() for value in key_values
    ]  # fmt: skip
    # One recorded run is enough for a sweep of the threshold, also with the draft length.
    is_fuzzy = method.routes is None and method.draft_length is None and method.verification.rule == "fuzzy"
    if measure_all or not (is_fuzzy and THRESHOLD in by_path and set(by_path) <= {THRESHOLD, LENGTH}):
        return measure_values(open_trials(spec, request, console, "sweep"), settings)
    thresholds = sorted({each.verification.options["threshold"] for path, _, each in settings if path == THRESHOLD})
    lengths = sorted({each.num_draft_tokens for path, _, each in settings if path == LENGTH})
    least = min(MIN_CHECKS, len(thresholds))
    if num_checks < least:
        raise ConfigError(f"--checks {num_checks}: estimates are shown with their errors: give at least {least}")
    trials = open_trials(spec, request, console, "sweep")
    checked = pick_evenly(thresholds, num_checks)
    return estimate_settings(trials, thresholds, lengths or [method.num_draft_tokens], checked)


def values_by_path(method: MethodSpec, path: str | None, values: str | None) -> dict[str, list[Any]]:
    """Returns the values to sweep by path: the method's own `sweep`; or one path with the given values, else with the
    method's own.

    Raises ConfigError for a path that the method lacks, and if there are no values.
    """
    if path is None:
        if values is not None:
            raise ConfigError(f"--values {values}: needs --path, the key of these values, such as --path {THRESHOLD}")
        if not method.sweep:
            raise ConfigError(f"method '{method.name}' has no `sweep`: give --path KEY --values A,B,C")
        return {key: list(listed) for key, listed in method.sweep.items()}
    leaves = dotted.flat(method.model_dump(exclude={"sweep"}))
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


def measure_values(trials: Trials, settings: Sequence[Setting]) -> TuningReport:
    """Measures every value and AR, each in its own folder. Equal methods are measured once."""
    # 1. The runs. Methods that do not fit are found before the first one.
    for path, value, method in settings:
        try:
            trials.build_runs([method])
        except ConfigError as error:
            raise ConfigError(f"--path {path}, value {shown(value)}: {error}") from error
    runs: dict[str, TrialRun] = {}
    for place, (path, value, method) in enumerate(settings, start=1):
        meaning = method.model_dump_json()
        name = re.sub(r"[^\w.=+-]+", "_", f"{path}={shown(value)}")
        say(trials.console, f"[{place}/{len(settings)}] {path} = {shown(value)}")
        if meaning not in runs:
            runs[meaning] = trials.run(name, [method])
    measured = [(path, value, runs[method.model_dump_json()]) for path, value, method in settings]
    metrics = [run.metrics(run.methods[1].name) for _, _, run in measured]
    # 2. The table, the numbers for --json, and a panel for every key.
    quality = trials.quality
    rows = [
        (path, shown(value), number(own["acceptance_rate"], 3), number(own["mean_acceptance_length"], 2),
         number(own["tokens_per_second_ar"], 1), number(own["tokens_per_second"], 1),
         with_interval(own["speedup"], 2), score_pair(own, quality))
        for (path, value, _), own in zip(measured, metrics, strict=True)
    ]  # fmt: skip
    columns = text_columns("key") + number_columns(
        "value", "α", "τ", "tok/s\nar", "tok/s", "speed-up\n95 % interval", score_heading(quality, "method")
    )
    caption = ["One key is changed at a time; the others are as in the method's file.", trials.pair_and_prompts]
    table = Table(trials.title("every value measured"), columns, in_sections(rows), caption)
    data = {
        "measured": [
            {"path": path, "value": value, "estimate": False, "folder": str(run.folder),
             "metrics": shown_metrics(own, quality)}
            for (path, value, run), own in zip(measured, metrics, strict=True)
        ]
    }  # fmt: skip
    panels = []
    for key in dict.fromkeys(path for path, _, _ in settings):
        found = [(shown(value), own) for (path, value, _), own in zip(settings, metrics, strict=True) if path == key]
        panels.append(partial(draw_measured, points=found, quality=quality, label=key))
    return trials.report([run for _, _, run in measured], data, [table], panels)


def record_run(trials: Trials, threshold: float, num_draft_tokens: int) -> tuple[TrialRun, Recording]:
    method = fuzzy_at(trials.base, threshold, num_draft_tokens)
    say(trials.console, f"recording at threshold {threshold:g} with {num_draft_tokens} draft tokens")
    run = trials.run(f"record-{_folder_name(threshold, num_draft_tokens)}", [method], recorded=method.name)
    return run, Recording.of(run, method.name)


def _folder_name(threshold: float, num_draft_tokens: int) -> str:
    return f"{THRESHOLD}={threshold:g}-{LENGTH}={num_draft_tokens}"


def estimate_settings(
    trials: Trials, thresholds: Sequence[float], lengths: Sequence[int], checked: Sequence[float]
) -> TuningReport:
    """Records one run, replays it at every threshold and draft length, and measures the `checked` thresholds to show
    the errors of the estimates."""
    # 1. The run is recorded at the smallest threshold, because its answers are nearest to the target's own and the
    # answers at all other thresholds begin like them; and with the longest draft, which contains the shorter ones.
    recorded_at = (thresholds[0], lengths[-1])
    run, recording = record_run(trials, *recorded_at)
    estimates = [recording.estimate(threshold, length) for threshold in thresholds for length in lengths]
    # 2. A check uses the draft length with the best estimated speed, which a user would choose.
    checks = []
    for threshold in checked:
        by_length = [each for each in estimates if each.threshold == threshold]
        best = max(by_length, key=lambda each: each.metrics["tokens_per_second"].value or 0.0)
        method = fuzzy_at(trials.base, threshold, best.num_draft_tokens)
        setting = f"threshold {threshold:g} with {best.num_draft_tokens} draft tokens"
        say(trials.console, f"checking the estimate for {setting}")
        real = trials.run(_folder_name(threshold, best.num_draft_tokens), [method])
        checks.append(check_estimate(recording, best, real, method.name))
    # 3. The tables.
    rows = [
        (shown(estimate.threshold), str(estimate.num_draft_tokens), number(metrics["acceptance_rate"], 3),
         number(metrics["mean_acceptance_length"], 2), number(metrics["drafter_share"], 1, 100),
         number(metrics["tokens_per_second"], 1), number(metrics["speedup"], 2))
        for estimate in estimates for metrics in [estimate.metrics]
    ]  # fmt: skip
    columns = number_columns(
        "threshold", "draft\ntokens", "≈ α", "≈ τ", "≈ share of\ndrafter %", "≈ tok/s", "≈ speed-up"
    )
    caption = [
        f"≈ estimated, not measured: from one recorded run at threshold {shown(recorded_at[0])} with {recorded_at[1]} "
        "draft tokens. Its steps are known up to the first token that differs at another setting, later ones are "
        "estimated; seconds are modelled from its passes. The next table shows the errors.",
        trials.pair_and_prompts,
    ]
    title = trials.title("one run, all thresholds")
    tables = [Table(title, columns, in_sections(rows), caption, num_keys=2), checks_table(checks)]
    data = {
        "recorded": {
            "threshold": recorded_at[0], "num_draft_tokens": recorded_at[1], "folder": str(run.folder)
        },
        "estimates": [estimate.as_json() for estimate in estimates],
        "measured": [check.as_json() for check in checks],
    }  # fmt: skip
    lines = {
        f"≈ {length} draft tokens": [each.metrics["speedup"] for each in estimates if each.num_draft_tokens == length]
        for length in lengths
    }
    points = [(check.estimate.threshold, check.metrics) for check in checks]
    label = "threshold   (≈ estimated from one run; points: real runs)"
    panel = partial(
        draw_measured, points=points, quality=trials.quality, label=label, places=thresholds, estimated=lines
    )
    return trials.report([check.run for check in checks], data, tables, [panel])


def pick_evenly(values: Sequence[float], count: int) -> list[float]:
    """Returns `count` evenly spaced values from first to last; all values if there are fewer."""
    if count >= len(values):
        return list(values)
    if count == 1:
        return [values[len(values) // 2]]
    return [values[round(i * (len(values) - 1) / (count - 1))] for i in range(count)]


def checks_table(checks: Sequence[EstimateCheck]) -> Table:
    quality = checks[0].run.quality
    rows = [
        [shown(check.estimate.threshold), str(check.estimate.num_draft_tokens),
         " → ".join(number(each["mean_acceptance_length"], 2) for each in (estimated, metrics)),
         with_interval(check.errors["mean_acceptance_length"], 0, 100), number(estimated["speedup"], 2),
         with_interval(metrics["speedup"], 2), with_interval(check.errors["speedup"], 0, 100),
         score_pair(metrics, quality)]
        for check in checks for estimated, metrics in [(check.estimate.metrics, check.metrics)]
    ]  # fmt: skip
    columns = number_columns("thres-\nhold", "draft\ntokens", "τ\n≈ → run", "error of\nτ %", "≈ speed-\nup",
                      "speed-up, run\n95 % interval", "error of\nspeed-up %",
                      score_heading(quality, "run"))  # fmt: skip
    caption = [
        "error: ≈ / run − 1, with 95 % interval over prompts. Speed-ups are over the AR of the same run; quality is "
        "only measured."
    ]
    return Table("the estimates against real runs", columns, rows, caption, num_keys=2)


def draw_measured(
    axes: Any, *, points: Sequence[tuple[str | float, Metrics]], quality: str | None, label: str,
    places: Sequence[float] = (), estimated: Mapping[str, Sequence[Estimate]] = MappingProxyType({}),
) -> None:  # fmt: skip
    """Draws the measured speed-ups and scores over the values of a key. `points`: values with their metrics; texts
    stand in their order. `estimated`: lines of speed-ups at `places`, by their labels."""
    for name, speedups in estimated.items():
        axes.plot(places, [each.value for each in speedups], "--", marker=".", label=name)
    values = [value for value, _ in points]
    speedups = [metrics["speedup"] for _, metrics in points]
    axes.errorbar(values, [speedup.value or 0.0 for speedup in speedups], yerr=reach(speedups), fmt="o", color="black",
                  capsize=3, label="measured speed-up, 95 %")  # fmt: skip
    axes.axhline(1.0, color="black", linewidth=0.8, linestyle=":")
    axes.set_xlabel(label)
    axes.set_ylabel("speed-up over AR")
    unit = metric_of(quality)
    scores = [(value, metrics[quality].value) for value, metrics in points] if quality else []
    known = [(value, unit.factor * found) for value, found in scores if found is not None]
    if known:
        right = axes.twinx()
        right.plot(*zip(*known, strict=True), "s", color="#b5493a", label=f"measured {unit.label}")
        right.set_ylim(0, max(1.02 * unit.factor * unit.most, *(1.02 * found for _, found in known)))
        right.set_ylabel(unit.label, color="#b5493a")
    axes.legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=3, frameon=False)


TEMPERATURES = (0.0, 0.5, 1.0, 1.5, 2.0)


def parse_temperatures(values: str | None) -> list[float]:
    """Returns the temperatures of --values, else the recipe's. Raises ConfigError for a value that is not a
    temperature."""
    given = list(TEMPERATURES) if values is None else yaml_files.parse(f"[{values}]", f"--values {values}")
    for value in given:
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not number or not (value == 0 or MIN_TEMPERATURE <= value <= MAX_TEMPERATURE):
            raise ConfigError(
                f"--values {value}: is not a temperature: give some separated by commas, 0 (greedy) or "
                f"{MIN_TEMPERATURE:g} to {MAX_TEMPERATURE:g}"
            )
    if not given:
        raise ConfigError("--values: is empty: give temperatures separated by commas, such as 0,0.5,1")
    return sorted({float(value) for value in given})


def joint_temperature(spec: RunSpec) -> RunSpec:
    ar, method = spec.methods
    for path in dotted.flat(method.model_dump(exclude={"sweep"})):
        if path.endswith("drafter.temperature"):
            method = with_value(method, path, None)
    return spec.model_copy(update={"methods": (ar, method)})


def at_temperature(spec: RunSpec, temperature: float) -> RunSpec:
    tasks, _ = with_overrides(spec.tasks, [], [f"generation.temperature={temperature:g}"])
    made = spec.model_copy(update={"tasks": tuple(tasks)})
    check_samples(made)
    return made


NUM_TEXTS = 1000


def check_languages(spec: RunSpec) -> None:
    """Raises ConfigError for a method whose drafter writes no texts, and for a task without several languages."""
    method = spec.methods[1]
    if method.routes is not None or not method.needs_drafter:
        raise ConfigError(
            f"--method {method.name}: drafts without a model or with several, so there is no drafter to sample texts "
            "from: choose a method with one draft model, such as sd"
        )
    languages = {task.subset(subset).language for task, subset in spec.task_subsets()} - {None}
    if len(languages) < 2:
        raise ConfigError(
            f"--task {spec.tasks[0].name}: its subsets have {len(languages)} language: choose a task or "
            "subsets with several languages"
        )


def run_recipe(
    request: Request, recipe: str, path: str | None, values: str | None, samples: int | None, console: Console
) -> TuningReport:
    if path is not None:
        raise ConfigError(f"--path {path}: a recipe sweeps no key of a method: leave --path or --recipe out")
    if recipe == "joint-temperature":
        return run_joint_temperature(request, parse_temperatures(values), console)
    if recipe != "language-order":
        raise ConfigError(
            f"--recipe {recipe}: unknown recipe '{recipe}': {nearest(recipe, ('joint-temperature', 'language-order'))}"
        )
    if values is not None:
        raise ConfigError(f"--values {values}: --recipe language-order takes none: choose languages with --subset")
    return run_language_order(request, NUM_TEXTS if samples is None else samples, console)


def run_joint_temperature(request: Request, temperatures: Sequence[float], console: Console) -> TuningReport:
    # 1. A run at each temperature, in which target and drafter have the same.
    spec = joint_temperature(trial_spec(request, "sweep", console))
    for temperature in temperatures:
        at_temperature(spec, temperature)
    trials = open_trials(spec, request, console, "joint-temperature")
    runs, points = [], []  # temperature, folder, row, α · BLEU
    for place, temperature in enumerate(temperatures, start=1):
        say(console, f"[{place}/{len(temperatures)}] temperature = {temperature:g}")
        spec = at_temperature(trials.spec, temperature)
        loaded = [(spec.tasks[0], subset, data) for _, subset, data in trials.loaded]
        at_this = replace(trials, spec=spec, loaded=loaded, request=replace(request, output=trials.folder))
        run = at_this.run(f"temperature={temperature:g}", [trials.base])
        runs.append(run)
        scorers = {each.subset: each.scorer for each in run.subset_runs}
        for row in run.rows_of(trials.base):
            adjusted = None
            if row.subset in scorers:
                records = {record.key: record for record in run.records if record.subset == row.subset}
                sums = group_sums(list(records), records, trials.base.name, {}, trials.base.most_draft_tokens)
                adjusted = measured_numbers(sums, scorers[row.subset], run.seed).adjusted_acceptance
            points.append((temperature, run.folder, row, adjusted or Estimate()))
    # 2. The table, the numbers for --json, and a panel each for α and α · quality over the temperature.
    rows = [
        (f"{temperature:g}", row.subset, with_interval(row.metrics["acceptance_rate"], 3),
         score(row.metrics.get(row.quality or ""), row.quality), with_interval(adjusted, 1),
         with_interval(row.metrics["speedup"], 2))
        for temperature, _, row, adjusted in points
    ]  # fmt: skip
    label = metric_of(trials.quality).label
    columns = number_columns("tempe-\nrature", "subset", "α\n95 % interval", f"{label}\n95 % interval",
                      "α · BLEU\n95 % interval", "speed-up\n95 % interval")  # fmt: skip
    caption = [f"α · BLEU: over the prompts of one subset, with the method's answers. {trials.pair_and_prompts}"]
    title = trials.title("target and drafter at one temperature")
    data = {
        "points": [
            {"temperature": temperature, "subset": row.subset, "language": row.language, "folder": str(folder),
             "quality": row.quality, "adjusted_acceptance": adjusted.model_dump(),
             "metrics": dumped(row.metrics, ["acceptance_rate", "speedup", *([row.quality] if row.quality else [])])}
            for temperature, folder, row, adjusted in points
        ]
    }  # fmt: skip
    panels: list[Panel] = [
        partial(draw_temperatures, label="α", points=[
            (row.subset, temperature, row.metrics["acceptance_rate"].value) for temperature, _, row, _ in points
        ]),
        partial(draw_temperatures, label="α · BLEU", points=[
            (row.subset, temperature, adjusted.value) for temperature, _, row, adjusted in points
        ]),
    ]  # fmt: skip
    tables = [Table(title, columns, in_sections(rows), caption, num_keys=2)]
    return trials.report(runs, data, tables, panels)


def draw_temperatures(axes: Any, points: Sequence[tuple[str, float, float | None]], label: str) -> None:
    for subset in dict.fromkeys(subset for subset, _, _ in points):
        pairs = [(temperature, value) for own, temperature, value in points if own == subset and value is not None]
        if pairs:
            axes.plot(*zip(*pairs, strict=True), marker="o", label=subset)
    axes.set_xlabel("temperature of target and drafter")
    axes.set_ylabel(label)
    axes.legend(ncols=6, fontsize=8, frameon=False, loc="lower right", bbox_to_anchor=(1, 1))


def run_language_order(request: Request, num_texts: int, console: Console) -> TuningReport:
    """Runs the method on all languages and reports `specbench fairness` of this run, from the language that the drafter
    writes most often by itself to the least."""
    if num_texts < 1:
        raise ConfigError(f"--samples {num_texts}: give 1 or more")
    spec = trial_spec(request, "sweep", console)
    check_languages(spec)
    trials = open_trials(spec, request, console, "language-order")
    run = trials.run("language-order", [trials.base])
    report = fairness_report([str(run.folder)], request.options, partial(say, console), samples=num_texts)
    [drafter] = report.drafters
    ranked = sorted(drafter.groups.items(), key=lambda pair: pair[1].representation_rank or np.inf)
    drafter = drafter.model_copy(update={"groups": dict(ranked)})
    rows = {row.subset: row for row in run.rows_of(trials.base)}
    panel = partial(draw_rows, rows=[rows[group.subset] for group in drafter.groups.values()])
    data = {"folder": str(run.folder), **drafter.model_dump(mode="json")}
    return trials.report([run], data, [measured_table(drafter)], [panel])
