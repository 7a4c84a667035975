"""Several runs on the same examples and the same loaded models, each in a folder of its own under one parent."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from specbench.core import dotted
from specbench.core.console import counted
from specbench.core.environment import EMBEDDED, is_installed, set_threads
from specbench.core.errors import ConfigError
from specbench.core.table import Table
from specbench.decoding.decoder import DraftingDecoder
from specbench.decoding.proposal import Proposal, Verification
from specbench.decoding.sampling import Distributions
from specbench.decoding.verification import VerificationRule
from specbench.models.causal_lm import CausalLM
from specbench.models.loading import choose_device, load_model
from specbench.models.machine import environment
from specbench.records.folder import RunFolder, folder_of, selection_of
from specbench.records.generation import Evidence
from specbench.records.records import Record, RecordFile
from specbench.report.display import Panel, check_plot, save_picture
from specbench.results.answers import BASELINE, answers_of
from specbench.results.conditions import check_accepts_rows
from specbench.results.leaderboard_files import add_rows
from specbench.results.metric_format import metric_of
from specbench.results.metrics import metrics_of
from specbench.results.row import Row
from specbench.results.scores import ScoringSpec, main_metric
from specbench.running.events import Events
from specbench.running.execute import run_plan
from specbench.running.models import LoadedModels, engine_for, load_drafters, load_models
from specbench.running.plan import (
    DrafterId,
    Loaded,
    Plan,
    SubsetRun,
    drafter_identity,
    load_data,
    make_subset_runs,
    run_identity,
    with_present_subsets,
    without_calibration,
)
from specbench.running.progress import RunProgress
from specbench.running.request import Request, run_spec
from specbench.specs.components import build
from specbench.specs.method import MethodSpec
from specbench.specs.run import RunSpec
from specbench.statistics.bootstrap import Estimate

Metrics = dict[str, Estimate]
THRESHOLD, LENGTH = "verification.threshold", "num_draft_tokens"
SHOWN_METRICS = (
    "acceptance_rate", "mean_acceptance_length", "drafter_share", "tokens_per_second_ar", "tokens_per_second",
    "speedup",
)  # fmt: skip


def with_value(method: MethodSpec, path: str, value: Any, place: str = "") -> MethodSpec:
    """Returns the method with another value at a dotted path. Raises ConfigError, beginning with `place`, for an
    invalid value."""
    data = dotted.put(method.model_dump(exclude={"sweep"}), path, value)
    return build(MethodSpec, data, prefix=f"{place}: " if place else "")


def fuzzy_at(method: MethodSpec, threshold: float, num_draft_tokens: int, name: str | None = None) -> MethodSpec:
    changed = with_value(with_value(method, THRESHOLD, threshold), LENGTH, num_draft_tokens)
    return changed.model_copy(update={"name": name}) if name else changed


def shown(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else value if isinstance(value, str) else json.dumps(value)


def score_heading(quality: str | None, method: str) -> str:
    return f"{metric_of(quality).label}\nar → {method}"


class RecordingRule(VerificationRule):
    """A verification rule that decides like the given rule and records the divergences of all drafted positions.

    While decoding it stores only references, so that the run is not slower; numbers are read afterwards.
    """

    def __init__(self, rule: VerificationRule) -> None:
        self._rule = rule
        self.compares_processed = rule.compares_processed
        self._steps: list[tuple[list[int], Verification, torch.Tensor | None]] = []

    def __call__(self, proposal: Proposal, target: Distributions, generator: torch.Generator) -> Verification:
        verification = self._rule(proposal, target, generator)
        greedy = target.sampling.greedy
        self._steps.append((proposal.token_ids, verification, target.best if greedy else None))
        return verification

    def take(self, num_steps: int) -> Evidence:
        """Returns the evidence of the last `num_steps` steps, and forgets all steps. Evidence: the draft tokens, their
        divergences and, if the target is greedy, its own token at every drafted position and at the next one."""
        steps, self._steps = self._steps[len(self._steps) - num_steps :], []
        own_tokens = [tokens.tolist() for _, _, tokens in steps if tokens is not None]
        columns = [verification.divergence for _, verification, _ in steps]
        return Evidence(
            token_ids=[token_ids for token_ids, _, _ in steps],
            divergence=[
                [] if each is None else each.tolist() if isinstance(each, torch.Tensor) else list(each)
                for each in columns
            ],
            own=own_tokens if len(own_tokens) == num_steps else None,
        )


class EvidenceFile(RecordFile):
    """A file of records with the evidence of one method's rule."""

    def __init__(self, path: Path, rules: Mapping[tuple[str, str], RecordingRule], method: str) -> None:
        super().__init__(path)
        self._rules = rules  # by (task, subset)
        self._method = method

    def append(self, record: Record) -> tuple[int, bytes]:
        generation = record.methods[self._method]
        generation.drafted = self._rules[record.task, record.subset].take(len(generation.steps))
        return super().append(record)


@dataclass(frozen=True)
class TrialRun:
    """One run with its records and rows."""

    folder: Path
    methods: Sequence[MethodSpec]
    subset_runs: Sequence[SubsetRun]
    records: Sequence[Record]
    rows: Sequence[Row]
    seed: int
    scoring: Mapping[str, ScoringSpec]

    def method(self, name: str) -> MethodSpec:
        return next(method for method in self.methods if method.name == name)

    def rows_of(self, method: MethodSpec) -> list[Row]:
        return [row for row in self.rows if row.method_name == method.name]

    @property
    def quality(self) -> str | None:
        return main_metric(self.scoring)

    def metrics(self, name: str) -> Metrics:
        method = self.method(name)
        languages = {subset: each.code for subset, each in self.scoring.items()}
        answers = answers_of(self.records, name, method.decodes_with, languages)
        baseline = answers_of(self.records, BASELINE, languages=languages)
        return metrics_of(answers, baseline, method, self.seed, self.scoring)


def shown_metrics(metrics: Mapping[str, Estimate], quality: str | None) -> dict[str, object]:
    return dumped(metrics, [*SHOWN_METRICS, *([f"{quality}_ar", quality] if quality else [])])


def dumped(metrics: Mapping[str, Estimate], names: Iterable[str]) -> dict[str, object]:
    return {name: metrics[name].model_dump() for name in names}


@dataclass(frozen=True)
class TuningReport:
    """The output of `specbench sweep` or `specbench tune`. `files`: the method files of a tuning."""

    data: Mapping[str, object]
    tables: Sequence[Table]
    folder: Path
    files: Sequence[str] = ()


def scoring_of(spec: RunSpec) -> dict[str, ScoringSpec]:
    return {subset: ScoringSpec.of(task.subset(subset), is_installed("lingua")) for task, subset in spec.task_subsets()}


@dataclass(frozen=True)
class Trials:
    """What several runs share: examples, models, and the parent folder. `spec.methods[1]`: the method that they
    vary. `load`: loads every drafter only once. `kind`: begins the name of the folder."""

    request: Request
    spec: RunSpec
    loaded: Loaded
    load: Callable[..., CausalLM]
    models: LoadedModels
    console: Console
    kind: str

    @property
    def base(self) -> MethodSpec:
        return self.spec.methods[1]

    @cached_property
    def scoring(self) -> dict[str, ScoringSpec]:
        return scoring_of(self.spec)

    @cached_property
    def quality(self) -> str | None:  # the main score that all subsets share
        return main_metric(self.scoring)

    @cached_property
    def conditions(self) -> Mapping[str, object]:
        target = self.models.target
        return environment(target.placement, target.precision, target.attention, target.engine)

    @cached_property
    def subset_runs(self) -> list[SubsetRun]:
        return make_subset_runs(self.spec, self.models, self.loaded)

    @cached_property
    def drafter(self) -> DrafterId:
        identity = drafter_identity(self.subset_runs[0].decoders[1], self.models)
        return {**identity, "name": identity["name"] or self.base.drafter.type}

    @cached_property
    def folder(self) -> Path:
        """Returns the parent folder: the given one, else one that the same command finds again, also with other
        values."""
        if self.request.output is not None:
            return self.request.output
        identity = {
            **run_identity(self.spec, self.subset_runs, self.models, self.conditions), **selection_of(self.spec),
            "examples": [[example.index for example in data.examples] for _, _, data in self.loaded],
        }  # fmt: skip
        return folder_of(f"{self.kind}-{self.spec.tasks[0].name}-{self.base.name}", identity)

    def title(self, subject: str) -> str:
        return f"{self.spec.tasks[0].name} · {self.base.name}: {subject}"

    @property
    def pair_and_prompts(self) -> str:
        prompts = counted(sum(len(data.examples) for _, _, data in self.loaded), "prompt")
        subsets = ", ".join(subset for _, subset, _ in self.loaded)
        return f"target {self.models.target.name}, drafter {self.drafter['name']}; {prompts} of {subsets}"

    def run(self, name: str, methods: Sequence[MethodSpec], *, recorded: str | None = None) -> TrialRun:
        """Measures AR and the methods in the folder `name` under the parent, or reads what was measured there before.
        `recorded`: the only method, if its evidence is recorded."""
        spec, models, subset_runs = self.build_runs(methods)
        identity = run_identity(spec, subset_runs, models, self.conditions)
        folder = RunFolder(self.folder / name, {**identity, **({"evidence_of": recorded} if recorded else {})})
        if recorded is not None:
            rules = {}
            for place, subset_run in enumerate(subset_runs):
                ar, decoder = subset_run.decoders
                assert isinstance(decoder, DraftingDecoder)
                rule = rules[subset_run.task.name, subset_run.subset] = RecordingRule(decoder.rule)
                subset_runs[place] = replace(subset_run, decoders=(ar, replace(decoder, rule=rule)))
            folder.records = EvidenceFile(folder.records.path, rules, recorded)
        plan = Plan(spec, models, subset_runs, folder, self.request.command)
        measured, rows = run_plan(plan, Events(self.console, [RunProgress(self.console)]))
        records = list(measured.records.values())
        return TrialRun(folder.path, spec.methods, subset_runs, records, rows, spec.seed, self.scoring)

    def build_runs(self, methods: Sequence[MethodSpec]) -> tuple[RunSpec, LoadedModels, list[SubsetRun]]:
        """Returns the spec, models and subsets of a run of AR and the methods. Raises ConfigError for a method that
        does not fit."""
        models = LoadedModels(self.models.target, load_drafters(self.spec, methods, self.models.target, self.load))
        spec = self.spec.model_copy(update={"methods": (self.spec.methods[0], *methods)})
        return spec, models, make_subset_runs(spec, models, self.loaded)

    def report(
        self, runs: Sequence[TrialRun], data: Mapping[str, object], tables: Sequence[Table], panels: Sequence[Panel]
    ) -> TuningReport:
        """Returns the report of a sweep, and writes the leaderboard and the picture that the request names."""
        if self.request.leaderboard is not None:
            for run in runs:
                add_rows(self.request.leaderboard, run.rows, run.folder)
        if self.request.plot is not None:
            grid = [[panel] for panel in panels]
            save_picture(grid, self.request.plot, size=(9, 4 * len(panels)), kept="; the runs are kept")
        return TuningReport(data, tables, self.folder)


def trial_spec(request: Request, kind: str, console: Console) -> RunSpec:
    """Returns the specification of the runs: AR and one method on one task, with the subsets that the user's files
    have. `kind`: the command.

    Raises ConfigError for several tasks or methods, for a method that drafts nothing, for a picture that cannot be
    written, and for a leaderboard that cannot take the rows.
    """
    options = request.options
    if request.plot is not None:
        check_plot(request.plot)
    if request.leaderboard is not None and options.device_map == "none":
        set_threads(options.threads, (options.target or EMBEDDED).startswith(EMBEDDED))
        check_accepts_rows(request.leaderboard, str(choose_device(options.device)))
    for option, names in (("task", request.tasks), ("method", request.methods)):
        if len(set(names)) != 1:
            raise ConfigError(f"--{option} {','.join(names)}: specbench {kind} takes one {option}: give one")
    spec = run_spec(request)
    method = spec.methods[-1]
    if method.routes is not None and kind == "tune":
        raise ConfigError(
            f"--method {request.methods[0]}: has a drafter and a draft length for each language, but tune finds one "
            "draft length: tune a method with one of its drafters on the subset of its language, or sweep "
            "routes.LANGUAGE.num_draft_tokens"
        )
    is_allocation = kind == "sweep" and method.decodes_with == "random"
    if len(spec.methods) != 2 or (method.most_draft_tokens == 0 and not is_allocation):
        raise ConfigError(f"--method {request.methods[0]}: drafts nothing, so there is nothing to {kind}")
    return with_present_subsets(spec, console)


def open_trials(spec: RunSpec, request: Request, console: Console, kind: str) -> Trials:
    embedded = spec.target.startswith(EMBEDDED)
    set_threads(request.options.threads, embedded)
    loaded = without_calibration(load_data(spec, use_sample=embedded), spec.methods)
    # The target is loaded by itself: as a drafter, the same model has a cache of its own.
    engine = engine_for(spec.engine, spec.methods, spec.target)
    alone = spec.model_copy(update={"methods": spec.methods[:1], "engine": engine})
    target = load_models(alone).target
    load = cache(load_model)
    models = LoadedModels(target, load_drafters(spec, spec.methods, target, load))
    return Trials(request, spec, loaded, load, models, console, kind)
