"""The command line. Each command is a function in a module of this package."""

import io
import os
import sys
import warnings
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import cache
from importlib import import_module
from typing import Annotated

import typer
from pydantic import ValidationError

from specbench.built_in import __version__
from specbench.cli.arguments import bound_numbers, check_words
from specbench.core.console import (
    CLOSED_PIPE,
    be_quiet,
    be_verbose,
    discard_output,
    fail,
    say,
    show_warning,
    stderr,
    stdout,
)
from specbench.core.errors import INTERRUPTED, ConfigError
from specbench.core.progress import Heartbeat
from specbench.core.validation import remedy_for_text

# The base class of usage errors, in click or in the copy of click inside newer versions of typer.
UsageError: type[typer.BadParameter] = typer.BadParameter.__mro__[2]


def print_version(wanted: bool) -> None:
    if wanted:
        stdout.print(f"specbench {__version__}")
        raise typer.Exit


def options(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", is_eager=True, callback=print_version)
    ] = False,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="Hide notes and progress; also accepted after any command.")
    ] = False,
    verbose: Annotated[
        bool,
        typer.Option(
            "--verbose", "-v", help="Show versions, engines and every measured answer; also accepted after any command."
        ),
    ] = False,
) -> None:
    """Benchmark speculative decoding of language models."""
    if quiet:
        be_quiet()
    if verbose:
        be_verbose()


# The function or group of each command, as module:name, in the order of the help.
COMMANDS = {
    "run": "run:run", "list": "info:list_", "validate": "info:validate", "fetch": "info:fetch", "show": "show:show",
    "sample": "samples:sample", "answers": "samples:answers", "report": "run_report:report", "new": "info:new",
    "audit": "analyses:audit", "conformance": "analyses:conformance",
    "sweep": "run:sweep", "suite": "publish:suite", "tune": "run:tune",
    "vocab": "analyses:vocab", "roofline": "analyses:roofline", "limit": "analyses:roofline",
    "predict": "analyses:predict", "profile": "profile:profile", "explain": "analyses:explain",
    "advise": "analyses:advise", "memory": "analyses:memory", "drift": "analyses:drift",
    "languages": "analyses:languages",
    "fairness": "analyses:fairness", "compare": "leaderboard:compare", "schema": "leaderboard:schema",
    "site": "publish:site", "check": "leaderboard:check", "lm-eval": "run:lm_eval",
    "serve-llama-cpp": "serve:serve_llama_cpp", "train": "train:train", "leaderboard": "leaderboard:leaderboard",
    "bundle": "bundle:bundle", "board": "board:board", "plot": "paper:plot", "table": "paper:table",
    "card": "hub:card", "hub": "hub:hub",
}  # fmt: skip
FORMER_NAMES = {"limit": "roofline"}  # former name: name
CONTEXT_SETTINGS = {"lm-eval": {"allow_extra_args": True, "ignore_unknown_options": True}}  # lm-eval parses the rest


def make_app(names: Iterable[str] = COMMANDS) -> typer.Typer:
    """Returns the command line with the named commands. Only their modules are imported."""
    app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False)
    app.callback()(options)
    for name in names:
        module, _, attribute = COMMANDS[name].partition(":")
        command = getattr(import_module(f"specbench.cli.{module}"), attribute)
        if isinstance(command, typer.Typer):
            app.add_typer(command, name=name)
        else:
            summary = f"Former name of `{FORMER_NAMES[name]}`." if name in FORMER_NAMES else None
            app.command(name, short_help=summary, context_settings=CONTEXT_SETTINGS.get(name))(command)
    bound_numbers(app)
    return app


@cache  # a script may call many commands
def parser_of(first: str) -> Callable[..., int | None]:
    """Returns what parses and runs a command line that begins with a word."""
    return typer.main.get_command(make_app([first] if first in COMMANDS else COMMANDS))


def main() -> None:
    """Parses the command line, runs its command and exits. A user error is one line on stderr and exit code 2."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # no result must be lost in an encoding without α
    warnings.showwarning = show_warning
    try:
        try:
            check_words(sys.argv[1:])
            first = next((word for word in sys.argv[1:] if not word.startswith("-")), "")
            command = parser_of(first)
            with Heartbeat(stderr):
                code = int(command(prog_name="specbench", standalone_mode=False) or 0)
        except (ConfigError, UsageError, RuntimeError, MemoryError) as error:
            code = report(error)
        if code == INTERRUPTED:  # for a KeyboardInterrupt some versions of typer return it, others raise Abort
            say(stderr, "interrupted")
        sys.stdout.flush()
    except OSError as error:
        if error.filename is not None:  # the error is about a file, not about the output
            sys.exit(fail(ConfigError(f"{os.fsdecode(error.filename)!r:.200}: {error.strerror or error}")))
        discard_output()
        code = CLOSED_PIPE if isinstance(error, BrokenPipeError) else 2
        if code == 2:
            with suppress(OSError):  # it may be stderr that cannot be written
                fail(ConfigError(f"cannot write the output ({error.strerror or error}): choose another path"))
    sys.exit(code)


def report(error: Exception) -> int:
    """Prints a user's mistake in one line and returns the exit code. Raises the error if it is a defect."""
    if isinstance(error, ConfigError):
        return fail(error)
    if isinstance(error, typer.Abort):
        return INTERRUPTED
    if isinstance(error, UsageError):
        if sys.argv[1:]:
            return fail(ConfigError(with_value(error)))
        error.show()  # the message is the help
        return error.exit_code
    from specbench.models.devices import is_out_of_memory, memory_message

    if not is_out_of_memory(error):
        raise error
    return fail(ConfigError(f"{memory_message(error)}: use a smaller model or dtype, or shorter texts, or free memory"))


def with_value(error: typer.BadParameter) -> str:
    """Returns the message of a usage error with the value of the option. Typer checks numbers by pydantic, whose words
    are replaced by what to give."""
    message = error.format_message()
    if "unexpected extra argument" in message and error.ctx is not None:
        return f"{message.rstrip('.')}: `{error.ctx.command_path} --help` lists the arguments"
    for name in getattr(getattr(error, "param", None), "opts", []):
        for word, following in reversed([*zip(sys.argv, [*sys.argv[1:], ""], strict=True)]):  # the last one wins
            value = following if word == name else word.removeprefix(f"{name}=")
            if value != word:
                if isinstance(error.__cause__, ValidationError):
                    return f"{name} {value:.60}: {remedy_for_text(error.__cause__)}"
                message = message.replace(f"'{name}':", f"'{name} {value}':", 1)
    return message


if __name__ == "__main__":
    main()
