"""`--set dotted.key=value`: the command line overrides YAML, which overrides the defaults."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from specbench.core import dotted
from specbench.core.errors import ConfigError, nearest
from specbench.core.registry import RULES
from specbench.specs import yaml_files
from specbench.specs.catalogue import builtin_task_names, load_task
from specbench.specs.components import build
from specbench.specs.composition import check_draws, proposes_trees
from specbench.specs.method import MethodSpec
from specbench.specs.task import TaskSpec

FIXED = (
    "name", "version", "title", "paper", "sample", "fewshot.sample", "fewshot.rows", "decodes_with", "drafter.type",
    "drafter.head", "verification.rule", "scorer.type", "sweep", "decoder.type", "decoder.entry", "decoder.drafter",
    "decoder.claims_lossless",
)  # fmt: skip
NUM_SHOTS = "fewshot.num_shots"
AnySpec = TypeVar("AnySpec", TaskSpec, MethodSpec)


def with_overrides(
    tasks: Sequence[TaskSpec], methods: Sequence[MethodSpec], pairs: Sequence[str]
) -> tuple[list[TaskSpec], list[MethodSpec]]:
    """Returns the tasks and methods with each KEY=VALUE pair applied to those that have the key.

    A pair also overrides the values of a task's subsets. `generation.stop` applies in chat too, unless a pair sets
    `generation.chat_stop`. fewshot.num_shots=0 is allowed for tasks without few-shot examples. Raises ConfigError with
    the nearest key if no spec has the key, and for invalid values.
    """
    specs: list[TaskSpec | MethodSpec] = [*tasks, *methods]
    known = {key for spec in specs for key in _paths(spec)}
    values = {}
    for pair in pairs:
        path, equals, text = (part.strip() for part in pair.partition("="))
        if not equals or not path:
            raise ConfigError(f"--set '{pair}': write it as key=value, such as --set num_draft_tokens=8")
        if path not in known and tasks and (path, text) == (NUM_SHOTS, "0"):
            continue
        if path not in known:
            raise ConfigError(f"--set {pair}: {_unknown_key(path, tasks, methods, known)}")
        values[path] = text
    return [_override(task, values) for task in tasks], [_override(method, values) for method in methods]


def _unknown_key(path: str, tasks: Sequence[TaskSpec], methods: Sequence[MethodSpec], known: set[str]) -> str:
    """Returns why an unknown key cannot be set, and a remedy."""
    if path in FIXED:
        remedy = _sweep_of_rules(tasks, methods) if path == "verification.rule" else ""
        return f"'{path}' cannot be changed with --set: a task or method with another value needs its own file{remedy}"
    if path == NUM_SHOTS and tasks:
        having = ", ".join(name for name in builtin_task_names() if has_shots(load_task(name)))
        names = ", ".join(task.name for task in tasks)
        return f"{names} {'has' if len(tasks) == 1 else 'have'} no few-shot examples; tasks with some: {having}"
    part, _, option = path.partition(".")
    drafting = [method for method in methods if method.drafter.type not in ("none", "external")]
    if part == "verification" and drafting and not any(key.startswith("verification.") for key in known):
        rules = ", ".join(f"{method.name} has the rule '{method.verification.rule}'" for method in drafting)
        able = [name for name in RULES.names() if option in RULES.options_model(name).model_fields]
        having = f"which has no '{option}'" + (f" (the rule {', '.join(able)} has)" if able else "")
        return f"{rules}, {having}: choose a method with another rule (`specbench show METHOD` shows its rule)"
    same_end = [key for key in known if key.endswith(f".{path}")]
    if same_end:
        same_end.sort(key=lambda key: not key.startswith("generation."))
        return f"no selected task or method has the key '{path}': did you mean {' or '.join(map(repr, same_end))}?"
    same_part = {key for key in known if key.startswith(f"{part}.")}
    return f"no selected task or method has the key '{path}': {nearest(path, same_part or known)}"


def has_shots(task: TaskSpec) -> bool:
    """Returns whether a task or one of its subsets has few-shot examples."""
    return NUM_SHOTS in _paths(task)


def _sweep_of_rules(tasks: Sequence[TaskSpec], methods: Sequence[MethodSpec]) -> str:
    """Returns a remedy: a sweep over the rules that fit a method at the tasks' temperatures with their default options.
    It is empty if no other rule fits."""
    is_greedy = all(task.subset(name).generation.temperature == 0 for task in tasks for name in task.subsets)
    for method in methods:
        data = method.model_dump(exclude={"sweep"})
        able = []
        for name in RULES.names() if "verification" in data and method.drafter.type != "none" else ():
            with suppress(ConfigError):
                changed = build(MethodSpec, dotted.put(data, "verification.rule", name))
                if is_greedy and proposes_trees(changed) and changed.drafter.options.get("temperature") is None:
                    check_draws(changed, {"fixed"})
                able.append(name)
        if len(able) > 1:
            command = f"specbench sweep --method {method.name} --path verification.rule --values {','.join(able)}"
            return f", or compare the rules that fit {method.name}: `{command}`"
    return ""


def _paths(spec: TaskSpec | MethodSpec) -> set[str]:
    """Returns the keys that may be set. The rule and the drafter may not: with others it would be another method."""
    data = spec.model_dump(exclude={"subsets", "sweep", "calibration"})
    paths = set(dotted.flat(data))
    if isinstance(spec, MethodSpec) and spec.drafter.type == "none" and spec.routes is None:
        paths.discard("num_draft_tokens")  # always 0
    if isinstance(spec, MethodSpec) and spec.routes is not None:
        paths -= {f"routes.{name}.{key}" for name in spec.routes for key in ("drafter", "drafter.type")}
    if isinstance(spec, MethodSpec) and not spec.needs_drafter:
        paths -= {path for path in paths if path.partition(".")[0] == "bridge"}  # nothing to bridge, as in AR
    if isinstance(spec, TaskSpec):
        paths |= {path for name in spec.subsets for path in _subset_paths(spec, name)}
    return paths - set(FIXED)


def _override(spec: AnySpec, values: Mapping[str, str]) -> AnySpec:
    """Returns the spec with the values whose keys it has. It is checked once, since some keys depend on each other."""
    values = {path: text for path, text in values.items() if path in _paths(spec)}
    if not values:
        return spec
    data = spec.model_dump()
    implied = {"generation.chat_stop": "null"} if "generation.stop" in values else {}
    for path, text in {**implied, **values}.items():
        _put(spec, data, path, text)
    prefix = " ".join(f"--set {path}={text}" for path, text in values.items())
    return build(type(spec), data, prefix=f"{prefix}: ")


def _put(spec: TaskSpec | MethodSpec, data: dict[str, Any], path: str, text: str) -> None:
    """Writes a value into the data of a spec, and into the subsets that have the key."""
    value = _value(data, path, text)
    head, _, rest = path.partition(".")
    in_subsets = bool(rest) and data.get(head) is None  # such as `dataset` if only subsets have one
    if isinstance(spec, TaskSpec):
        data["subsets"] = {
            name: dotted.put(over, path, value)
            if path in (_subset_paths(spec, name) if in_subsets else dotted.flat(over)) else over
            for name, over in data["subsets"].items()
        }  # fmt: skip
    if not in_subsets:
        data.update(dotted.put(data, path, value))


def _subset_paths(task: TaskSpec, name: str) -> set[str]:
    """Returns the keys that a subset has, and all keys of parts that only subsets have, such as `dataset`."""
    given = set(dotted.flat(task.subsets[name]))
    heads = {path.partition(".")[0] for path in given if "." in path}
    parts = {head for head in heads if getattr(task, head) is None}
    merged = dotted.flat(task.subset(name).model_dump(include=parts)) if parts else ()
    return given.union(merged)


def _value(data: Mapping[str, Any], path: str, text: str) -> Any:
    """Returns the value of a text: unchanged if the key's current value is a text, else parsed as YAML.

    null always removes the value.
    """
    for holder in (data, *data.get("subsets", {}).values()):
        with suppress(KeyError):
            if text != "null" and isinstance(dotted.get(holder, path), str):
                return text
    return yaml_files.parse(text, f"--set {path}={text}")
