"""Sweeps that change more than one key: `specbench sweep --recipe NAME` (arXiv:2510.02128, figures 6 and 7)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console

from specbench.analysis.fairness.groups import quality_weighted, spearman
from specbench.analysis.fairness.representation import LanguageShare, Representation, representation, share_of
from specbench.analysis.tuning.shared_runs import (
    TrialRun,
    Trials,
    TuningReport,
    dumped,
    finish,
    open_trials,
    trial_spec,
    with_value,
)
from specbench.analysis.tuning.sweep import KEPT
from specbench.core import dotted
from specbench.core.console import say
from specbench.core.errors import ConfigError, nearest
from specbench.core.table import Table, in_sections, number_columns
from specbench.records.records import Record
from specbench.report import display
from specbench.report.display import Panel, save_picture
from specbench.results.answers import CorpusStatistics
from specbench.results.metric_format import NULL, bounds_of, metric_of, number, score, with_interval
from specbench.results.row import Row
from specbench.running.request import Request, check_samples
from specbench.specs import yaml_files
from specbench.specs.catalogue import with_overrides
from specbench.specs.components import MAX_TEMPERATURE, MIN_TEMPERATURE
from specbench.specs.run import RunSpec
from specbench.statistics.bootstrap import Array, Estimate, Resampler
from specbench.tasks.scoring import Scorer


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
        part = CorpusStatistics.of(quality, scorer, cluster, [own])
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
    """Returns the run with drafters at the run's temperature, whatever temperature the method's file gives them."""
    ar, method = spec.methods
    for path in dotted.flat(method.model_dump(exclude={"sweep"})):
        if path.endswith("drafter.temperature"):
            method = with_value(method, path, None)
    return spec.model_copy(update={"methods": (ar, method)})


def at_temperature(spec: RunSpec, temperature: float) -> RunSpec:
    """Returns the run at a temperature. Raises ConfigError if the task cannot be run at it."""
    tasks, _ = with_overrides(spec.tasks, [], [f"generation.temperature={temperature:g}"])
    made = spec.model_copy(update={"tasks": tuple(tasks)})
    check_samples(made)
    return made


def measure_temperatures(trials: Trials, temperatures: Sequence[float]) -> list[TemperaturePoint]:
    points = []
    for place, temperature in enumerate(temperatures, start=1):
        say(trials.console, f"[{place}/{len(temperatures)}] temperature = {temperature:g}")
        spec = at_temperature(trials.spec, temperature)
        loaded = [(spec.tasks[0], subset, data) for _, subset, data in trials.loaded]
        run = replace(trials, spec=spec, loaded=loaded, output=trials.folder).run(
            f"temperature={temperature:g}", [trials.base]
        )
        for row in run.rows_of(trials.base):
            quality, adjusted = "bleu" if "bleu" in row.metrics else row.quality, Estimate()
            scorer = next((cell.scorer for cell in run.cells if cell.subset == row.subset), None)
            if quality is not None and scorer is not None:
                records = [record for record in run.records if record.subset == row.subset]
                adjusted = adjusted_acceptance(records, trials.base.name, quality, scorer, run.seed)
            points.append(TemperaturePoint(temperature, run, row, quality, adjusted))
    return points


def temperature_table(trials: Trials, points: Sequence[TemperaturePoint]) -> Table:
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
    name = trials.title("target and drafter at one temperature")
    return Table(name, columns, in_sections(rows), caption, num_keys=2)


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


def measure_order(trials: Trials, num_texts: int) -> LanguageOrder:
    run = trials.run("language-order", [trials.base])
    rows = [row for row in run.rows_of(trials.base) if row.subset != "all"]
    drafter = trials.models.drafters[trials.base.name]
    say(trials.console, f"sampling {num_texts} texts from {drafter.name}")
    languages = [row.language for row in rows if row.language]
    texts = representation(drafter, num_texts, seed=trials.spec.seed, languages=languages)
    return LanguageOrder(run, texts, order_rows(rows, texts.languages))


def order_rows(rows: Sequence[Row], shares: Sequence[LanguageShare]) -> list[tuple[Row, LanguageShare | None]]:
    """Returns the rows in the order of their languages' ranks, with their languages' shares of the texts."""
    found = [(row, share_of(shares, row.language)) for row in rows]
    return sorted(found, key=lambda pair: np.inf if pair[1] is None else pair[1].rank)


def order_table(trials: Trials, order: LanguageOrder) -> Table:
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
        f"Share of {order.texts.num_texts} texts that the drafter writes without a prompt; lingua identified their "
        f"languages. Spearman's ρ of the share with {correlations}.",
        trials.pair_and_prompts,
    ]
    return Table(trials.title("languages as the drafter knows them"), columns, rows, caption, num_keys=2)


def run_recipe(
    request: Request, recipe: str, path: str | None, values: str | None, samples: int | None, console: Console
) -> TuningReport:
    """Measures what was not measured before. Raises ConfigError for bad input, before anything is measured."""
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
    points = measure_temperatures(trials, temperatures)
    data, runs = {"points": [point.as_json() for point in points]}, [point.run for point in points]
    tables = [temperature_table(trials, points)]
    return finish(request, trials, runs, data, tables, partial(draw_temperatures, points))


def run_language_order(request: Request, values: str | None, samples: int | None, console: Console) -> TuningReport:
    if values is not None:
        raise ConfigError(f"--values {values}: --recipe language-order takes none: choose languages with --subset")
    if samples is not None and samples < 1:
        raise ConfigError(f"--samples {samples}: give 1 or more")
    spec = trial_spec(request, "sweep", console)
    check_languages(spec)
    trials = open_trials(spec, request, console, "language-order")
    order = measure_order(trials, NUM_TEXTS if samples is None else samples)
    draw = partial(display.draw, [[row for row, _ in order.rows]])  # the best represented language first
    return finish(request, trials, [order.run], order.as_json(), [order_table(trials, order)], draw)


RECIPES: dict[str, Callable[[Request, str | None, int | None, Console], TuningReport]] = {
    "joint-temperature": run_joint_temperature,
    "language-order": run_language_order,
}
