"""What a run will measure: cells of (task, subset) with their prompts, tokenized and checked before anything runs."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from specbench.data.examples import TaskData, load_examples
from specbench.decoding.sampling import Sampling
from specbench.errors import ConfigError
from specbench.models.causal_lm import CausalLM
from specbench.running.compose import Decoder, compose, sampling_of
from specbench.running.models import Models
from specbench.running.prompts import Budget, prompt_ids, truncated
from specbench.running.prompts import uses_chat as uses_chat
from specbench.scoring.contract import Scorer
from specbench.scoring.of_task import make_scorer
from specbench.specs import RunSpec, TaskSpec


@dataclass(frozen=True)
class Cell:
    """One subset of one task, with its data and every method composed for it; `decoders[0]` is AR. `budgets`: the
    lengths to which prompts and conversations are shortened."""

    task: TaskSpec
    subset: str
    data: TaskData
    models: Models
    decoders: tuple[Decoder, ...]
    context_limit: int | None
    budgets: tuple[Budget, ...] = ()

    @cached_property
    def scorer(self) -> Scorer | None:
        """The task's scorer, made once, or None for a task that has none."""
        return make_scorer(self.task)


def load_data(spec: RunSpec, use_sample: bool) -> list[tuple[TaskSpec, str, TaskData]]:
    """The examples of every chosen subset of every task; needs no model, so that bad input is reported at once."""
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


def make_cells(spec: RunSpec, models: Models, loaded: Sequence[tuple[TaskSpec, str, TaskData]]) -> list[Cell]:
    """Compose the methods, once for each way of sampling, and check that every prompt fits both models."""
    cells = []
    composed: dict[Sampling, tuple[Decoder, ...]] = {}
    for task, subset, data in loaded:
        merged = where_asked(task.subset(subset), models.target, spec.chat)
        sampling = sampling_of(merged.generation)
        if sampling not in composed:
            composed[sampling] = tuple(compose(method, models.pair(method), sampling) for method in spec.methods)
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


def where_asked(task: TaskSpec, target: CausalLM, chat: str) -> TaskSpec:
    """The task, merged with its subset, with the stop strings that hold for the target's prompts, for all methods."""
    return task.model_copy(update={"generation": task.generation.where(uses_chat(target, chat))})


def check_prompts(cell: Cell, chat: str) -> None:
    """Every prompt must hold a token and leave room for at least one more."""
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
    """Every reference must be one that the scorer can read: it says so itself, by `check_reference` where judging an
    answer costs something, else by judging an empty one."""
    scorer = cell.scorer
    for example in cell.data.examples:
        for reference in example.references:
            if scorer is None or reference is None:
                continue
            try:
                if hasattr(scorer, "check_reference"):
                    scorer.check_reference(reference)
                else:
                    scorer("", reference)
            except ConfigError as error:
                raise ConfigError(f"{cell.data.location}: {cell.subset} example {example.id}: {error}") from error
