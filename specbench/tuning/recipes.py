"""Sweeps that are not of one key: `specbench sweep --recipe NAME` (arXiv:2510.02128, figures 6 and 7)."""

from collections.abc import Callable

from rich.console import Console

from specbench.errors import ConfigError, nearest
from specbench.request import Request
from specbench.tuning import joint_temperature, language_order
from specbench.tuning.reports import Report, check_files, keep_rows
from specbench.tuning.trials import asked_for, open_trials


def run_recipe(
    request: Request, recipe: str, path: str | None, values: str | None, samples: int | None, console: Console
) -> Report:
    """Run what is not recorded yet. Raises ConfigError for bad input, before anything is measured."""
    if recipe not in RECIPES:
        raise ConfigError(f"--recipe {recipe}: unknown recipe '{recipe}': {nearest(recipe, RECIPES)}")
    if path is not None:
        raise ConfigError(f"--path {path}: a recipe sweeps no key of a method: leave --path or --recipe out")
    check_files(request)
    return RECIPES[recipe](request, values, samples, console)


def run_joint_temperature(request: Request, values: str | None, samples: int | None, console: Console) -> Report:
    """Target and drafter at every temperature together: α and quality-adjusted α of each language."""
    if samples is not None:
        raise ConfigError(f"--samples {samples}: is for --recipe language-order: leave it out")
    temperatures = joint_temperature.checked(values)
    spec = joint_temperature.joint(asked_for(request, "sweep", console))
    for temperature in temperatures:
        joint_temperature.at(spec, temperature)
    trials = open_trials(spec, request, console, "joint-temperature")
    points = joint_temperature.measure(trials, temperatures)
    keep_rows(request, [point.run for point in points])
    if request.plot is not None:
        joint_temperature.draw(points, request.plot)
    data = {"points": [point.as_json() for point in points]}
    return Report(data, [joint_temperature.table(trials, points)], trials.folder)


def run_language_order(request: Request, values: str | None, samples: int | None, console: Console) -> Report:
    """The languages of a task from the one that the drafter knows best: speed-up and α of each."""
    if values is not None:
        raise ConfigError(f"--values {values}: --recipe language-order takes none: choose languages with --subset")
    if samples is not None and samples < 1:
        raise ConfigError(f"--samples {samples}: give 1 or more")
    spec = asked_for(request, "sweep", console)
    language_order.check(spec)
    trials = open_trials(spec, request, console, "language-order")
    order = language_order.measure(trials, language_order.NUM_TEXTS if samples is None else samples)
    keep_rows(request, [order.run])
    if request.plot is not None:
        language_order.draw(order, request.plot)
    return Report(order.as_json(), [language_order.table(trials, order)], trials.folder)


RECIPES: dict[str, Callable[[Request, str | None, int | None, Console], Report]] = {
    "joint-temperature": run_joint_temperature,
    "language-order": run_language_order,
}
