"""What a user asks of `specbench fairness`, and the runs that it names."""

from collections.abc import Sequence
from dataclasses import dataclass

from specbench.errors import ConfigError, nearest
from specbench.fairness.runs import Run, read_run
from specbench.fairness.texts import REFERENCES, Reference

Side = tuple[Run, str]  # a run and one of its methods


@dataclass(frozen=True)
class Request:
    """What a user asked for, as it was said. `runs`, `before`, `after`: RUN or RUN:METHOD; `samples`: texts for the
    representation of languages, 0 for none; `prompt`: what they go on from."""

    runs: Sequence[str]
    before: str | None
    after: str | None
    drafters: Sequence[str]
    reference: Reference
    samples: int
    prompt: str = ""
    tasks: Sequence[str] = ()
    subsets: Sequence[str] = ()
    data: str | None = None
    seed: int = 0
    dtype: str = "auto"
    device: str = "auto"
    threads: int | None = None


def check(request: Request) -> None:
    """Raise ConfigError for what no run can mend."""
    if (request.before is None) != (request.after is None):
        given, missing = ("--before", "--after") if request.after is None else ("--after", "--before")
        raise ConfigError(f"{given}: needs {missing} as well")
    if not request.runs and request.before is None:
        raise ConfigError("no run is given: give the folder of a run, or --before RUN --after RUN")
    if request.reference not in REFERENCES:
        raise ConfigError(f"--reference {request.reference}: {nearest(request.reference, REFERENCES)}")
    if request.samples < 0:
        raise ConfigError(f"--samples {request.samples}: give 0 (leaves the representation out) or more")
    if request.seed < 0:
        raise ConfigError(f"--seed {request.seed}: give 0 or more")


def read_all(request: Request) -> tuple[list[tuple[Run, list[str]]], tuple[Side, Side] | None]:
    """Every run with its methods, each once, and the two that --before and --after name."""
    named = [request.before, request.after] if request.before and request.after else []
    read: dict[str, Run] = {}
    chosen: dict[str, tuple[Run, list[str]]] = {}
    sides: list[Side] = []
    for text in [*named, *request.runs]:
        run, methods = read_run(text)
        run = read.setdefault(str(run.path.resolve()), run)
        if text in named and len(sides) < len(named):
            sides.append((run, only(text, methods)))
        _, known_methods = chosen.setdefault(str(run.path.resolve()), (run, []))
        known_methods += [method for method in methods if method not in known_methods]
    pair = (sides[0], sides[1]) if named else None
    if pair is not None and (pair[0][0].path, pair[0][1]) == (pair[1][0].path, pair[1][1]):
        raise ConfigError(f"--before and --after are the same: {request.before}: name two runs, or two methods of one")
    return list(chosen.values()), pair


def only(text: str, methods: Sequence[str]) -> str:
    if len(methods) > 1:
        raise ConfigError(f"run '{text}': drafts with {', '.join(methods)}: choose one, as {text}:{methods[0]}")
    return methods[0]
