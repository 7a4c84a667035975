"""Options that several commands share, and their parsing."""

import inspect
import json
import shlex
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import partial, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args, get_origin, get_type_hints

import typer
from pydantic import BaseModel
from typer.core import TyperCommand

from specbench.cli.aliases import translate_options
from specbench.core.console import stdout
from specbench.core.errors import ConfigError, nearest
from specbench.specs.run import RunOptions, flag_of

if TYPE_CHECKING:
    from specbench.running.models import Models
    from specbench.specs.run import RunSpec

Files = Annotated[list[Path], typer.Argument(metavar="FILE...", help="Leaderboard files (JSON).")]
RowSubsets = Annotated[str | None, typer.Option(help="Subsets, separated by commas; by default the rows over all.")]
SamplePrompt = Annotated[
    str,
    typer.Option("--prompt", help="Prompt of the sampled texts; empty: the BOS token; the paper: ' '."),
]
flag = partial(typer.Option, metavar="")  # so that the help shows no value

PAIR = ("target", "drafter", "target_revision", "drafter_revision")
# Types and help texts of RunOptions by field, in the order of the help.
RUN_OPTIONS = {name: get_args(kind) for name, kind in get_type_hints(RunOptions, include_extras=True).items()}
CHOICES = {name: get_args(kind) for name, (kind, _) in RUN_OPTIONS.items() if get_origin(kind) is Literal}
TYPED = {  # types on the command line
    "subsets": str | None, "overrides": list[str] | None, "limit": str | None, "chat_template_args": str | None,
    **dict.fromkeys(CHOICES, str),
}  # fmt: skip

LARGEST, LARGEST_SEED = 10**9, 2**63 - 1
LONGEST_NAME = 255  # bytes of a file name on common file systems


def takes_run_options(
    only: Sequence[str] = tuple(RUN_OPTIONS), without: Sequence[str] = (), defaults: Mapping[str, str] | None = None,
    **helps: str,
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:  # fmt: skip
    """Returns a decorator that replaces a command's parameter `options` with run options.

    The command gets their values as a RunOptions. `only` and `without` select fields of RunOptions; the other fields
    keep their defaults. `without` may also name parameters of the command, which then keep their defaults too.
    `defaults`, `helps`: defaults and help texts, by field, that differ from those of `specbench run`.
    """
    names = [name for name in RUN_OPTIONS if name in only and name not in without]

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        options = [_parameter(name, helps.get(name), (defaults or {}).get(name)) for name in names]
        signature = inspect.signature(function, eval_str=True)
        parameters = [
            parameter
            for given in signature.parameters.values() if given.name not in without or given.name in RUN_OPTIONS
            for parameter in (options if given.name == "options" else [given])
        ]  # fmt: skip

        @wraps(function)
        def call(**given: Any) -> Any:
            values = {name: given.pop(name) for name in names if name in given}
            return function(**given, options=_run_options(values))

        call.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        call.__annotations__ = {each.name: each.annotation for each in parameters}
        return call

    return decorate


def _parameter(name: str, help_text: str | None, default: Any) -> inspect.Parameter:
    kind, meaning = RUN_OPTIONS[name]
    option = (flag if kind is bool else typer.Option)(flag_of(name), help=help_text or meaning)
    if default is None and name not in ("overrides", "chat_template_args"):
        default = RunOptions.__dataclass_fields__[name].default
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[TYPED.get(name, kind), option]
    )


def _run_options(values: dict[str, Any]) -> RunOptions:
    for name, known in CHOICES.items():
        if name in values and values[name] not in known:
            raise ConfigError(f"{flag_of(name)} {values[name]}: {nearest(values[name], known)}")
    subsets, overrides = values.get("subsets"), values.get("overrides")
    changed = {
        "subsets": None if subsets is None else tuple(split(subsets)),
        "overrides": tuple(overrides or ()),
        "limit": amount("--limit", values.get("limit")),
        "chat_template_args": tuple(split(values.get("chat_template_args") or "")),
    }
    return RunOptions(**values | changed)


def serving_of(servers: str | None) -> "AbstractContextManager[Callable[[RunSpec], Models] | None]":
    """Returns a context manager that yields the function that connects to a run's servers, and stops those that it
    started. It yields None if there is no servers file."""
    if servers is None:
        return nullcontext()
    from specbench.served.models import serving

    return serving()


def amount(option: str, text: str | None) -> int | float | None:
    """Returns an option's number of examples, or a share below 1. Raises ConfigError for other values."""
    if text is None:
        return None
    with suppress(ValueError):
        if (number := int(text)) >= 1:
            if number > LARGEST:
                raise ConfigError(f"{option} {text:.40}: give at most {LARGEST}")
            return number
    with suppress(ValueError):
        if 0 < (share := float(text)) < 1:
            return share
    raise ConfigError(f"{option} {text:.40}: give a number of examples from 1, or a share between 0 and 1, such as 0.1")


def print_result(result: Any, as_json: bool, tables: Callable[[], Iterable[Any]]) -> None:
    """Prints a result on stdout: a pydantic model or plain values as JSON, or its tables."""
    if not as_json:
        for table in tables():
            stdout.print(table)
    elif isinstance(result, BaseModel):
        stdout.out(result.model_dump_json(indent=2))
    else:
        stdout.out(json.dumps(result, ensure_ascii=False, indent=2))


def command_line() -> str:
    """Returns the command line, quoted for a shell."""
    return shlex.join(["specbench", *sys.argv[1:]])


def limit_of(text: str | None) -> int | float | None:
    """Returns the number or share of --limit; None for all examples. Raises ConfigError for other values."""
    return None if text == "all" else amount("--limit", text)


def split(names: str) -> list[str]:
    """Returns the parts of a comma-separated option, stripped and without empty ones."""
    return [part.strip() for part in names.split(",") if part.strip()]


def path(option: str, text: str | None) -> Path | None:
    """Returns the path of an option. Raises ConfigError if it is empty, which would mean the current folder, or if a
    file name is too long."""
    if text is None:
        return None
    if not text.strip():
        raise ConfigError(f"{option} '{text}': is empty: give a path, or remove the option")
    longest = max(Path(text).parts, key=lambda name: len(name.encode()), default="")
    if (size := len(longest.encode())) > LONGEST_NAME:
        problem = f"a name of {size} bytes, but a file's name has at most {LONGEST_NAME}: shorten it"
        raise ConfigError(f"{option} {longest[:20]}…: {problem}")
    return Path(text)


def check_words(words: Sequence[str]) -> None:
    """Raises ConfigError for an argument that is not UTF-8 or contains NUL, because rows store the command line."""
    for word in words:
        shown = word.encode("utf-8", "backslashreplace").decode()
        if shown != word:
            raise ConfigError(f"'{shown}': is not UTF-8: rename the file or folder, or correct the argument")
        if "\0" in word:
            raise ConfigError(f"{word!r}: has the character NUL, which no file name can have: remove it")


def bound_numbers(app: typer.Typer) -> None:
    """Makes all commands raise ConfigError that names the option for integers that are too large."""
    for command in app.registered_commands:
        if command.cls is TyperCommand:
            command.cls = BoundedCommand
    for group in app.registered_groups:
        if group.typer_instance is not None:
            bound_numbers(group.typer_instance)


class BoundedCommand(TyperCommand):
    """A command with bounded integers that accepts the option names of `aliases`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        known = {spelling for parameter in self.params for spelling in parameter.opts}
        rest: list[str] = super().parse_args(ctx, translate_options(args, known))
        for name, value in ctx.params.items():
            if isinstance(value, int):
                largest = LARGEST_SEED if name == "seed" else LARGEST
                if abs(value) > largest:
                    bound = f"at most {largest}" if value > 0 else f"at least {-largest}"
                    raise ConfigError(f"--{name.replace('_', '-')} {value}: give {bound}")
        return rest
