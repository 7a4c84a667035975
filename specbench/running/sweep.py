"""`specbench run --sweep`: a run for each point, each in a folder of its own under one parent, with models that are
loaded once."""

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from specbench.core.console import say
from specbench.core.environment import PACKAGE
from specbench.core.errors import ConfigError
from specbench.core.table import Table
from specbench.models.machine import commit
from specbench.records.folder import MAX_NAMED, folder_of
from specbench.running.request import Request, resolve
from specbench.specs.run import RunSpec
from specbench.specs.sweep import Point, read_points

if TYPE_CHECKING:
    from specbench.running.models import LoadedModels


def sweep_requests(request: Request, sweeps: Sequence[str]) -> list[Request]:
    """Returns the request of each point. Raises ConfigError for what is not a sweep, and for --plot."""
    if request.plot is not None:
        raise ConfigError(
            f"--plot {request.plot}: has no effect with --sweep: draw the sweep with `specbench plot sweep FOLDER`"
        )
    points = read_points(sweeps, request.options)
    folder = request.output or _default_folder(request, points[0])
    return [
        replace(request, options=point.options(request.options), output=folder / point.name, point=point.values)
        for point in points
    ]  # fmt: skip


def _default_folder(request: Request, point: Point) -> Path:
    """Returns runs/sweep-<tasks>-<methods>-<digest>, which the same command finds again, also with other values of the
    same conditions."""
    tasks = request.tasks if len(request.tasks) <= MAX_NAMED else [f"{len(request.tasks)}-tasks"]
    names = [re.sub(r"[^\w.-]+", "_", Path(name).stem) for name in (*tasks, *request.methods)]
    asked = {**request.settings(), "conditions": sorted(point.values), "commit": commit(PACKAGE.parent)}
    asked.pop("warm_up", None)
    return folder_of("-".join(["sweep", *names]), asked)


def plan_sweep(requests: Sequence[Request], console: Console) -> Iterator[Table]:
    """Yields what each point would measure. Nothing is measured or written. Raises ConfigError, which names the point,
    for what is wrong with one."""
    from specbench.running.dry_run import dry_run  # imports torch

    for request in requests:
        with _naming(request) as name:
            table = dry_run(request, console)
        yield replace(table, title=f"{table.title}: {name}")


def run_sweep(
    requests: Sequence[Request], console: Console, load: "Callable[[RunSpec], LoadedModels] | None" = None
) -> Path:
    """Measures what the points lack, one point after the other, and returns the folder that holds theirs. All points
    are planned before the first is measured; of servers, only their specifications are. `load`: connects to servers; by
    default models are loaded here."""
    from specbench.running.execute import execute  # imports torch
    from specbench.running.models import ModelCache

    if load is None:
        for _ in plan_sweep(requests, Console(quiet=True)):
            pass
    for request in requests:
        with _naming(request):
            resolve(request)
    load = load or ModelCache()
    for number, request in enumerate(requests, start=1):
        with _naming(request) as name:
            say(console, f"[{number}/{len(requests)}] {name}")
            execute(request, console, load)
    assert request.output is not None
    return request.output.parent


@contextmanager
def _naming(request: Request) -> Iterator[str]:
    """Yields the name of a point, with which errors begin."""
    assert request.output is not None
    try:
        yield request.output.name
    except ConfigError as error:
        raise ConfigError(f"{request.output.name}: {error}") from error
