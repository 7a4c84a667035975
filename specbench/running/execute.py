"""One `specbench run`: plan → measure → report."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack

from rich.console import Console

from specbench.report.captions import why_unscored
from specbench.results.leaderboard import check_writable
from specbench.results.row import Row
from specbench.running.events import Events, RunListener
from specbench.running.measure import announce_trials, schedulers
from specbench.running.models import LoadedModels, load_models
from specbench.running.plan import Plan, make_plan
from specbench.running.progress import RunProgress, report_kept_results
from specbench.running.report import RunOutcome, RunReport
from specbench.running.request import Judge, Request
from specbench.running.trackers import Trackers
from specbench.specs.run import RunSpec


def execute(
    request: Request, console: Console, load: Callable[[RunSpec], LoadedModels] | None = None,
    listeners: Sequence[RunListener] | None = None,
) -> RunOutcome:  # fmt: skip
    """Runs a request: what its folder lacks is measured, and the rows are written.

    `console`: where lines about the progress go. `load`: returns the models, which may be loaded already. `listeners`:
    hear the events of the run; by default the progress that `console` shows.
    """
    # 1. Whatever is told by names and files is checked first: a tracker, a picture.
    trackers = Trackers(request.loggers, console)
    if request.plot is not None:
        from specbench.report.display import check_plot

        check_plot(request.plot)
    # 2. Plan: subsets with data, prompts and decoders, and the folder.
    plan = make_plan(request, console, load or load_models)
    # 3. Measure and report: records and rows, in the folder.
    events = Events(console, [*([RunProgress(console)] if listeners is None else listeners), trackers])
    report, rows = measure_plan(plan, events, request.judge)
    # 4. The leaderboard and the picture that the request names.
    if reason := why_unscored(report.answers.problems):
        events.say(reason)
    if request.leaderboard is not None:
        from specbench.results.leaderboard_files import add_rows

        add_rows(request.leaderboard, rows, plan.folder.path)
    outcome = RunOutcome(rows, plan.folder.records.path, request.leaderboard or plan.folder.leaderboard)
    if request.plot is not None:
        from specbench.report.display import draw
        from specbench.results.concurrency import load_groups

        draw(outcome.by_method(), request.plot, load_groups(outcome.rows))
    return outcome


def measure_plan(plan: Plan, events: Events, judge: Judge | None = None) -> tuple[RunReport, list[Row]]:
    """Measures what the folder of a plan lacks and writes its rows. Returns the report and the rows."""
    folder = plan.folder
    with ExitStack() as stack:
        lengths = {method.name: method.most_draft_tokens for method in plan.spec.methods}
        recorded = stack.enter_context(folder.open(lengths))
        stack.enter_context(events.run(plan))
        # 1. What would fail at the end fails now: a board that cannot be written, a judge without a key.
        check_writable(folder.leaderboard)
        judging = None if judge is None else judge.make()
        if judging is not None and any(trial.key not in recorded for trial in plan.trials):
            judging.check()
        announce_trials(plan, recorded, events)
        # 2. The trials, one request at a time. The rows are written at once, as what follows may fail.
        scheduler, *others = schedulers(plan.models, plan.spec)
        with report_kept_results(events.console, folder.path):
            scheduler.measure(plan, recorded, events)
        report = RunReport(plan, recorded.only([trial.key for trial in plan.trials]), events.console)
        rows = report.write_rows()
        # 3. Servers under load.
        for other in others:
            other.measure(plan, recorded, events)
            rows = report.write_rows()
        # 4. The judge's ratings. A dry run only shows what it would be asked.
        if judging is not None and judging.is_dry_run:
            judging.show(report.records.values(), plan.subset_runs)
        elif judging is not None:
            ratings = judging.judge(report.records.values(), plan.subset_runs, folder.path, events.console)
            report.answers = report.answers.with_ratings(ratings)
            report.judge = judging.settings.signature
            rows = report.write_rows()
        events.run_ended(rows)
    return report, rows
