"""Finds the help of a method, a task or a component, and writes it as text of at most 100 columns."""

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from textwrap import indent, wrap
from typing import Any

from specbench.cli.help.component import ComponentHelp, component_help, component_names, without_kind
from specbench.cli.help.method import MethodHelp, method_help
from specbench.cli.help.parameters import Parameter
from specbench.cli.help.task import TaskHelp, task_help
from specbench.cli.help.tree import TreeHelp, tree_lines
from specbench.core.errors import ConfigError
from specbench.specs.catalogue import is_path, load_file, load_method, load_task, method_names, task_names, unknown_name
from specbench.specs.method import MethodSpec


def find_help(name: str) -> list[MethodHelp | TaskHelp | ComponentHelp]:
    """Returns the help of the method, else the task, else all components of a name. Raises ConfigError with the nearest
    name."""
    methods, tasks = method_names(), task_names()
    if is_path(name):
        spec = load_file(name)
    elif name in methods:
        spec = load_method(name)
    elif name in tasks:
        spec = load_task(name)
    elif name in component_names():
        return [*component_help(name)]
    else:
        from specbench.results.units import MEANINGS  # takes long to import

        known = [*methods, *tasks, *component_names()]
        if name in MEANINGS:
            raise ConfigError(f"'{name}' is a metric: `specbench list metrics` explains it")
        listed = "give one that `specbench list` shows"
        raise unknown_name("method, task or component", name, known, listed, without_kind(name))
    return [method_help(spec, name) if isinstance(spec, MethodSpec) else task_help(spec, name)]


WIDTH = 100


def help_text(help_: MethodHelp | TaskHelp | ComponentHelp) -> str:
    """Returns help as text."""
    if isinstance(help_, ComponentHelp):
        return component_text(help_)
    return method_text(help_) if isinstance(help_, MethodHelp) else task_text(help_)


def method_text(help_: MethodHelp) -> str:
    """Returns the help of a method as text."""
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
    """Returns the tree of a method and the lines of its step."""
    heading, *drawing = tree_lines(tree)
    step = [
        wrap(f"{number}. {text}", WIDTH, initial_indent="  ", subsequent_indent="     ", break_on_hyphens=False)
        for number, text in enumerate(tree.step, start=1)
    ]
    return [
        "",
        *folded(f"tree: {heading}"),
        *(f"  {line}" for line in drawing),
        *section("a step", chain.from_iterable(step)),
    ]


def task_text(help_: TaskHelp) -> str:
    """Returns the help of a task as text."""
    hub = [f"  hub: {flow(help_.hub)}"] if help_.hub else []
    local = f"  files in the folder that --data names: {', '.join(help_.local)}"
    sample = ["  a bundled sample (--data sample)"] if help_.has_sample else []
    scorer = [f"\nscore: {flow(help_.scorer)}", *paragraphs(help_.scorer_text, 2)] if help_.scorer else []
    return "\n".join(
        [
            *heading(help_),
            *folded(f"subsets: {' '.join(help_.subsets)}"),
            *section(f"prompt ({help_.prompt_of})", verbatim(help_.prompt)),
            *section("right answer", verbatim(help_.reference or "")),
            *section("generation", folded(flow(help_.generation), 2)),
            *scorer,
            *section("data", (line for each in [*hub, local, *sample] for line in folded(each.strip(), 2))),
            *section("run it", (f"  {line}" for line in help_.commands)),
        ]
    )


def component_text(help_: ComponentHelp) -> str:
    """Returns the help of a component as text."""
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
    """Yields the lines of a parameter: key and value; type, range and default; meaning. A component's option has no
    value."""
    yield f"  {parameter.key}" + ("" if is_option else f" = {shown(parameter.value)}")
    kind = ", ".join(filter(None, (parameter.type, parameter.range)))
    kind = kind.replace("only, ", "only ").replace("one of, ", "one of ")
    default = "must be given" if parameter.required else f"default {shown(parameter.default)}"
    place = "" if parameter.settable or is_option else "; --set cannot change it: write it in the method's file"
    yield from folded(f"{kind}; {default}{place}", 6)
    yield from folded(parameter.meaning or "", 6)


def section(title: str, lines: Iterable[str]) -> list[str]:
    """Returns a title with its lines, or nothing if there are no lines."""
    found = list(lines)
    return ["", f"{title}:", *found] if found else []


def items(pairs: Iterable[tuple[str, str]]) -> Iterator[str]:
    for name, text in pairs:
        yield from wrap(f"{name}: {text}", WIDTH, initial_indent="  ", subsequent_indent="      ")


def paragraphs(text: str, depth: int) -> Iterator[str]:
    """Yields wrapped prose. Indented blocks and lists are not wrapped."""
    for block in filter(None, text.split("\n\n")):
        if any(line.startswith((" ", "- ", "* ", "|", ">>>")) for line in block.splitlines()):
            yield from indent(block, " " * depth).splitlines()
        else:
            yield from folded(block, depth)


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
