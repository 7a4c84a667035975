"""One `specbench run`: what was asked for → specs, data, models, records, rows."""

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from specbench.catalogue import load_method, load_task, with_overrides
from specbench.errors import ConfigError
from specbench.models.loading import EMBEDDED, load_model
from specbench.results import rows as results
from specbench.results.environment import environment
from specbench.results.leaderboard import Row, load, merge
from specbench.running import runner
from specbench.running.compose import ModelPair, unique
from specbench.running.plan import load_data, make_cells
from specbench.running.progress import RunProgress
from specbench.running.run_folder import RunFolder, default_folder
from specbench.specs import RunSpec, build

INTERRUPTED = 130  # the exit code of a program that an interrupt ended


@dataclass(frozen=True)
class Request:
    """What a user asked for, as it was said; `options` are the fields of RunSpec that are taken over as they are."""

    tasks: Sequence[str]
    methods: Sequence[str]
    subsets: Sequence[str] | None
    overrides: Sequence[str]
    target: str | None
    drafter: str | None
    threads: int | None
    output: Path | None
    leaderboard: Path | None
    command: str
    options: Mapping[str, Any]


@dataclass(frozen=True)
class Outcome:
    """The rows of a run and where they are."""

    rows: Sequence[Row]
    records: Path
    leaderboard: Path

    def tables(self) -> list[list[Row]]:
        """The rows that share a table: one task and one method; AR only when it was the only method."""
        pairs = dict.fromkeys((row.task, row.method) for row in self.rows)
        shown = [pair for pair in pairs if not pair[1].startswith("ar@")] or list(pairs)
        return [[row for row in self.rows if (row.task, row.method) == pair] for pair in shown]


@contextmanager
def saying_what_is_kept(console: Console, folder: RunFolder) -> Iterator[None]:
    """An interrupt, or running out of memory, ends a run with one line: what is measured is kept."""
    try:
        yield
    except KeyboardInterrupt:
        console.print(f"interrupted: everything measured is kept in {folder.path}; the same command resumes it")
        sys.exit(INTERRUPTED)
    except (torch.OutOfMemoryError, MemoryError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and "memory" not in str(error).lower():
            raise
        raise ConfigError(
            f"out of memory; everything measured is kept in {folder.path}; use a smaller model, dtype or "
            "generation.max_new_tokens, or free memory and repeat the command to resume"
        ) from error


def set_threads(num_threads: int | None, embedded: bool) -> None:
    """CPU threads of this process. The embedded pair is so small that more than one only adds noise."""
    if num_threads is not None and num_threads < 1:
        raise ConfigError(f"--threads {num_threads}: at least 1")
    if num_threads is not None or embedded:
        torch.set_num_threads(num_threads or 1)


def announce(console: Console, num_blocks: int, num_done: int, folder: RunFolder) -> None:
    """Where the run is kept, and what an earlier one has left to do."""
    if num_done == num_blocks:
        text = f"all {num_blocks} examples are measured already in {folder.path}: give --output to measure again"
    elif num_done:
        text = f"resuming {folder.path}: {num_done} of {num_blocks} examples are there"
    else:
        text = f"measuring {num_blocks} examples into {folder.path}"
    console.print(text, markup=False, soft_wrap=True)


def run_spec(request: Request) -> RunSpec:
    """The checked specification of a run; AR is put first, whether or not it was asked for."""
    tasks = [load_task(name) for name in unique(request.tasks)]
    methods = [load_method(name) for name in unique(["ar", *request.methods])]
    if not request.tasks or not request.methods:
        raise ConfigError("--task and --method need at least one name each; `specbench list` shows them")
    tasks, methods = with_overrides(tasks, methods, request.overrides)
    embedded = request.target is None
    if embedded and request.drafter is not None:
        raise ConfigError("--drafter needs --target: the embedded pair is used only as a pair")
    data = {
        **request.options,
        "tasks": tasks,
        "methods": methods,
        "subsets": request.subsets,
        "target": EMBEDDED + "target" if embedded else request.target,
        "drafter": EMBEDDED + "drafter" if embedded else request.drafter,
    }
    return build(RunSpec, data, prefix="")


def load_pair(spec: RunSpec) -> ModelPair:
    """The models that the methods of a run ask for."""
    load = {"dtype": spec.dtype, "device": spec.device}
    target = load_model(spec.target, revision=spec.target_revision, **load)
    if spec.drafter is None or not any(method.needs_drafter for method in spec.methods):
        return ModelPair(target)
    return ModelPair(target, load_model(spec.drafter, revision=spec.drafter_revision, **load))


def execute(request: Request, console: Console) -> Outcome:
    """Measure what is not recorded yet, and write the rows. Progress goes to `console`."""
    spec = run_spec(request)
    embedded = request.target is None
    set_threads(request.threads, embedded)
    if request.leaderboard is not None and request.leaderboard.exists():
        load(request.leaderboard)  # a file that cannot take the rows is reported before anything is measured
    loaded = load_data(spec, use_sample=embedded)
    models = load_pair(spec)
    cells = make_cells(spec, models, loaded)
    conditions = environment(str(models.target.device), models.target.dtype, models.target.attention)
    identity = runner.identity(spec, cells, models, conditions)
    names = "-".join([*(task.name for task in spec.tasks), *(m.name for m in spec.methods if m.name != "ar")])
    folder = RunFolder(request.output or default_folder(names, identity), identity)
    done = folder.open()
    plan = list(runner.blocks(cells, spec.repeats))
    announce(console, len(plan), sum(block.key in done for block in plan), folder)
    with RunProgress(console, len(plan)) as progress, saying_what_is_kept(console, folder):
        records = runner.run(
            spec, cells, folder, done,
            lambda block, record, measured: progress.report(f"{record['task']}/{record['subset']}", record, measured),
        )  # fmt: skip
    rows = results.rows(spec, cells, models, records, conditions, request.command)
    for path in unique([str(folder.leaderboard), str(request.leaderboard or folder.leaderboard)]):
        merge(Path(path), rows)
    return Outcome(rows, folder.records.path, request.leaderboard or folder.leaderboard)
