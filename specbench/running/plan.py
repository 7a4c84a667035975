"""The plan of a run: its cells, one per task and subset. Their prompts are checked before anything is measured."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from rich.console import Console

from specbench.core.console import say
from specbench.core.errors import ConfigError
from specbench.decoding.decoder import Decoder, drafting_decoders
from specbench.decoding.sampling import Sampling
from specbench.models.causal_lm import TextModel
from specbench.running.compose import compose, sampling_of
from specbench.running.models import Models
from specbench.running.prompts import PromptBudget, prompt_digest, prompt_ids, truncate_examples, uses_chat
from specbench.specs.method import MethodSpec
from specbench.specs.run import RunSpec
from specbench.specs.task import TaskSpec
from specbench.tasks.examples import TaskData, load_examples
from specbench.tasks.scoring.contract import Scorer, make_scorer
from specbench.tasks.sources import NoRows, find_subset_files, subsets_with_files

Loaded = Sequence[tuple[TaskSpec, str, TaskData]]


@dataclass(frozen=True)
class Cell:
    """One subset of one task, with its data and the decoders of all methods; `decoders[0]` is AR. `budgets`: the
    lengths to which prompts and conversations are shortened. `most_tokens`: the tokens of its longest conversation, by
    the id of a model with recorded or compiled passes; it is filled when the cell is measured."""

    task: TaskSpec
    subset: str
    data: TaskData
    models: Models
    decoders: tuple[Decoder, ...]
    context_limit: int | None
    budgets: tuple[PromptBudget, ...] = ()
    most_tokens: dict[int, int] = field(default_factory=dict, compare=False)

    @cached_property
    def scorer(self) -> Scorer | None:
        """The task's scorer, created once; None for a task without a scorer."""
        return make_scorer(self.task)


def load_data(spec: RunSpec, use_sample: bool) -> list[tuple[TaskSpec, str, TaskData]]:
    """Returns the examples of every requested subset of every task. No model is needed, so bad input is found early."""
    cells = spec.cells()
    num_subsets = Counter(task.name for task, _ in cells)
    options: dict[str, Any] = {"data": spec.data, "use_sample": use_sample, "limit": spec.limit}
    return [
        (task, subset, load_examples(task, subset, **options, num_subsets=num_subsets[task.name]))
        for task, subset in cells
    ]


def check_memory(decoders: Sequence[Decoder], repeats: int) -> None:
    """Raises ConfigError for repeats with a drafter that learns from prompt to prompt and would know the answers."""
    for decoder in drafting_decoders(decoders):
        if decoder.drafter.learns_over_prompts and repeats > 1:
            raise ConfigError(
                f"--repeats {repeats}: the drafter of method '{decoder.method.name}' keeps state across prompts, so "
                "repeats would be drafted from memory: give --repeats 1, or --set drafter.memory=prompt"
            )


def make_cells(spec: RunSpec, models: Models, loaded: Loaded) -> list[Cell]:
    """Returns the cells of a run. Composes the methods once per sampling setting. Raises ConfigError for prompts that
    do not fit all models and for references that a scorer cannot read."""
    cells = []
    composed: dict[Sampling, tuple[Decoder, ...]] = {}
    for task, subset, data in loaded:
        merged = with_prompt_stops(task.subset(subset), models.target, spec.chat)
        sampling = sampling_of(merged.generation)
        if sampling not in composed:
            composed[sampling] = tuple(compose(method, models.pair(method), sampling) for method in spec.methods)
            check_memory(composed[sampling], spec.repeats)
        budgets = models.budgets(spec.methods, merged.generation.max_new_tokens)
        if merged.truncation is not None:
            data = truncate_examples(data, models.target, budgets, spec.chat)
        cells.append(
            Cell(merged, subset, data, models, composed[sampling], models.context_limit(spec.methods), budgets)
        )
    for cell in cells:
        check_prompts(cell, spec.chat)
        check_references(cell)
    return cells


def with_prompt_stops(task: TaskSpec, target: TextModel, chat: str) -> TaskSpec:
    """Returns a task (merged with its subset) with the stop strings for prompts with or without chat template, as the
    target uses it. All methods use the same stop strings."""
    return task.model_copy(update={"generation": task.generation.where(uses_chat(target, chat))})


def check_prompts(cell: Cell, chat: str) -> None:
    """Raises ConfigError for a prompt that is empty or leaves no room for a new token."""
    decoders = [part for decoder in cell.decoders for part in decoder.parts]
    for model in {id(decoder.model): decoder.model for decoder in decoders}.values():
        for example in cell.data.examples:
            where = f"{cell.data.location}: {cell.task.name}/{cell.subset} example {example.id}"
            try:
                num_tokens = len(prompt_ids(model, example, chat))
            except ConfigError as error:
                raise ConfigError(f"{where}: {error}") from error
            if num_tokens == 0:
                raise ConfigError(f"{where}: the prompt is empty after tokenization; remove the row")
            if cell.context_limit is not None and num_tokens >= cell.context_limit:
                raise ConfigError(
                    f"{where}: the prompt has {num_tokens} tokens, but the context of the models is "
                    f"{cell.context_limit} tokens; use models with a longer context, leave the row out, or shorten it "
                    "with --set truncation=middle"
                )


def check_references(cell: Cell) -> None:
    """Raises ConfigError for a reference that the scorer cannot read."""
    scorer = cell.scorer
    for example in cell.data.examples:
        for reference in example.references:
            if scorer is None or reference is None:
                continue
            try:
                scorer.check_reference(reference)
            except ConfigError as error:
                raise ConfigError(f"{cell.data.location}: {cell.subset} example {example.id}: {error}") from error


MAX_NAMED = 5  # subsets that one line names


def load_requested(spec: RunSpec, use_sample: bool, console: Console) -> list[tuple[TaskSpec, str, TaskData]]:
    """Returns the examples of a request, task by task, as `with_present_subsets` restricts it."""
    by_task = (spec.model_copy(update={"tasks": (task,)}) for task in spec.tasks)
    return [cell for each in by_task for cell in load_data(with_present_subsets(each, console), use_sample)]


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
            say(console, f"{absent_subsets_line(task.name, absent, f'{lacking} in {data}')}: they are not measured")
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


def absent_subsets_line(task: str, names: Sequence[str], lacking: str) -> str:
    """Returns the beginning of a line about subsets that have no `lacking`."""
    shown = ", ".join(names[:MAX_NAMED]) + (f" and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else "")
    return f"{task}: {len(names)} subsets have no {lacking} ({shown})"


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
