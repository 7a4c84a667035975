"""lm-eval's generation tasks as tasks of specbench (`--task lm_eval:NAME`), and their index."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal

import yaml
from lm_eval.tasks import TaskManager
from lm_eval.tasks._yaml_loader import load_yaml

from specbench.core.errors import ConfigError
from specbench.core.registry import SCORERS, TASK_SOURCES
from specbench.core.values import text_digest
from specbench.integrations.lm_eval.scorer import LmEvalScorer, LoadedTask, quiet, seeded
from specbench.specs.catalogue import is_path
from specbench.specs.components import build
from specbench.specs.task import GenerationSpec, TaskSpec
from specbench.tasks.examples import Example, FewshotInfo, TaskData

GENERATES = "generate_until"
TaskFile = dict[str, object]  # a task's YAML with its includes, before lm-eval checks it
LOADED_TASKS: dict[tuple[str, str], LoadedTask] = {}  # of this process, by name and config, for scorers and examples


class TaskIndex(TaskManager):  # type: ignore[misc]  # lm-eval has no types
    """lm-eval's index, with one-line errors for tasks that cannot be loaded or run."""

    def load(self, task_list: Any) -> Any:
        """Returns lm-eval's tasks and groups by name. Raises ConfigError that names the task and its problem."""
        requested = task_list if isinstance(task_list, list) else [task_list]
        names = [str(name.get("task", name)) if isinstance(name, dict) else str(name) for name in requested]
        try:
            loaded = super().load(task_list)
        except Exception as error:  # data sets, templates and code of tasks may raise anything
            reason = next((line.strip() for line in str(error).splitlines() if line.strip()), "no reason given")
            more = f" or {len(names) - 3} more" if len(names) > 3 else ""
            raise ConfigError(
                f"lm-eval cannot load task {', '.join(names[:3])}{more}: {type(error).__name__}: {reason[:300]} (for "
                "data of your own, give a YAML that includes the task's and has dataset_path: json, and its folder as "
                "include path)"
            ) from error
        for name, task in loaded["tasks"].items():
            check_output_type(name, task.OUTPUT_TYPE)
            if getattr(task, "MULTIMODAL", False):
                raise ConfigError(
                    f"task {name}: needs images or sound, and specbench gives models only text: choose another"
                )
        return loaded


def check_output_type(name: str, output_type: Any) -> None:
    if output_type != GENERATES:
        raise ConfigError(
            f"task {name}: output_type {output_type} needs log-likelihoods of given texts, so nothing is generated and "
            f"no draft token is verified: choose a task with output_type {GENERATES}, such as gsm8k"
        )


def task_index(
    names: Sequence[str], include: str | Path | None = None, metadata: Mapping[str, object] | None = None
) -> TaskIndex:
    """Returns an index with all `names` (tasks, groups, tags, patterns, paths of YAML files). lm-eval's own tasks are
    read, which takes seconds, only if the folder `include` lacks one of the names.

    Raises ConfigError for an unknown name, with the nearest one, and for a missing folder.
    """
    if include is not None and not Path(include).is_dir():
        raise ConfigError(f"lm-eval include path {include}: no such folder: give one with YAML files of tasks")
    for name in names:
        if is_path(name) and not Path(name).exists():
            raise ConfigError(f"lm-eval task {name}: no such file: give the path of a YAML file, or a task's name")
    folder = None if include is None else str(include)
    index = TaskIndex(include_path=folder, include_defaults=False, metadata=dict(metadata or {}))
    if any(config is None for name in names for _, config in configs(index, name)):
        for path in sorted(Path(folder).glob("**/*.yaml")) if folder is not None else []:
            # lm-eval skips unreadable files silently, although they may define a missing name.
            if any(name in path.stem or name in path.read_text("utf-8", "replace") for name in names):
                read_task_file(path)
        index = TaskIndex(include_path=folder, metadata=dict(metadata or {}))
    for name in names:
        for leaf, config in configs(index, name):
            if config is None:
                close = get_close_matches(leaf, index.all_tasks, n=3, cutoff=0.5)
                hint = f"did you mean {' or '.join(map(repr, close))}? " if close else ""
                raise ConfigError(f"unknown lm-eval task '{leaf}': {hint}`specbench lm-eval ls tasks` lists them all")
            if "class" not in config:
                check_output_type(leaf, config.get("output_type", GENERATES))
    return index


def configs(index: TaskIndex, name: str, config: TaskFile | None = None) -> Iterator[tuple[str, TaskFile | None]]:
    """Yields the tasks of a name, a pattern, a path, or of the content of a file, which may be a group with complete
    tasks inline: each with the content of its file, None for an unknown one."""
    if config is not None:
        members = config.get("task") if "group" in config else None
        if not isinstance(members, list):
            yield name, config
            return
        for member in members:
            called = member if isinstance(member, str) else member.get("group", member.get("task"))
            is_inline = isinstance(member, dict) and called not in index.task_index and len(member) > 1
            yield from configs(index, str(called), member if is_inline else None)
    elif is_path(name):
        for path in [Path(name)] if Path(name).is_file() else sorted(Path(name).glob("*.yaml")):
            yield from configs(index, name, read_task_file(path))
    elif not (matches := [name] if name in index.task_index else index.match_tasks([name])):
        yield name, None
    else:
        for entry in map(index.task_index.__getitem__, matches):
            for member in sorted(entry.tags) if entry.cfg is None else ():  # a tag
                yield from configs(index, member)
            if entry.cfg is not None:
                yield from configs(index, entry.name, entry.cfg)


def read_task_file(path: Path) -> TaskFile:
    """Returns a task's YAML with its includes. Raises ConfigError with the file and the line."""
    try:
        config: TaskFile = load_yaml(path, resolve_func=False)
    except (yaml.YAMLError, ValueError, OSError) as error:
        raise ConfigError(f"{path}: lm-eval cannot read this task: {error}: correct the file") from error
    return config


PLACE = "generation_kwargs."
LIMITS = ("max_gen_toks", "max_new_tokens", "max_tokens", "max_completion_tokens")  # the first that is given applies
KNOWN = (*LIMITS, "until", "do_sample", "temperature", "top_k", "top_p")
WITHOUT_EFFECT: dict[str, tuple[Any, ...]] = {
    "num_beams": (1,), "num_return_sequences": (1,), "repetition_penalty": (1,), "presence_penalty": (0,),
    "frequency_penalty": (0,), "length_penalty": (1,), "min_p": (0,), "typical_p": (1,), "use_cache": (True, False),
}  # fmt: skip
MAX_GEN_TOKS = 256  # the default of lm-eval's own models


def generation_spec(gen_kwargs: Mapping[str, object], max_gen_toks: int = MAX_GEN_TOKS) -> GenerationSpec:
    """Returns the generation settings of lm-eval's keywords. As in lm-eval, `do_sample: false` is greedy at any
    temperature; otherwise a temperature above 0 samples, and `do_sample: true` alone samples at temperature 1.

    Raises ConfigError for an unsupported option: options that change the decoding are never ignored.
    """
    given = {key: value for key, value in gen_kwargs.items() if value is not None}
    for key, value in given.items():
        if key not in KNOWN and value not in WITHOUT_EFFECT.get(key, ()):
            raise ConfigError(f"{PLACE}{key} = {value!r}: specbench knows {', '.join(KNOWN)}: leave the option out")
    until: Any = given.get("until", [])
    limits = [given[key] for key in LIMITS if key in given]
    top_k, do_sample = given.get("top_k"), given.get("do_sample")
    temperature = given.get("temperature", 1.0 if do_sample else 0.0)
    data = {
        "max_new_tokens": limits[0] if limits else max_gen_toks,
        "stop": tuple(text for text in ([until] if isinstance(until, str) else until) if text),
        "temperature": 0.0 if do_sample is False else temperature,
        "top_k": None if top_k in (0, -1) else top_k,
        "top_p": given.get("top_p"),
    }
    return build(GenerationSpec, data, prefix=PLACE)


PREFIX = "lm_eval:"
NOT_IN_A_NAME = re.compile(r"[^A-Za-z0-9_.-]+")
LOCAL_FORMATS = ("json", "csv", "parquet", "text", "arrow")


@TASK_SOURCES.register("lm_eval")
def load_tasks(name: str, include: str | Path | None = None) -> list[TaskSpec]:
    """Returns lm-eval's tasks of a name, with loaded data. `name`: a task, a path of a YAML file, or a group, tag or
    pattern, which gives all its tasks; "lm_eval:" may precede it. `include`: a folder with a user's own YAML files.

    Raises ConfigError for an unknown name, a task that needs log-likelihoods, and data that cannot be loaded.
    """
    wanted = name.removeprefix(PREFIX)
    if not wanted:
        raise ConfigError(f"--task {PREFIX}: name a task of lm-eval, such as {PREFIX}gsm8k")
    with quiet(), seeded():
        index = task_index([wanted], include)
        matched = index.load([wanted] if is_path(wanted) else index.match_tasks([wanted]))
    for task_name, task in matched["tasks"].items():
        if getattr(task, "UNSAFE_CODE", False):
            raise ConfigError(
                f"task {PREFIX}{task_name}: runs the code of answers without a sandbox: use the task humaneval"
            )
        if (repeats := task.get_config("repeats") or 1) > 1:
            raise ConfigError(
                f"task {PREFIX}{task_name}: scores {repeats} answers of each document together, but specbench scores "
                "each alone: choose a task with repeats: 1"
            )
        if task.get_config("num_fewshot") is None:
            task.set_config(key="num_fewshot", value=0)
    loaded = [LoadedTask(task_name, task) for task_name, task in matched["tasks"].items()]
    LOADED_TASKS.update({(each.name, each.config): each for each in loaded})
    return [spec_of(each) for each in loaded]


def spec_of(loaded: LoadedTask) -> TaskSpec:
    """Returns the task's specification. Its examples contain the prompts, which lm-eval renders."""
    try:
        generation = generation_spec(loaded.task.get_config("generation_kwargs") or {})
    except ConfigError as error:
        raise ConfigError(f"{PREFIX}{loaded.name}: {error}") from error
    try:
        version = max(1, int(float(loaded.task.VERSION)))
    except (TypeError, ValueError):  # some versions are words
        version = 1
    data = {
        "name": "lm_eval." + NOT_IN_A_NAME.sub("-", loaded.name),
        "version": version,
        "title": f"{loaded.name} of lm-eval",
        "prompt": "{{ row.prompt }}",
        "reference": "{{ row.target }}",
        "generation": generation.model_dump(),
        "scorer": {"type": "lm_eval", "task": loaded.name, "config": loaded.config},
    }
    return build(TaskSpec, data, prefix=f"{PREFIX}{loaded.name}: ")


def find_loaded(name: str, config: str) -> LoadedTask:
    """Returns the loaded task with these scorer options. Raises ConfigError if it is not loaded."""
    if (name, config) not in LOADED_TASKS:
        raise ConfigError(f"scorer.task = {name!r}: not loaded: give the task as --task lm_eval:{name}")
    return LOADED_TASKS[name, config]


def examples(*, task: str, config: str, data: str | None, limit: int | None) -> TaskData:
    """Returns the documents of a loaded task with lm-eval's prompts. As the scorer's `examples`, they replace rows.

    `task`, `config`: the scorer's options. Raises ConfigError for `data`, which such a task does not take.
    """
    if data not in (None, "hub"):
        raise ConfigError(
            f"--data {data}: task {PREFIX}{task} has its own rows: remove --data; for other rows, write a YAML that "
            "includes the task's, with dataset_path: json"
        )
    loaded = find_loaded(task, config)
    # 1. Where the rows are.
    options = loaded.task.config
    name = f"task {PREFIX}{task}"
    split = options.test_split or options.validation_split
    source: Literal["hub", "local"] = "hub"
    place = "/".join(str(part) for part in (options.dataset_path, options.dataset_name) if part) or task
    if options.dataset_path in LOCAL_FORMATS:
        kwargs = options.dataset_kwargs or {}
        files = kwargs.get("data_files", kwargs.get("data_dir", ""))
        source = "local"
        place = str(files.get(split, files) if isinstance(files, dict) else files)
    # 2. The documents. None may be among its own few-shot examples, which lm-eval draws for each.
    documents, are_checked = [], True
    for number, instance in enumerate(loaded.instances(limit)):
        prompt = instance.args[0]
        target = loaded.task.doc_to_target(instance.doc)
        question = loaded.task.doc_to_text(instance.doc)
        if not isinstance(prompt, str) or instance.idx != 0:
            raise ConfigError(f"{name}: document {instance.doc_id} has several requests: choose another")
        is_text = isinstance(question, str) and bool(question.strip())
        are_checked &= is_text
        if is_text and options.num_fewshot:
            before = prompt.rpartition(question)[0]
            begin = re.escape(options.fewshot_delimiter)
            if re.search(rf"(?:\A|\n|{begin}){re.escape(question + options.target_delimiter)}", before):
                raise ConfigError(
                    f"{name}: document {instance.doc_id} is one of the few-shot examples before its prompt: write a "
                    "YAML that includes the task's, with another fewshot_split or num_fewshot: 0"
                )
        reference = {"doc": str(instance.doc_id), "target": target if isinstance(target, str) else repr(target)}
        documents.append(Example(number, str(instance.doc_id), (prompt,), (reference,)))
    # 3. Their few-shot examples.
    shots = FewshotInfo()
    if options.num_fewshot:
        drawn_from = options.fewshot_split or options.training_split or split
        digest = text_digest("\0".join(each.prompt for each in documents))
        location = f"{place} {drawn_from}" if drawn_from else place
        shots = FewshotInfo(options.num_fewshot, source, location, digest, are_checked)
    text = json.dumps([[each.prompt, each.reference] for each in documents])
    return TaskData(source, place, text_digest(text), tuple(documents), shots)


@SCORERS.register("lm_eval", examples=examples)
def lm_eval(*, task: str, config: str) -> LmEvalScorer:
    """The filters and metrics of an lm-eval task that --task lm_eval:NAME has loaded."""
    return LmEvalScorer(find_loaded(task, config))
