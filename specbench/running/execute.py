"""One `specbench run`: a request → specs, data, models, records, rows."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from rich.console import Console

from specbench.core.console import counted, say
from specbench.core.environment import EMBEDDED, is_installed, set_threads
from specbench.core.progress import doing
from specbench.core.table import Table
from specbench.decoding.bridges import common_ids
from specbench.decoding.decoder import drafting_decoders
from specbench.models.loading import choose_device
from specbench.records.folder import DATE, RunFolder, default_folder, write_specs
from specbench.records.records import Key, Record, record_key, with_same_history
from specbench.report.captions import why_unscored
from specbench.results.conditions import check_accepts_rows, environment
from specbench.results.leaderboard import check_writable, write
from specbench.results.row import CommonIds, Row
from specbench.results.rows import MeasuredRun, MeasuredSubset, Measurement, ModelContext, Ties, add_measurement
from specbench.results.verdict import count_ties, declares_lossless, differing_records
from specbench.running import runner
from specbench.running.compose import incompatible_methods, sampling_of
from specbench.running.live import LiveTable, Loggers, make_loggers
from specbench.running.models import (
    LoadedModels,
    has_other_vocabulary,
    load_models,
    parts,
    training_prompts,
)
from specbench.running.plan import (
    Loaded,
    SubsetRun,
    Trial,
    block_noun,
    blocks,
    load_requested,
    make_cells,
    printed_date,
    prompt_notes,
    run_identity,
    without_calibration,
)
from specbench.running.progress import announce, load_lines, report_kept_results
from specbench.running.prompts import baseline_prompts, uses_chat
from specbench.running.request import (
    ALL,
    Request,
    all_methods,
    print_request_notes,
    run_spec,
    runs_programs,
    with_default_limit,
)
from specbench.specs.run import RunSpec
from specbench.tasks.judge import JUDGEMENTS_FILE
from specbench.tasks.sandbox import run as permission

if TYPE_CHECKING:
    from specbench.tasks.judge.judgements import Judging


def measurement_of(
    spec: RunSpec, cells: Sequence[SubsetRun], models: LoadedModels, records: Sequence[Record], command: str,
    settings: Mapping[str, Any] | None = None,
) -> Measurement:  # fmt: skip
    """Returns what a command measured. `settings`: the settings of its request. The target scores the greedy answers of
    lossless methods that differ from AR's."""
    measured = {record["prompt"] for record in records if not record.get("turn")}
    trained = {method.name: measured & training_prompts(spec, method) for method in spec.methods}
    drafting = [part for part in parts(spec.methods) if part.name in models.drafters]
    target = models.target
    limiting = models.limiting_model(spec.methods)
    return Measurement(
        command=command,
        request=dict(settings or {}),
        identifies_languages=is_installed("lingua"),
        repeats=spec.repeats,
        chat=uses_chat(models.target, spec.chat),
        subsets=tuple(
            MeasuredSubset(
                task=cell.task.name, subset=cell.subset, num_examples=len(cell.data.examples), source=cell.data.source,
                location=str(cell.data.location), revision=cell.data.revision, worked=cell.data.fewshot,
            )
            for cell in cells
        ),
        other_vocabulary=tuple(method.name for method in spec.methods if has_other_vocabulary(method, models)),
        trained_on={name: tuple(sorted(digests)) for name, digests in trained.items() if digests},
        ties=tuple(_ties(spec, cells, models, records)),
        context=None if limiting is None else ModelContext(model=limiting.name, tokens=limiting.context_limit or 0),
        pauses={
            each.method.name: each.drafter.pauses_at
            for cell in cells[:1] for each in drafting_decoders(cell.decoders) if each.drafter.pauses_at is not None
        },
        common_ids={
            part.name: CommonIds(common=len(common), target=len(target.vocabulary), drafter=len(drafter.vocabulary))
            for part in drafting
            if part.same_vocabulary and (common := common_ids(target, drafter := models.drafters[part.name]))
        },
    )  # fmt: skip


def _ties(spec: RunSpec, cells: Sequence[SubsetRun], models: LoadedModels, records: Sequence[Record]) -> Iterator[Ties]:
    for cell in cells:
        if cell.task.generation.temperature != 0:
            continue
        own = [r for r in records if (r["task"], r["subset"]) == (cell.task.name, cell.subset)]
        examples = {(cell.subset, example.index): example for example in cell.data.examples}
        prompts = baseline_prompts(examples, {cell.subset: cell.renderer}, own, models.target)
        for method in spec.methods:
            same_prompts = with_same_history(own, method.name)
            found = [] if declares_lossless(method) is False else differing_records(same_prompts, method.name)
            if found and (target := models.scoring) is not None:
                num_near_ties, tolerance = count_ties(found, method, target, prompts)
                yield Ties(task=cell.task.name, subset=cell.subset, method=method.name, num_different=len(found),
                           num_near_ties=num_near_ties, tolerance=tolerance)  # fmt: skip


class Reports(Protocol):
    """Receives every recorded block of a run. `wait` is called before each generation, and may delay it."""

    def wait(self, number: int) -> None: ...
    def report(self, where: str, record: Record, measured: bool) -> None: ...


# Takes a console and the planned blocks; returns a context whose reports receive each block.
MakeProgress = Callable[[Console, Sequence[Trial]], AbstractContextManager[Reports]]
Listener = Callable[[str, Record, bool], None]


@dataclass(frozen=True)
class RunOutcome:
    """The rows of a run, and the paths of its records and leaderboard."""

    rows: Sequence[Row]
    records: Path
    leaderboard: Path

    def tables(self) -> Iterator[Table]:
        """Yields a table for each method, then the comparison, the draft trees and the time breakdown of each task, an
        overview of several tasks, and the tables of loads."""
        from specbench.report.concurrency import load_tables
        from specbench.report.tables import (
            breakdown_table,
            comparison_table,
            overview_table,
            run_table,
            served_table,
            tree_table,
        )

        yield from map(run_table, self.by_method())
        groups = self.by_task()
        for group in groups:
            if len(group) > 2:
                yield comparison_table(group)
            if any(row.value("tree_nodes") is not None for row in group):
                yield tree_table(group)
            yield breakdown_table(group) if group[0].served is None else served_table(group)
        if len(groups) > 1:
            yield overview_table(groups)
        yield from load_tables(self.rows)

    def by_method(self) -> list[list[Row]]:
        """Returns the rows of each task and method without rows of a load; AR's only if it is the only method."""
        rows = [row for row in self.rows if not row.level]
        pairs = dict.fromkeys((row.task, row.method) for row in rows)
        shown = [pair for pair in pairs if not pair[1].startswith("ar@")] or list(pairs)
        return [[row for row in rows if (row.task, row.method) == pair] for pair in shown]

    def by_task(self) -> list[list[Row]]:
        """Returns the rows of each task over all its subsets, or of its only subset: a row per method."""
        groups = []
        for task in dict.fromkeys(row.task for row in self.rows):
            rows = [row for row in self.rows if row.task == task and not row.level]
            subset = rows[-1].subset  # `all` comes last
            groups.append([row for row in rows if row.subset == subset])
        return groups


def execute(
    request: Request,
    console: Console,
    load_pair: Callable[[RunSpec], LoadedModels] | None = None,
    make_progress: MakeProgress = LiveTable,
    *,
    has_default_limit: bool = False,
) -> RunOutcome:
    """Measures the blocks without a record, and writes the rows. Progress goes to `console`. `load_pair`: returns the
    models, which may be loaded already. `has_default_limit`: whether a request without a limit gets the default one."""
    takes_all = ALL in request.methods
    request, reasons = all_methods(request)
    spec = run_spec(request)
    if has_default_limit:
        request, spec = with_default_limit(request, spec)
    print_request_notes(request, spec, console)
    embedded = spec.target.startswith(EMBEDDED)
    loggers = Loggers(make_loggers(request.loggers), console)
    set_threads(request.options.threads, embedded)
    for line in load_lines(spec.device):
        say(console, line)
    if request.plot is not None:
        from specbench.report.display import check_plot

        check_plot(request.plot)
    if request.leaderboard is not None and spec.device_map == "none":  # checked before anything is loaded
        device = str(choose_device(spec.device)) if spec.servers is None else spec.servers.device
        check_accepts_rows(request.leaderboard, device)
    with doing("reading the data"):
        loaded = without_calibration(load_requested(spec, embedded, console), spec.methods)
    models = (load_pair or load_models)(spec)
    if takes_all:
        spec = keep_fitting_methods(spec, models, loaded, reasons, console)
    cells = make_cells(spec, models, loaded)
    folder = run_folder(request, spec, cells, models, console)
    if recorded := folder.recorded_date(spec.template_date):
        if spec.template_date is not None:
            say(console, f"--template-date today: {folder.path} began on {recorded}, which its prompts keep")
        for model in (models.target, *models.drafters.values()):
            model.chat_template.date = recorded
        cells = make_cells(spec, models, loaded)
        folder.identity[DATE] = printed_date(cells)
    for line in dict.fromkeys(prompt_notes(cells)):
        say(console, line)
    models.log_into(folder.path)
    loggers.start(folder.path.name, request.settings(), str(folder.path))
    try:
        records, rows = measure_into(
            folder, spec, cells, models, request.command, console, request.judging, make_progress,
            request.settings(), [loggers.block],
        )  # fmt: skip
        loggers.rows(rows)
    finally:
        loggers.finish()
    if reason := why_unscored(records):
        say(console, reason)
    if request.leaderboard is not None:
        from specbench.results.leaderboard_files import add_rows

        add_rows(request.leaderboard, rows, folder.path)
    outcome = RunOutcome(rows, folder.records.path, request.leaderboard or folder.leaderboard)
    if request.plot is not None:
        from specbench.report.display import draw
        from specbench.results.concurrency import load_groups

        draw(outcome.by_method(), request.plot, load_groups(outcome.rows))
    return outcome


def run_folder(
    request: Request, spec: RunSpec, cells: Sequence[SubsetRun], models: LoadedModels, console: Console
) -> RunFolder:
    """Returns the folder of a run: the requested one, or one named after the identity of the run."""
    identity = run_identity(spec, cells, models, environment(**models.environment()))
    if identity.get("code_execution") and not any(runs_programs(cell.task) for cell in cells):
        del identity["code_execution"]
        say(console, "--allow-code-execution: no effect, since no answer of these tasks is run")
    unscored = dict.fromkeys(cell.task.name for cell in cells if runs_programs(cell.task))
    if unscored and not permission.allowed():
        say(
            console,
            f"{', '.join(unscored)}: answers get no score, as programs are run only with --allow-code-execution",
        )
    named = identity
    if spec.template_date == "today" and DATE in identity:  # tomorrow, the same command resumes the folder
        named = {**identity, DATE: "today"}
    path = request.output or default_folder(spec, named)
    return RunFolder(path, identity, named_by_digest=request.output is None, spec=spec)


def keep_fitting_methods(
    spec: RunSpec, models: LoadedModels, loaded: Loaded, reasons: Mapping[str, str], console: Console
) -> RunSpec:
    """Returns the spec of `--method all` with the methods that fit the models and the data, and prints why others are
    left out. `reasons`: for methods that are left out already."""
    samplings = {sampling_of(task.subset(subset).generation) for task, subset, _ in loaded}
    reasons = {**reasons, **incompatible_methods(spec.methods, models, samplings)}
    if reasons:
        say(console, "--method all leaves out " + "; ".join(f"{name}: {why}" for name, why in reasons.items()))
    return spec.model_copy(update={"methods": tuple(m for m in spec.methods if m.name not in reasons)})


def measure_into(
    folder: RunFolder, spec: RunSpec, cells: Sequence[SubsetRun], models: LoadedModels, command: str, console: Console,
    judging: "Judging | None" = None, make_progress: MakeProgress = LiveTable,
    settings: Mapping[str, Any] | None = None, listeners: Sequence[Listener] = (),
) -> tuple[list[Record], list[Row]]:  # fmt: skip
    """Measures the blocks without a record, and writes the leaderboard of the folder. Returns records and rows.
    `settings`: the settings of the request. `listeners`: see `measure`."""
    with folder.open({method.name: method.most_draft_tokens for method in spec.methods}) as done:
        check_writable(folder.leaderboard)
        if judging is not None and any(block.key not in done for block in blocks(cells, spec.repeats)):
            judging.check()
        measured = measure(spec, cells, models, folder, done, console, make_progress, listeners)
        write_specs(folder.path, spec)
        with doing("comparing the answers with AR's"):
            measurement = measurement_of(spec, cells, models, measured, command, settings)
        add_measurement(folder.path, measurement)

        def save(records: Sequence[Record], judge: str | None) -> list[Row]:
            from specbench.records.windows import read_windows
            from specbench.results.concurrency import load_rows

            known = {record_key(record): record for record in records}
            with doing("computing the rows"):
                rows = MeasuredRun(folder.identity, spec.tasks, spec.methods, measurement, known, judge).rows()
                rows += load_rows(rows, read_windows(folder.path))
            write(folder.leaderboard, rows)
            return rows

        records, judge = measured, None
        if (folder.path / JUDGEMENTS_FILE).exists():
            from specbench.tasks.judge.judgements import add_recorded_scores

            records, judge = add_recorded_scores(measured, cells, folder.path, console)
        rows = save(records, judge)  # before a load is measured or a judge is asked, which may fail
        if models.measure_load(spec, cells, folder, console):
            rows = save(records, judge)
        if judging is not None and judging.is_dry_run:
            judging.show(measured, cells)
        elif judging is not None:
            records = judging.judge(measured, cells, folder.path, console)
            rows = save(records, judging.settings.signature)
    return records, rows


def measure(
    spec: RunSpec, cells: Sequence[SubsetRun], models: LoadedModels, folder: RunFolder, done: dict[Key, Record],
    console: Console, make_progress: MakeProgress = LiveTable, listeners: Sequence[Listener] = (),
) -> list[Record]:  # fmt: skip
    """Returns the records of the plan, after measuring the blocks without one. `listeners`: called for each block,
    after the progress, with its task and subset, its record, and whether it was measured now."""
    plan = list(blocks(cells, spec.repeats))
    counts = [(len(cell.data.examples), cell.data.num_rows) for cell in cells if cell.data.num_rows is not None]
    num_examples, num_rows = (sum(column) for column in zip(*counts, strict=True)) if counts else (0, 0)
    if spec.limit is not None and num_examples < num_rows:
        say(console, f"{num_examples} of {num_rows} examples of the sample; --limit all measures all")
    num_done = sum(block.key in done for block in plan)
    announce(console, len(plan), num_done, folder.path, block_noun(plan))
    if num_others := len(done) - num_done:
        say(console, f"kept in the folder, and left out of the rows by this command: {counted(num_others, 'record')}")
    with report_kept_results(console, folder.path):
        models.measure_in_turns(spec, plan, folder, done, console)
    with make_progress(console, plan) as progress, report_kept_results(console, folder.path):

        def report(block: Trial, record: Record, measured: bool) -> None:
            for listen in (progress.report, *listeners):
                listen(f"{record['task']}/{record['subset']}", record, measured)

        return runner.run(spec, plan, folder, done, report, lambda line: say(console, line), progress.wait)
