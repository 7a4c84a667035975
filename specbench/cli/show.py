"""`specbench show`: explains a method, a task, a component or a model."""

import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from specbench.cli.help.method import known_methods, method_lines, parts, prose
from specbench.cli.help.text import Parameter, field_parameters, flow, folded, paragraphs, section, verbatim
from specbench.core.console import stdout
from specbench.core.environment import EMBEDDED
from specbench.core.errors import ConfigError
from specbench.core.registry import BRIDGES, DRAFT_LENGTHS, DRAFTERS, READERS, RULES, SCORERS, Registry
from specbench.models.gguf.files import is_gguf
from specbench.specs.catalogue import is_path, load_file, load_method, load_task, method_names, task_names, unknown_name
from specbench.specs.method import MethodSpec
from specbench.specs.task import TaskSpec
from specbench.tasks.examples import load_examples
from specbench.tasks.scoring import Reference

if TYPE_CHECKING:
    from specbench.models.chat_template import ChatTemplate

KINDS: dict[str, tuple[Registry[..., Any], str]] = {  # by heading: the registry, and the component's key in YAML
    "Drafters": (DRAFTERS, "`drafter: {type: NAME, …}` in a method"),
    "Draft lengths": (DRAFT_LENGTHS, "`draft_length: {policy: NAME, …}` in a method"),
    "Verification rules": (RULES, "`verification: {rule: NAME, …}` in a method"),
    "Vocabulary bridges": (BRIDGES, "`bridge: NAME`, or `bridge: {type: NAME, …}`, in a method"),
    "Scorers": (SCORERS, "`scorer: {type: NAME, …}` in a task"),
    "Readers": (READERS, "`reader: NAME` in a task"),
}

CUTOFF = 0.65  # similarity of a proposed name; among so many names a lower one proposes what nobody meant


def show(
    name: Annotated[
        str, typer.Argument(help="A method, task or component: a name, or the path of a YAML file; or a model.")
    ],
) -> None:
    """Explain a method, a task, a component or a model.

    A method: its components, parameters, losslessness, needs, presets and commands.

    A task: its prompt, right answer, generation settings, scorer and data. A component: its options and its users.

    A model (hub id, folder or embedded:NAME): context, vocabulary, end tokens, chat template, and sampling.
    """
    stdout.out("\n".join(help_lines(name)))


def help_lines(name: str) -> list[str]:
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
    elif titles := [title for title, (registry, _) in KINDS.items() if name in registry.names()]:
        return [line for title in titles for line in component_lines(title, name)]
    elif is_model(name):
        return [*model_lines(name)]
    else:
        from specbench.results.metric_format import find_metric  # takes long to import

        if find_metric(name) is not None:
            raise ConfigError(f"'{name}' is a metric: `specbench list metrics` explains it")
        components = {each for registry, _ in KINDS.values() for each in registry.names()}
        # Users may add the kind to a name: rest_drafter.
        kinds = {word for registry, _ in KINDS.values() for word in registry.kind.split()} | {"method", "task"}
        first, _, last = name.replace("-", "_").rpartition("_")
        raise unknown_name(
            "method, task, component or model", name, [*methods, *tasks, *sorted(components)],
            "give one that `specbench list` shows", name[: len(first)] if first and last in kinds else name, CUTOFF,
        )  # fmt: skip
    return [*(method_lines(spec, name) if isinstance(spec, MethodSpec) else task_lines(spec, name))]


def component_lines(title: str, name: str) -> Iterator[str]:
    """Yields the help of a component. `title`: its kind, a key of KINDS."""
    registry, where = KINDS[title]
    role = title.lower().removesuffix("s")
    written = where.replace("NAME", name).replace("`", "")
    yield from folded(f"{name}: a {role}, written as {written}")
    yield from paragraphs(prose(registry.get(name)), 2)
    options = (line for each in component_parameters(registry, name) for line in each.lines(is_option=True))
    yield from section("options", options)
    yield from section("used by", folded(", ".join(users(registry, role, name)), 2))


def component_parameters(registry: Registry[..., Any], name: str) -> list[Parameter]:
    """Returns the options of a component. A reader has none."""
    return [] if registry is READERS else field_parameters(registry.options_model(name), "", {}, set())


def users(registry: Registry[..., Any], role: str, name: str) -> list[str]:
    """Returns the known methods or tasks that use a component."""
    if registry not in (SCORERS, READERS):
        methods = [method for method in known_methods() if method.decoder is None]
        return [
            method.name for method in methods
            if any(part.name == name and part.role.startswith(role) for part in parts(method))
        ]  # fmt: skip
    found = []
    for task in map(load_task, task_names()):
        subsets = [task.subset(each) for each in task.subset_names]
        scorers = [subset.scorer.type for subset in subsets if subset.scorer]
        if name in ([subset.reader for subset in subsets] if registry is READERS else scorers):
            found.append(task.name)
    return found


def task_lines(task: TaskSpec, call: str) -> Iterator[str]:
    """Yields the help of a task. `call`: the name or path given by the user.

    The prompt is rendered from the first sample row of the first subset with a sample. Without samples it is the
    template of the first subset. For a conversation it has all turns of the user.
    """
    subset = next((name for name in task.subset_names if task.sample_of(name)), task.subset_names[0])
    part = task.subset(subset)
    prompt, place = part.prompt, f"template, subset {subset}"
    reference = as_text(part.reference or (f"each of column {part.references}" if part.references else None))
    if task.has_sample:
        example = load_examples(task, subset, data="sample", use_sample=True, limit=1).examples[0]
        prompt, place = "\n\n(the answer)\n\n".join(example.turns), f"first sample row of {subset}"
        reference = as_text(example.reference)
    yield from folded(f"{task.name} (version {task.version}): {task.title}")
    if task.paper:
        yield f"paper: {task.paper}"
    yield from folded(f"subsets: {' '.join(task.subset_names)}")
    yield from section("system prompt", verbatim(part.system_prompt))
    yield from section(f"prompt ({place})", verbatim(prompt))
    yield from section("right answer", verbatim(reference))
    yield from section("generation", folded(flow(part.generation.model_dump()), 2))
    if part.scorer is not None:
        yield from (f"\nscore: {flow(part.scorer.model_dump())}", *paragraphs(prose(part.scorer.factory), 2))
    data = []
    if part.dataset is not None:
        data.append(f"hub: {flow(part.dataset.model_dump(exclude_none=True, exclude_defaults=True))}")
    files = [*part.local.files, *([" and ".join(part.local.parallel.values())] if part.local.parallel else [])]
    data.append(f"files in the folder that --data names: {', '.join(files)}")
    plain = f"specbench run --task {shlex.quote(call)} --method sd"
    commands = [f"  {plain} --data FOLDER_OR_FILE"]
    if task.has_sample:
        data.append("a bundled sample (--data sample)")
        commands.insert(0, f"  {plain}")
    yield from section("data", (line for each in data for line in folded(each, 2)))
    yield from section("run it", commands)


def as_text(reference: Reference | None) -> str | None:
    """Returns a reference as text: alternatives separated by bars, or a mapping with one entry per line."""
    if isinstance(reference, Mapping):
        return "\n".join(f"{name}: {text}" for name, text in reference.items())
    return " | ".join(reference) if isinstance(reference, list) else reference


def is_model(name: str) -> bool:
    """Returns whether a name is that of an embedded model, of a checkpoint's folder, or may be a hub id."""
    if name.startswith(EMBEDDED) or (Path(name) / "config.json").is_file() or is_gguf(name):
        return True
    return name.count("/") == 1 and not name.startswith((".", "/", "~")) and not Path(name).suffix


def model_lines(name: str) -> Iterator[str]:
    """Yields the help of a model: what a run takes from its configuration, tokenizer and chat template. No weights are
    loaded. Raises ConfigError if the configuration or the tokenizer cannot be read."""
    from specbench.models.causal_lm import end_token_sources
    from specbench.models.gguf.model import GgufLM
    from specbench.models.loading import load_generation_config, load_model, sampling_of
    from specbench.models.vocabulary import begin_ids

    model = load_model(name, device="cpu", weights=False)
    tokenizer = model.tokenizer
    generation = load_generation_config(name, None)
    revision = f" ({model.revision})" if model.revision else ""
    if isinstance(model, GgufLM):
        header = model.header
        kind, end_sources = f"GGUF file of architecture {header.architecture}, {header.precision}", header.end_tokens
    else:
        kind = type(model.model).__name__
        end_sources = end_token_sources(generation, model.model.config, tokenizer)
    yield from folded(f"{name}{revision}: a {kind}")
    # 1. Tokens, and what ends an answer.
    sources: dict[int, list[str]] = {}
    for source, ids in end_sources.items():
        for index in ids:
            sources.setdefault(index, []).append(source)
    ends = [
        f"{index} {tokenizer.convert_ids_to_tokens(index)} ({', '.join(names)})"
        for index, names in sorted(sources.items())
    ]
    lines = [
        f"context: {model.context_limit or 'no limit'}",
        f"vocabulary: {model.vocab_size} tokens, {model.padded_vocab_size} rows in the output layer",
        f"begin: {' '.join(tokenizer.convert_ids_to_tokens(begin_ids(tokenizer))) or 'none'}",  # of texts without chat
        f"end: {', '.join(ends) or 'none, so that only stop strings and lengths end answers'}",
    ]
    if unused := ", ".join(f"{index} {token}" for token, index in model.unused_ends.items()):
        lines.append(f"no end here, although named like one: {unused}")
    if stops := getattr(generation, "stop_strings", None):
        listed = stops if isinstance(stops, str) else ", ".join(stops)
        lines.append(f"stop strings of generation_config.json, which runs do not use: {listed}")
    yield from section("tokens", (line for each in lines for line in folded(each, 2)))
    # 2. The chat template.
    lines = template_lines(model.chat_template, set(tokenizer.special_tokens_map))
    yield from section("chat template", (line for each in lines for line in folded(each, 2)))
    # 3. The sampling that the checkpoint asks for.
    sampling, _ = sampling_of(name, None)

    def listed_values(values: Mapping[str, object]) -> str:
        return ", ".join(f"{key} {value}" for key, value in values.items() if value is not None)

    lines = [listed_values(sampling.values) if sampling is not None and sampling.values else "none"]
    if sampling is not None and sampling.others:
        lines.append(f"not supported, and left out: {listed_values(sampling.others)}")
    source = "the file's metadata" if isinstance(model, GgufLM) else "generation_config.json"
    title = f"sampling of {source} (--sampling model)"
    yield from section(title, (line for each in lines for line in folded(each, 2)))


def template_lines(template: "ChatTemplate", special_tokens: set[str]) -> list[str]:
    """Returns what a chat template does with prompts. `special_tokens`: the names of those that it is given."""
    from specbench.models.chat_template import GIVEN_TO_TEMPLATES

    if not template.exists:
        return ["none: prompts are sent as they are, and a system prompt stands directly before them"]
    try:
        template.render(["Hi"])
    except ConfigError as error:
        return [str(error)]
    behaviour = template.behaviour
    if not behaviour.keeps_text:
        return ["it drops or cuts the user's text"]
    system = "a role of its own" if behaviour.has_system_role else "before the user's text"
    date = template.printed_date
    variables = sorted(template.variables - GIVEN_TO_TEMPLATES - special_tokens)
    return [
        f"content of messages: {behaviour.content}",
        f"system prompt: {system}",
        f"text of its own before the user's: {behaviour.own_text[0] or 'none'}",
        f"date: {f'{date.isoformat()} (--template-date)' if date else 'none'}",
        f"variables (--chat-template-args): {', '.join(variables) or 'none'}",
    ]
