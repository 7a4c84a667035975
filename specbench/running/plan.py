"""Plan: a request → the subsets to measure, with their data, prompts and decoders, and the folder for the records.

A trial is measured and recorded as a whole. The identity of a run holds all settings except the choice of examples and
the number of repeats.
"""

import os
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import chain, groupby, product
from math import floor
from pathlib import Path

import torch
from rich.console import Console

from specbench.core.console import say
from specbench.core.environment import EMBEDDED, num_sharing, set_threads
from specbench.core.errors import ConfigError
from specbench.core.progress import doing
from specbench.core.source import package_digest
from specbench.decoding.build import SelectingDecoder, sampling_of
from specbench.decoding.decoder import Decoder, DraftingDecoder, stream_seed
from specbench.decoding.drafters import Drafter
from specbench.decoding.sampling import Sampling
from specbench.models.causal_lm import Prompt, TextModel
from specbench.models.gguf.same_weights import has_same_weights
from specbench.models.loading import choose_device
from specbench.models.machine import environment
from specbench.models.meters import num_processes_on_gpu
from specbench.records.folder import DATE, PRODUCTS, UNUSED_ENDS, RunFolder, default_folder
from specbench.records.records import Key
from specbench.results.conditions import check_accepts_rows
from specbench.results.rows import Measurement
from specbench.running.models import (
    LoadedModels,
    check_vocabularies,
    choose_products,
    load_models,
    products_by_model,
)
from specbench.running.prompts import (
    PromptBudget,
    PromptRenderer,
    conversation,
    end_problem,
    fitting_turn,
    prompt_digest,
    refuse_or_warn,
    truncate_examples,
    uses_chat,
)
from specbench.running.request import Request, absent_subsets_line, request_notes, resolve, runs_programs
from specbench.specs.catalogue import component_revisions, versioned_name
from specbench.specs.components import PromptChecks
from specbench.specs.method import MethodSpec
from specbench.specs.run import RunSpec
from specbench.specs.task import TaskSpec
from specbench.tasks.examples import Example, TaskData, load_examples
from specbench.tasks.sandbox import run as permission
from specbench.tasks.scoring import Reference, Scorer, make_scorer
from specbench.tasks.sources import NoRows, find_subset_files, subsets_with_files

Loaded = Sequence[tuple[TaskSpec, str, TaskData]]


@dataclass(frozen=True)
class SubsetRun:
    """One subset of one task, with its data and the decoders of all methods; `decoders[0]` is AR. `renderer`: renders
    all prompts and conversations. `limited_by`: the name of the model whose context limits all methods. `uncut`: the
    examples before their prompts were shortened. `most_tokens`: the tokens of its longest conversation, by the id of a
    model with recorded or compiled passes; filled when the subset is measured."""

    task: TaskSpec
    subset: str
    data: TaskData
    models: LoadedModels
    decoders: tuple[Decoder, ...]
    context_limit: int | None
    renderer: PromptRenderer = field(default_factory=PromptRenderer)
    limited_by: str = ""
    uncut: Sequence[Example] = ()
    most_tokens: dict[int, int] = field(default_factory=dict, compare=False)

    @property
    def readers(self) -> tuple[TextModel, ...]:
        """The models that read the prompts: the target, and drafters that decode alone."""
        decoders = [part for decoder in self.decoders for part in decoder.parts]
        return tuple({id(decoder.model): decoder.model for decoder in decoders}.values())

    @cached_property
    def scorer(self) -> Scorer | None:
        """The task's scorer, created once; None for a task without a scorer."""
        return make_scorer(self.task)


@dataclass(frozen=True)
class Plan:
    """What a run measures, with which models, and into which folder. `command`, `settings`: the request as rows keep
    it. `measurement`: of an earlier command with the same request, if its folder has all records; the models are then
    without weights. `busy`: warnings of the machine's load before anything was loaded."""

    spec: RunSpec
    models: LoadedModels
    subset_runs: Sequence[SubsetRun]
    folder: RunFolder
    command: str = ""
    settings: Mapping[str, object] = field(default_factory=dict)
    measurement: Measurement | None = None
    busy: Sequence[str] = ()

    @cached_property
    def trials(self) -> "list[Trial]":
        """The trials, in the order in which they are measured."""
        return list(trials(self.subset_runs, self.spec.repeats, self.spec.seed))


def make_plan(request: Request, console: Console, load: Callable[[RunSpec], LoadedModels] = load_models) -> Plan:
    """Returns the plan of a request. Raises ConfigError for what is wrong with it, before anything is written."""
    # 1. Names become specifications; "all" and an absent limit get their meaning.
    request, spec, left_out = resolve(request)
    for line in request_notes(request, spec):
        say(console, line)
    # 2. The machine: threads are set before torch's first operation. Another run's folder and a board of another device
    #    are refused before anything is loaded.
    embedded = spec.target.startswith(EMBEDDED)
    set_threads(request.options.threads, embedded)
    is_known = spec.servers is None and left_out is None
    if is_known and request.output is not None and (request.output / RunFolder.IDENTITY).is_file():
        RunFolder(request.output, {}, spec=spec).check_known(*known_settings(spec))
    busy = list(load_lines(spec.device))
    if request.leaderboard is not None and spec.device_map == "none":
        device = str(choose_device(spec.device)) if spec.servers is None else spec.servers.device
        check_accepts_rows(request.leaderboard, device)
    # 3. The data, without examples on which a method was tuned.
    with doing("reading the data"):
        loaded = without_calibration(load_requested(spec, embedded, console), spec.methods)
    # 4. The models, and a decoder of each method. Of "all" methods those stay that fit models and data.
    if load is load_models and left_out is None:
        check_vocabularies(spec)
    models = load(spec)
    spec, subset_runs = subsets_with_decoders(spec, models, loaded, left_out)
    if left_out:
        say(console, "--method all leaves out " + "; ".join(f"{name}: {why}" for name, why in left_out.items()))
    # 5. The folder. If an earlier day's run began it, the prompts keep the date that they had then.
    folder = run_folder(request, spec, subset_runs, models, console)
    if recorded := folder.recorded_date(spec.template_date):
        if spec.template_date is not None:
            say(console, f"--template-date today: {folder.path} began on {recorded}, which its prompts keep")
        for model in (models.target, *models.drafters.values()):
            model.chat_template.date = recorded
        folder.identity[DATE] = printed_date(subset_runs)
    #    So do the products of its passes, which a probe chose: others have other speeds, and on some CPUs other bits.
    for line in choose_products(models, folder.recorded_products()) if spec.engine == "auto" else ():
        say(console, line)
    if products := products_by_model(models):
        folder.identity[PRODUCTS] = products
    models.log_into(folder.path)
    # 6. The prompts, each rendered and encoded once: warm-up, trials, records and the search for near-ties share them.
    subset_runs = [with_checked_prompts(run, spec.prompt_checks) for run in subset_runs]
    readers = [(model, run.renderer) for run in subset_runs for model in run.readers]
    notes = [model.chat_template.notes(each.system) for model, each in readers if uses_chat(model, each.chat)]
    for line in dict.fromkeys(chain.from_iterable(notes)):
        say(console, line)
    return Plan(spec, models, subset_runs, folder, request.command, request.settings(), busy=busy)


def load_data(spec: RunSpec, use_sample: bool) -> Loaded:
    """Returns the examples of every requested subset of every task. No model is needed, so bad input is found early."""
    task_subsets = spec.task_subsets()
    num_subsets = Counter(task.name for task, _ in task_subsets)
    return [
        (task, subset, load_examples(
            task, subset, data=spec.data, use_sample=use_sample, limit=spec.limit, num_subsets=num_subsets[task.name]
        ))
        for task, subset in task_subsets
    ]  # fmt: skip


def load_requested(spec: RunSpec, use_sample: bool, console: Console) -> Loaded:
    """Returns the examples of a request, task by task: each task with its own subsets that have data."""
    by_task = (spec.model_copy(update={"tasks": (task,)}) for task in spec.tasks)
    return [run for each in by_task for run in load_data(with_present_subsets(each, console), use_sample)]


def with_present_subsets(spec: RunSpec, console: Console) -> RunSpec:
    """Returns the specification of one task. If it names no subsets, it is restricted to those that have data."""
    if spec.subsets is not None:
        return spec
    return spec.model_copy(update={"subsets": subsets_with_rows(spec.tasks[0], spec.data, console)})


def subsets_with_rows(task: TaskSpec, data: str | None, console: Console) -> tuple[str, ...] | None:
    """Returns the subsets that have rows in a user's own files, and prints lines about the others.

    Returns None, which means all subsets, if the data are not local files, if all subsets have rows, or if none has.
    In the last case, loading reports the missing files.
    """
    if data in (None, "hub", "sample") or not task.subsets:
        return None
    filed = subsets_with_files(task, Path(data))
    files = {name: set(find_subset_files(task, name, Path(data)).paths) for name in filed}
    num_sharing = Counter(path for paths in files.values() for path in paths)

    def has_rows(subset: str) -> bool:
        if all(num_sharing[path] == 1 for path in files[subset]):
            return True  # if a file of its own has none, loading reports it
        try:
            load_examples(task, subset, data=data, use_sample=False, limit=1, num_subsets=len(filed))
        except NoRows:
            return False
        except ConfigError:  # another problem, which is reported later
            return True
        return True

    names_with_rows = [name for name in filed if has_rows(name)]
    if not names_with_rows or len(names_with_rows) == len(task.subset_names):
        return None
    for lacking, names in (("file", set(task.subset_names) - set(filed)), ("rows", set(filed) - set(names_with_rows))):
        absent = [name for name in task.subset_names if name in names]
        if absent:
            they_are = "it is" if len(absent) == 1 else "they are"
            say(console, f"{absent_subsets_line(task.name, absent, f'{lacking} in {data}')}: {they_are} not measured")
    return tuple(names_with_rows)


def without_calibration(loaded: Loaded, methods: Sequence[MethodSpec]) -> Loaded:
    """Returns the examples on which none of the methods was tuned. Raises ConfigError if a subset has none of them."""
    specs = [method.calibration for method in methods if method.calibration is not None]
    left = []
    for task, subset, data in loaded:
        prompts = [spec.prompts.values() for spec in specs if spec.task == task.name]
        used = {digest for digests in chain.from_iterable(prompts) for digest in digests}
        remaining = tuple(each for each in data.examples if not used or prompt_digest(each, turn=0) not in used)
        if not remaining:
            raise ConfigError(
                f"{data.location}: all {len(data.examples)} examples of {task.name}/{subset} were used to tune a "
                "method: give a larger --limit or other data"
            )
        left.append((task, subset, replace(data, examples=remaining)))
    return left


def run_folder(
    request: Request, spec: RunSpec, subset_runs: Sequence[SubsetRun], models: LoadedModels, console: Console
) -> RunFolder:
    """Returns the folder of a run: the requested one, or one named after the identity of the run."""
    identity = run_identity(spec, subset_runs, models, environment(**models.environment()))
    with_programs = dict.fromkeys(run.task.name for run in subset_runs if runs_programs(run.task))
    if identity.get("code_execution") and not with_programs:
        del identity["code_execution"]
        say(console, "--allow-code-execution: no effect, since no answer of these tasks is run")
    if with_programs and not permission.allowed():
        names = ", ".join(with_programs)
        say(console, f"{names}: answers get no score, as programs are run only with --allow-code-execution")
    named = identity
    if spec.template_date == "today" and DATE in identity:  # tomorrow, the same command resumes the folder
        named = {**identity, DATE: "today"}
    path = request.output or default_folder(spec, named)
    return RunFolder(path, identity, named_by_digest=request.output is None, spec=spec, command=request.command)


def make_subset_runs(
    spec: RunSpec, models: LoadedModels, loaded: Loaded, *, fitting: Sequence[MethodSpec] | None = None
) -> list[SubsetRun]:
    """Returns the subsets of a run with decoders and checked prompts. Raises ConfigError for a method that does not fit
    the models, prompts that do not fit their contexts, and references that a scorer cannot read.

    `fitting`: the methods whose models the prompts must fit; by default those of the spec.
    """
    _, subset_runs = subsets_with_decoders(spec, models, loaded, fitting=fitting)
    return [with_checked_prompts(run, spec.prompt_checks) for run in subset_runs]


def subsets_with_decoders(
    spec: RunSpec, models: LoadedModels, loaded: Loaded, left_out: dict[str, str] | None = None,
    *, fitting: Sequence[MethodSpec] | None = None,
) -> tuple[RunSpec, list[SubsetRun]]:  # fmt: skip
    """Returns the subsets of a run with a decoder of each method, made once per sampling setting.

    `left_out`: why methods are left out, by name; those that do not fit are added and removed from the spec. Without
    it, raises ConfigError for such a method. `fitting`: see `make_subset_runs`.
    """
    tasks = [
        (with_prompt_stops(task.subset(subset), models.target, spec.chat), subset, data)
        for task, subset, data in loaded
    ]
    samplings = dict.fromkeys(sampling_of(task.generation) for task, _, _ in tasks)
    decoders_by_sampling: dict[Sampling, dict[str, Decoder]] = {sampling: {} for sampling in samplings}
    for sampling, method in product(decoders_by_sampling, spec.methods):
        try:
            decoders_by_sampling[sampling][method.name] = models.decoder(method, sampling)
        except ConfigError as error:
            if left_out is None:
                raise
            left_out.setdefault(method.name, str(error))
    if left_out:
        spec = spec.model_copy(update={"methods": tuple(m for m in spec.methods if m.name not in left_out)})
    fitting = spec.methods if fitting is None else fitting
    limit, limiting = models.context_limit(fitting), models.limiting_model(fitting)
    subset_runs = []
    for task, subset, data in tasks:
        by_method = decoders_by_sampling[sampling_of(task.generation)]
        decoders = tuple(by_method[method.name] for method in spec.methods)
        budgets = models.budgets(fitting, task.generation.max_new_tokens)
        renderer = PromptRenderer(spec.chat, budgets, system_prompt(spec, task))
        limited_by = "" if limiting is None else limiting.name
        run = SubsetRun(task, subset, data, models, decoders, limit, renderer, limited_by, data.examples)
        if (most := task.max_prompt_tokens) is not None:
            try:
                run = replace(run, renderer=renderer_within(run, most))
            except ConfigError as error:
                raise ConfigError(f"max_prompt_tokens = {most}: {error}") from error
        subset_runs.append(run)
    return spec, subset_runs


def renderer_within(run: SubsetRun, most: int) -> PromptRenderer:
    """Returns a subset's renderer that also shortens prompts to `most` tokens of the target. Raises ConfigError if the
    models cannot read so many and answer: shorter prompts would be measured under this length."""
    own = min((each.num_tokens for each in run.renderer.budgets if each.translated is None), default=most)
    if own < most:
        raise ConfigError(
            f"the context of the models is {run.context_limit} tokens, of which the answer takes up to "
            f"{run.task.generation.max_new_tokens}: give at most {own}, or a smaller generation.max_new_tokens"
        )
    return run.renderer.within(PromptBudget(run.models.target, most))


def with_checked_prompts(run: SubsetRun, checks: PromptChecks) -> SubsetRun:
    """Returns a subset whose prompts are shortened, where the task allows it, and rendered."""
    if run.task.truncation is not None:
        run = replace(run, data=truncate_examples(run.data, run.models.target, run.renderer))
    check_prompts(run, checks)
    check_references(run)
    return run


def system_prompt(spec: RunSpec, task: TaskSpec) -> str | None:
    """Returns the system prompt of a run for a task (merged with its subset); None without one."""
    return task.system_prompt if spec.system_instruction is None else spec.system_instruction or None


def with_prompt_stops(task: TaskSpec, target: TextModel, chat: str) -> TaskSpec:
    """Returns a task (merged with its subset) with the stop strings for prompts with or without chat template, as the
    target uses it. All methods use the same stop strings."""
    return task.model_copy(update={"generation": task.generation.where(uses_chat(target, chat))})


def check_prompts(run: SubsetRun, checks: PromptChecks = "refuse") -> None:
    """Renders the first prompt of every example for all models that read it. Raises ConfigError for one that is empty
    or leaves no room for a new token. `checks`: whether a prompt without the user's text, or with an end token of the
    tokenizer behind it, is refused or only warned of."""
    warn = partial(warnings.warn, stacklevel=1)
    several_turns = any(len(example.turns) > 1 for example in run.data.examples)
    for model in run.readers:
        is_chat = uses_chat(model, run.renderer.chat)
        for problem in model.chat_template.problems(several_turns=several_turns) if is_chat else ():
            refuse_or_warn(problem, checks, "--prompt-checks warn", warn)
        for number, example in enumerate(run.data.examples):
            where = f"{run.data.location}: {run.task.name}/{run.subset} example {example.id}"
            try:
                prompt = run.renderer.render(model, (example.prompt,))
            except ConfigError as error:
                raise ConfigError(f"{where}: {error}") from error
            num_tokens = len(prompt.packed_ids)
            if num_tokens == 0:
                raise ConfigError(f"{where}: the prompt is empty after tokenization; remove the row")
            if run.context_limit is not None and num_tokens >= run.context_limit:
                raise ConfigError(
                    f"{where}: the prompt has {num_tokens} tokens, but the context of the models is "
                    f"{run.context_limit} tokens (that of '{run.limited_by}'); use models with a longer context, "
                    "leave the row out, or shorten it with --set truncation=middle"
                )
            if number == 0 and (ending := end_problem(model, prompt.text, prompt.packed_ids)):
                refuse_or_warn(ending, checks, "--prompt-checks warn", warn)


def check_references(run: SubsetRun) -> None:
    """Raises ConfigError for a reference that the scorer cannot read."""
    for example in run.data.examples:
        for reference in example.references:
            if run.scorer is None or reference is None:
                continue
            try:
                run.scorer.check_reference(reference)
            except ConfigError as error:
                raise ConfigError(f"{run.data.location}: {run.subset} example {example.id}: {error}") from error


@dataclass(frozen=True)
class Trial:
    """The unit of measurement: one turn of one example in one repeat. AR and all methods decode it in `order`."""

    run: SubsetRun
    example: Example
    repeat: int
    order: tuple[Decoder, ...]
    turn: int = 0

    @property
    def key(self) -> Key:
        return self.run.task.name, self.run.subset, self.example.index, self.repeat, self.turn

    @property
    def earlier_keys(self) -> list[Key]:
        """Keys of the trials of the earlier turns."""
        *place, turn = self.key
        return [(*place, earlier) for earlier in range(turn)]  # type: ignore[misc]

    @property
    def prompt_digest(self) -> str:
        """Digest of the user's texts up to this turn."""
        return prompt_digest(self.example, self.turn)

    def prompt(self, model: TextModel, answers: Sequence[str]) -> Prompt:
        """Returns the prompt as a model reads it. `answers`: a method's own answers to the earlier turns."""
        return self.run.renderer.render(model, fitting_turn(self.run.renderer, self.example, self.turn, answers))

    def num_cut(self, answers: Sequence[str]) -> int:
        """Returns the number of the target's tokens that were removed from this turn's conversation to fit the
        budgets."""
        target, renderer = self.run.decoders[0].model, self.run.renderer
        whole = conversation(self.example, self.turn, answers)
        if not self.turn or renderer.shorten(whole) == whole:
            return 0
        return len(renderer.render(target, whole).packed_ids) - len(self.prompt(target, answers).packed_ids)

    @property
    def reference(self) -> Reference | None:
        return self.example.references[self.turn]


def trials(runs: Sequence[SubsetRun], repeats: int, seed: int) -> Iterator[Trial]:
    """Yields all trials; the turns of an example follow each other. If `may_alternate_subsets`, the first example of
    each subset of a task comes first, then the second of each. The order of the methods is reversed from one example of
    a subset to the next and from one repeat to the next."""
    groups = [list(group) for _, group in groupby(runs, lambda run: run.task.name)]
    for group in groups if may_alternate_subsets(runs) else [[run] for run in runs]:
        for repeat in range(repeats):
            ordered = [(run, order_of_examples(run, repeat, seed)) for run in group]
            for number, (run, examples) in product(range(max(len(each) for _, each in ordered)), ordered):
                for example in examples[number : number + 1]:
                    order = run.decoders if (number + repeat) % 2 == 0 else run.decoders[::-1]
                    for turn in range(len(example.turns)):
                        yield Trial(run, example, repeat, order, turn)


def order_of_examples(run: SubsetRun, repeat: int, seed: int) -> Sequence[Example]:
    """Returns the examples in the order of the data. If a drafter learns from prompt to prompt, every repeat has a
    random order of its own, which depends on no other examples, so that more of them keep it."""
    if not learns(run):
        return run.data.examples

    def place(example: Example) -> int:
        return stream_seed(seed, "order", run.task.name, run.subset, repeat, example.index)

    return sorted(run.data.examples, key=place)


def learns(run: SubsetRun) -> bool:
    """Returns whether a drafter learns from prompt to prompt."""
    return any(decoder.learns for decoder in run.decoders)


def may_alternate_subsets(runs: Sequence[SubsetRun]) -> bool:
    """Returns whether examples of different subsets of a task may alternate. A drafter that learns from prompt to
    prompt would learn from the other subsets, so it needs one subset after the other."""
    return not any(map(learns, runs))


THE_TARGETS = "the target's"
DrafterId = dict[str, str | None]  # name, revision; passes and weights if they are worth telling


def asked_settings(spec: RunSpec) -> dict[str, object]:
    """Returns the settings of a run's identity that follow from its specification alone; null for absent ones."""
    return {
        "seed": spec.seed,
        "tasks": {task.name: versioned_name(task) for task in spec.tasks},
        "methods": {method.name: versioned_name(method) for method in spec.methods},
        "components": component_revisions(spec.tasks, spec.methods) or None,
        "chat": spec.chat,
        "system_instruction": spec.system_instruction,
        "chat_template_args": spec.chat_template_args or None,
        "trust_remote_code": spec.trust_remote_code or None,
        "tokenizer": spec.tokenizer,
        "drafter_tokenizer": spec.drafter_tokenizer,
    }


def known_settings(spec: RunSpec) -> tuple[dict[str, object], dict[str, object]]:
    """Returns what is known of a run's identity before its models are loaded: whole settings, and parts of others."""
    drafting = [each for each in spec.methods if each.routes is None and each.decoder is None]
    drafters = {
        each.name: {"name": name} for each in drafting
        if each.drafter.type in ("model", "model_tree") and (name := spec.drafter_of(each)) is not None
    }  # fmt: skip
    conditions = environment("cpu", "", "")
    of_any_model = ("num_threads", "platform", "python", "versions", "commit")
    return asked_settings(spec), {
        "target": {"name": spec.target}, "drafters": drafters,
        "environment": {name: conditions[name] for name in of_any_model},
    }  # fmt: skip


def run_identity(
    spec: RunSpec, runs: Sequence[SubsetRun], models: LoadedModels, environment: Mapping[str, object]
) -> dict[str, object]:
    """Returns the settings that all records of a folder must share. Those that have no effect are left out, except what
    servers report or their file leaves open."""
    decoders = {decoder.method.name: decoder for run in runs[:1] for decoder in run.decoders}
    drafters = {name: drafter_identity(decoder, models) for name, decoder in decoders.items()}
    routed = [
        decoder for decoder in decoders.values() if isinstance(decoder, SelectingDecoder) and decoder.method.routes
    ]
    external = [decoder for decoder in decoders.values() if decoder.method.decoder is not None]
    engine = models.environment()["engine"]
    readers = [(run, model) for run in runs for model in run.readers]
    special_stops = {  # earlier versions did not stop at stop strings with special tokens
        stop for run, model in readers for stop in run.task.generation.stop
        if any(token in stop for token in model.special_tokens)
    }  # fmt: skip
    revisions = {f"{run.task.name}/{run.subset}": run.data.revision for run in runs if run.data.source == "hub"}
    method_engines = {method.name: models.engine(method) for method in spec.methods}
    settings = {
        **asked_settings(spec),
        "target": {"name": models.target.name, "revision": models.target.revision},
        "drafters": {method: drafter for method, drafter in drafters.items() if drafter["name"] is not None},
        "routes": {each.method.name: route_drafter_identities(each, models) for each in routed} or None,
        "code": {each.method.name: each.code_revision for each in external} or None,
        "package": package_digest() if environment.get("commit", "") is None else None,
        "engines": {name: other for name, other in method_engines.items() if other != engine} or None,
        "data": {run.task.name: run.data.source for run in runs},
        "data_revisions": revisions or None,
        "special_stops": sorted(special_stops) or None,
        "end_tokens": None if spec.servers is not None else models.target.told_ends,
        UNUSED_ENDS: None if spec.servers is not None else models.target.unused_ends or None,
        "template_date": printed_date(runs),
        "code_execution": permission.allowed() or None,  # answers have no scores without it
    }
    given = {name: value for name, value in settings.items() if value is not None}
    return {**given, **models.identity(), "environment": dict(environment)}


def printed_date(runs: Sequence[SubsetRun]) -> str | None:
    """Returns the date that the chat templates of a run print; None if they read none."""
    readers = [(model, run.renderer.chat) for run in runs for model in run.readers]
    dates = [model.chat_template.printed_date for model, chat in readers if uses_chat(model, chat)]
    return next((each.isoformat() for each in dates if each is not None), None)


def drafter_identity(decoder: Decoder, models: LoadedModels) -> DrafterId:
    """Returns name and revision of a method's draft model, or of its drafter if it has no model. For a method with
    routes, both values list all routes, each as "language value". `passes`: dtype and attention of a draft model in
    another format than the target, which follow from other options than the target's. `weights`: THE_TARGETS if the
    draft model, of a method with routes any of them, has the target's own; see `has_same_weights`."""
    if isinstance(decoder, SelectingDecoder) and decoder.method.routes:
        routes = route_drafter_identities(decoder, models)
        joined: DrafterId = {
            "name": ", ".join(f"{route} {each['name']}" for route, each in routes.items()),
            "revision": ", ".join(f"{route} {each['revision']}" for route, each in routes.items() if each["revision"]),
        }
        if any("weights" in each for each in routes.values()):
            joined["weights"] = THE_TARGETS
        return joined
    drafter = decoder.drafter if isinstance(decoder, DraftingDecoder) else Drafter()
    model = models.drafters.get(decoder.method.name)
    part = drafter if model is None else model
    found: DrafterId = {"name": part.name, "revision": part.revision}
    if drafter.inner_identity is not None:
        name, revision = drafter.inner_identity
        found = {"name": f"{part.name} after {name}", "revision": f"{part.revision}, {revision}"}
    if model is None:
        return found
    if has_same_weights(models.target, model):
        found["weights"] = THE_TARGETS
    if (model.engine == "llama.cpp") != (models.target.engine == "llama.cpp"):
        found["passes"] = f"{model.precision}, {model.attention}"
    return found


def route_drafter_identities(decoder: SelectingDecoder, models: LoadedModels) -> dict[str, DrafterId]:
    """Returns name and revision of the drafters by language. A drafter without a name, such as one that copies, is
    named by its type."""
    identities = {}
    for name, route in decoder.decoders.items():
        identity = drafter_identity(route, models)
        identities[name] = {**identity, "name": identity["name"] or route.method.drafter.type}
    return identities


IDLE = slice(3, 5)  # the columns of /proc/stat with idle time and waits for disks
WATCHED = 0.3  # seconds for which the CPU is watched
SPARE = 0.5  # cores by which the load may exceed the CPU without a warning


def load_lines(device: str) -> Iterator[str]:
    """Yields a warning if other programs leave too few CPU cores for this process, and one if other processes use the
    GPU of --device `device`. Yields none if workers share the machine, since their rows say so."""
    if num_sharing() > 1:
        return
    load = others_load()
    num_cores = os.cpu_count() or 1
    num_threads = torch.get_num_threads()
    if load + num_threads > num_cores + SPARE:
        left = max(1, floor(num_cores - load))
        fewer = f", or give --threads {left}" if left < num_threads else ""
        yield (
            f"warning: this machine is busy: other programs use {load:.1f} of its {num_cores} CPU cores, and this one "
            f"needs {num_threads}: speeds will be too low, those of llama.cpp many times, and their intervals wide: "
            f"end the other programs{fewer}"
        )
    if number := num_gpu_processes(device):
        yield (
            f"warning: the GPU is shared with {number} other process{'es' if number > 1 else ''}: speeds will be too "
            "low while they compute"
        )


def others_load(stat: Path = Path("/proc/stat")) -> float:
    """Returns the number of CPU cores that other programs use now; 0 where the system has no count of CPU time."""

    def ticks() -> tuple[int, int]:  # idle and total, of all cores since the system started
        times = [int(each) for each in stat.read_text().split()[1:9]]  # guests' time, which follows, is part of them
        return sum(times[IDLE]), sum(times)

    try:
        idle, total = ticks()
    except OSError:
        return 0.0
    time.sleep(WATCHED)
    idle, total = (now - before for now, before in zip(ticks(), (idle, total), strict=True))
    return (1 - idle / total) * (os.cpu_count() or 1) if total else 0.0


def num_gpu_processes(device: str) -> int:
    """Returns the number of processes that compute on the GPU of --device; 0 if it is unknown, and if this process has
    used a GPU: in a container, NVML lists this process with another id."""
    kind, _, index = device.partition(":")
    if kind not in ("auto", "cuda") or not torch.cuda.is_available() or torch.cuda.is_initialized():
        return 0
    try:
        return num_processes_on_gpu(torch.cuda._get_nvml_device_index(int(index or 0)))
    except (RuntimeError, ValueError):  # no such GPU, which loading a model reports
        return 0
