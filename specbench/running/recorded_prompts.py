"""The prompts and models of a recorded run, loaded again: to score answers that differ, and to show why an answer got
its score.

Records hold a digest of each prompt and not its text, which may be private and as large as all else. The prompts are
rendered again from the task, its data and the target's tokenizer, and are used only if they have the digest.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from typing import Any

from specbench.core.environment import EMBEDDED, set_threads
from specbench.core.errors import ConfigError
from specbench.models.batch_width import BaselineAnswer, near_tie_tolerance
from specbench.models.causal_lm import CausalLM, ids_digest, split_precision
from specbench.models.gguf.files import is_gguf
from specbench.models.gguf.options import ATTENTION, GgufOptions
from specbench.models.loading import load_model, with_width
from specbench.models.near_ties import TokenDifference, find_differences
from specbench.records.records import Key, Record
from specbench.report.shown import ShownPrompt
from specbench.results.answers import BASELINE, with_same_history
from specbench.results.row import Row
from specbench.results.runs import RecordedRun
from specbench.running.prompts import PromptBudget, PromptRenderer, baseline_prompts, prompt_digest, truncate_examples
from specbench.specs.catalogue import as_overridden, load_task, load_tasks
from specbench.specs.components import CacheDtype, EngineName, Quantize
from specbench.specs.task import TaskSpec
from specbench.tasks.examples import Example, load_examples

Group = tuple[str, str]  # task and subset


@dataclass
class ModelLoader:
    """Loads each model of a run once, by name and revision, with the target's dtype and device. `weights`: if False,
    only configurations and tokenizers are read. `gguf`: how GGUF models are loaded, by name. `asked`: the revisions
    that the run was given, by name: a GGUF file's own is a digest, which no hub knows."""

    device: str
    dtype: str
    quantize: Quantize = "none"
    trust_remote_code: bool = False
    weights: bool = True
    engine: EngineName = "eager"
    gguf: Mapping[str, GgufOptions] = field(default_factory=dict)
    asked: Mapping[str, str | None] = field(default_factory=dict)
    _loaded: dict[tuple[str, str | None], CausalLM] = field(default_factory=dict)

    def load(self, name: str, revision: str | None = None) -> CausalLM:
        """Returns a model at a recorded revision. Raises ConfigError if its files have changed since."""
        if (name, revision) not in self._loaded:
            # Beside a GGUF target there may be a drafter of another format.
            engine = "eager" if self.engine == "llama.cpp" and not is_gguf(name) else self.engine
            is_commit = revision is not None and not revision.startswith(("local-", "sha256-"))
            model = load_model(
                name, revision=revision if is_commit else self.asked.get(name), dtype=self.dtype, device=self.device,
                weights=self.weights, quantize=self.quantize if self.weights else "none",
                trust_remote_code=self.trust_remote_code, engine=engine, gguf=self.gguf.get(name),
            )  # fmt: skip
            if revision is not None and model.revision != revision:
                raise ConfigError(
                    f"model '{name}' has changed since the run ({model.revision} now, {revision} then): restore its "
                    "files, or measure again"
                )
            self._loaded[name, revision] = model
        return self._loaded[name, revision]


def gguf_options_of(row: Row) -> dict[str, GgufOptions]:
    """Returns how a row's GGUF models were loaded, by name."""
    cache_dtype: CacheDtype = "float32" if row.attention == ATTENTION["float32"] else "float16"
    given: Mapping[str, Any] = row.request
    tokenizers = {given.get("drafter"): given.get("drafter_tokenizer"), row.target: given.get("tokenizer")}
    return {
        name: GgufOptions(tokenizer, given.get("gpu_layers"), cache_dtype, "run")
        for name, tokenizer in tokenizers.items() if name is not None and is_gguf(name)
    }  # fmt: skip


def asked_revisions(row: Row) -> dict[str, str | None]:
    """Returns the revisions of models that a row's command asked for, by name."""
    given: Mapping[str, Any] = row.request
    return {row.target: given.get("target_revision")} | (
        {} if row.drafter is None else {row.drafter: given.get("drafter_revision")}
    )


@dataclass(frozen=True)
class RecordedPrompt:
    """The prompt of a recorded generation, as text and as the target's tokens."""

    example: Example
    prompt_ids: tuple[int, ...]


def tasks_of(rows: Sequence[Row]) -> dict[str, TaskSpec]:
    """Returns the tasks of rows by name, also those that a command gave as files, with the keys that it changed. Raises
    ConfigError if one no longer exists."""
    by_name: dict[str, TaskSpec] = {}
    for row in rows:
        name = row.task_name
        if name not in by_name:
            named = str(row.request.get("task", "")).split(",")
            special = [each for each in named if each.endswith((".yaml", ".yml")) or each.startswith("lm_eval:")]
            given = {task.name: task for each in special for task in load_tasks(each)}
            found = given[name] if name in given else load_task(name)
            overrides = row.request.get("overrides")
            by_name[name] = as_overridden(found, overrides) if isinstance(overrides, list) else found
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
    tasks = tasks_of(list(rows.values()))
    prompts = {}
    for group, row in rows.items():
        records = [run.records[key] for key in keys.get(group, ())]
        if not records:
            continue
        target.chat_template.args = row.chat if isinstance(row.chat, dict) else {}
        target.chat_template.date = None if row.template_date is None else date.fromisoformat(row.template_date)
        # 1. The lengths to which prompts were shortened, according to the records.
        by_name = {model.name: model for model in (target, *others)}
        lengths = {name: length for record in records for name, length in (record.budgets or {}).items() if length}
        if absent := [name for name in lengths if name not in by_name]:
            raise ConfigError(f"the prompts were shortened to fit '{absent[0]}': give it with --drafter too")
        budgets = [PromptBudget(by_name[name], length) for name, length in lengths.items()]
        # 2. The examples, from the data of the run.
        place = data or (row.data_source if row.data_source != "local" else row.request.get("data"))
        if not isinstance(place, str):
            raise ConfigError(f"{row.task_name}/{row.subset} was measured on {row.data_location}: give its --data")
        loaded = load_examples(
            tasks[group[0]], group[1], data=place, use_sample=False,
            limit=max(record.example for record in records) + 1, num_subsets=sum(name == group[0] for name, _ in rows),
        )  # fmt: skip
        renderer = PromptRenderer("auto" if row.chat else "never", budgets, row.system)
        examples = {(group[1], each.index): each for each in truncate_examples(loaded, target, renderer).examples}
        # 3. The prompts, which must be those that were measured.
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


class Target:
    """The target of a run. It scores outputs that differ."""

    def __init__(self, run: RecordedRun, trust_remote_code: bool) -> None:
        self.run = run
        row = run.rows[0]
        engine: EngineName = "llama.cpp" if row.engine.startswith("llama.cpp") else "eager"
        self.loader = ModelLoader(
            "auto", *split_precision(row.dtype), trust_remote_code=trust_remote_code, engine=engine,
            gguf=gguf_options_of(row), asked=asked_revisions(row),
        )  # fmt: skip

    def differences(
        self, row: Row, keys: Sequence[Key], candidate: Mapping[Key, Record], method: str, max_query_length: int
    ) -> list[TokenDifference]:
        """Returns the first difference of each output of a row. A difference within the measured noise of the target is
        a near-tie. Raises ConfigError if the target or the prompts no longer exist."""
        set_threads(None, row.target.startswith(EMBEDDED))
        target = with_width(self.loader.load(row.target, row.target_revision), row.pass_width)
        place = (row.task_name, row.subset)
        # In a later turn, the prompts of AR and of the method hold their own earlier answers.
        every = [key for key in self.run.records if key[:2] == place]
        numbers = self.run.answers_of_any_language
        pairs = with_same_history(numbers.of(every, method), numbers.of(every, BASELINE))
        same = {answer.key for answer, _ in pairs}
        compared = [key for key in keys if key in same]
        if not compared:
            return []
        budgets = {name for key in compared for name in self.run.records[key].budgets or {}} - {target.name}
        others = [self.loader.load(name) for name in budgets]
        prompts = prompts_of(self.run, {place: row}, {place: compared}, target, others)
        own, new = (
            [records[key].methods[method].token_ids.tolist() for key in compared]
            for records in (self.run.records, candidate)
        )
        answers = [
            BaselineAnswer(str(self.run.records[key].id), list(prompts[key].prompt_ids), ids)
            for key, ids in zip(compared, own, strict=True)
        ]
        tolerance = near_tie_tolerance(target, answers, max_query_length)
        return find_differences(target, answers, new, tolerance)


def rendered_prompts(
    run: RecordedRun, rows: Mapping[Group, Row], records: Sequence[Record], data: str | None = None,
    trust_remote_code: bool = False,
) -> tuple[dict[Key, ShownPrompt], list[str]]:  # fmt: skip
    """Returns the prompts of records as AR read them, and a line for each subset whose data or tokenizer are no longer
    the same. `rows`: one of each subset. `data`: see `prompts_of`."""
    prompts: dict[Key, ShownPrompt] = {}
    problems = []
    for group in dict.fromkeys((record.task, record.subset) for record in records):
        row = rows[group]
        in_group = [record for record in records if (record.task, record.subset) == group]
        loader = ModelLoader(
            "cpu", *split_precision(row.dtype), trust_remote_code=trust_remote_code, weights=False,
            gguf=gguf_options_of(row), asked=asked_revisions(row),
        )  # fmt: skip
        try:
            target = loader.load(row.target, row.target_revision)
            budgets = {name for record in in_group for name in record.budgets or {}} - {target.name}
            keys = {group: [record.key for record in in_group]}
            others = [loader.load(name) for name in budgets]
            for key, prompt in prompts_of(run, rows, keys, target, others, data).items():
                prompts[key] = ShownPrompt.of(target.tokenizer, list(prompt.prompt_ids))
        except ConfigError as error:
            problems.append(f"prompts of {'/'.join(group)} are not shown: {error}")
    return prompts, problems
