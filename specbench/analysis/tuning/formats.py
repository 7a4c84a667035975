"""Numbers, names and empty tables as the sweep and tune commands show them."""

from collections.abc import Mapping

from rich import box
from rich.table import Table
from rich.text import Text

from specbench.analysis.tuning.trials import Trials
from specbench.results.bootstrap import Metric
from specbench.results.units import NULL, unit_of

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
