"""One `specbench run`: plan → measure → report."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console

from specbench.core.console import is_verbose
from specbench.core.environment import is_installed
from specbench.core.progress import doing
from specbench.decoding.bridges import common_ids
from specbench.decoding.decoder import Decoder, QueryInfo, drafting_decoders, tree_width
from specbench.models import machine
from specbench.models.batch_width import (
    NUM_NOISE_ANSWERS,
    NUM_NOISE_TOKENS,
    BaselineAnswer,
    BatchWidth,
    beginnings,
    measure_batch_width,
)
from specbench.models.near_ties import Divergence, find_differences
from specbench.models.own_passes import OwnPasses
from specbench.models.scoring import ScoringModel
from specbench.records.folder import add_environment, unused_ends_of, write_specs
from specbench.records.records import Record
from specbench.records.store import RecordStore
from specbench.records.windows import read_windows
from specbench.report.captions import reasons_by_task
from specbench.report.tables import RunRows
from specbench.results.answers import BASELINE, Ratings, RunAnswers, different_answers
from specbench.results.concurrency import load_groups, load_rows
from specbench.results.leaderboard import check_writable, write
from specbench.results.row import CommonIds, Coverage, Row
from specbench.results.rows import MeasuredRun, MeasuredSubset, Measurement, ModelContext, Ties, add_measurement
from specbench.results.scores import languages_of
from specbench.results.verdict import declares_lossless
from specbench.running.events import Events, RunListener, Trackers
from specbench.running.finished import finished_plan
from specbench.running.measure import Scheduler, announce_trials, schedulers, trial_seed
from specbench.running.models import LoadedModels, has_other_vocabulary, load_models, parts, training_prompts
from specbench.running.plan import Plan, SubsetRun, make_plan
from specbench.running.progress import Details, EndWatch, RunProgress, report_kept_results
from specbench.running.prompts import baseline_prompts, uses_chat
from specbench.running.request import Judge, Request
from specbench.specs.run import RunSpec
from specbench.tasks.examples import TaskData
from specbench.tasks.judge import JUDGEMENTS_FILE

# If no answer differs, the noise is measured where AR wrote this many times the tokens along which it is measured. Each
# of these takes about two passes, so that all are less than a tenth of the passes of AR and a method.
MIN_TOKENS_OF_RUN = 16


@dataclass(frozen=True)
class RunOutcome(RunRows):
    """The rows of a run, and the paths of its records and leaderboard."""

    records: Path
    leaderboard: Path


def execute(
    request: Request, console: Console, load: Callable[[RunSpec], LoadedModels] | None = None,
    listeners: Sequence[RunListener] | None = None,
) -> RunOutcome:  # fmt: skip
    """Runs a request: what its folder lacks is measured, and the rows are written.

    `console`: where lines about the progress go. `load`: returns the models, which may be loaded already. `listeners`:
    hear the events of the run; by default the progress that `console` shows.
    """
    # 1. First what needs only names and files to be checked: trackers, the picture.
    trackers = [Trackers(request.loggers, console)] if request.loggers else []
    if request.plot is not None:
        from specbench.report.display import check_plot

        check_plot(request.plot)
    # 2. Plan: subsets with data, prompts and decoders, and the folder. One that has everything needs no weights.
    plan = finished_plan(request, console) if load is None else None
    plan = plan or make_plan(request, console, load or load_models)
    # 3. Measure what the folder lacks, and report it: records, then rows.
    shown = [*([Details(console)] if is_verbose() else []), RunProgress(console), EndWatch(console)]
    events = Events(console, [*(shown if listeners is None else listeners), *trackers])
    measured, rows = run_plan(plan, events, request.judge)
    # 4. The leaderboard and the picture that the request names.
    if request.leaderboard is not None:
        from specbench.results.leaderboard_files import add_rows

        add_rows(request.leaderboard, rows, plan.folder.path)
    outcome = RunOutcome(
        rows, plan.folder.records.path, request.leaderboard or plan.folder.leaderboard,
        why_unscored=reasons_by_task(measured.answers.problems),
    )  # fmt: skip
    if request.plot is not None:
        from specbench.report.display import draw

        draw(outcome.by_method(), request.plot, load_groups(outcome.rows))
    return outcome


@dataclass(frozen=True)
class Measured:
    """What a command measured: its records, the numbers of their answers, and what rows need of the run as a whole.
    `signature`: of the judge whose ratings the answers have."""

    records: RecordStore
    answers: RunAnswers
    measurement: Measurement
    signature: str | None = None

    def rated(self, ratings: Ratings, signature: str) -> "Measured":
        return replace(self, answers=self.answers.with_ratings(ratings), signature=signature)


def run_plan(plan: Plan, events: Events, judge: Judge | None = None) -> tuple[Measured, list[Row]]:
    """Measures what the folder of a plan lacks and writes its rows. Returns both."""
    folder = plan.folder
    with ExitStack() as stack:
        recorded = stack.enter_context(folder.open({each.name: each.most_draft_tokens for each in plan.spec.methods}))
        stack.enter_context(events.run(plan))
        # 1. What would fail at the end fails now: a board that cannot be written, a judge without a key.
        check_writable(folder.leaderboard)
        judging = None if judge is None else judge.make()
        if judging is not None and any(trial.key not in recorded for trial in plan.trials):
            judging.check()
        announce_trials(plan, recorded, events)
        # 2. The trials, one request at a time.
        scheduler, *loads = schedulers(plan.models, plan, events)
        measured = measure(plan, scheduler, recorded, events)
        # 3. Their rows at once, as what follows may fail. Answers that a judge rated earlier keep their ratings.
        if (folder.path / JUDGEMENTS_FILE).exists():
            from specbench.tasks.judge.judgements import recorded_ratings

            records = measured.records.values()
            ratings, signature = recorded_ratings(records, plan.subset_runs, folder.path, events.console)
            if signature is not None:
                measured = measured.rated(ratings, signature)
        rows = report(plan, measured)
        # 4. Servers under load; each load adds rows.
        for load in loads:
            load.measure(plan, recorded, events)
            rows = report(plan, measured)
        # 5. The judge's ratings. A dry run only shows what it would be asked.
        if judging is not None and judging.is_dry_run:
            judging.show(measured.records.values(), plan.subset_runs)
        elif judging is not None:
            ratings = judging.judge(measured.records.values(), plan.subset_runs, folder.path, events.console)
            measured = measured.rated(ratings, judging.settings.signature)
            rows = report(plan, measured)
        events.run_ended(rows)
    return measured, rows


def measure(plan: Plan, scheduler: Scheduler, recorded: RecordStore, events: Events) -> Measured:
    """Measures the trials of a plan that are not recorded yet, and notes in its folder what rows need besides records,
    since rows depend on the folder alone."""
    num_before = len(recorded)
    with report_kept_results(events.console, plan.folder.path):
        scheduler.measure(plan, recorded, events)
    records = recorded.only([trial.key for trial in plan.trials])
    write_specs(plan.folder.path, plan.spec)
    languages = languages_of(plan.spec.tasks, is_installed("lingua"))
    with doing("comparing the answers with AR's"):
        decodes_with = {each.name: each.decodes_with for each in plan.spec.methods}
        answers = RunAnswers(decodes_with, languages, records, unused_ends_of(plan.folder.identity))
        measurement = plan.measurement or measurement_of(plan, records, answers)
    add_measurement(plan.folder.path, measurement)
    if len(recorded) > num_before:
        add_environment(plan.folder.path, machine.details())
    return Measured(records, answers, measurement)


def report(plan: Plan, measured: Measured) -> list[Row]:
    """Computes the rows of a plan's folder, those of loads among them, and writes its leaderboard."""
    folder, spec = plan.folder, plan.spec
    with doing("computing the rows"):
        run = MeasuredRun(
            folder.identity, spec.tasks, spec.methods, measured.measurement, measured.answers, measured.signature
        )
        rows = run.rows()
        rows += load_rows(rows, read_windows(folder.path))
    write(folder.leaderboard, rows)
    return rows


def coverage_of(data: TaskData) -> Coverage:
    """Returns which part of the data its examples are."""
    if len(data.examples) == data.num_rows:
        return Coverage(available=data.num_rows, chosen="all")
    is_first = all(example.index == place for place, example in enumerate(data.examples))
    return Coverage(available=data.num_rows, chosen="first" if is_first else "part")


def measurement_of(plan: Plan, records: RecordStore, answers: RunAnswers) -> Measurement:
    """Returns what a command measured. The target scores the greedy answers of lossless methods that differ from
    AR's."""
    spec, models = plan.spec, plan.models
    measured = {answer.prompt for answer in answers.of([key for key in records if key[-1] == 0], BASELINE)}
    trained = {method.name: measured & training_prompts(spec, method) for method in spec.methods}
    drafting = [part for part in parts(spec.methods) if part.name in models.drafters]
    target = models.target
    limiting = models.limiting_model(spec.methods)
    return Measurement(
        command=plan.command,
        request=dict(plan.settings),
        identifies_languages=is_installed("lingua"),
        repeats=spec.repeats,
        chat=uses_chat(models.target, spec.chat),
        subsets=tuple(
            MeasuredSubset(
                task=run.task.name, subset=run.subset, num_examples=len(run.data.examples),
                coverage=coverage_of(run.data), source=run.data.source,
                location=str(run.data.location), revision=run.data.revision, worked=run.data.fewshot,
            )
            for run in plan.subset_runs
        ),
        other_vocabulary=tuple(method.name for method in spec.methods if has_other_vocabulary(method, models)),
        trained_on={name: tuple(sorted(digests)) for name, digests in trained.items() if digests},
        ties=tuple(_ties(plan, records, answers)),
        memories={
            decoder.method.name: decoder.memory
            for run in plan.subset_runs[:1]
            for decoder in run.decoders
            if decoder.memory is not None
        },
        context=None if limiting is None else ModelContext(model=limiting.name, tokens=limiting.context_limit or 0),
        pauses={
            each.method.name: each.drafter.pauses_at
            for run in plan.subset_runs[:1]
            for each in drafting_decoders(run.decoders)
            if each.drafter.pauses_at is not None
        },
        trained_lengths={
            each.method.name: each.drafter.trained_length
            for run in plan.subset_runs[:1]
            for each in drafting_decoders(run.decoders)
            if each.drafter.trained_length is not None
        },
        common_ids={
            part.name: CommonIds(common=len(common), target=len(target.vocabulary), drafter=len(drafter.vocabulary))
            for part in drafting
            if part.same_vocabulary and (common := common_ids(target, drafter := models.drafters[part.name]))
        },
    )  # fmt: skip


def _ties(plan: Plan, records: RecordStore, answers: RunAnswers) -> Iterator[Ties]:
    """Yields the kinds of differences between greedy answers and AR's, with how the target depends on the width of a
    pass: also where none differs, since equal answers say more of a method if passes round differently. One measurement
    of this serves all methods of a subset."""
    for run in plan.subset_runs:
        target = plan.models.scoring
        if run.task.generation.temperature != 0 or target is None:
            continue
        keys = [key for key in records if key[:2] == (run.task.name, run.subset)]
        examples = {(run.subset, example.index): example for example in run.data.examples}
        prompts = baseline_prompts(examples, {run.subset: run.renderer}, records, plan.models.target)
        baseline = answers.of(keys, BASELINE)
        judged = [each for each in run.decoders[1:] if declares_lossless(each.method) is not False]
        differing = {
            each.method.name: different_answers(answers.of(keys, each.method.name), baseline) for each in judged
        }
        # 1. The noise, along AR's first answers that differ, or if none does its first ones, where this is little
        #    beside the run. A server, which chooses its widths, is asked only if answers differ.
        compared = sorted({key for each in differing.values() for key in each})
        first = sorted(baseline, key=lambda each: each.key)[:NUM_NOISE_ANSWERS]
        num_read = sum(min(each.num_new_tokens, NUM_NOISE_TOKENS) for each in first)
        is_worth_it = sum(each.num_new_tokens for each in baseline) >= MIN_TOKENS_OF_RUN * num_read
        if not compared and is_worth_it and not target.chooses_width:
            compared = [each.key for each in first]
        if not judged or not compared:
            continue
        known = {key: answer_of(records[key], prompts) for key in compared}
        most = max(each.method.most_draft_tokens for each in judged) + 1
        with doing(f"comparing passes of {run.task.name}/{run.subset} over one token with wider ones"):
            width = measure_batch_width(target, beginnings(list(known.values())), most, tree_width(judged))
        # 2. The differences of each method.
        for decoder in judged:
            own = differing[decoder.method.name]
            if target.chooses_width and not own:
                continue
            again = DecodedAgain(plan, run, decoder, [records[key] for key in own], [known[key] for key in own])
            yield again.ties(target, width)


def answer_of(record: Record, prompt_ids: Callable[[Record], list[int]]) -> BaselineAnswer:
    return BaselineAnswer(
        f"{record.subset} {record.id}", prompt_ids(record), record.methods[BASELINE].token_ids.tolist()
    )


@dataclass(frozen=True)
class DecodedAgain:
    """The answers of a method that differ from AR's, with the same history on both sides, which are decoded again to
    record the rows of the method's own passes."""

    plan: Plan
    run: SubsetRun
    decoder: Decoder
    records: Sequence[Record]
    answers: Sequence[BaselineAnswer]

    def ties(self, target: ScoringModel, width: BatchWidth) -> Ties:
        method = self.decoder.method
        trees = tree_width([self.decoder])
        noise = width.noise(method.most_draft_tokens + 1, trees)
        outputs = [record.methods[method.name].token_ids.tolist() for record in self.records]
        found = find_differences(
            target, self.answers, outputs, noise.tolerance, decode_again=self.decode, trust=width.trust(trees),
            kept_tolerance=noise.kept_tolerance,
        )  # fmt: skip
        return Ties(
            task=self.run.task.name, subset=self.run.subset, method=method.name, num_different=len(found),
            num_near_ties=sum(each.near_tie for each in found), tolerance=noise.tolerance,
            share_equal=noise.share_equal, num_decoded_again=sum(each.repeated is not None for each in found),
            divergence=Divergence.of(found),
        )  # fmt: skip

    def decode(self, index: int, position: int) -> OwnPasses | None:
        record = self.records[index]
        seed = trial_seed(self.plan.spec.seed, record.key, self.decoder.method.name)
        example = next(each for each in self.run.data.examples if each.index == record.example)
        query = QueryInfo(self.run.task.language, example.turns[record.turn])
        selected = self.decoder.select_decoder(seed, query)
        stop = selected.stop_rules(self.run.task.generation, self.run.context_limit)
        where = f"{self.run.task.name}/{self.run.subset}, {self.decoder.method.name}"
        with doing(f"decoding answers that differ from AR's again: {where}, {index + 1} of {len(self.records)}"):
            return selected.record_passes(self.answers[index].prompt_ids, stop, seed, position)
