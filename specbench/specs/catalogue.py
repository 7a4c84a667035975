"""Tasks and methods by name or path, with the overrides of the command line, and the digests of their meaning."""

import copy
import json
import math
import os
import weakref
from collections.abc import Iterable, Mapping, Sequence
from functools import cache, lru_cache
from importlib.metadata import entry_points
from itertools import chain
from pathlib import Path, PurePath
from typing import Any, TypeVar

from specbench.core import dotted
from specbench.core.environment import builtin_dir
from specbench.core.errors import ConfigError, import_problem, nearest
from specbench.core.reasoning import TAGS
from specbench.core.registry import DRAFTERS, RULES, SCORERS, TASK_SOURCES, Registry
from specbench.core.values import text_digest
from specbench.specs import yaml_files
from specbench.specs.components import build, is_file_entry
from specbench.specs.method import MethodSpec
from specbench.specs.task import TaskSpec

AnySpec = TypeVar("AnySpec", TaskSpec, MethodSpec)


def task_names() -> list[str]:
    return sorted(_files("tasks"))


def builtin_task_names() -> list[str]:
    return sorted(path.stem for path in builtin_dir("tasks").glob("*.yaml"))


def method_names() -> list[str]:
    return sorted(_files("methods"))


def load_task(name_or_path: str) -> TaskSpec:
    """Returns a task by name or by the path of its YAML file. Raises ConfigError with the file and the problem."""
    return _load("task", TaskSpec, name_or_path)


def load_tasks(name_or_path: str, lm_eval_include: Path | None = None) -> list[TaskSpec]:
    """Returns the task of a name or path; for `lm_eval:NAME`, lm-eval's task or all tasks of a group."""
    if name_or_path.startswith("lm_eval:"):
        loaded: list[TaskSpec] = TASK_SOURCES.get("lm_eval")(name_or_path, lm_eval_include)
        return loaded
    return [load_task(name_or_path)]


def load_method(name_or_path: str) -> MethodSpec:
    """Returns a method by name or by the path of its YAML file. Raises ConfigError with the file and the problem."""
    return _load("method", MethodSpec, name_or_path)


def _load(kind: str, model: type[AnySpec], name_or_path: str) -> AnySpec:
    path = _find(f"{kind}s", name_or_path)
    spec = load_file(path)
    if not isinstance(spec, model):
        other = "method" if kind == "task" else "task"
        raise ConfigError(f"{path}: holds a {other}, not a {kind}: give it with --{other}")
    if not is_path(name_or_path) and spec.name != name_or_path:
        raise ConfigError(f"{path}: name = {spec.name!r}: must be the name of the file, '{name_or_path}'")
    return spec


def method_keys(name: str) -> dict[str, object]:
    """Returns the unchecked keys of a known method's file. Checking them would import torch, which takes seconds."""
    return yaml_files.read(_find("methods", name))


def method_families() -> dict[str, list[str]]:
    """Returns the names of the methods by family, the largest family first."""
    families: dict[str, list[str]] = {}
    for name in method_names():
        families.setdefault(family(method_keys(name)), []).append(name)
    return dict(sorted(families.items(), key=lambda item: -len(item[1])))


def family(method: Mapping[str, Any]) -> str:
    """Returns where the drafts of a method come from, and what else sets it apart, by the keys of its file."""
    if "decoder" in method:
        return "an external decoder's"
    if "routes" in method:
        return "one for each language"
    drafter, rule = (method.get(key) for key in ("drafter", "verification"))
    name = str(drafter.get("type")) if isinstance(drafter, dict) else "unknown"
    source = _feature(DRAFTERS, name, "family") or name
    other = " of another vocabulary" * (method.get("bridge", "shared") != "shared")
    is_lossy = isinstance(rule, dict) and _feature(RULES, str(rule.get("rule")), "lossless") is False
    return f"{source}{other}{', varying lengths' * ('draft_length' in method)}{', lossy rule' * is_lossy}"


def _feature(registry: Registry[..., Any], name: str, feature: str) -> Any:
    """Returns what a component declares; None if it is unknown or its plug-in is broken."""
    try:
        return getattr(registry.features(name), feature)
    except ConfigError:
        return None


def load_file(path: str | Path) -> TaskSpec | MethodSpec:
    """Returns the task or method in a YAML file, as its keys decide. Its paths are relative to the file's folder."""
    path = Path(path)
    return _load_text(yaml_files.read_text(path), str(path), path.resolve().parent).model_copy(deep=True)


@lru_cache(maxsize=256)  # a run loads each of its files about seven times, and a copy takes a seventh of the time
def _load_text(text: str, place: str, folder: Path) -> TaskSpec | MethodSpec:
    data = yaml_files.parse_mapping(text, place)
    prefix = f"{place}: "
    if {"verification", "drafter", "decoder"} & data.keys():
        entry = data["decoder"].get("entry") if isinstance(data.get("decoder"), dict) else None
        if isinstance(entry, str) and is_file_entry(entry):
            data["decoder"] = {**data["decoder"], "entry": str(folder / entry)}
        return build(MethodSpec, data, prefix)
    if "prompt" not in data and "generation" not in data:
        if {"format", "rows"} == data.keys():
            raise ConfigError(f"{prefix}this is a leaderboard file: `specbench leaderboard validate` checks it")
        raise ConfigError(f"{prefix}neither a task (key `prompt`) nor a method (key `verification`): add the key")
    return build(TaskSpec, _with_samples(data, folder), prefix)


def _with_samples(data: Mapping[str, object], folder: Path) -> dict[str, object]:
    """Returns the keys of a task or subset with absolute paths of samples."""
    made = dict(data)
    if isinstance(sample := data.get("sample"), str):
        made["sample"] = str(folder / sample)
    if isinstance(fewshot := data.get("fewshot"), dict):
        made["fewshot"] = _with_samples(fewshot, folder)
    if isinstance(subsets := data.get("subsets"), dict):
        made["subsets"] = {
            name: _with_samples(over, folder) if isinstance(over, dict) else over for name, over in subsets.items()
        }
    return made


def _find(kind: str, name_or_path: str) -> Path:
    if is_path(name_or_path):
        return Path(name_or_path)
    files = _files(kind)
    if name_or_path not in files:
        raise unknown_name(kind.removesuffix("s"), name_or_path, files)
    path, *others = files[name_or_path]
    if others:
        raise ConfigError(f"'{name_or_path}' is both {path} and {others[0]}: give the path of one of them")
    return path


def is_path(name_or_path: str) -> bool:
    """Returns whether a user's word is the path of a YAML file, not a name."""
    return name_or_path.endswith((".yaml", ".yml")) or os.sep in name_or_path or "/" in name_or_path


def unknown_name(
    kind: str, name: str, known: Iterable[str], listed: str = "", alike: str | None = None, cutoff: float = 0.6
) -> ConfigError:  # fmt: skip
    """Returns the error for an unknown name. It says so if there is a file or folder with that name. `alike`: a text
    whose nearest known name is proposed, by default the name. `cutoff`: see `nearest`."""
    if os.path.exists(name):
        found = "a folder" if os.path.isdir(name) else "a file, but not a .yaml file"
        return ConfigError(f"'{name}': this is {found}: give the name of a {kind}, or the path of its .yaml file")
    hint = nearest(alike or name, known, listed, cutoff)
    return ConfigError(f"unknown {kind} '{name}': {hint}, or the path of a .yaml file")


def namesake(kind: str, name_or_path: str) -> str | None:
    """Returns a warning if a file's task or method has the name of a known one, else None. `kind` is "tasks" or
    "methods"."""
    path = Path(name_or_path)
    if path.suffix not in (".yaml", ".yml") or not path.is_file():
        return None
    spec = yaml_files.read(path)
    known = [file for file in _files(kind).get(str(spec.get("name")), []) if file.resolve() != path.resolve()]
    if not known:
        return None
    label = f"{spec['name']}@{spec.get('version')}"
    other = f"{known[0].parent.name}/{known[0].name}"
    return f"{path}: '{spec['name']}' is also the name of {other}: results call both {label}"


def _files(kind: str) -> dict[str, list[Path]]:
    found: dict[str, list[Path]] = {}
    for folder in (builtin_dir(kind), *_plugin_folders(kind)):
        for path in _yaml_files(folder):
            found.setdefault(path.stem, []).append(path)
    return found


@cache
def _yaml_files(folder: Path) -> list[Path]:
    return sorted([*folder.glob("*.yaml"), *folder.glob("*.yml")])


@cache
def _plugin_folders(kind: str) -> list[Path]:
    folders = []
    for point in entry_points(group=f"specbench.{kind}"):
        place = f"plug-in '{point.name}' ({point.value})"
        try:
            loaded = point.load()
            folders.append(Path(loaded.__path__[0] if hasattr(loaded, "__path__") else loaded))
        except BaseException as error:
            raise ConfigError(f"{place} failed to load: {import_problem(error)}: repair or uninstall it") from error
        if not folders[-1].is_dir():
            problem = f"{folders[-1]} is not a folder: the entry point must name a folder of YAML files"
            raise ConfigError(f"{place}: {problem}")
    return folders


_DIGESTS: dict[int, str] = {}  # cache by id of a live spec, since every row needs the digests of its task and method


def versioned_name(spec: TaskSpec | MethodSpec) -> str:
    """Returns name@version:digest."""
    return f"{spec.name}@{spec.version}:{digest(spec)}"


def digest(spec: TaskSpec | MethodSpec) -> str:
    """Returns the first 12 hex digits of the SHA-256 of a spec's canonical JSON, with all defaults filled in. The
    digest does not depend on title, paper, version, sweep, calibration, mirrors and the path of the sample. Absent and
    empty values are equal. For a task with subsets, the JSON is that of all subsets, each merged over the task."""
    if id(spec) not in _DIGESTS:
        if isinstance(spec, TaskSpec) and spec.subsets:
            meaning: Any = {name: subset_meaning(spec, name) for name in spec.subsets}
        else:
            meaning = _meaning(spec.model_dump())
        weakref.finalize(spec, _DIGESTS.pop, id(spec), None)
        _DIGESTS[id(spec)] = _digest_of(meaning)
    return _DIGESTS[id(spec)]


def subset_meaning(task: TaskSpec, subset: str) -> Any:
    """Returns the keys of a subset of a task on which the task's digest depends."""
    return _meaning(task.subset(subset).model_dump())


def versioned_name_of_dump(method: Mapping[str, object]) -> str:
    """Returns name@version:digest of a method's model_dump, as stored in a run's folder."""
    return f"{method['name']}@{method['version']}:{_digest_of(method_meaning(method))}"


def method_meaning(method: Mapping[str, object]) -> Any:
    """Returns the keys of a method's model_dump on which its digest depends."""
    return _meaning(copy.deepcopy(method))


def component_revisions(tasks: Sequence[TaskSpec], methods: Sequence[MethodSpec]) -> dict[str, str]:
    """Returns the revisions of the code of all components outside this package, by kind and name."""
    merged = [task.subset(name) for task in tasks for name in task.subset_names]
    used = {*chain.from_iterable(each.components for each in methods)}
    used |= {*chain.from_iterable(each.components for each in merged)}
    found = {f"{registry.kind} {name}": registry.revision(name) for registry, name in used}
    return {name: found[name] or "" for name in sorted(found) if found[name] is not None}


def _digest_of(meaning: object) -> str:
    return text_digest(json.dumps(meaning, sort_keys=True, ensure_ascii=False))


# Options of drafters with a memory that are a word, or the folder of the texts that they copy from.
FOLDERS: dict[str, tuple[str | None, ...]] = {"memory": ("none", "prompt", "run"), "corpus": (None,)}
FOLDER = "folder"


def without_folders(drafter: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a drafter with its options, the folders of its texts, and of those of the drafter that drafts for it,
    replaced by a word: rows have the digest of the texts, and their place does not matter."""
    if isinstance(inner := drafter.get("inner"), Mapping):
        return {**drafter, "inner": without_folders(inner)}
    if drafter.get("type") not in ("suffix", "sam", "ngram_mod"):
        return dict(drafter)
    return {
        name: FOLDER if name in FOLDERS and value not in FOLDERS[name] else value for name, value in drafter.items()
    }


WITHOUT_MEANING = ("title", "paper", "sweep", "version", "sample", "subsets", "calibration")


def _meaning(dump: Mapping[str, Any]) -> Any:
    """Returns the parts of a spec's model_dump that determine what is measured. Changes mappings inside `dump`."""
    meaning = {key: value for key, value in dump.items() if key not in WITHOUT_MEANING}
    (meaning.get("fewshot") or {}).pop("sample", None)
    (meaning.get("dataset") or {}).pop("mirrors", None)  # the same rows elsewhere
    for holder in (meaning, *(meaning.get("routes") or {}).values()):
        drafter = holder.get("drafter", {})
        for place in ("path", "checkpoint", "profile"):  # every row has the digest of the file instead
            drafter.pop(place, None)
        drafter.update(without_folders(drafter))
    generation = meaning.get("generation", {})
    if generation.get("chat_stop") == ():
        generation["chat_stop"] = "none"  # differs from an absent value
    if "reasoning_tags" in generation:  # the default keeps the digests of tasks without this key; null differs from it
        tags = generation["reasoning_tags"]
        generation["reasoning_tags"] = "none" if tags is None else () if tuple(tags) == TAGS else tags
    if scorer := meaning.get("scorer"):
        version = SCORERS.features(scorer["type"]).version
        if version > 1:  # the first version keeps the digests of tasks from before scorers had versions
            scorer["code_version"] = version
    if "decoder" in meaning:
        meaning["decoder"]["entry"] = PurePath(meaning["decoder"]["entry"]).name  # rows have the code's digest too
    return _filled(meaning)


def _filled(value: Any) -> Any:
    """Returns a value without absent and empty parts, so that new keys of the schema keep existing digests."""
    if isinstance(value, Mapping):
        return {str(key): _filled(inner) for key, inner in value.items() if inner not in (None, "", (), [], {})}
    if isinstance(value, (list, tuple)):
        return [_filled(inner) for inner in value]
    if isinstance(value, float) and math.isfinite(value) and value.is_integer():
        return int(value)  # 0 and 0.0 are equal
    return value


# `--set dotted.key=value`: the command line overrides YAML, which overrides the defaults.
FIXED = (
    "name", "version", "title", "paper", "sample", "fewshot.sample", "fewshot.rows", "decodes_with", "drafter.type",
    "drafter.head", "verification.rule", "scorer.type", "sweep", "decoder.type", "decoder.entry", "decoder.drafter",
    "decoder.claims_lossless", "draft_length.policy",
)  # fmt: skip
NUM_SHOTS = "fewshot.num_shots"


def with_overrides(
    tasks: Sequence[TaskSpec], methods: Sequence[MethodSpec], pairs: Sequence[str]
) -> tuple[list[TaskSpec], list[MethodSpec]]:
    """Returns the tasks and methods with each KEY=VALUE pair applied to those that have the key.

    A pair also overrides the values of a task's subsets; `subsets.NAME.KEY` overrides those of one subset, and has
    precedence. `generation.stop` applies in chat too, unless a pair sets `generation.chat_stop`.
    fewshot.num_shots=0 is allowed for tasks without few-shot examples. Raises ConfigError with the nearest key if no
    spec has the key, and for invalid values.
    """
    specs: list[TaskSpec | MethodSpec] = [*tasks, *methods]
    values: dict[str, str] = {}
    for pair in pairs:
        path, equals, text = (part.strip() for part in pair.partition("="))
        if not equals or not path:
            raise ConfigError(f"--set '{pair}': write it as key=value, such as --set num_draft_tokens=8")
        if any(_places(spec, path)[1] for spec in specs):
            values[path] = text
        elif not tasks or (path, text) != (NUM_SHOTS, "0"):
            known = {key for spec in specs for key in _paths(spec)}
            raise ConfigError(f"--set {pair}: {_unknown_key(path, tasks, known)}")
    return [_override(task, values) for task in tasks], [_override(method, values) for method in methods]


def as_overridden(task: TaskSpec, pairs: Sequence[str]) -> TaskSpec:
    """Returns a task as a run with these KEY=VALUE pairs measured it: those that it has no key of are of methods or of
    other tasks."""
    split = ([part.strip() for part in pair.partition("=")] for pair in pairs)
    return _override(task, {path: text for path, _, text in split if _places(task, path)[1]})


def _unknown_key(path: str, tasks: Sequence[TaskSpec], known: set[str]) -> str:
    subsets = [(f"subsets.{name}.", task, name) for task in tasks for name in task.subsets]
    inside = next((place for place, _, _ in subsets if path.startswith(place)), "")
    if path.removeprefix(inside) in FIXED:
        compared = ", or compare rules with `specbench sweep --path verification.rule`"
        remedy = compared if path == "verification.rule" else ""
        return f"'{path}' cannot be changed with --set: a task or method with another value needs its own file{remedy}"
    if path == NUM_SHOTS and tasks:
        having = ", ".join(name for name in builtin_task_names() if has_shots(load_task(name)))
        names = ", ".join(task.name for task in tasks)
        return f"{names} {'has' if len(tasks) == 1 else 'have'} no few-shot examples; tasks with some: {having}"
    problem = f"no selected task or method has the key '{path}'"
    if path.startswith("subsets."):
        keys = {f"{place}{key}" for place, task, name in subsets for key in _paths(task.subset(name))}
        return f"{problem}: {nearest(path, keys, '`specbench show TASK` lists subsets and keys')}"
    same_end = sorted((key for key in known if key.endswith(f".{path}")), key=lambda key: "generation." not in key)
    if same_end:
        return f"{problem}: did you mean {' or '.join(map(repr, same_end))}?"
    same_part = {key for key in known if key.startswith(f"{path.partition('.')[0]}.")}
    return f"{problem}: {nearest(path, same_part or known)}"


def has_shots(task: TaskSpec) -> bool:
    """Returns whether a task or one of its subsets has few-shot examples."""
    return NUM_SHOTS in _paths(task)


def _paths(spec: TaskSpec | MethodSpec) -> set[str]:
    """Returns the keys that may be set. The rule and the drafter may not: with others it would be another method."""
    paths = set(dotted.flat(spec.model_dump(exclude={"subsets", "sweep", "calibration"}))) - set(FIXED)
    if isinstance(spec, TaskSpec):
        return paths.union(*(_subset_paths(spec, name) for name in spec.subsets)) - set(FIXED)
    if spec.routes is not None:
        paths -= {f"routes.{name}.{key}" for name in spec.routes for key in ("drafter", "drafter.type")}
    elif spec.drafter.type == "none":
        paths.discard("num_draft_tokens")  # always 0
    if not spec.needs_drafter:
        paths -= {path for path in paths if path.partition(".")[0] == "bridge"}  # nothing to bridge, as in AR
    return paths


def _places(spec: TaskSpec | MethodSpec, path: str) -> tuple[str, list[str | None]]:
    """Returns the key that a path sets, and where: None means the spec itself, a name a subset of a task. A
    path subsets.NAME.KEY is for one subset."""
    if isinstance(spec, MethodSpec):
        return path, [None] if path in _paths(spec) else []
    for name in spec.subsets:
        key = path.removeprefix(f"subsets.{name}.")
        if key != path and key in _paths(spec.subset(name)):
            return key, [name]
    if path not in _paths(spec):
        return path, []
    head, _, rest = path.partition(".")
    if rest and getattr(spec, head) is None:  # such as `dataset` if only subsets have one
        return path, [name for name in spec.subsets if path in _subset_paths(spec, name)]
    return path, [None, *(name for name, over in spec.subsets.items() if path in dotted.flat(over))]


def _override(spec: AnySpec, values: Mapping[str, str]) -> AnySpec:
    data: dict[str, Any] = spec.model_dump()
    used = []
    implied = {f"{path.removesuffix('stop')}chat_stop": "null" for path in values if path.endswith("generation.stop")}
    for path, text in sorted({**implied, **values}.items(), key=lambda pair: pair[0].startswith("subsets.")):
        key, places = _places(spec, path)
        if not places:
            continue
        used += [f"--set {path}={text}"] if path in values else []
        # A text stays one where the key has a text, and is YAML elsewhere; null removes a value.
        holders = [data, *data.get("subsets", {}).values()]
        if isinstance(spec, TaskSpec) and key != path:
            holders = [spec.subset(str(places[0])).model_dump()]
        is_text = any(isinstance(dotted.flat(each).get(key), str) for each in holders) and text != "null"
        value = text if is_text else yaml_files.parse(text, f"--set {path}={text}")
        for place in places:
            if place is None:
                data = dotted.put(data, key, value)
            else:
                data["subsets"] = {**data["subsets"], place: dotted.put(data["subsets"][place], key, value)}
    return build(type(spec), data, prefix=f"{' '.join(used)}: ") if used else spec


def _subset_paths(task: TaskSpec, name: str) -> set[str]:
    """Returns the keys that a subset has, and all keys of parts that only subsets have, such as `dataset`."""
    given = set(dotted.flat(task.subsets[name]))
    heads = {path.partition(".")[0] for path in given if "." in path}
    parts = {head for head in heads if getattr(task, head) is None}
    merged = dotted.flat(task.subset(name).model_dump(include=parts)) if parts else ()
    return given.union(merged)
