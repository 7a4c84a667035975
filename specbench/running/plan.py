"""The plan of a run: cells of (task, subset), whose prompts are tokenized and checked before anything is measured."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

from rich.console import Console

from specbench.core.console import say
from specbench.core.errors import ConfigError
from specbench.decoding.decoder import Decoder, drafting_decoders
from specbench.decoding.sampling import Sampling
from specbench.models.text_model import TextModel
from specbench.running.compose import compose, sampling_of
from specbench.running.models import Models
from specbench.running.prompts import PromptBudget, prompt_digest, prompt_ids, truncated, uses_chat
from specbench.specs.method import MethodSpec
from specbench.specs.run import RunSpec
from specbench.specs.task import TaskSpec
from specbench.tasks.examples import TaskData, load_examples
from specbench.tasks.scoring.contract import Scorer, make_scorer
from specbench.tasks.sources import NoRows, find_subset_files, subsets_with_files

Loaded = Sequence[tuple[TaskSpec, str, TaskData]]


@dataclass(frozen=True)
class Cell:
    """One subset of one task, with its data and every method composed for it; `decoders[0]` is AR. `budgets`: the
    lengths to which prompts and conversations are shortened. `most_tokens`: of its longest conversation, by the id of a
    model with recorded or compiled passes; empty until it is first measured."""

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
    """Returns the examples of every chosen subset of every task. Needs no model, so bad input is reported early."""
    cells = spec.cells()
    num_subsets = Counter(task.name for task, _ in cells)
    return [
        (
            task,
            subset,
            load_examples(
                task,
                subset,
                data=spec.data,
                use_sample=use_sample,
                limit=spec.limit,
                num_subsets=num_subsets[task.name],
            ),
        )
        for task, subset in cells
    ]


def check_memory(decoders: Sequence[Decoder], repeats: int) -> None:
    """Raises ConfigError for repeats with a drafter that learns from prompt to prompt: it would know the answers."""
    for decoder in drafting_decoders(decoders):
        if decoder.drafter.learns_over_prompts and repeats > 1:
            raise ConfigError(
                f"--repeats {repeats}: the drafter of method '{decoder.method.name}' keeps state across prompts, so "
                "repeats would be drafted from memory: give --repeats 1, or --set drafter.memory=prompt"
            )


def make_cells(spec: RunSpec, models: Models, loaded: Loaded) -> list[Cell]:
    """Composes the methods, once per sampling setting, and checks that every prompt fits all models."""
    cells = []
    composed: dict[Sampling, tuple[Decoder, ...]] = {}
    for task, subset, data in loaded:
        merged = where_asked(task.subset(subset), models.target, spec.chat)
        sampling = sampling_of(merged.generation)
        if sampling not in composed:
            composed[sampling] = tuple(compose(method, models.pair(method), sampling) for method in spec.methods)
            check_memory(composed[sampling], spec.repeats)
        budgets = models.budgets(spec.methods, merged.generation.max_new_tokens)
        if merged.truncation is not None:
            data = truncated(data, models.target, budgets, spec.chat)
        cells.append(
            Cell(merged, subset, data, models, composed[sampling], models.context_limit(spec.methods), budgets)
        )
    for cell in cells:
        check_prompts(cell, spec.chat)
        check_references(cell)
    return cells


def where_asked(task: TaskSpec, target: TextModel, chat: str) -> TaskSpec:
    """Returns a task that is merged with its subset, with the stop strings that apply to the target's prompts (with or
    without chat template). All methods use these."""
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


NAMED = 5  # maximum number of subsets named in a line


def load_asked(spec: RunSpec, use_sample: bool, console: Console) -> list[tuple[TaskSpec, str, TaskData]]:
    """Returns the examples of a request: for each task those of the subsets that are `present`."""
    alone = (spec.model_copy(update={"tasks": (task,)}) for task in spec.tasks)
    return [cell for each in alone for cell in load_data(present(each, console), use_sample)]


def present(spec: RunSpec, console: Console) -> RunSpec:
    """Returns the specification of one task; if no subset was named, it is restricted to the subsets that have data."""
    if spec.subsets is not None:
        return spec
    return spec.model_copy(update={"subsets": with_files(spec.tasks[0], spec.data, console)})


def with_files(task: TaskSpec, data: str | None, console: Console) -> tuple[str, ...] | None:
    """Returns the subsets that have rows in a user's own files, and prints lines about the others.

    Returns None, which means all subsets, if the data are not local files, if all subsets have rows, or if none has:
    loading then reports the files it looked for.
    """
    if data in (None, "hub", "sample") or not task.subsets:
        return None
    filed = subsets_with_files(task, Path(data))
    shared = sharing(task, filed, Path(data))
    found = [name for name in filed if name not in shared or has_rows(task, name, data, len(filed))]
    if not found or len(found) == len(task.subset_names):
        return None
    for lacking, names in (("file", set(task.subset_names) - set(filed)), ("rows", set(filed) - set(found))):
        absent = [name for name in task.subset_names if name in names]
        if absent:
            say(console, f"{without(task.name, absent, f'{lacking} in {data}')}: they are not measured")
    return tuple(found)


def sharing(task: TaskSpec, names: Sequence[str], data: Path) -> set[str]:
    """Returns the subsets that share a file with another subset. Rows of a subset with its own files need no search: if
    there are none, loading reports it."""
    files = {name: set(find_subset_files(task, name, data).paths) for name in names}
    num_subsets = Counter(path for paths in files.values() for path in paths)
    return {name for name, paths in files.items() if any(num_subsets[path] > 1 for path in paths)}


def has_rows(task: TaskSpec, subset: str, data: str, num_subsets: int) -> bool:
    """Returns whether files shared by several subsets have rows of this subset. Other problems of the files are
    reported later."""
    try:
        load_examples(task, subset, data=data, use_sample=False, limit=1, num_subsets=num_subsets)
    except NoRows:
        return False
    except ConfigError:
        return True
    return True


def without(task: str, names: Sequence[str], lacking: str) -> str:
    """Returns the beginning of a line about subsets that are left out."""
    shown = ", ".join(names[:NAMED]) + (f" and {len(names) - NAMED} more" if len(names) > NAMED else "")
    return f"{task}: {len(names)} subsets have no {lacking} ({shown})"


def without_calibration(loaded: Loaded, methods: Sequence[MethodSpec]) -> Loaded:
    """Returns the examples that none of the methods was tuned on. Raises ConfigError if a subset has no others."""
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
