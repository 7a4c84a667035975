"""The help of a component: a drafter, verification rule, vocabulary bridge, scorer or reader."""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from specbench.cli.help.method import known_methods, parts, prose
from specbench.cli.help.parameters import Parameter, field_parameters
from specbench.core.registry import BRIDGES, DRAFTERS, READERS, RULES, SCORERS, Registry
from specbench.specs.catalogue import load_task, task_names

KINDS: dict[str, tuple[Registry[..., Any], str]] = {  # by heading: the registry, and the component's key in YAML
    "Drafters": (DRAFTERS, "`drafter: {type: NAME, …}` in a method"),
    "Verification rules": (RULES, "`verification: {rule: NAME, …}` in a method"),
    "Vocabulary bridges": (BRIDGES, "`bridge: NAME`, or `bridge: {type: NAME, …}`, in a method"),
    "Scorers": (SCORERS, "`scorer: {type: NAME, …}` in a task"),
    "Readers": (READERS, "`reader: NAME` in a task"),
}


class ComponentHelp(BaseModel):
    """The help of a component. `used_by`: the known methods or tasks that use it."""

    model_config = ConfigDict(ser_json_inf_nan="strings")

    kind: Literal["component"] = "component"
    role: str
    name: str
    text: str
    written: str
    parameters: list[Parameter]
    used_by: list[str]


def without_kind(name: str) -> str:
    """Returns "rest" for "rest_drafter", since users may add the kind to the name of a component or a method."""
    kinds = {word for registry, _ in KINDS.values() for word in registry.kind.split()} | {"method", "task"}
    first, _, last = name.replace("-", "_").rpartition("_")
    return name[: len(first)] if first and last in kinds else name


def component_names() -> list[str]:
    return sorted({name for registry, _ in KINDS.values() for name in registry.names()})


def component_help(name: str) -> list[ComponentHelp]:
    """Returns the help of all components with a name. A rule and a scorer may have the same name."""
    return [
        ComponentHelp(
            role=(role := title.lower().removesuffix("s")), name=name, text=prose(registry.get(name)),
            written=where.replace("NAME", name).replace("`", ""),
            parameters=component_parameters(registry, name), used_by=users(registry, role, name),
        )
        for title, (registry, where) in KINDS.items() if name in registry.names()
    ]  # fmt: skip


def component_parameters(registry: Registry[..., Any], name: str) -> list[Parameter]:
    """Returns the options of a component. A reader has none."""
    return [] if registry is READERS else field_parameters(registry.options_model(name), "", {}, set())


def users(registry: Registry[..., Any], role: str, name: str) -> list[str]:
    """Returns the known methods or tasks that use a component."""
    if registry not in (SCORERS, READERS):
        methods = [method for method in known_methods() if method.decoder is None]
        return [
            method.name
            for method in methods
            if any(part.name == name and part.role.startswith(role) for part in parts(method))
        ]
    tasks = [(task.name, [task.subset(name) for name in task.subset_names]) for task in map(load_task, task_names())]
    if registry is READERS:
        return [task for task, subsets in tasks if name in [subset.reader for subset in subsets]]
    return [task for task, subsets in tasks if name in [subset.scorer.type for subset in subsets if subset.scorer]]
