"""Options that several commands share, other names of options, and their parsing."""

import inspect
import json
import math
import shlex
import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import replace
from functools import partial, wraps
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from pydantic import BaseModel
from typer.core import TyperCommand

from specbench.core.console import be_quiet, be_verbose, say, stderr, stdout
from specbench.core.environment import EMBEDDED
from specbench.core.errors import ConfigError, nearest
from specbench.core.files import write_output
from specbench.specs.run_options import MODEL_ARGS, OPTIONS, Option, RunOptions, with_options
from specbench.specs.run_options import split as split  # commands take it from here

if TYPE_CHECKING:
    from specbench.results.level import Levels
    from specbench.running.models import LoadedModels
    from specbench.specs.run import RunSpec

Files = Annotated[list[Path], typer.Argument(metavar="FILE...", help="Leaderboard files (JSON).")]
Bundles = Annotated[
    list[Path] | None,
    typer.Option("--bundle", help="Bundle that confirms rows, which are shown with their level; may be repeated."),
]
Signers = Annotated[Path | None, typer.Option(help="File of allowed signers, as git's gpg.ssh.allowedSignersFile.")]
RowSubsets = Annotated[str | None, typer.Option(help="Subsets, separated by commas; by default the `all` rows.")]
SamplePrompt = Annotated[
    str,
    typer.Option("--prompt", help="Prompt of the sampled texts; empty: the BOS token; the paper: ' '."),
]

flag = partial(typer.Option, metavar="")  # so that the help shows no value
AsJson = Annotated[bool, flag("--json", help="Print JSON instead of tables.")]

LONGEST_NAME = 255  # bytes of a file name on common file systems
PAIR = ("target", "drafter", "target_revision", "drafter_revision")
LARGEST, LARGEST_SEED = 10**9, 2**63 - 1


def names_in(kind: str) -> Callable[[str], list[str]]:
    """Returns what completes the last of names separated by commas, for a shell. `kind`: tasks or methods."""

    def complete(incomplete: str) -> list[str]:
        from specbench.specs import catalogue

        before, comma, last = incomplete.rpartition(",")
        names = catalogue.task_names() if kind == "tasks" else catalogue.method_names()
        return [f"{before}{comma}{name}" for name in names if name.startswith(last)]

    return complete


def one_of(words: Collection[str] | str) -> Callable[[str], list[str]]:
    """Returns what completes one of some words, for a shell. `words`: as MODULE:NAME they are imported only then."""

    def complete(incomplete: str) -> list[str]:
        known: Collection[str] = words
        if isinstance(words, str):
            module, _, name = words.partition(":")
            known = getattr(import_module(module), name)
        return [word for word in known if word.startswith(incomplete)]

    return complete


Format = Annotated[
    str,
    typer.Option(
        "--format",
        help="text, markdown, or latex for a paper.",
        autocompletion=one_of("specbench.core.table:FORMATS"),
    ),
]


def takes_run_options(
    only: Collection[str] = tuple(OPTIONS), without: Collection[str] = (), defaults: Mapping[str, str] | None = None,
    **helps: str,
) -> Callable[[Callable[..., None]], Callable[..., None]]:  # fmt: skip
    """Returns a decorator that puts run options in the place of a command's parameter `options`, which gets their
    values; those that the command lacks keep their defaults.

    `only` and `without` select run options. `without` may also name parameters of the command, which then keep their
    defaults. `defaults`, `helps`: by name, defaults and help texts that differ from those of `specbench run`.
    """
    given_options = [option for name, option in OPTIONS.items() if name in only and name not in without]
    own_defaults = defaults or {}

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        @wraps(function)
        def command(**given: Any) -> None:
            values = {option.name: read_option(option, given.pop(option.name))
                      for option in given_options if option.name in given}  # fmt: skip
            function(**given, options=RunOptions(**values))

        parameters = []
        for option in given_options:
            declared = (flag if option.type is bool else typer.Option)(
                option.flag,
                help=helps.get(option.name, option.help),
                autocompletion=one_of(option.choices) if option.choices else None,
            )
            default = own_defaults.get(option.name, option.default)
            parameters.append(inspect.Parameter(
                option.name, inspect.Parameter.KEYWORD_ONLY, default=None if default == () else default,
                annotation=Annotated[typed_as(option), declared],
            ))  # fmt: skip
        with_options(command, "options", parameters, [name for name in without if name not in OPTIONS])
        return command

    return decorate


def typed_as(option: Option) -> Any:
    """Returns the type of an option that typer parses, before `read_option`."""
    if option.is_repeated:
        return list[str] | None
    return str | None if option.is_tuple or option.name == "limit" else str if option.choices else option.type


def read_option(option: Option, value: Any) -> Any:
    """Returns the value of a run option. `value`: what typer parsed. Raises ConfigError for a value out of bounds."""
    if value is None:
        return option.default
    if option.name == "limit":
        return amount(option.flag, value)
    if option.is_tuple:
        return tuple(value if option.is_repeated else split(value))
    if option.choices and value not in option.choices:
        raise ConfigError(f"{option.flag} {value}: {nearest(value, option.choices)}")
    if option.least is not None and not option.least <= value < math.inf:  # nan is neither
        raise ConfigError(f"{option.flag} {value}: give {option.least} or more")
    return value


FIXED = ("seed", "repeats", "limit", "subsets", "subsets_per_task", "data", "warm_up")  # they choose texts, or repeats


def changed_options(options: RunOptions, changes: Sequence[str]) -> RunOptions:
    """Returns the options with `changes`, each OPTION=VALUE as on the command line, without dashes. Raises ConfigError
    for an unknown option, for one of FIXED, and for a value out of bounds."""
    known = {option.flag.removeprefix("--"): option for option in OPTIONS.values() if option.name not in FIXED}
    for text in changes:
        name, equals, value = text.partition("=")
        option = known.get(name.strip().removeprefix("--"))
        if option is None or not equals:
            raise ConfigError(
                f"--change {text}: write it as OPTION=VALUE, such as quantize=int4: {nearest(name, known)}"
            )
        if option.is_repeated:
            read: Any = (*getattr(options, option.name), value)
        elif option.least is not None:
            read = read_option(option, whole_number(f"--change {option.name}", value) or -1)
        else:
            read = read_option(option, value)
        options = replace(options, **{option.name: read})
    return options


def serving_of(servers: Path | None) -> "AbstractContextManager[Callable[[RunSpec], LoadedModels] | None]":
    """Returns a context manager that yields the function that connects to a run's servers, and stops those that it
    started. It yields None if there is no servers file."""
    if servers is None:
        return nullcontext()
    from specbench.integrations.served.models import serving

    return serving()


def whole_number(option: str, text: str) -> int | None:
    """Returns an option's number of examples; None if the text is not a whole number from 1. Raises ConfigError for one
    that is too large."""
    with suppress(ValueError):
        if (number := int(text)) >= 1:
            if number > LARGEST:
                raise ConfigError(f"{option} {text:.40}: give at most {LARGEST}")
            return number
    return None


def amount(option: str, text: str | None) -> int | float | None:
    """Returns an option's number of examples, or a share below 1. Raises ConfigError for other values."""
    if text is None:
        return None
    if (number := whole_number(option, text)) is not None:
        return number
    with suppress(ValueError):
        if 0 < (share := float(text)) < 1:
            return share
    raise ConfigError(f"{option} {text:.40}: give a number of examples from 1, or a share between 0 and 1, such as 0.1")


DEFAULT_TASK = "mgsm"  # of which every language has a bundled sample


def task_or_sample(task: str | None, options: RunOptions, servers: Path | None = None) -> tuple[list[str], RunOptions]:
    """Returns the tasks whose prompts an analysis reads, and its options. Without --task and --data these are the
    bundled prompts of DEFAULT_TASK, whatever the target: an analysis that names no texts needs no hub. A line says so,
    unless they are those of an embedded target anyway."""
    if task is None and options.data is None:
        if servers is not None or not (options.target or EMBEDDED).startswith(EMBEDDED):
            say(stderr, f"without --task, the prompts are the bundled sample of {DEFAULT_TASK}")
        options = replace(options, data="sample")
    return split(DEFAULT_TASK if task is None else task), options


def print_report(
    report: BaseModel, as_json: bool, tables: Callable[[], Iterable[Any]], output: Path | None
) -> None:  # fmt: skip
    """Writes the report of an analysis to the file of --output, prints it (`print_result`), and names the file."""
    if output is not None:
        write_output("--output", output, report.model_dump_json(indent=2) + "\n")
    print_result(report, as_json, tables)
    if output is not None:
        console = stderr if as_json else stdout  # with --json, stdout is only JSON
        console.print(f"report: {output}", soft_wrap=True)


def print_result(result: Any, as_json: bool, tables: Callable[[], Iterable[Any]]) -> None:
    """Prints a result on stdout: a pydantic model or plain values as JSON, or its tables."""
    if not as_json:
        for table in tables():
            stdout.print(table)
    elif isinstance(result, BaseModel):
        stdout.out(result.model_dump_json(indent=2))
    else:
        stdout.out(json.dumps(result, ensure_ascii=False, indent=2))


def levels_in(files: Sequence[Path], bundles: Sequence[Path] | None, signers: Path | None) -> "Levels | None":
    """Returns the levels of the rows of leaderboard files that bundles have; None without bundles."""
    if not bundles:
        if signers is not None:
            raise ConfigError(f"--signers {signers}: has no effect without --bundle: add --bundle, or remove it")
        return None
    from specbench.publish.bundle.verify import levels_of
    from specbench.results.leaderboard import load

    return levels_of([row for file in files for row in load(file)], bundles, signers)


def command_line() -> str:
    """Returns the command line, quoted for a shell."""
    return shlex.join(["specbench", *sys.argv[1:]])


def checked_path(option: typer.CallbackParam, text: str | None) -> Path | None:
    """Returns the path of an option. Raises ConfigError if it is empty, which would mean the current folder, or if a
    file name is too long."""
    if text is None:
        return None
    if not text.strip():
        raise ConfigError(f"{option.opts[0]} '{text}': is empty: give a path, or remove the option")
    longest = max(Path(text).parts, key=lambda name: len(name.encode()), default="")
    if (size := len(longest.encode())) > LONGEST_NAME:
        problem = f"a name of {size} bytes, but a file's name has at most {LONGEST_NAME}: shorten it"
        raise ConfigError(f"{option.opts[0]} {longest[:20]}…: {problem}")
    return Path(text)


path_option = partial(typer.Option, parser=str, callback=checked_path)
Plot = Annotated[Path | None, path_option(help="File for a plot of the numbers, such as plot.png.")]
Report = Annotated[Path | None, path_option(help="JSON file for the report.")]


def check_words(words: Sequence[str]) -> None:
    """Raises ConfigError for an argument that is not UTF-8 or contains NUL, because rows store the command line."""
    for word in words:
        shown = word.encode("utf-8", "backslashreplace").decode()
        if shown != word:
            raise ConfigError(f"'{shown}': is not UTF-8: rename the file or folder, or correct the argument")
        if "\0" in word:
            raise ConfigError(f"{word!r}: contains a NUL character, which file names cannot have: remove it")


def bound_numbers(app: typer.Typer) -> None:
    """Makes all commands raise ConfigError that names the option for integers that are too large."""
    for command in app.registered_commands:
        if command.cls is TyperCommand:
            command.cls = BoundedCommand
    for group in app.registered_groups:
        if group.typer_instance is not None:
            bound_numbers(group.typer_instance)


QUIET, VERBOSE = ("-q", "--quiet"), ("-v", "--verbose")


def declared_name(argument: Any) -> str:
    """Returns an argument without a metavar as the usage line has it: NAME if it is required, else [NAME]."""
    name = str(argument.name).upper() if argument.required else f"[{argument.name.upper()}]"
    return name if argument.nargs == 1 else f"{name}..."


class BoundedCommand(TyperCommand):
    """A command with bounded integers that accepts other names of options (see `translate_options`), --quiet and
    --verbose."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Returns the parts of the usage line. Arguments stand in it as they are declared, `RUN...` or `[RUN]...`;
        typer would put more brackets around them."""
        arguments = [each for each in self.get_params(ctx) if each.param_type_name == "argument"]
        return ["[OPTIONS]", *(each.metavar or declared_name(each) for each in arguments)]

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        for words, begin in ((QUIET, be_quiet), (VERBOSE, be_verbose)) if not ctx.ignore_unknown_options else ():
            if {*words} & {*args}:
                begin()
                args = [word for word in args if word not in words]
        known = {spelling for parameter in self.params for spelling in parameter.opts}
        rest: list[str] = super().parse_args(ctx, translate_options(args, known))
        for name, value in ctx.params.items():
            if isinstance(value, int):
                largest = LARGEST_SEED if name == "seed" else LARGEST
                if abs(value) > largest:
                    bound = f"at most {largest}" if value > 0 else f"at least {-largest}"
                    raise ConfigError(f"--{name.replace('_', '-')} {value}: give {bound}")
        return rest


SAME_VALUE = {
    "--tasks": "--task", "--output-path": "--output", "--include-path": "--lm-eval-include"
}  # fmt: skip
# The options that take the values of --model_args.
FLAGS_OF_MODEL_ARGS = {"method": "--method", **{key: OPTIONS[name].flag for key, name in MODEL_ARGS.items()}}
NUM_SHOTS = "--set fewshot.num_shots="  # the meaning of --num_fewshot
REMEDIES = {  # for options that are set in another way
    "--batch-size": "sequences are decoded one at a time, since speculative decoding is measured at batch size 1: "
    "remove it (servers can be measured with concurrent requests)",
    "--gen-kwargs": "generation is set in the task's file: give --set generation.KEY=VALUE for each key, such as "
    "--set generation.temperature=0.8",
    **{
        f"--{name.replace('_', '-')}": f"this is set in the task's file: give --set generation.{name}=VALUE"
        for name in ("temperature", "top_k", "top_p", "max_new_tokens")
    },
    "--model": "transformers loads models: give --target MODEL, or --model_args pretrained=MODEL",
}


def translate_options(words: Sequence[str], known: Collection[str]) -> list[str]:
    """Returns the words of a command line with other names of options replaced by the command's names.

    `known`: the command's options. Unknown options are kept. Raises ConfigError for options of lm-eval and other
    programs that are set in another way here, and for an option that is given under two names.
    """
    rest = iter(words)
    translated = []
    renamed: dict[str, str] = {}  # options given under another name, with this name
    for word in rest:
        name, equals, value = word.partition("=")
        dashed = name.replace("_", "-")
        if not word.startswith("--") or name in known:
            translated.append(word)
        elif dashed in known or SAME_VALUE.get(dashed) in known:
            option = dashed if dashed in known else SAME_VALUE[dashed]
            renamed[option] = name
            translated.append(f"{option}{equals}{value}")
        elif dashed in REMEDIES and "--target" in known:
            given = value if equals else next(rest, "")
            if (dashed, given) != ("--batch-size", "1"):
                raise ConfigError(f"{name} {given}".rstrip() + f": {REMEDIES[dashed]}")
        elif dashed == "--model-args" and "--target" in known:
            options = [*model_options(name, value if equals else next(rest, ""), known)]
            renamed |= {option: name for option in options if option in known}
            translated += options
        elif dashed == "--num-fewshot" and "--set" in known:
            translated += f"{NUM_SHOTS}{value if equals else next(rest, '')}".split(" ", 1)
        elif dashed == "--apply-chat-template" and "--chat" in known:
            renamed["--chat"] = name
            translated += ["--chat", "always"]
            if equals:
                raise ConfigError(f"{word}: only the tokenizer's template can be used: give {name} without a value")
        else:
            translated.append(word)
    num_given = Counter(word.partition("=")[0] for word in translated)
    for option, name in renamed.items():
        if num_given[option] > 1:
            raise ConfigError(f"{option} is given twice, once as {name}: remove one")
    return translated


def model_options(option: str, text: str, known: Collection[str]) -> Iterator[str]:
    """Yields the command's options for --model_args: KEY=VALUE separated by commas, or JSON."""
    given: dict[str, object] = {}
    if text.strip().startswith("{"):
        try:
            given = json.loads(text)
        except ValueError as error:
            raise ConfigError(f"{option} {text:.60}: is not valid JSON ({error})") from error
    else:
        for pair in filter(str.strip, text.split(",")):
            key, equals, part = pair.partition("=")
            if not equals:
                raise ConfigError(f"{option} {key}: write it as KEY=VALUE, such as pretrained=MODEL,dtype=bfloat16")
            given[key.strip()] = part.strip()
    for key, value in given.items():
        name = FLAGS_OF_MODEL_ARGS.get(key, "")
        if name not in known:
            keys = [key for key, name in FLAGS_OF_MODEL_ARGS.items() if name in known]
            raise ConfigError(f"{option} {key}={value}: {nearest(key, keys)}")
        if name == "--set":
            yield from (word for each in str(value).split(";") for word in (name, each))
        elif name != "--trust-remote-code":
            yield from (name, str(value))
        elif str(value).lower() == "true":
            yield name
