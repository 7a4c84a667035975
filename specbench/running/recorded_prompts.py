"""Loads the prompts and models of a recorded run again."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date

from specbench.core.environment import EMBEDDED, set_threads
from specbench.core.errors import ConfigError
from specbench.models.causal_lm import CausalLM, ids_digest, split_precision
from specbench.models.loading import load_model
from specbench.models.near_ties import BaselineAnswer, TokenDifference, find_differences, near_tie_tolerance
from specbench.records.records import Key, Record
from specbench.results.answers import BASELINE, with_same_history
from specbench.results.row import Row
from specbench.results.runs import RecordedRun
from specbench.running.prompts import PromptBudget, PromptRenderer, baseline_prompts, prompt_digest, truncate_examples
from specbench.specs.catalogue import load_task, load_tasks
from specbench.specs.components import Quantize
from specbench.specs.task import TaskSpec
from specbench.tasks.examples import Example, load_examples

Group = tuple[str, str]  # task and subset


@dataclass
class ModelLoader:
    """Loads each model of a run once, by name and revision, with the target's dtype and device. `weights`: if False,
    only configurations and tokenizers are read."""

    device: str
    dtype: str
    quantize: Quantize = "none"
    trust_remote_code: bool = False
    weights: bool = True
    _loaded: dict[tuple[str, str | None], CausalLM] = field(default_factory=dict)

    def load(self, name: str, revision: str | None = None) -> CausalLM:
        """Returns a model at a recorded revision. Raises ConfigError if its files have changed since."""
        if (name, revision) not in self._loaded:
            is_commit = revision is not None and not revision.startswith("local-")
            model = load_model(
                name, revision=revision if is_commit else None, dtype=self.dtype, device=self.device,
                weights=self.weights, quantize=self.quantize if self.weights else "none",
                trust_remote_code=self.trust_remote_code,
            )  # fmt: skip
            if revision is not None and model.revision != revision:
                raise ConfigError(
                    f"model '{name}' has changed since the run ({model.revision} now, {revision} then): restore its "
                    "files, or measure again"
                )
            self._loaded[name, revision] = model
        return self._loaded[name, revision]


@dataclass(frozen=True)
class RecordedPrompt:
    """The prompt of a recorded generation, as text and as the target's tokens."""

    example: Example
    prompt_ids: tuple[int, ...]


def tasks_of(rows: Sequence[Row]) -> dict[str, TaskSpec]:
    """Returns the tasks of rows by name, also those that a command gave as files. Raises ConfigError if one no longer
    exists."""
    by_name: dict[str, TaskSpec] = {}
    for row in rows:
        name = row.task_name
        if name not in by_name:
            named = str(row.request.get("task", "")).split(",")
            special = [each for each in named if each.endswith((".yaml", ".yml")) or each.startswith("lm_eval:")]
            given = {task.name: task for each in special for task in load_tasks(each)}
            by_name[name] = given[name] if name in given else load_task(name)
    return by_name


def prompts_of(
    run: RecordedRun, rows: Mapping[Group, Row], keys: Mapping[Group, Sequence[Key]], target: CausalLM,
    others: Sequence[CausalLM], data: str | None = None,
) -> dict[Key, RecordedPrompt]:  # fmt: skip
    """Returns the prompts of records, made again from tasks and data.

    `rows`, `keys`: AR's row of each measured subset, and the keys of the records, by (task, subset). `others`: further
    models whose contexts may have shortened prompts. `data`: a folder or file of rows that replaces the run's data.

    Raises ConfigError if the data give other prompts than the measured ones.
    """
    tasks, prompts = tasks_of(list(rows.values())), {}
    for group, row in rows.items():
        records = [run.records[key] for key in keys.get(group, ())]
        if not records:
            continue
        target.chat_template.args = row.chat if isinstance(row.chat, dict) else {}
        target.chat_template.date = None if row.template_date is None else date.fromisoformat(row.template_date)
        budgets = _budgets(records, [target, *others])
        num_subsets = sum(other[0] == group[0] for other in rows)
        limit = max(record.example for record in records) + 1
        loaded = load_examples(tasks[group[0]], group[1], data=data or _place(row), use_sample=False, limit=limit,
                               num_subsets=num_subsets)  # fmt: skip
        renderer = PromptRenderer("auto" if row.chat else "never", budgets, row.system)
        examples = {(group[1], each.index): each for each in truncate_examples(loaded, target, renderer).examples}
        ids_of = baseline_prompts(examples, {group[1]: renderer}, run.records, target)
        for key, record in zip(keys[group], records, strict=True):
            example = examples.get((group[1], record.example))
            is_same = example is not None and prompt_digest(example, record.turn) == record.prompt
            ids = ids_of(record) if is_same else []
            if example is None or not is_same or (record.prompt_ids_digest or ids_digest(ids)) != ids_digest(ids):
                raise ConfigError(
                    f"{loaded.location}: {record.task}/{record.subset} example {record.id} was measured with "
                    "a different prompt than the task and its data give now: give the data of the run with --data, or "
                    "measure again"
                )
            prompts[key] = RecordedPrompt(example, tuple(ids))
    return prompts


def _place(row: Row) -> str:
    """Returns the --data with which a row was measured."""
    if row.data_source != "local":
        return row.data_source
    data = row.request.get("data")
    if not isinstance(data, str):
        raise ConfigError(f"{row.task_name}/{row.subset} was measured on {row.data_location}: give its --data")
    return data


def _budgets(records: Sequence[Record], models: Sequence[CausalLM]) -> tuple[PromptBudget, ...]:
    """Returns the lengths to which prompts were shortened, according to the records."""
    by_name = {model.name: model for model in models}
    lengths = {
        name: length for record in records for name, length in (record.budgets or {}).items() if length is not None
    }
    absent = [name for name in lengths if name not in by_name]
    if absent:
        raise ConfigError(f"the prompts were shortened to fit '{absent[0]}': give it with --drafter too")
    return tuple(PromptBudget(by_name[name], length) for name, length in lengths.items())


class Target:
    """The target of a run. It scores outputs that differ."""

    def __init__(self, run: RecordedRun, trust_remote_code: bool) -> None:
        self.run = run
        self.loader = ModelLoader("auto", *split_precision(run.rows[0].dtype), trust_remote_code=trust_remote_code)

    def differences(
        self, row: Row, keys: Sequence[Key], candidate: Mapping[Key, Record], method: str, max_query_length: int
    ) -> list[TokenDifference]:
        """Returns the first difference of each output of a row. A difference within the measured noise of the target is
        a near-tie. Raises ConfigError if the target or the prompts no longer exist."""
        set_threads(None, row.target.startswith(EMBEDDED))
        target = self.loader.load(row.target, row.target_revision)
        # in a later turn, the prompt of AR and of the method holds its own earlier answers
        every = [key for key in self.run.records if key[:2] == (row.task_name, row.subset)]
        own, baseline = (self.run.answers_of_any_language.of(every, name) for name in (method, BASELINE))
        same = {answer.key for answer, _ in with_same_history(own, baseline)}
        records = [self.run.records[key] for key in keys if key in same]
        budgets = {name for record in records for name in record.budgets or {}} - {target.name}
        place, compared = (row.task_name, row.subset), [record.key for record in records]
        others = [self.loader.load(name) for name in budgets]
        prompts = prompts_of(self.run, {place: row}, {place: compared}, target, others)
        answers = [
            BaselineAnswer(
                str(self.run.records[key].id), list(prompts[key].prompt_ids), _ids(self.run.records, key, method)
            )
            for key in compared
        ]
        if not answers:
            return []
        tolerance = near_tie_tolerance(target, answers, max_query_length)
        return find_differences(target, answers, [_ids(candidate, key, method) for key in compared], tolerance)


def _ids(records: Mapping[Key, Record], key: Key, method: str) -> list[int]:
    return records[key].methods[method].token_ids.tolist()
