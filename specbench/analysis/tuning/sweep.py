"""`specbench sweep`: measures every value, or for fuzzy methods replays one recorded run at every setting; and the
recipes, which change more than one key (arXiv:2510.02128, figures 6 and 7)."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console

from specbench.analysis.fairness.groups import quality_weighted, spearman
from specbench.analysis.fairness.representation import LanguageShare, Representation, representation, share_of
from specbench.analysis.tuning.replay import EstimateCheck, Recording, SettingEstimate, check_estimate
from specbench.analysis.tuning.shared_runs import (
    LENGTH,
    THRESHOLD,
    Metrics,
    TrialRun,
    Trials,
    TuningReport,
    dumped,
    finish,
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
from specbench.records.records import Record
from specbench.report import display
from specbench.report.display import Panel, reach, save_picture
from specbench.results.metric_format import NULL, bounds_of, metric_of, number, score, score_pair, with_interval
from specbench.results.row import Row
from specbench.results.scores import CorpusStatistics
from specbench.running.request import Request, check_samples
from specbench.specs import yaml_files
from specbench.specs.catalogue import with_overrides
from specbench.specs.components import MAX_TEMPERATURE, MIN_TEMPERATURE
from specbench.specs.method import MethodSpec
from specbench.specs.run import RunSpec
from specbench.statistics.bootstrap import Array, Estimate, Resampler
from specbench.tasks.scoring import Scorer

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
    is_fuzzy = method.routes is None and method.verification.rule == "fuzzy"
    if measure_all or not (is_fuzzy and THRESHOLD in by_path and set(by_path) <= {THRESHOLD, LENGTH}):
        return measure_values(open_trials(spec, request, console, "sweep"), request, settings)
    thresholds = sorted({each.verification.options["threshold"] for path, _, each in settings if path == THRESHOLD})
    lengths = sorted({each.num_draft_tokens for path, _, each in settings if path == LENGTH})
    least = min(MIN_CHECKS, len(thresholds))
    if num_checks < least:
        raise ConfigError(f"--checks {num_checks}: estimates are shown with their errors: give at least {least}")
    trials = open_trials(spec, request, console, "sweep")
    checked = pick_evenly(thresholds, num_checks)
    return estimate_settings(trials, request, thresholds, lengths or [method.num_draft_tokens], checked)


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


@dataclass(frozen=True)
class MeasuredValue:
    """One value at one path of a method, and its run. All other keys are as in the method's file."""

    path: str
    value: Any
    run: TrialRun

    @cached_property
    def metrics(self) -> Metrics:
        return self.run.metrics(self.run.methods[1].name)

    def as_json(self) -> dict[str, object]:
        return {
            "path": self.path, "value": self.value, "estimate": False, "folder": str(self.run.folder),
            "metrics": shown_metrics(self.metrics, self.run.quality),
        }  # fmt: skip


def measure_values(trials: Trials, request: Request, settings: Sequence[Setting]) -> TuningReport:
    """Measures every value and AR, each in its own folder. Equal methods are measured once."""
    # 1. The runs. Methods that do not fit are found before the first one.
    for path, value, method in settings:
        try:
            trials.compose([method])
        except ConfigError as error:
            raise ConfigError(f"--path {path}, value {shown(value)}: {error}") from error
    runs: dict[str, TrialRun] = {}
    values = []
    for place, (path, value, method) in enumerate(settings, start=1):
        meaning, name = method.model_dump_json(), re.sub(r"[^\w.=+-]+", "_", f"{path}={shown(value)}")
        say(trials.console, f"[{place}/{len(settings)}] {path} = {shown(value)}")
        if meaning not in runs:
            runs[meaning] = trials.run(name, [method])
        values.append(MeasuredValue(path, value, runs[meaning]))
    # 2. The table.
    quality = values[0].run.quality
    rows = [
        (value.path, shown(value.value), number(metrics["acceptance_rate"], 3),
         number(metrics["mean_acceptance_length"], 2), number(metrics["tokens_per_second_ar"], 1),
         number(metrics["tokens_per_second"], 1), with_interval(metrics["speedup"], 2), score_pair(metrics, quality))
        for value in values for metrics in [value.metrics]
    ]  # fmt: skip
    columns = text_columns("key") + number_columns(
        "value", "α", "τ", "tok/s\nar", "tok/s", "speed-up\n95 % interval", score_heading(quality, "method")
    )
    caption = ["One key is changed at a time; the others are as in the method's file.", trials.pair_and_prompts]
    table = Table(trials.title("every value measured"), columns, in_sections(rows), caption)
    data = {"measured": [each.as_json() for each in values]}
    return finish(request, trials, [each.run for each in values], data, [table], partial(draw_values, values))


def record_run(trials: Trials, threshold: float, num_draft_tokens: int) -> tuple[TrialRun, Recording]:
    method = fuzzy_at(trials.base, threshold, num_draft_tokens)
    say(trials.console, f"recording at threshold {threshold:g} with {num_draft_tokens} draft tokens")
    run = trials.run(f"record-{_folder_name(threshold, num_draft_tokens)}", [method], recorded=method.name)
    return run, Recording.of(run, method.name)


def _folder_name(threshold: float, num_draft_tokens: int) -> str:
    return f"{THRESHOLD}={threshold:g}-{LENGTH}={num_draft_tokens}"


def estimate_settings(
    trials: Trials, request: Request, thresholds: Sequence[float], lengths: Sequence[int], checked: Sequence[float]
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
         number(metrics["tokens_per_second"], 1), number(metrics["speedup"], 2),
         f"{100 * estimate.num_exact / max(1, estimate.num_steps):.0f}")
        for estimate in estimates for metrics in [estimate.metrics]
    ]  # fmt: skip
    columns = number_columns("threshold", "draft\ntokens", "≈ α", "≈ τ", "≈ share of\ndrafter %", "≈ tok/s",
                             "≈ speed-up", "exact\nsteps %")  # fmt: skip
    caption = [
        f"≈ estimated, not measured: from one recorded run at threshold {shown(recorded_at[0])} with {recorded_at[1]} "
        "draft tokens. The last column gives the share of steps whose counts are exact (up to the first other token); "
        "later counts are estimated. Seconds are modelled from the passes of that run. The next table shows the error "
        "against real runs.",
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
    draw = partial(draw_estimates, estimates, checks)
    return finish(request, trials, [check.run for check in checks], data, tables, draw)


def pick_evenly(values: Sequence[float], count: int) -> list[float]:
    """Returns `count` evenly spaced values from first to last; all values if there are fewer."""
    if count >= len(values):
        return list(values)
    if count == 1:
        return [values[len(values) // 2]]
    return [values[round(i * (len(values) - 1) / (count - 1))] for i in range(count)]


KEPT = "; the runs are kept"


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
    num_exact = sum(check.estimate.num_exact for check in checks)
    num_confirmed = sum(check.num_confirmed for check in checks)
    agreement = f"{num_confirmed} of {num_exact} exact steps were the same in the real runs"
    if num_confirmed < num_exact:
        agreement += ": because of rounding, or a model whose output depends on the length of its passes"
    has_interval = any(error.low is not None for check in checks for error in check.errors.values())
    interval = ", with 95 % interval over prompts" if has_interval else ""
    caption = [
        f"error: ≈ / run − 1{interval}. {agreement}. Speed-ups are over the AR of the same run; quality is only "
        "measured."
    ]
    return Table("the estimates against real runs", columns, rows, caption, num_keys=2)


def draw_estimates(estimates: Sequence[SettingEstimate], checks: Sequence[EstimateCheck], path: Path) -> None:
    """Draws speed-up over threshold: a line of estimates for each draft length; real runs as points, with their score.

    `display.check_plot` checks the name of the file.
    """

    def panel(axes: Any) -> None:
        for length in sorted({estimate.num_draft_tokens for estimate in estimates}):
            line = [estimate for estimate in estimates if estimate.num_draft_tokens == length]
            heights = [estimate.metrics["speedup"].value for estimate in line]
            axes.plot([each.threshold for each in line], heights, "--", marker=".", label=f"≈ {length} draft tokens")
        places = [check.estimate.threshold for check in checks]
        _draw_points(axes, places, [check.metrics for check in checks], checks[0].run.quality)
        for place, check in zip(places, checks, strict=True):
            point = (place, check.metrics["speedup"].value or 0.0)
            axes.annotate(f"{check.estimate.num_draft_tokens}", point, xytext=(5, 5), fontsize=8,
                          textcoords="offset points")  # fmt: skip
        axes.set_xlabel("threshold   (≈ estimated from one run; points: real runs, with their draft length)")

    save_picture([[panel]], path, size=(9, 4), kept=KEPT)


def draw_values(values: Sequence[MeasuredValue], path: Path) -> None:

    def panel_of(key: str) -> Panel:
        key_values = [value for value in values if value.path == key]

        def panel(axes: Any) -> None:
            _draw_points(axes, range(len(key_values)), [v.metrics for v in key_values], key_values[0].run.quality)
            axes.set_xticks(range(len(key_values)), [shown(value.value) for value in key_values])
            axes.set_xlabel("draft tokens" if key == LENGTH else key)

        return panel

    panels = [[panel_of(key)] for key in dict.fromkeys(value.path for value in values)]
    save_picture(panels, path, size=(9, 4 * len(panels)), kept=KEPT)


def _draw_points(
    axes: Any, places: Sequence[float], metrics: Sequence[Mapping[str, Estimate]], quality: str | None
) -> None:
    speedups = [each["speedup"] for each in metrics]
    axes.errorbar(places, [speedup.value or 0.0 for speedup in speedups], yerr=reach(speedups), fmt="o", color="black",
                  capsize=3, label="measured speed-up, 95 %")  # fmt: skip
    axes.axhline(1.0, color="black", linewidth=0.8, linestyle=":")
    axes.set_ylabel("speed-up over AR")
    unit = metric_of(quality)
    values = [each[quality].value if quality else None for each in metrics]
    scored = [(place, unit.factor * value) for place, value in zip(places, values, strict=True) if value is not None]
    if scored:
        right = axes.twinx()
        right.plot(*zip(*scored, strict=True), "s", color="#b5493a", label=f"measured {unit.label}")
        right.set_ylim(0, max(1.02 * unit.factor * unit.most, *(1.02 * value for _, value in scored)))
        right.set_ylabel(unit.label, color="#b5493a")
    axes.legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=3, frameon=False)


def adjusted_acceptance(records: Sequence[Record], method: str, quality: str, scorer: Scorer, seed: int) -> Estimate:
    """Returns α · quality of a method in one subset, in the unit of the quality, with a 95 % interval over prompts;
    acceptance and score of a prompt are resampled together. Null if nothing was judged, or a prompt has no score."""
    own = [record.methods[method] for record in records]
    cluster = Resampler.of(records, seed).cluster
    judged = [generation.num_verified for generation in own]
    rates = [g.num_accepted / n if n else 0.0 for g, n in zip(own, judged, strict=True)]
    least, most = bounds_of(quality) or (-np.inf, np.inf)
    bounds = (min(least, 0.0), most)  # an acceptance rate of 0 makes any score 0
    acceptance = sum_by_prompt(cluster, rates, [float(n > 0) for n in judged])
    if any(quality in generation.statistics for generation in own):
        part = CorpusStatistics.of(quality, scorer, cluster, [[g.statistics.get(quality) for g in own]])
        if part is None or part.num_prompts != len(acceptance):
            return Estimate()
        return quality_weighted(
            acceptance, part.sums[0], lambda sums: np.array([part.score(row) for row in sums.tolist()]), seed, bounds
        )
    scores = [value for generation in own if (value := generation.scores.get(quality)) is not None]
    if not scores or len(scores) < len(own):
        return Estimate()
    statistics = sum_by_prompt(cluster, scores, [1.0] * len(scores))
    return quality_weighted(acceptance, statistics, lambda sums: np.asarray(sums[:, 0] / sums[:, 1]), seed, bounds)


def sum_by_prompt(cluster: NDArray[np.int64], *columns: Sequence[float]) -> Array:
    """Returns the sums over the records of each prompt: [num_prompts, num_columns]."""
    return np.stack([np.bincount(cluster, weights=np.asarray(column)) for column in columns], axis=1)


TEMPERATURES = (0.0, 0.5, 1.0, 1.5, 2.0)


@dataclass(frozen=True)
class TemperaturePoint:
    """One temperature and one subset (or all). `adjusted_acceptance`: α times the quality, which is BLEU if the task
    has it; null without a quality, and over all subsets."""

    temperature: float
    run: TrialRun
    row: Row
    quality: str | None
    adjusted_acceptance: Estimate

    def as_json(self) -> dict[str, object]:
        names = ["acceptance_rate", "speedup", *([self.quality] if self.quality else [])]
        return {
            "temperature": self.temperature, "subset": self.row.subset, "language": self.row.language,
            "folder": str(self.run.folder), "quality": self.quality, "metrics": dumped(self.row.metrics, names),
            "adjusted_acceptance": self.adjusted_acceptance.model_dump(),
        }  # fmt: skip


def parse_temperatures(values: str | None) -> list[float]:
    """Returns the temperatures of --values, else the recipe's. Raises ConfigError for a value that is no
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


def draw_temperatures(points: Sequence[TemperaturePoint], path: Path) -> None:
    unit = metric_of(next((point.quality for point in points if point.quality), None))

    def panel_of(label: str, factor: float, is_adjusted: bool) -> Panel:
        def panel(axes: Any) -> None:
            for subset in dict.fromkeys(each.row.subset for each in points):
                own = [each for each in points if each.row.subset == subset]
                metrics = [
                    each.adjusted_acceptance if is_adjusted else each.row.metrics["acceptance_rate"] for each in own
                ]
                pairs = [(p.temperature, factor * m.value) for p, m in zip(own, metrics, strict=True)
                         if m.value is not None]  # fmt: skip
                if pairs:
                    axes.plot(*zip(*pairs, strict=True), marker="o", label=subset)
            axes.set_xlabel("temperature of target and drafter")
            axes.set_ylabel(label)
            axes.legend(ncols=6, fontsize=8, frameon=False, loc="lower right", bbox_to_anchor=(1, 1))

        return panel

    panels = [[panel_of("α", 1.0, False)], [panel_of(f"α · {unit.label}", unit.factor, True)]]
    save_picture(panels, path, size=(9, 8), kept=KEPT)


NUM_TEXTS = 1000
SHOWN = ("acceptance_rate", "mean_acceptance_length", "speedup", "speedup_expected", "cost_ratio")


@dataclass(frozen=True)
class LanguageOrder:
    """The rows of a method from the best to the least represented language, each with its share of the texts. Rows
    whose language cannot be identified come last and have no share."""

    run: TrialRun
    texts: Representation
    rows: Sequence[tuple[Row, LanguageShare | None]]

    def correlation(self, metric: str) -> float | None:
        """Returns Spearman's ρ between the shares of languages and a metric; None if they are too few, or all equal."""
        pairs = [
            (share.share, value) for row, share in self.rows
            if share is not None and (value := row.metrics[metric].value) is not None
        ]  # fmt: skip
        shares, values = np.array(pairs, dtype=np.float64).reshape(-1, 2).T
        found = float(spearman(shares, values))
        return found if np.isfinite(found) else None

    def as_json(self) -> dict[str, object]:
        return {
            "folder": str(self.run.folder), "num_texts": self.texts.num_texts, "num_unknown": self.texts.num_unknown,
            "drafter": self.texts.model,
            "languages": [
                {"subset": row.subset, "language": row.language, "share": share and share.model_dump(),
                 "metrics": dumped(row.metrics, SHOWN)}
                for row, share in self.rows
            ],
            "spearman": {name: self.correlation(name) for name in ("acceptance_rate", "speedup")},
        }  # fmt: skip


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


def order_rows(rows: Sequence[Row], shares: Sequence[LanguageShare]) -> list[tuple[Row, LanguageShare | None]]:
    found = [(row, share_of(shares, row.language)) for row in rows]
    return sorted(found, key=lambda pair: np.inf if pair[1] is None else pair[1].rank)


def run_recipe(
    request: Request, recipe: str, path: str | None, values: str | None, samples: int | None, console: Console
) -> TuningReport:
    if recipe not in RECIPES:
        raise ConfigError(f"--recipe {recipe}: unknown recipe '{recipe}': {nearest(recipe, RECIPES)}")
    if path is not None:
        raise ConfigError(f"--path {path}: a recipe sweeps no key of a method: leave --path or --recipe out")
    return RECIPES[recipe](request, values, samples, console)


def run_joint_temperature(request: Request, values: str | None, samples: int | None, console: Console) -> TuningReport:
    if samples is not None:
        raise ConfigError(f"--samples {samples}: is for --recipe language-order: leave it out")
    temperatures = parse_temperatures(values)
    spec = joint_temperature(trial_spec(request, "sweep", console))
    for temperature in temperatures:
        at_temperature(spec, temperature)
    trials = open_trials(spec, request, console, "joint-temperature")
    points = []
    for place, temperature in enumerate(temperatures, start=1):
        say(console, f"[{place}/{len(temperatures)}] temperature = {temperature:g}")
        spec = at_temperature(trials.spec, temperature)
        loaded = [(spec.tasks[0], subset, data) for _, subset, data in trials.loaded]
        run = replace(trials, spec=spec, loaded=loaded, output=trials.folder).run(
            f"temperature={temperature:g}", [trials.base]
        )
        for row in run.rows_of(trials.base):
            quality, adjusted = "bleu" if "bleu" in row.metrics else row.quality, Estimate()
            scorer = next((each.scorer for each in run.subset_runs if each.subset == row.subset), None)
            if quality is not None and scorer is not None:
                records = [record for record in run.records if record.subset == row.subset]
                adjusted = adjusted_acceptance(records, trials.base.name, quality, scorer, run.seed)
            points.append(TemperaturePoint(temperature, run, row, quality, adjusted))
    rows = [
        (f"{each.temperature:g}", each.row.subset, with_interval(metrics["acceptance_rate"], 3),
         score(metrics.get(each.quality or ""), each.quality), score(each.adjusted_acceptance, each.quality),
         with_interval(metrics["speedup"], 2))
        for each in points for metrics in [each.row.metrics]
    ]  # fmt: skip
    unit = metric_of(next((point.quality for point in points if point.quality), None))
    columns = number_columns("tempe-\nrature", "subset", "α\n95 % interval", f"{unit.label}\n95 % interval",
                      f"α · {unit.label}\n95 % interval", "speed-up\n95 % interval")  # fmt: skip
    caption = [f"α·quality: over the prompts of one subset, with the method's answers. {trials.pair_and_prompts}"]
    title = trials.title("target and drafter at one temperature")
    tables = [Table(title, columns, in_sections(rows), caption, num_keys=2)]
    data, runs = {"points": [point.as_json() for point in points]}, [point.run for point in points]
    return finish(request, trials, runs, data, tables, partial(draw_temperatures, points))


def run_language_order(request: Request, values: str | None, samples: int | None, console: Console) -> TuningReport:
    if values is not None:
        raise ConfigError(f"--values {values}: --recipe language-order takes none: choose languages with --subset")
    if samples is not None and samples < 1:
        raise ConfigError(f"--samples {samples}: give 1 or more")
    spec = trial_spec(request, "sweep", console)
    check_languages(spec)
    trials = open_trials(spec, request, console, "language-order")
    num_texts = NUM_TEXTS if samples is None else samples
    run = trials.run("language-order", [trials.base])
    measured = [row for row in run.rows_of(trials.base) if row.subset != "all"]
    drafter = trials.models.drafters[trials.base.name]
    say(console, f"sampling {num_texts} texts from {drafter.name}")
    languages = [row.language for row in measured if row.language]
    texts = representation(drafter, num_texts, seed=trials.spec.seed, languages=languages)
    order = LanguageOrder(run, texts, order_rows(measured, texts.languages))
    found = {"α": order.correlation("acceptance_rate"), "speed-up": order.correlation("speedup")}
    correlations = ", ".join(f"{name} {NULL if rho is None else f'{rho:z.2f}'}" for name, rho in found.items())
    rows = [
        [NULL if share is None else str(share.rank), row.subset,
         NULL if share is None else f"{100 * share.share:.1f}", with_interval(row.metrics["acceptance_rate"], 3),
         with_interval(row.metrics["speedup"], 2), number(row.metrics["speedup_expected"], 2)]
        for row, share in order.rows
    ]  # fmt: skip
    columns = number_columns("rank", "subset", "share %", "α\n95 % interval", "speed-up\n95 % interval",
                      "expected\nspeed-up")  # fmt: skip
    caption = [
        f"Share of {texts.num_texts} texts that the drafter writes without a prompt; lingua identified their "
        f"languages. Spearman's ρ of the share with {correlations}.",
        trials.pair_and_prompts,
    ]
    table = Table(trials.title("languages as the drafter knows them"), columns, rows, caption, num_keys=2)
    draw = partial(display.draw, [[row for row, _ in order.rows]])  # the best represented language first
    return finish(request, trials, [run], order.as_json(), [table], draw)


RECIPES: dict[str, Callable[[Request, str | None, int | None, Console], TuningReport]] = {
    "joint-temperature": run_joint_temperature,
    "language-order": run_language_order,
}
