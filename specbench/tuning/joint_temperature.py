"""Target and drafter sampled at the same temperature, over a range of them: what that does to α, and what to quality.

arXiv:2510.02128, section 8.3 and figure 7: α falls and rises again with the temperature, while α·BLEU stays about flat.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.table import Table

from specbench.checked import check_samples
from specbench.console import say
from specbench.errors import ConfigError
from specbench.results.bootstrap import Metric
from specbench.results.row import Row
from specbench.results.units import unit_of
from specbench.specs import RunSpec, dotted, yaml_files
from specbench.specs.overrides import with_overrides
from specbench.temperature import MAX_TEMPERATURE, MIN_TEMPERATURE
from specbench.tuning.adjusted import adjusted_acceptance
from specbench.tuning.formats import add_columns, conditions, names, new_table, with_interval
from specbench.tuning.picture import draw_panels
from specbench.tuning.trials import Measured, Trials
from specbench.tuning.variants import with_value

TEMPERATURES = (0.0, 0.5, 1.0, 1.5, 2.0)


@dataclass(frozen=True)
class Point:
    """One temperature and one subset (or all). `adjusted`: α times the metric that stands for quality, BLEU where the
    task has it; null where there is none, or where subsets are put together."""

    temperature: float
    run: Measured
    row: Row
    quality: str | None
    adjusted: Metric

    def as_json(self) -> dict[str, Any]:
        metrics = {name: self.row.metrics[name].model_dump() for name in ("acceptance_rate", "speedup")}
        if self.quality:
            metrics[self.quality] = self.row.metrics[self.quality].model_dump()
        return {
            "temperature": self.temperature, "subset": self.row.subset, "language": self.row.language,
            "folder": str(self.run.folder), "quality": self.quality, "metrics": metrics,
            "adjusted_acceptance": self.adjusted.model_dump(),
        }  # fmt: skip


def checked(values: str | None) -> list[float]:
    """The temperatures of --values, or those of the recipe. Raises ConfigError for what is no temperature."""
    given = list(TEMPERATURES) if values is None else yaml_files.parse(f"[{values}]", f"--values {values}")
    for value in given:
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not number or not (value == 0 or MIN_TEMPERATURE <= value <= MAX_TEMPERATURE):
            raise ConfigError(
                f"--values {value}: is no temperature: give some separated by commas, 0 (greedy) or "
                f"{MIN_TEMPERATURE:g} to {MAX_TEMPERATURE:g}"
            )
    if not given:
        raise ConfigError("--values: is empty: give temperatures separated by commas, such as 0,0.5,1")
    return sorted({float(value) for value in given})


def joint(spec: RunSpec) -> RunSpec:
    """The run with drafters that follow its temperature, whatever the method's file gives them."""
    ar, method = spec.methods
    for path in dotted.leaves(method.model_dump(exclude={"sweep"})):
        if path.endswith("drafter.temperature"):
            method = with_value(method, path, None)
    return spec.model_copy(update={"methods": (ar, method)})


def at(spec: RunSpec, temperature: float) -> RunSpec:
    """The run at a temperature. Raises ConfigError where the task cannot be run at it."""
    tasks, _ = with_overrides(spec.tasks, [], [f"generation.temperature={temperature:g}"])
    made = spec.model_copy(update={"tasks": tuple(tasks)})
    check_samples(made)
    return made


def measure(trials: Trials, temperatures: Sequence[float]) -> list[Point]:
    """Every temperature measured beside AR at the same one, each in its own folder."""
    points = []
    for number, temperature in enumerate(temperatures, start=1):
        say(trials.console, f"[{number}/{len(temperatures)}] temperature = {temperature:g}")
        spec = at(trials.spec, temperature)
        loaded = [(spec.tasks[0], subset, data) for _, subset, data in trials.loaded]
        run = replace(trials, spec=spec, loaded=loaded, output=trials.folder).run(
            f"temperature={temperature:g}", [trials.base]
        )
        rows = [row for row in run.rows if row.method.startswith(f"{trials.base.name}@")]
        points += [point(temperature, run, row, trials.base.name) for row in rows]
    return points


def point(temperature: float, run: Measured, row: Row, method: str) -> Point:
    """One row of a run with its quality-adjusted α."""
    quality = "bleu" if "bleu" in row.metrics else row.quality
    scorer = next((cell.scorer for cell in run.cells if cell.subset == row.subset), None)
    if quality is None or scorer is None:
        return Point(temperature, run, row, quality, Metric())
    records = [record for record in run.records if record["subset"] == row.subset]
    return Point(temperature, run, row, quality, adjusted_acceptance(records, method, quality, scorer, run.seed))


def table(trials: Trials, points: Sequence[Point]) -> Table:
    """A line for each temperature and subset."""
    quality = next((point.quality for point in points if point.quality), None)
    unit = unit_of(quality)
    made = new_table(
        f"{names(trials)}: target and drafter at one temperature",
        f"α·quality is over the prompts of one subset, with what the method wrote there. {conditions(trials)}",
    )
    add_columns(made, "tempe-\nrature", "subset", "α\n95 % interval", f"{unit.label}\n95 % interval",
                f"α · {unit.label}\n95 % interval", "speed-up\n95 % interval")  # fmt: skip
    for number, each in enumerate(points):
        if number and points[number - 1].temperature != each.temperature:
            made.add_section()
        score = each.row.metrics.get(each.quality or "", Metric())
        made.add_row(
            f"{each.temperature:g}", each.row.subset, with_interval(each.row.metrics["acceptance_rate"], 3),
            with_interval(score, unit.digits, unit.factor), with_interval(each.adjusted, unit.digits, unit.factor),
            with_interval(each.row.metrics["speedup"], 2),
        )  # fmt: skip
    return made


def draw(points: Sequence[Point], path: Path) -> None:
    """α, and α times quality, over the temperature: a line for each subset."""
    unit = unit_of(next((point.quality for point in points if point.quality), None))

    def panel_of(label: str, factor: float, is_adjusted: bool) -> Any:
        def panel(axes: Any) -> None:
            for subset in dict.fromkeys(each.row.subset for each in points):
                own = [each for each in points if each.row.subset == subset]
                metrics = [each.adjusted if is_adjusted else each.row.metrics["acceptance_rate"] for each in own]
                pairs = [(p.temperature, factor * m.value) for p, m in zip(own, metrics, strict=True)
                         if m.value is not None]  # fmt: skip
                if pairs:
                    axes.plot(*zip(*pairs, strict=True), marker="o", label=subset)
            axes.set_xlabel("temperature of target and drafter")
            axes.set_ylabel(label)
            axes.legend(ncols=6, fontsize=8, frameon=False, loc="lower right", bbox_to_anchor=(1, 1))

        return panel

    draw_panels([panel_of("α", 1.0, False), panel_of(f"α · {unit.label}", unit.factor, True)], path)
