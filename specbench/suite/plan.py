"""The cells of a suite with their work: counted from the data, without a model."""

from collections.abc import Sequence
from io import StringIO
from typing import Any

from rich.console import Console

from specbench.catalogue import load_method
from specbench.checked import run_spec
from specbench.errors import ConfigError
from specbench.models.loading import is_local
from specbench.resources import EMBEDDED
from specbench.running.compose import unique
from specbench.running.subsets import load_asked
from specbench.suite.cells import Cell
from specbench.suite.evidence import records_in
from specbench.suite.forecast import Forecast, Planned
from specbench.tuning.calibration import without_calibration

Subsets = tuple[tuple[int, int], ...]


def planned(cells: Sequence[Cell]) -> Forecast:
    """All cells, with what they have already. What cannot be read here is not known; measuring says why."""
    counted: dict[Any, Subsets | ConfigError] = {}
    plan, recorded = [], []
    for cell in cells:
        key = (cell.task.called, cell.limit, cell.pair_name, cell.methods)
        if key not in counted:
            counted[key] = subsets_of(cell)
        rows = cell.measurement.rows()
        methods = tuple(load_method(name).name for name in unique(["ar", *cell.methods]))
        subsets, problem = (None, str(found)) if isinstance(found := counted[key], ConfigError) else (found, None)
        plan.append(Planned(cell, methods, subsets, cell.measurement.is_measured(rows), problem=problem))
        recorded.append(list(records_in(cell.folder)))
    forecast = Forecast(plan)
    for number, records in enumerate(recorded):
        for record in records:
            forecast.add(number, record)
    return forecast


def subsets_of(cell: Cell) -> Subsets | ConfigError:
    """Of each subset its blocks, and the tokens that an answer may have; why not where that cannot be told."""
    try:
        spec = run_spec(cell.measurement.request())
        if spec.drafter is not None and not spec.drafter.startswith(EMBEDDED):
            is_local(spec.drafter)
        embedded = spec.target.startswith(EMBEDDED)
        loaded = without_calibration(load_asked(spec, embedded, Console(file=StringIO())), spec.methods)
    except ConfigError as error:
        return error
    return tuple(
        (
            spec.repeats * sum(len(example.turns) for example in data.examples),
            task.subset(subset).generation.max_new_tokens,
        )
        for task, subset, data in loaded
    )
