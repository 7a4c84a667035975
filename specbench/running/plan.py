"""What a run will measure: cells of (task, subset) with their prompts, tokenized and checked before anything runs."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from specbench.data.examples import Example, TaskData, load_examples
from specbench.errors import ConfigError
from specbench.models.causal_lm import CausalLM
from specbench.registry import SCORERS
from specbench.running.compose import Decoder, compose, sampling_of
from specbench.running.models import Models
from specbench.specs import RunSpec, TaskSpec

Scorer = Callable[[str, str], float]


@dataclass(frozen=True)
class Cell:
    """One subset of one task, with its data and every method composed for it; `decoders[0]` is AR."""

    task: TaskSpec
    subset: str
    data: TaskData
    decoders: tuple[Decoder, ...]
    context_limit: int | None


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
    """Compose the methods for every cell and check that every prompt fits both models."""
    cells = []
    for task, subset, data in loaded:
        merged = task.subset(subset)
        sampling = sampling_of(merged.generation)
        decoders = tuple(compose(method, models.pair(method), sampling) for method in spec.methods)
        cells.append(Cell(merged, subset, data, decoders, models.context_limit(spec.methods)))
    for cell in cells:
        check_prompts(cell, spec.chat)
        check_references(cell)
    return cells


def check_prompts(cell: Cell, chat: str) -> None:
    """Every prompt must hold a token and leave room for at least one more."""
    decoders = [part for decoder in cell.decoders for part in decoder.parts]
    for model in {id(decoder.model): decoder.model for decoder in decoders}.values():
        for example in cell.data.examples:
            ids = prompt_ids(model, example, chat)
            num_tokens = len(ids)
            where = f"{cell.data.location}: {cell.task.name}/{cell.subset} example {example.id}"
            if max(ids, default=0) >= model.vocab_size:
                raise ConfigError(
                    f"{where}: the tokenizer of model '{model.name}' makes token {max(ids)}, but the model has only "
                    f"{model.vocab_size}; give the tokenizer that belongs to the model"
                )
            if num_tokens == 0:
                raise ConfigError(f"{where}: the prompt is empty after tokenization; remove the row")
            if cell.context_limit is not None and num_tokens >= cell.context_limit:
                raise ConfigError(
                    f"{where}: the prompt has {num_tokens} tokens, but the context of the models is "
                    f"{cell.context_limit} tokens; use models with a longer context or leave the row out"
                )


def scorer(cell: Cell) -> Scorer | None:
    """The task's scorer, or None for a task that has none."""
    if cell.task.scorer is None:
        return None
    made: Scorer = SCORERS.get(cell.task.scorer.type)(**cell.task.scorer.options)
    return made


def check_references(cell: Cell) -> None:
    """Every reference must be one that the scorer can read: it says so itself."""
    score = scorer(cell)
    for example in cell.data.examples:
        if score is not None and example.reference is not None:
            try:
                score("", example.reference)
            except ConfigError as error:
                raise ConfigError(f"{cell.data.location}: {cell.subset} example {example.id}: {error}") from error


def prompt_ids(model: CausalLM, example: Example, chat: str) -> list[int]:
    return model.encode_prompt(example.prompt, uses_chat(model, chat))


def uses_chat(model: CausalLM, chat: str) -> bool:
    """Whether prompts go through the chat template. Raises ConfigError for `always` without a template."""
    has_template = getattr(model.tokenizer, "chat_template", None) is not None
    if chat == "always" and not has_template:
        raise ConfigError(f"--chat always: model '{model.name}' has no chat template; use --chat auto or never")
    return has_template and chat != "never"
