"""Writes the reference pages of the documentation from the code that they describe.

`python -m tools.reference --output FOLDER` writes them as Markdown. The documentation's build (.mkdocs.yml) takes them
from here. A clone has docs/reference.md in their place, into which `--write` puts the keys of files.
"""

import argparse
import inspect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, get_args

import typer
from pydantic import BaseModel

import specbench
from specbench.analysis.advice.memory import MemorySpec
from specbench.analysis.claims.claim import ClaimSpec
from specbench.cli import make_app
from specbench.cli.help import method as help_
from specbench.cli.help.method import prose
from specbench.cli.help.text import Parameter, field_parameters, shown
from specbench.cli.show import KINDS, component_parameters
from specbench.core.table import markdown_table
from specbench.publish.board.spec import BoardSpec
from specbench.publish.suite_spec import SuiteSpec
from specbench.results.metric_format import all_metrics
from specbench.results.row import Row
from specbench.specs.catalogue import load_method, load_task, method_names, task_names
from specbench.specs.components import Component
from specbench.specs.method import MethodSpec
from specbench.specs.run import ServersSpec
from specbench.specs.run_options import OPTIONS as RUN_OPTIONS
from specbench.specs.task import TaskSpec
from specbench.training.spec import CORPUS_MODELS, DEFAULTS, TrainSpec
from tools import notebook
from tools.surroundings import EXIT_CODES, VARIABLES

# The options of a run that the Python interface takes as they are.
OPTIONS = {name: each for name, each in RUN_OPTIONS.items() if name not in ("target", "drafter")}


def pages() -> dict[str, str]:
    """Returns the Markdown of every page by its path below docs/."""
    return {path(name): make() for name, make in MAKERS.items()}


def path(name: str) -> str:
    return f"reference/{name}.md"


def commands() -> str:
    """Returns a section for every command, with its arguments and options."""
    lines = ["# Commands and options", "", "`specbench COMMAND --help` prints the same in a terminal.", ""]
    for name, command in walk(typer.main.get_command(make_app()), "specbench"):
        lines += [f"## {name}", "", paragraphs(command.help or ""), "", *options_table(command.params)]
    return "\n".join(lines)


def python() -> str:
    """Returns a section for every name of the Python interface."""
    lines = ["# Python", "", "What `import specbench` offers.", ""]
    for name in (name for name in specbench.__all__ if name != "ConfigError"):
        found = getattr(specbench, name)
        lines += [f"## specbench.{name}", "", documented(found), ""]
        if isinstance(found, type):
            for key, each in vars(found).items():
                if key[0] != "_" and (inspect.isfunction(each) or isinstance(each, property | cached_property)):
                    lines += [f"### {name}.{key}", "", documented(each), ""]
        elif name == "run":
            rows = [[f"`{key}`", as_text(each.default), escaped(each.help)] for key, each in OPTIONS.items()]
            lines += table(["option", "default", "meaning"], rows)
    return "\n".join([*lines, "## specbench.ConfigError", "", documented(specbench.ConfigError), ""])


def documented(found: Any) -> str:
    """Returns the docstring of a part of the Python interface; of a function also its parameters, without the options
    of a run."""
    text = inspect.cleandoc(found.__doc__ or "")
    if inspect.isfunction(found) and "." not in found.__qualname__:
        given = inspect.signature(found).parameters.values()
        own = [each for each in given if each.name not in OPTIONS]
        names = [each.name if each.default is each.empty else f"{each.name}={each.default!r}" for each in own]
        text = f"specbench.{found.__name__}({', '.join(names)})\n\n{text}"
    return f"```text\n{text}\n```"


def walk(command: Any, name: str) -> Iterator[tuple[str, Any]]:
    """Yields every command below a group with its full name, in the order of registration."""
    for each, below in getattr(command, "commands", {}).items():
        yield from walk(below, f"{name} {each}")
    if not getattr(command, "commands", None):
        yield name, command


def options_table(parameters: Sequence[Any]) -> list[str]:
    """Returns the table of a command's arguments, then its options."""
    cells = []
    for each in sorted(parameters, key=lambda one: one.param_type_name != "argument"):
        is_argument = each.param_type_name == "argument"
        word = (each.metavar or each.name.upper()) if is_argument else ", ".join([*each.opts, *each.secondary_opts])
        default = "required" if each.required else "" if each.default in (None, False) else f"`{each.default}`"
        more = " May be given several times." if each.multiple and not is_argument else ""
        cells.append([f"`{word}`", default, escaped((each.help or "") + more)])
    return table(["option", "default", "meaning"], cells) if cells else []


def tasks() -> str:
    """Returns the keys of a task and a section for each built-in task."""
    text = keys("Tasks", FILES["tasks"])
    rows = []
    for task in map(load_task, task_names()):
        scorers = dict.fromkeys(one.type for name in task.subset_names if (one := task.subset(name).scorer))
        sample = "yes" if task.has_sample else "no"
        rows.append([f"`{task.name}`", task.title, " ".join(task.subset_names), " ".join(scorers) or "–", sample,
                     paper(task.paper)])  # fmt: skip
    head = ["name", "title", "subsets", "scorer", "bundled sample", "paper"]
    about = "`specbench show NAME` prints a prompt, the right answer, the generation settings and the scorer of a task."
    return "\n".join([text, "## Built-in tasks", "", about, "", *table(head, rows)])


def methods() -> str:
    """Returns the keys of a method and a section for each built-in method."""
    found = [load_method(name) for name in method_names()]
    rows = [
        [f"[`{each.name}`](#{each.name.replace('.', '')})", each.title, help_.verdict(each)[0],
         "; ".join(help_.needs(each)), paper(each.paper)] for each in found
    ]  # fmt: skip
    about = "`specbench show NAME` prints the same as the sections below, with what each component does."
    lines = [keys("Methods", FILES["methods"]), "## Built-in methods", "", about, ""]
    lines += table(["name", "title", "lossless", "needs", "paper"], rows)
    for each in found:
        lines += method_section(each)
    return "\n".join(lines)


def method_section(method: MethodSpec) -> list[str]:
    """Returns the section of one method: components, presets, parameters, commands."""
    parts = "; ".join(f"{part.role} `{part.name}`" for part in help_.parts(method))
    presets = ", ".join(f"`{each.name}`" for each in help_.presets(method))
    preset_of = next((each.name for each in help_.known_methods() if help_.is_preset(method, each)), None)
    (lossless, reason), parameters = help_.verdict(method), help_.parameters(method)
    return [
        f"### {method.name}", "", f"{escaped(method.title)}: {parts}.", "",
        *([f"A preset of `{preset_of}`.", ""] if preset_of else []), *([f"Presets: {presets}.", ""] if presets else []),
        f"Lossless: {lossless} ({escaped(reason)}).", "", *parameters_table(parameters, with_value=True),
        "```text", *help_.commands(method, method.name, parameters), "```", "",
    ]  # fmt: skip


def components() -> str:
    """Returns a section for every drafter, verification rule, vocabulary bridge, scorer and reader."""
    lines = ["# Components", "", "`specbench list components` lists those of an installation, plug-ins included.", ""]
    for title, (registry, where) in KINDS.items():
        lines += [f"## {title}", "", f"Written as {where}.", ""]
        for name in registry.names():
            lines += [f"### {name}", "", paragraphs(prose(registry.get(name))), ""]
            lines += parameters_table(component_parameters(registry, name))
    return "\n".join(lines)


def training() -> str:
    """Returns the keys of trainings, with the defaults of each kind."""
    text = keys("Keys of a training", {"scdf, distill and finetune": TrainSpec, **CORPUS_MODELS})
    names = sorted({key for values in DEFAULTS.values() for key in values})
    rows = [[f"`{name}`", *(as_text(DEFAULTS[kind].get(name)) for kind in DEFAULTS)] for name in names]
    about = "Written in the file of `--config`, or as `--set KEY=VALUE`. These defaults depend on the kind of training:"
    head, rest = text.split("\n\n", 1)
    return "\n\n".join([head, about, "\n".join(table(["key", *DEFAULTS], rows)), rest])


def metrics() -> str:
    """Returns the meaning of every metric and of every other field of a leaderboard row."""
    rows = [[f"`{each.name}`", each.unit, escaped(each.explanation)] for each in all_metrics().values()]
    about = "`specbench list metrics` prints the same. Null stands where a number is not defined."
    fields = keys("Fields of a leaderboard row", {"Fields of a leaderboard row": Row}).split("\n\n", 1)[1]
    return "\n".join(["# Metrics and rows", "", about, "", *table(["metric", "unit", "meaning"], rows), fields])


def surroundings() -> str:
    """Returns the environment variables that are read and the exit codes."""
    return "\n".join(["# Environment variables and exit codes", "", *surroundings_lines("##")])


def surroundings_lines(level: str) -> list[str]:
    lines = [f"{level} Environment variables", ""]
    lines += table(["variable", "meaning"], [[f"`{name}`", text] for name, text in VARIABLES.items()])
    lines += [f"{level} Exit codes", ""]
    return [*lines, *table(["code", "meaning"], [[f"{code}", text] for code, text in EXIT_CODES.items()])]


def keys(title: str, specs: Mapping[str, type[BaseModel]]) -> str:
    """Returns a page with a section for each specification, and one for each mapping that it holds."""
    return "\n".join([f"# {title}", "", *keys_lines(specs, "##")])


def keys_lines(specs: Mapping[str, type[BaseModel]], level: str) -> list[str]:
    """Returns the sections of a page of keys. `level`: that of a specification's heading. Keys that several mappings
    have are listed once."""
    lines: list[str] = []
    for heading, spec in specs.items():
        lines += [f"{level} {heading}", ""]
        places: dict[type[BaseModel], str] = {}
        for place, model in nested(spec, ""):
            lines += [f"{level}# {place}", ""] if place else []
            if model in places:
                lines += [f"As `{places[model]}`.", ""]
            else:
                places[model] = place
                lines += [paragraphs(prose(model)), "", *parameters_table(field_parameters(model, "", {}, set()))]
    return lines


def nested(model: type[BaseModel], place: str) -> Iterator[tuple[str, type[BaseModel]]]:
    """Yields a model and, by their keys, the models of its fields. Components have a page of their own."""
    yield place, model
    for name, field in model.model_fields.items():
        for each in models_of(field.annotation):
            if not issubclass(each, Component):
                yield from nested(each, f"{place}.{name}" if place else name)


def models_of(annotation: Any) -> Iterator[type[BaseModel]]:
    """Yields the models in an annotation such as `dict[str, Model] | None`."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for each in get_args(annotation):
        yield from models_of(each)


def parameters_table(parameters: Sequence[Parameter], with_value: bool = False) -> list[str]:
    """Returns a table of keys. `with_value`: with the value that a method gives each."""
    if not parameters:
        return []
    has_meaning = any(each.meaning for each in parameters)
    rows = []
    for each in parameters:
        value = [as_text(each.value)] if with_value else []
        default = "required" if each.required else as_text(each.default)
        meaning = [escaped(each.meaning or "")] if has_meaning else []
        rows.append([f"`{each.key}`", *value, escaped(kind_of(each)), default, *meaning])
    head = ["key", *["value"] * with_value, "type and range", "default", *["meaning"] * has_meaning]
    return table(head, rows)


def kind_of(parameter: Parameter) -> str:
    """Returns the type and the range of a parameter: `a number, 0 to 1`; `one of raw, processed`."""
    kind = parameter.type.replace("only or null", "null or").replace("one of or null", "null or one of")
    join = " " if kind.endswith(("only", "one of", "null or")) else ", "
    return join.join(filter(None, (kind, parameter.range)))


def as_text(value: Any) -> str:
    """Returns a value as YAML writes it, or a dash for none and for the defaults of a nested mapping."""
    if value in (None, (), [], {}, "") or isinstance(value, BaseModel):
        return "–"
    return f"`{shown(value)}`".replace("\n", "↵")


def paper(name: str | None) -> str:
    """Returns a link to a paper of arXiv, or its name."""
    number = (name or "").removeprefix("arXiv:")
    return "–" if not name else f"[{number}](https://arxiv.org/abs/{number})" if number != name else escaped(name)


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Returns a Markdown table and an empty line."""
    body = [[" ".join(cell.replace("|", "\\|").split()) for cell in cells] for cells in rows]
    return [*markdown_table(head, body).splitlines(), ""]


def paragraphs(text: str) -> str:
    """Returns a docstring as Markdown; indented examples become blocks of code."""
    blocks = []
    for block in text.split("\n\n"):
        is_code = all(line.startswith("    ") for line in block.splitlines())
        blocks.append(block if is_code else escaped(" ".join(block.splitlines()) if "\n- " not in block else block))
    return "\n\n".join(blocks)


def escaped(text: str) -> str:
    """Returns a text in which nothing outside of backticks is markup."""
    parts = re.split(r"(`[^`]*`)", text)
    return "".join(part if part.startswith("`") else re.sub(r"([*<\[\]])", r"\\\1", part) for part in parts)


FILES: dict[str, dict[str, type[BaseModel]]] = {  # by page: the specifications of files that it lists the keys of
    "tasks": {"Keys of a task": TaskSpec},
    "methods": {"Keys of a method": MethodSpec},
    "servers": {"Keys of a servers file": ServersSpec},
    "suites": {"Keys of suites and boards": SuiteSpec, "Keys of a board repository": BoardSpec},
    "claims": {"Keys of a claim": ClaimSpec},
    "memory": {"Keys of a memory file": MemorySpec},
}
MAKERS: dict[str, Callable[[], str]] = {  # of the pages, by name
    "commands": commands,
    "python": python,
    "tasks": tasks,
    "methods": methods,
    "components": components,
    "suites": lambda: keys("Suites and boards", FILES["suites"]),
    "servers": lambda: keys("Servers", FILES["servers"]),
    "claims": lambda: keys("Claims", FILES["claims"]),
    "memory": lambda: keys("Memory", FILES["memory"]),
    "training": training,
    "metrics": metrics,
    "surroundings": surroundings,
}


OVERVIEW = Path(__file__).resolve().parents[1] / "docs" / "reference.md"
BLOCK = re.compile(r"(?<=<!-- made of the code: )(\w+) -->\n.*?(?=<!-- end -->)", re.DOTALL)


def overview(text: str) -> str:
    """Returns docs/reference.md with the parts that are made of the code, for clones, which have no other page."""

    def part(found: re.Match[str]) -> str:
        name = found[1]
        lines = surroundings_lines("###") if name == "surroundings" else keys_lines(FILES[name], "###")
        return "\n".join([f"{name} -->", "", *lines])

    return BLOCK.sub(part, text)


def on_files(files: Any, config: Any) -> Any:
    """Adds the pages, and that of the notebook, to a build of mkdocs (a hook of .mkdocs.yml)."""
    from mkdocs.structure.files import File

    for name, text in {**pages(), notebook.PAGE: notebook.page()}.items():
        files.append(File.generated(config, name, content=text))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Points links to a section of docs/reference.md, which every clone has, at the page that is made of the section,
    and leaves out the parts of that page that the others have (a hook of .mkdocs.yml)."""
    markdown = BLOCK.sub(r"\1 -->\n", markdown)
    return re.sub(r"\breference\.md#(\w+)\)", r"reference/\1.md)", markdown)


def main() -> None:
    """Writes the pages into a folder, or the keys into docs/reference.md."""
    parser = argparse.ArgumentParser(prog="python -m tools.reference", description=__doc__)
    wanted = parser.add_mutually_exclusive_group(required=True)
    wanted.add_argument("--output", type=Path, help="folder that the pages are written into")
    wanted.add_argument("--write", action="store_true", help="write the keys into docs/reference.md")
    given = parser.parse_args()
    if given.write:
        OVERVIEW.write_text(overview(OVERVIEW.read_text(encoding="utf-8")), encoding="utf-8")
        return
    for name, text in pages().items():
        (given.output / name).parent.mkdir(parents=True, exist_ok=True)
        (given.output / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
