"""The texts whose positions all drafters are compared on: what the target wrote in a run, or the data's references."""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

from specbench.analysis.fairness_runs import Common, task_name
from specbench.core.errors import ConfigError
from specbench.models.causal_lm import CausalLM
from specbench.results.row import Row
from specbench.running.blocks import prompt_digest
from specbench.running.prompts import Budget, record_prompts, truncated
from specbench.running.records import Key, Record
from specbench.specs.catalogue import load_task, load_tasks
from specbench.specs.task import TaskSpec
from specbench.tasks.examples import Example, TaskData, load_examples
from specbench.training.passes import Sample


@dataclass(frozen=True)
class RecordedPrompt:
    """A recorded generation: what it was asked, as text and as the target's tokens."""

    example: Example
    prompt_ids: tuple[int, ...]


def tasks_of(rows: Sequence[Row]) -> dict[str, TaskSpec]:
    """The tasks of rows by name, as their command named them: a user's file too. Raises ConfigError where one is not
    there any more."""
    found: dict[str, TaskSpec] = {}
    for row in rows:
        name = task_name(row)
        if name not in found:
            asked = (option_of(row.command, "--task") or "").split(",")
            special = [each for each in asked if each.endswith((".yaml", ".yml")) or each.startswith("lm_eval:")]
            known = {task.name: task for each in special for task in load_tasks(each)}
            found[name] = known[name] if name in known else load_task(name)
    return found


def option_of(command: str, option: str) -> str | None:
    """The value that a recorded command line gives an option; None where it does not."""
    words = shlex.split(command)
    for word, following in zip(words, [*words[1:], None], strict=True):
        if word == option:
            return following
        if word.startswith(f"{option}="):
            return word.partition("=")[2]
    return None


def prompts_of(
    common: Common, tasks: Mapping[str, TaskSpec], target: CausalLM, others: Sequence[CausalLM], data: str | None
) -> dict[Key, RecordedPrompt]:
    """What every common record was asked. `others`: the models whose contexts may have shortened prompts; `data`: a
    folder or file of rows in the place of the run's own.

    Raises ConfigError where the data give other prompts than were measured.
    """
    asked: dict[Key, RecordedPrompt] = {}
    for place, row in common.groups.items():
        records = [common.runs[0].records[key] for key in common.keys[place]]
        chat = "auto" if row.chat else "never"
        budgets = _budgets(records, [target, *others])
        num_subsets = sum(other[0] == place[0] for other in common.groups)
        limit = max(record["example"] for record in records) + 1
        loaded = load_examples(tasks[place[0]], place[1], data=data or _place(row), use_sample=False, limit=limit,
                               num_subsets=num_subsets)  # fmt: skip
        examples = {(place[1], each.index): each for each in truncated(loaded, target, budgets, chat).examples}
        every = [record for record in common.runs[0].records.values() if (record["task"], record["subset"]) == place]
        ids_of = record_prompts(examples, {place[1]: budgets}, every, target, chat)
        for key, record in zip(common.keys[place], records, strict=True):
            example = examples.get((place[1], record["example"]))
            _check(record, example, loaded)
            assert example is not None
            asked[key] = RecordedPrompt(example, tuple(ids_of(record)))
    return asked


def _place(row: Row) -> str:
    """The --data with which a row was measured."""
    if row.data_source != "local":
        return row.data_source
    found = option_of(row.command, "--data")
    if found is None:
        raise ConfigError(f"{task_name(row)}/{row.subset} was measured on {row.data_location}: give its --data")
    return found


def _budgets(records: Sequence[Record], models: Sequence[CausalLM]) -> tuple[Budget, ...]:
    """The lengths to which the prompts were shortened, as the records hold them; none where they were not."""
    by_name = {model.name: model for model in models}
    lengths = {name: length for record in records for name, length in record.get("budgets", {}).items()}
    absent = [name for name in lengths if name not in by_name]
    if absent:
        raise ConfigError(f"the prompts were shortened to fit '{absent[0]}': give it with --drafter too")
    return tuple(Budget(by_name[name], length) for name, length in lengths.items())


def _check(record: Record, example: Example | None, loaded: TaskData) -> None:
    if example is None or prompt_digest(example, record.get("turn", 0)) != record["prompt"]:
        raise ConfigError(
            f"{loaded.location}: {record['task']}/{record['subset']} example {record['id']} was measured with another "
            "prompt than the task and its data give now: give the data of the run with --data, or measure again"
        )


Reference = Literal["continuation", "data"]
REFERENCES: tuple[str, ...] = get_args(Reference)


def texts_of(
    common: Common,
    asked: Mapping[Key, RecordedPrompt],
    target: CausalLM,
    reference: Reference,
    context_limit: int | None,
) -> dict[Key, Sample]:
    """The text of every common record, its prompt given: AR's own tokens in the first run, or the reference of the row,
    each up to `context_limit` tokens with its prompt. Texts without a position are left out.

    Raises ConfigError where a group has no position, or no reference text.
    """
    texts: dict[Key, Sample] = {}
    for (task, subset), keys in common.keys.items():
        made = {}
        for key in keys:
            record = common.runs[0].records[key]
            new_ids = (
                tuple(record["methods"]["ar"]["token_ids"])
                if reference == "continuation" else reference_ids(record, asked[key], target)
            )  # fmt: skip
            prompt_ids = asked[key].prompt_ids
            made[key] = within(Sample(subset, (*prompt_ids, *new_ids), len(prompt_ids)), context_limit)
        found = {key: text for key, text in made.items() if text.num_learnt}
        if not found:
            raise ConfigError(
                f"{task}/{subset}: no text has a position within the shortest context ({context_limit} tokens): leave "
                "the subset out with --subset, or compare models with a longer context"
            )
        texts |= found
    return texts


def within(text: Sample, context_limit: int | None) -> Sample:
    """The text without the tokens whose positions a model with this context cannot see."""
    if context_limit is None:
        return text
    return replace(text, ids=text.ids[: max(text.num_given, context_limit + 1)])


def reference_ids(record: Record, asked: RecordedPrompt, target: CausalLM) -> tuple[int, ...]:
    """The target's tokens of the data's answer (of several the first), with a space between it and a prompt that does
    not end in one. Raises ConfigError where there is no text."""
    turn = record.get("turn", 0)
    found = asked.example.references[turn]
    answer = found[0] if isinstance(found, list | tuple) and found else found
    if not isinstance(answer, str | int | float) or not str(answer).strip():
        raise ConfigError(
            f"--reference data: {record['task']}/{record['subset']} example {record['id']} has no reference text: use "
            "--reference continuation"
        )
    before = asked.example.turns[turn]
    space = "" if before[-1:].isspace() else " "
    ids: list[int] = target.tokenizer(f"{space}{answer}", add_special_tokens=False)["input_ids"]
    return tuple(ids)
