"""One `specbench run`: what was asked for → specs, data, models, records, rows."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from specbench.catalogue import builtin_task_names, load_method, load_tasks, namesake, with_overrides
from specbench.demo.family import member
from specbench.errors import ConfigError
from specbench.judge.judging import Judging
from specbench.judge.recorded import with_recorded
from specbench.leaderboards.adding import add_rows, check_machine
from specbench.models.loading import is_local
from specbench.resources import EMBEDDED
from specbench.results import rows as results
from specbench.results.environment import environment
from specbench.results.leaderboard import check_writable, load, write
from specbench.results.notes import why_unscored
from specbench.results.plots import check_plot, draw
from specbench.results.row import Row
from specbench.running import runner
from specbench.running.blocks import what_blocks_are
from specbench.running.compose import unique
from specbench.running.models import Models, load_models
from specbench.running.naming import default_folder
from specbench.running.plan import Cell, make_cells
from specbench.running.progress import RunProgress, announce, say, saying_what_is_kept
from specbench.running.records import Record
from specbench.running.routing import without_subset
from specbench.running.run_folder import Key, RunFolder
from specbench.running.specs_file import write_specs
from specbench.running.subsets import load_asked, without
from specbench.specs import RunSpec, TaskSpec, build
from specbench.tuning.calibration import without_calibration

ALL = "all"
LM_EVAL = "lm_eval:"


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
    plot: Path | None
    command: str
    options: Mapping[str, Any]
    lm_eval_include: Path | None = None
    judging: Judging | None = None


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

    def by_task(self) -> list[list[Row]]:
        """The rows of each task over all its subsets (or of its only one), a row per method."""
        groups = []
        for task in dict.fromkeys(row.task for row in self.rows):
            rows = [row for row in self.rows if row.task == task]
            subset = rows[-1].subset  # `all` comes last
            groups.append([row for row in rows if row.subset == subset])
        return groups


def set_threads(num_threads: int | None, embedded: bool) -> None:
    """CPU threads of this process. The embedded pair is so small that more than one only adds noise."""
    most = os.cpu_count() or 1
    if num_threads is not None and not 1 <= num_threads <= most:
        raise ConfigError(f"--threads {num_threads}: this machine has {most} CPUs: give 1 to {most}")
    if num_threads is not None or embedded:
        torch.set_num_threads(num_threads or 1)


def check_revisions(request: Request) -> None:
    """A revision names a commit on the hub: beside anything else it would be silently without effect."""
    for role, name in {"target": request.target, "drafter": request.drafter}.items():
        revision = request.options.get(f"{role}_revision")
        if revision is None:
            continue
        if name is None:
            raise ConfigError(f"--{role}-revision {revision}: needs --{role} with a hub id")
        if name.startswith(EMBEDDED) or is_local(name):
            raise ConfigError(f"--{role}-revision {revision}: '{name}' is not on the hub: leave the revision out")


def check_counts(request: Request) -> None:
    """Numbers that are too small are said by the option's name."""
    for name, least in {"limit": 1, "subsets_per_task": 1, "repeats": 1, "seed": 0}.items():
        value = request.options.get(name)
        if value is not None and value < least:
            raise ConfigError(f"--{name.replace('_', '-')} {value}: give {least} or more")


def say_namesakes(request: Request, console: Console) -> None:
    """One line for each file of the user's whose name a built-in method or task has too."""
    for kind, names in (("tasks", request.tasks), ("methods", request.methods)):
        for line in filter(None, (namesake(kind, name) for name in names)):
            say(console, line)


def run_spec(request: Request) -> RunSpec:
    """The checked specification of a run; AR is put first, whether or not it was asked for."""
    tasks = [task for name in chosen_tasks(request.tasks) for task in load_tasks(name, request.lm_eval_include)]
    methods = [load_method(name) for name in unique(["ar", *request.methods])]
    if not request.tasks or not request.methods:
        raise ConfigError("--task and --method need at least one name each; `specbench list` shows them")
    if request.lm_eval_include is not None and not any(name.startswith(LM_EVAL) for name in request.tasks):
        raise ConfigError(f"--lm-eval-include: has no effect without --task {LM_EVAL}NAME: leave it out, or name one")
    if request.subsets is not None and not request.subsets:
        raise ConfigError("--subset is empty: name at least one, or leave the option out")
    tasks, methods = with_overrides(tasks, methods, request.overrides)
    check_revisions(request)
    check_counts(request)
    if request.target is not None:  # what is not there is said before a drafter that was not given
        if request.target.startswith(EMBEDDED):
            member(request.target.removeprefix(EMBEDDED))
        else:
            is_local(request.target)
    data = {
        **request.options,
        "tasks": tasks,
        "methods": methods,
        "subsets": request.subsets,
        "target": request.target or EMBEDDED + "target",
        "drafter": request.drafter,
    }
    spec = build(RunSpec, data, prefix="")
    check_samples(spec)
    return spec


def runs_programs(task: TaskSpec) -> bool:
    """Whether answers are scored by running them."""
    return task.scorer is not None and task.scorer.type == "code"


def check_samples(spec: RunSpec) -> None:
    """pass@k is of k different answers. Raises ConfigError where a run has fewer."""
    for task, name in spec.cells():
        subset = task.subset(name)
        k = max(subset.scorer.options.get("k", (1,)), default=1) if subset.scorer and runs_programs(subset) else 1
        if k > 1 and (k > spec.repeats or subset.generation.temperature == 0):
            raise ConfigError(
                f"--repeats {spec.repeats}: pass@{k} of task {task.name} needs --repeats {k} and a temperature: give "
                f"them (--set generation.temperature=0.8), or leave {k} out of scorer.k"
            )


def chosen_tasks(names: Sequence[str]) -> list[str]:
    """The tasks asked for; "all" is every built-in one. Raises ConfigError for another name beside it."""
    if ALL in names and len(set(names)) > 1:
        raise ConfigError(f"--task {','.join(names)}: '{ALL}' is every task: name no other beside it")
    return builtin_task_names() if ALL in names else unique(names)


def say_left_out(spec: RunSpec, console: Console) -> None:
    """One line for each task of which the bundled sample does not have all subsets."""
    for task, names in spec.left_out().items():
        say(console, f"{without(task, names, 'bundled sample')}: give --data to measure them")


def execute(request: Request, console: Console) -> Outcome:
    """Measure what is not recorded yet, and write the rows. Progress goes to `console`."""
    spec = run_spec(request)
    say_namesakes(request, console)
    say_left_out(spec, console)
    for line in (line for method in spec.methods for line in without_subset(method, spec.tasks)):
        say(console, line)
    embedded = spec.target.startswith(EMBEDDED)
    set_threads(request.threads, embedded)
    if request.plot is not None:
        check_plot(request.plot)
    if request.leaderboard is not None:  # one that cannot take the rows is reported before anything is measured
        check_writable(request.leaderboard)
        if request.leaderboard.exists():
            load(request.leaderboard)
    loaded = without_calibration(load_asked(spec, embedded, console), spec.methods)
    models = load_models(spec)
    cells = make_cells(spec, models, loaded)
    conditions = environment(str(models.target.device), models.target.dtype, models.target.attention)
    if request.leaderboard is not None and request.leaderboard.exists():
        check_machine(request.leaderboard, conditions["device"], conditions["versions"])
    identity = runner.identity(spec, cells, models, conditions)
    if identity.get("code_execution") and not any(runs_programs(cell.task) for cell in cells):
        del identity["code_execution"]
        say(console, "--allow-code-execution: no effect, no answer of these tasks is run")
    path = request.output or default_folder(spec, identity)
    folder = RunFolder(path, identity, named_by_digest=request.output is None)
    records, rows = measure_into(folder, spec, cells, models, conditions, request.command, console, request.judging)
    if reason := why_unscored(records):
        say(console, reason)
    if request.leaderboard is not None:
        add_rows(request.leaderboard, rows, folder.path)
    outcome = Outcome(rows, folder.records.path, request.leaderboard or folder.leaderboard)
    if request.plot is not None:
        draw(outcome.tables(), request.plot)
    return outcome


def measure_into(
    folder: RunFolder, spec: RunSpec, cells: Sequence[Cell], models: Models, conditions: Mapping[str, Any],
    command: str, console: Console, judging: Judging | None = None,
) -> tuple[list[Record], list[Row]]:  # fmt: skip
    """Measure what the folder does not hold yet; its leaderboard then holds this run alone, and no rows of another."""
    with folder.open({method.name: method.most_draft_tokens for method in spec.methods}) as done:
        check_writable(folder.leaderboard)
        if judging is not None and any(block.key not in done for block in runner.blocks(cells, spec.repeats)):
            judging.check()
        measured = measure(spec, cells, folder, done, console)
        write_specs(folder.path, spec, cells)
        records, judge = with_recorded(measured, cells, folder.path, console)
        rows = results.rows(spec, cells, models, records, conditions, command, judge)
        write(folder.leaderboard, rows)  # whatever becomes of a judge that is asked now
        if judging is not None and judging.is_dry_run:
            judging.show(measured, cells)
        elif judging is not None:
            records = judging.judge(measured, cells, folder.path, console)
            rows = results.rows(spec, cells, models, records, conditions, command, judging.settings.signature)
            write(folder.leaderboard, rows)
    return records, rows


def measure(
    spec: RunSpec, cells: Sequence[Cell], folder: RunFolder, done: Mapping[Key, Record], console: Console
) -> list[Record]:
    """The records of the plan, those that were not there measured now."""
    plan = list(runner.blocks(cells, spec.repeats))
    announce(console, len(plan), sum(block.key in done for block in plan), folder.path, what_blocks_are(plan))
    with RunProgress(console, len(plan)) as progress, saying_what_is_kept(console, folder.path):
        return runner.run(
            spec, plan, folder, done,
            lambda block, record, measured: progress.report(f"{record['task']}/{record['subset']}", record, measured),
        )  # fmt: skip
