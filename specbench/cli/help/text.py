"""The help of a task and of a component, and all help as text of at most 100 columns."""

import json
import math
import shlex
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from pathlib import Path
from textwrap import indent, wrap
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from specbench.cli.help import Parameter, field_parameters
from specbench.cli.help.method import EXAMPLE, MethodHelp, TreeHelp, known_methods, method_help, parts, prose
from specbench.cli.help.model import ModelHelp, is_model, model_help, model_lines
from specbench.core.errors import ConfigError
from specbench.core.registry import BRIDGES, DRAFTERS, READERS, RULES, SCORERS, Registry
from specbench.specs.catalogue import is_path, load_file, load_method, load_task, method_names, task_names, unknown_name
from specbench.specs.method import MethodSpec
from specbench.specs.task import TaskSpec
from specbench.tasks.examples import load_examples
from specbench.tasks.scoring import Reference

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


class TaskHelp(BaseModel):
    """The help of a task.

    `prompt` is rendered from the first sample row of the first subset with a sample. Without samples it is the template
    of the first subset. For a conversation it has all turns of the user.
    """

    kind: Literal["task"] = "task"
    name: str
    version: int
    title: str
    paper: str | None
    subsets: list[str]
    prompt_of: str
    system: str | None
    prompt: str
    reference: str | None
    generation: dict[str, Any]
    scorer: dict[str, Any] | None
    scorer_text: str
    hub: dict[str, Any] | None
    local: list[str]
    has_sample: bool
    commands: list[str]


def task_help(task: TaskSpec, call: str) -> TaskHelp:
    """Returns the help of a task. `call`: the name or path given by the user."""
    subset = next((name for name in task.subset_names if task.sample_of(name)), task.subset_names[0])
    part = task.subset(subset)
    prompt, place = part.prompt, f"template, subset {subset}"
    reference = as_text(part.reference or (f"each of column {part.references}" if part.references else None))
    if task.has_sample:
        example = load_examples(task, subset, data="sample", use_sample=True, limit=1).examples[0]
        prompt, place = "\n\n(the answer)\n\n".join(example.turns), f"first sample row of {subset}"
        reference = as_text(example.reference)
    plain = f"specbench run --task {shlex.quote(call)} --method sd"
    aligned = [" and ".join(part.local.parallel.values())] if part.local.parallel else []
    return TaskHelp(
        name=task.name, version=task.version, title=task.title, paper=task.paper, subsets=list(task.subset_names),
        prompt_of=place, system=part.system_prompt, prompt=prompt, reference=reference,
        generation=part.generation.model_dump(),
        scorer=part.scorer.model_dump() if part.scorer else None,
        scorer_text=prose(part.scorer.factory) if part.scorer else "",
        hub=part.dataset.model_dump(exclude_none=True, exclude_defaults=True) if part.dataset else None,
        local=[*part.local.files, *aligned], has_sample=task.has_sample,
        commands=[*[plain] * task.has_sample, f"{plain} --data FOLDER_OR_FILE"],
    )  # fmt: skip


def as_text(reference: Reference | None) -> str | None:
    """Returns a reference as text: alternatives separated by bars, or a mapping with one entry per line."""
    if isinstance(reference, Mapping):
        return "\n".join(f"{name}: {text}" for name, text in reference.items())
    return " | ".join(reference) if isinstance(reference, list) else reference


def find_help(name: str) -> list[MethodHelp | TaskHelp | ComponentHelp | ModelHelp]:
    """Returns the help of the method, else the task, else all components of a name, else the model. Raises
    ConfigError."""
    methods, tasks = method_names(), task_names()
    if is_path(name) and not is_model(name):
        if Path(name).is_dir():
            raise ConfigError(
                f"{name}: no config.json in it: give a model's folder, or the path of a method's or task's YAML file"
            )
        spec = load_file(name)
    elif name in methods:
        spec = load_method(name)
    elif name in tasks:
        spec = load_task(name)
    elif components_of_name := component_help(name):
        return [*components_of_name]
    elif is_model(name):
        return [model_help(name)]
    else:
        from specbench.results.metric_format import find_metric  # takes long to import

        components = {each for registry, _ in KINDS.values() for each in registry.names()}
        names = [*methods, *tasks, *sorted(components)]
        if find_metric(name) is not None:
            raise ConfigError(f"'{name}' is a metric: `specbench list metrics` explains it")
        listed = "give one that `specbench list` shows"
        raise unknown_name("method, task, component or model", name, names, listed, without_kind(name))
    return [method_help(spec, name) if isinstance(spec, MethodSpec) else task_help(spec, name)]


WIDTH = 100


def help_text(help_: MethodHelp | TaskHelp | ComponentHelp | ModelHelp) -> str:
    if isinstance(help_, ModelHelp):
        return model_text(help_)
    if isinstance(help_, ComponentHelp):
        return component_text(help_)
    return method_text(help_) if isinstance(help_, MethodHelp) else task_text(help_)


def method_text(help_: MethodHelp) -> str:
    return "\n".join(
        [
            *heading(help_),
            *(line for part in help_.parts for line in [f"\n{part.role}: {part.name}", *paragraphs(part.text, 2)]),
            "",
            *folded(f"lossless: {help_.lossless} ({help_.lossless_reason})"),
            *folded(f"needs: {'; '.join(help_.needs)}"),
            *(folded(f"models without --target: {', '.join(help_.embedded)}") if help_.embedded else ()),
            *(tree_text(help_.tree) if help_.tree is not None else []),
            *section("parameters", (line for parameter in help_.parameters for line in parameter_lines(parameter))),
            *section(
                "values that `specbench sweep` tries",
                items((key, ", ".join(map(shown, values))) for key, values in help_.sweep.items()),
            ),
            *section("presets", items((preset.name, preset.title) for preset in help_.presets)),
            *section("commands", (f"  {line}" for line in help_.commands)),
        ]
    )


def tree_text(tree: TreeHelp) -> list[str]:
    size = f"{sum(tree.nodes_by_depth)} draft tokens on {len(tree.nodes_by_depth)} levels"
    by_depth = ", ".join(map(str, tree.nodes_by_depth))
    heading = f"at most {size} ({by_depth})"
    if tree.is_example:
        rates = ", ".join(map(str, EXAMPLE))
        heading = f"it grows as it is drafted; with example acceptance rates {rates} by rank: {size} ({by_depth})"
    heading += "; a number is the rank among the children of a node"
    if tree.num_own:
        heading += f"; w: {tree.num_own} tokens that the target reads only for the drafter and that cannot be accepted"
    step = [
        wrap(f"{number}. {text}", WIDTH, initial_indent="  ", subsequent_indent="     ", break_on_hyphens=False)
        for number, text in enumerate(tree.step, start=1)
    ]
    return [
        "",
        *folded(f"tree: {heading}"),
        *(f"  {line}" for line in tree.drawing),
        *section("a step", chain.from_iterable(step)),
    ]


def task_text(help_: TaskHelp) -> str:
    hub = [f"  hub: {flow(help_.hub)}"] if help_.hub else []
    local = f"  files in the folder that --data names: {', '.join(help_.local)}"
    sample = ["  a bundled sample (--data sample)"] if help_.has_sample else []
    scorer = [f"\nscore: {flow(help_.scorer)}", *paragraphs(help_.scorer_text, 2)] if help_.scorer else []
    return "\n".join(
        [
            *heading(help_),
            *folded(f"subsets: {' '.join(help_.subsets)}"),
            *section("system prompt", verbatim(help_.system or "")),
            *section(f"prompt ({help_.prompt_of})", verbatim(help_.prompt)),
            *section("right answer", verbatim(help_.reference or "")),
            *section("generation", folded(flow(help_.generation), 2)),
            *scorer,
            *section("data", (line for each in [*hub, local, *sample] for line in folded(each.strip(), 2))),
            *section("run it", (f"  {line}" for line in help_.commands)),
        ]
    )


def model_text(help_: ModelHelp) -> str:
    revision = f" ({help_.revision})" if help_.revision else ""
    sections = ((title, chain.from_iterable(folded(line, 2) for line in lines))
                for title, lines in model_lines(help_).items())  # fmt: skip
    return "\n".join(
        [
            *folded(f"{help_.name}{revision}: a {help_.architecture}"),
            *(line for title, lines in sections for line in section(title, lines)),
        ]
    )


def component_text(help_: ComponentHelp) -> str:
    return "\n".join(
        [
            *folded(f"{help_.name}: a {help_.role}, written as {help_.written}"),
            *paragraphs(help_.text, 2),
            *section("options", (line for each in help_.parameters for line in parameter_lines(each, is_option=True))),
            *section("used by", folded(", ".join(help_.used_by), 2)),
        ]
    )


def heading(help_: MethodHelp | TaskHelp) -> Iterator[str]:
    yield from folded(f"{help_.name} (version {help_.version}): {help_.title}")
    if isinstance(help_, MethodHelp) and help_.preset_of:
        yield f"a preset of {help_.preset_of}: the same parts with other values"
    if help_.paper:
        yield f"paper: {help_.paper}"


def parameter_lines(parameter: Parameter, is_option: bool = False) -> Iterator[str]:
    """Yields the lines of a parameter: key and value; type, range and default; meaning. An option has no value."""
    yield f"  {parameter.key}" + ("" if is_option else f" = {shown(parameter.value)}")
    kind = ", ".join(filter(None, (parameter.type, parameter.range)))
    kind = kind.replace("only, ", "only ").replace("one of, ", "one of ")
    default = "must be given" if parameter.required else f"default {shown(parameter.default)}"
    place = "" if parameter.settable or is_option else "; --set cannot change it: write it in the method's file"
    yield from folded(f"{kind}; {default}{place}", 6)
    yield from folded(parameter.meaning or "", 6)


def section(title: str, lines: Iterable[str]) -> list[str]:
    """Returns a title with its lines, or nothing if there are no lines."""
    content = list(lines)
    return ["", f"{title}:", *content] if content else []


def items(pairs: Iterable[tuple[str, str]]) -> Iterator[str]:
    for name, text in pairs:
        yield from wrap(f"{name}: {text}", WIDTH, initial_indent="  ", subsequent_indent="      ")


def paragraphs(text: str, depth: int) -> Iterator[str]:
    """Yields wrapped prose. Indented text and lists are not wrapped."""
    for paragraph in filter(None, text.split("\n\n")):
        if any(line.startswith((" ", "- ", "* ", "|", ">>>")) for line in paragraph.splitlines()):
            yield from indent(paragraph, " " * depth).splitlines()
        else:
            yield from folded(paragraph, depth)


def folded(text: str, depth: int = 0) -> list[str]:
    """Returns a text as wrapped lines. If `depth` is 0, lines after the first are indented by two columns."""
    margin = " " * depth
    rest = margin if depth else "  "
    return wrap(text, WIDTH, initial_indent=margin, subsequent_indent=rest, break_on_hyphens=False)


def verbatim(text: str) -> list[str]:
    return [line for each in text.splitlines() for line in folded(each, 2) or [""]]


def shown(value: Any) -> str:
    """Returns a value as YAML writes it."""
    if isinstance(value, float) and math.isinf(value):
        return ".inf" if value > 0 else "-.inf"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(shown, value))}]"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def flow(values: Mapping[str, Any] | None) -> str:
    """Returns the set keys of a mapping with their values in one line."""
    given = {key: value for key, value in (values or {}).items() if value not in (None, (), [])}
    return ", ".join(f"{key} {json.dumps(value, ensure_ascii=False, default=str)}" for key, value in given.items())
