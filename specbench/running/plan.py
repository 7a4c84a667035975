"""Plan: a request → the subsets to measure, with their data, prompts and decoders, and the folder for the records.

A trial is measured and recorded as a whole. The identity of a run holds all settings except the choice of examples and
the number of repeats.
"""

import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import groupby, product
from pathlib import Path
from typing import Any

from rich.console import Console

from specbench.core.console import say
from specbench.core.environment import EMBEDDED, set_threads
from specbench.core.errors import ConfigError
from specbench.core.progress import doing
from specbench.core.source import package_digest
from specbench.decoding.build import SelectingDecoder, build_decoder, sampling_of
from specbench.decoding.decoder import Decoder, DraftingDecoder, drafting_decoders
from specbench.decoding.drafters import Drafter
from specbench.decoding.sampling import Sampling
from specbench.models.causal_lm import Prompt, TextModel
from specbench.models.loading import choose_device
from specbench.models.machine import environment
from specbench.records.folder import DATE, RunFolder, default_folder
from specbench.records.records import Key
from specbench.results.conditions import check_accepts_rows
from specbench.running.machine_load import load_lines
from specbench.running.models import LoadedModels, load_models
from specbench.running.prompts import (
    PromptBudget,
    PromptRenderer,
    conversation,
    end_problem,
    prompt_digest,
    refuse_or_warn,
    truncate_examples,
    turn_prompt,
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
    all prompts and conversations. `most_tokens`: the tokens of its longest conversation, by the id of a model with
    recorded or compiled passes; filled when the subset is measured."""

    task: TaskSpec
    subset: str
    data: TaskData
    models: LoadedModels
    decoders: tuple[Decoder, ...]
    context_limit: int | None
    renderer: PromptRenderer = field(default_factory=PromptRenderer)
    most_tokens: dict[int, int] = field(default_factory=dict, compare=False)

    @property
    def limited_by(self) -> str:
        """The name of the model with the context that limits all methods."""
        model = self.models.limiting_model([decoder.method for decoder in self.decoders])
        return "" if model is None else model.name

    @property
    def readers(self) -> tuple[TextModel, ...]:
        """The models that read the prompts: the target, and drafters that decode alone."""
        decoders = [part for decoder in self.decoders for part in decoder.parts]
        return tuple({id(decoder.model): decoder.model for decoder in decoders}.values())

    @property
    def budgets(self) -> tuple[PromptBudget, ...]:
        """The lengths to which prompts and conversations are shortened."""
        return self.renderer.budgets

    @cached_property
    def scorer(self) -> Scorer | None:
        """The task's scorer, created once; None for a task without a scorer."""
        return make_scorer(self.task)


def load_data(spec: RunSpec, use_sample: bool) -> list[tuple[TaskSpec, str, TaskData]]:
    """Returns the examples of every requested subset of every task. No model is needed, so bad input is found early."""
    task_subsets = spec.task_subsets()
    num_subsets = Counter(task.name for task, _ in task_subsets)
    options: dict[str, Any] = {"data": spec.data, "use_sample": use_sample, "limit": spec.limit}
    return [
        (task, subset, load_examples(task, subset, **options, num_subsets=num_subsets[task.name]))
        for task, subset in task_subsets
    ]


def check_memory(decoders: Sequence[Decoder], repeats: int) -> None:
    """Raises ConfigError for repeats with a drafter that learns from prompt to prompt and would know the answers."""
    for decoder in drafting_decoders(decoders):
        if decoder.drafter.learns_over_prompts and repeats > 1:
            raise ConfigError(
                f"--repeats {repeats}: the drafter of method '{decoder.method.name}' keeps state across prompts, so "
                "repeats would be drafted from memory: give --repeats 1, or --set drafter.memory=prompt"
            )


@dataclass(frozen=True)
class Plan:
    """What a run measures, with which models, and into which folder. `command`, `settings`: the request as rows keep
    it."""

    spec: RunSpec
    models: LoadedModels
    subset_runs: Sequence[SubsetRun]
    folder: RunFolder
    command: str = ""
    settings: Mapping[str, object] = field(default_factory=dict)

    @cached_property
    def trials(self) -> "list[Trial]":
        """The trials, in the order in which they are measured."""
        return list(trials(self.subset_runs, self.spec.repeats))


def make_plan(request: Request, console: Console, load: Callable[[RunSpec], LoadedModels] = load_models) -> Plan:
    """Returns the plan of a request. Raises ConfigError for what is wrong with it, before anything is written."""
    # 1. Names become specifications; "all" and an absent limit get their meaning.
    request, spec, left_out = resolve(request)
    for line in request_notes(request, spec):
        say(console, line)
    # 2. The machine: threads are set before torch's first operation, and a board of another device is refused early.
    embedded = spec.target.startswith(EMBEDDED)
    set_threads(request.options.threads, embedded)
    for line in load_lines(spec.device):
        say(console, line)
    if request.leaderboard is not None and spec.device_map == "none":
        device = str(choose_device(spec.device)) if spec.servers is None else spec.servers.device
        check_accepts_rows(request.leaderboard, device)
    # 3. The data, without examples on which a method was tuned.
    with doing("reading the data"):
        loaded = without_calibration(load_requested(spec, embedded, console), spec.methods)
    # 4. The models, and a decoder of each method. Of "all" methods those stay that fit models and data.
    models = load(spec)
    spec, subset_runs = compose(spec, models, loaded, left_out)
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
    models.log_into(folder.path)
    # 6. The prompts, each rendered and encoded once: warm-up, trials, records and the search for near-ties share them.
    subset_runs = [with_checked_prompts(run, spec.prompt_checks) for run in subset_runs]
    for line in dict.fromkeys(prompt_notes(subset_runs)):
        say(console, line)
    return Plan(spec, models, subset_runs, folder, request.command, request.settings())


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
    return RunFolder(path, identity, named_by_digest=request.output is None, spec=spec)


def make_subset_runs(spec: RunSpec, models: LoadedModels, loaded: Loaded) -> list[SubsetRun]:
    """Returns the subsets of a run with decoders and checked prompts. Raises ConfigError for a method that does not fit
    the models, prompts that do not fit their contexts, and references that a scorer cannot read."""
    _, subset_runs = compose(spec, models, loaded)
    return [with_checked_prompts(run, spec.prompt_checks) for run in subset_runs]


def compose(
    spec: RunSpec, models: LoadedModels, loaded: Loaded, left_out: dict[str, str] | None = None
) -> tuple[RunSpec, list[SubsetRun]]:
    """Returns the subsets of a run with a decoder of each method, made once per sampling setting.

    `left_out`: why methods are left out, by name; those that do not fit are added and removed from the spec. Without
    it, raises ConfigError for such a method.
    """
    tasks = [
        (with_prompt_stops(task.subset(subset), models.target, spec.chat), subset, data)
        for task, subset, data in loaded
    ]
    samplings = dict.fromkeys(sampling_of(task.generation) for task, _, _ in tasks)
    decoders_by_sampling: dict[Sampling, dict[str, Decoder]] = {sampling: {} for sampling in samplings}
    for sampling, method in product(decoders_by_sampling, spec.methods):
        try:
            decoders_by_sampling[sampling][method.name] = build_decoder(method, models.pair(method), sampling)
        except ConfigError as error:
            if left_out is None:
                raise
            left_out.setdefault(method.name, str(error))
    if left_out:
        spec = spec.model_copy(update={"methods": tuple(m for m in spec.methods if m.name not in left_out)})
    subset_runs = []
    for task, subset, data in tasks:
        by_method = decoders_by_sampling[sampling_of(task.generation)]
        decoders = tuple(by_method[method.name] for method in spec.methods)
        check_memory(decoders, spec.repeats)
        budgets = models.budgets(spec.methods, task.generation.max_new_tokens)
        renderer = PromptRenderer(spec.chat, budgets, system_prompt(spec, task))
        subset_runs.append(
            SubsetRun(task, subset, data, models, decoders, models.context_limit(spec.methods), renderer)
        )
    return spec, subset_runs


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


def prompt_notes(subset_runs: Sequence[SubsetRun]) -> Iterator[str]:
    """Yields a line for each text that a chat template adds to the prompts, and for each system prompt that has no
    role in a template."""
    for run in subset_runs:
        for model in run.readers:
            if uses_chat(model, run.renderer.chat):
                yield from model.chat_template.notes(run.renderer.system)


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
    scorer = run.scorer
    for example in run.data.examples:
        for reference in example.references:
            if scorer is None or reference is None:
                continue
            try:
                scorer.check_reference(reference)
            except ConfigError as error:
                raise ConfigError(f"{run.data.location}: {run.subset} example {example.id}: {error}") from error


def load_requested(spec: RunSpec, use_sample: bool, console: Console) -> list[tuple[TaskSpec, str, TaskData]]:
    """Returns the examples of a request, task by task, as `with_present_subsets` restricts it."""
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
    shared = subsets_sharing_files(task, filed, Path(data))
    found = [name for name in filed if name not in shared or has_rows(task, name, data, len(filed))]
    if not found or len(found) == len(task.subset_names):
        return None
    for lacking, names in (("file", set(task.subset_names) - set(filed)), ("rows", set(filed) - set(found))):
        absent = [name for name in task.subset_names if name in names]
        if absent:
            they_are = "it is" if len(absent) == 1 else "they are"
            say(console, f"{absent_subsets_line(task.name, absent, f'{lacking} in {data}')}: {they_are} not measured")
    return tuple(found)


def subsets_sharing_files(task: TaskSpec, names: Sequence[str], data: Path) -> set[str]:
    """Returns the subsets that share a file with another subset. Only these files must be searched for rows: if a
    subset's own files have none, loading reports it."""
    files = {name: set(find_subset_files(task, name, data).paths) for name in names}
    num_subsets = Counter(path for paths in files.values() for path in paths)
    return {name for name, paths in files.items() if any(num_subsets[path] > 1 for path in paths)}


def has_rows(task: TaskSpec, subset: str, data: str, num_subsets: int) -> bool:
    """Returns whether files that several subsets share have rows of this subset. Also returns True for files with
    other problems, which are reported later."""
    try:
        load_examples(task, subset, data=data, use_sample=False, limit=1, num_subsets=num_subsets)
    except NoRows:
        return False
    except ConfigError:
        return True
    return True


def without_calibration(loaded: Loaded, methods: Sequence[MethodSpec]) -> Loaded:
    """Returns the examples on which none of the methods was tuned. Raises ConfigError if a subset has none of them."""
    specs = [method.calibration for method in methods if method.calibration is not None]
    left = []
    for task, subset, data in loaded:
        used = {digest for spec in specs if spec.task == task.name for each in spec.prompts.values() for digest in each}
        kept = tuple(example for example in data.examples if prompt_digest(example, turn=0) not in used)
        if not kept:
            raise ConfigError(
                f"{data.location}: all {len(data.examples)} examples of {task.name}/{subset} were used to tune a "
                "method: give a larger --limit or other data"
            )
        left.append((task, subset, replace(data, examples=kept)))
    return left


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
        return turn_prompt(self.run.renderer, model, self.example, self.turn, answers)

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


def trial_noun(plan: Sequence[Trial]) -> str:
    """Returns the word for a run's trials: "turns" if an example has several turns, else "examples"."""
    return "turns" if any(trial.turn for trial in plan) else "examples"


def trials(runs: Sequence[SubsetRun], repeats: int) -> Iterator[Trial]:
    """Yields all trials; the turns of an example follow each other. If `may_alternate_subsets`, the first example of
    each subset of a task comes first, then the second of each. The order of the methods is reversed from one example of
    a subset to the next and from one repeat to the next."""
    groups = [list(group) for _, group in groupby(runs, lambda run: run.task.name)]
    for group in groups if may_alternate_subsets(runs) else [[run] for run in runs]:
        for repeat, number in product(range(repeats), range(max(len(run.data.examples) for run in group))):
            for run in group:
                for example in run.data.examples[number : number + 1]:
                    order = run.decoders if (number + repeat) % 2 == 0 else run.decoders[::-1]
                    for turn in range(len(example.turns)):
                        yield Trial(run, example, repeat, order, turn)


def may_alternate_subsets(runs: Sequence[SubsetRun]) -> bool:
    """Returns whether examples of different subsets of a task may alternate. A drafter that learns from prompt to
    prompt would learn from the other subsets, so it needs one subset after the other."""
    decoders = (decoder for run in runs for decoder in drafting_decoders(run.decoders))
    return not any(decoder.drafter.learns_over_prompts for decoder in decoders)


DrafterId = dict[str, str | None]  # name and revision


def run_identity(
    spec: RunSpec, runs: Sequence[SubsetRun], models: LoadedModels, environment: Mapping[str, Any]
) -> dict[str, Any]:
    """Returns the settings that all records of a folder must share."""
    decoders = {decoder.method.name: decoder for run in runs[:1] for decoder in run.decoders}
    drafters = {name: drafter_identity(decoder, models) for name, decoder in decoders.items()}
    codes = {name: decoder.code_revision for name, decoder in decoders.items() if decoder.method.decoder is not None}
    routes = {
        name: route_drafter_identities(decoder, models)
        for name, decoder in decoders.items() if isinstance(decoder, SelectingDecoder) and decoder.method.routes
    }  # fmt: skip
    components = component_revisions(spec.tasks, spec.methods)
    engine = models.environment()["engine"]
    engines = {method.name: own for method in spec.methods if (own := models.engine(method)) != engine}
    revisions = {f"{run.task.name}/{run.subset}": run.data.revision for run in runs if run.data.source == "hub"}
    return {
        "seed": spec.seed,
        "tasks": {task.name: versioned_name(task) for task in spec.tasks},
        "methods": {method.name: versioned_name(method) for method in spec.methods},
        "target": {"name": models.target.name, "revision": models.target.revision},
        "drafters": {method: found for method, found in drafters.items() if found["name"] is not None},
        **({"routes": routes} if routes else {}),
        **({"code": codes} if codes else {}),
        **({"components": components} if components else {}),
        **({"package": package_digest()} if environment.get("commit", "") is None else {}),
        **({"engines": engines} if engines else {}),
        "data": {run.task.name: run.data.source for run in runs},
        **({"data_revisions": revisions} if revisions else {}),
        "chat": spec.chat,
        **({"special_stops": stops} if (stops := special_stops(runs)) else {}),
        **({"template_date": printed} if (printed := printed_date(runs)) else {}),
        **({"system_instruction": spec.system_instruction} if spec.system_instruction is not None else {}),
        **({"chat_template_args": spec.chat_template_args} if spec.chat_template_args else {}),
        **({"trust_remote_code": True} if spec.trust_remote_code else {}),
        **({"code_execution": True} if permission.allowed() else {}),  # answers have no scores without it
        **models.identity(),
        "environment": dict(environment),
    }


def special_stops(runs: Sequence[SubsetRun]) -> list[str]:
    """Returns the stop strings that have special tokens. Earlier versions did not stop at them."""
    found = {
        stop for run in runs for model in run.readers for stop in run.task.generation.stop
        if any(token in stop for token in model.special_tokens)
    }  # fmt: skip
    return sorted(found)


def printed_date(runs: Sequence[SubsetRun]) -> str | None:
    """Returns the date that the chat templates of a run print; None if they read none."""
    found = (
        model.chat_template.printed_date for run in runs for model in run.readers
        if uses_chat(model, run.renderer.chat)
    )  # fmt: skip
    return next((each.isoformat() for each in found if each is not None), None)


def drafter_identity(decoder: Decoder, models: LoadedModels) -> DrafterId:
    """Returns name and revision of a method's draft model, or of its drafter if it has no model. For a method with
    routes, both values list all routes, each as "language value"."""
    if isinstance(decoder, SelectingDecoder) and decoder.method.routes:
        found = route_drafter_identities(decoder, models)
        return {
            "name": ", ".join(f"{route} {each['name']}" for route, each in found.items()),
            "revision": ", ".join(f"{route} {each['revision']}" for route, each in found.items() if each["revision"]),
        }
    drafter = decoder.drafter if isinstance(decoder, DraftingDecoder) else Drafter()
    holder = models.drafters.get(decoder.method.name, drafter)
    return {"name": holder.name, "revision": holder.revision}


def route_drafter_identities(decoder: SelectingDecoder, models: LoadedModels) -> dict[str, DrafterId]:
    """Returns name and revision of the drafters by language. A drafter without a name, such as one that copies, is
    named by its type."""
    found = {}
    for name, route in decoder.decoders.items():
        own = drafter_identity(route, models)
        found[name] = {**own, "name": own["name"] or route.method.drafter.type}
    return found
