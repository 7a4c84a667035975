"""Report: the folder of a run → its rows, and the tables that show them."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from specbench.core.environment import is_installed
from specbench.core.progress import doing
from specbench.decoding.bridges import common_ids
from specbench.decoding.decoder import drafting_decoders
from specbench.models.near_ties import count_ties
from specbench.records.folder import write_specs
from specbench.records.records import Key, Record
from specbench.records.store import RecordStore
from specbench.report.tables import RunRows
from specbench.results.answers import BASELINE, RunAnswers, different_answers
from specbench.results.leaderboard import write
from specbench.results.row import CommonIds, Row
from specbench.results.rows import MeasuredRun, MeasuredSubset, Measurement, ModelContext, Ties, add_measurement
from specbench.results.scores import languages_of
from specbench.results.verdict import declares_lossless
from specbench.running.models import has_other_vocabulary, parts, training_prompts
from specbench.running.plan import Plan
from specbench.running.prompts import baseline_prompts, uses_chat
from specbench.tasks.judge import JUDGEMENTS_FILE


class RunReport:
    """Writes the rows of a plan's records into its folder: what the command measured is noted there first, since rows
    depend on the folder alone. Answers that a judge rated earlier keep their ratings."""

    def __init__(self, plan: Plan, records: RecordStore, console: Console) -> None:
        self.plan, self.records = plan, records
        languages = languages_of(plan.spec.tasks, is_installed("lingua"))
        with doing("reading the answers"):
            self.answers = RunAnswers(
                {method.name: method.decodes_with for method in plan.spec.methods}, languages, records
            )
        self.judge: str | None = None  # the signature of the judge whose ratings the records have
        folder = plan.folder.path
        write_specs(folder, plan.spec)
        with doing("comparing the answers with AR's"):
            self.measurement = measurement_of(plan, records, self.answers)
        add_measurement(folder, self.measurement)
        if (folder / JUDGEMENTS_FILE).exists():
            from specbench.tasks.judge.judgements import recorded_ratings

            ratings, self.judge = recorded_ratings(records.values(), plan.subset_runs, folder, console)
            if self.judge is not None:
                self.answers = self.answers.with_ratings(ratings)

    def write_rows(self) -> list[Row]:
        """Computes the rows, of single requests and of loads, and writes the leaderboard of the folder."""
        from specbench.records.windows import read_windows
        from specbench.results.concurrency import load_rows

        spec, identity = self.plan.spec, self.plan.folder.identity
        with doing("computing the rows"):
            run = MeasuredRun(identity, spec.tasks, spec.methods, self.measurement, self.answers, self.judge)
            rows = run.rows()
            rows += load_rows(rows, read_windows(self.plan.folder.path))
        write(self.plan.folder.leaderboard, rows)
        return rows


def measurement_of(plan: Plan, records: Mapping[Key, Record], answers: RunAnswers) -> Measurement:
    """Returns what a command measured. The target scores the greedy answers of lossless methods that differ from
    AR's."""
    spec, models = plan.spec, plan.models
    keys = [key for key in records if key[-1] == 0]
    measured = {answer.prompt for answer in answers.of(keys, BASELINE)}
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
                task=run.task.name, subset=run.subset, num_examples=len(run.data.examples), source=run.data.source,
                location=str(run.data.location), revision=run.data.revision, worked=run.data.fewshot,
            )
            for run in plan.subset_runs
        ),
        other_vocabulary=tuple(method.name for method in spec.methods if has_other_vocabulary(method, models)),
        trained_on={name: tuple(sorted(digests)) for name, digests in trained.items() if digests},
        ties=tuple(_ties(plan, records, answers)),
        context=None if limiting is None else ModelContext(model=limiting.name, tokens=limiting.context_limit or 0),
        pauses={
            each.method.name: each.drafter.pauses_at
            for run in plan.subset_runs[:1]
            for each in drafting_decoders(run.decoders)
            if each.drafter.pauses_at is not None
        },
        common_ids={
            part.name: CommonIds(common=len(common), target=len(target.vocabulary), drafter=len(drafter.vocabulary))
            for part in drafting
            if part.same_vocabulary and (common := common_ids(target, drafter := models.drafters[part.name]))
        },
    )  # fmt: skip


def _ties(plan: Plan, records: Mapping[Key, Record], answers: RunAnswers) -> Iterator[Ties]:
    for run in plan.subset_runs:
        if run.task.generation.temperature != 0:
            continue
        keys = [key for key in records if key[:2] == (run.task.name, run.subset)]
        examples = {(run.subset, example.index): example for example in run.data.examples}
        prompts = baseline_prompts(examples, {run.subset: run.renderer}, records, plan.models.target)
        for method in plan.spec.methods:
            if declares_lossless(method) is False:
                continue
            different = different_answers(answers.of(keys, method.name), answers.of(keys, BASELINE))
            found = [records[key] for key in different]
            if found and (target := plan.models.scoring) is not None:
                num_near_ties, tolerance = count_ties(found, method, target, prompts)
                yield Ties(task=run.task.name, subset=run.subset, method=method.name, num_different=len(found),
                           num_near_ties=num_near_ties, tolerance=tolerance)  # fmt: skip


@dataclass(frozen=True)
class RunOutcome(RunRows):
    """The rows of a run, and the paths of its records and leaderboard."""

    records: Path
    leaderboard: Path
