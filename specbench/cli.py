"""The command line: one function per command; it parses, calls one function, and prints."""

import io
import json
import shlex
import sys
import warnings
from pathlib import Path
from typing import Annotated

import typer

from specbench import __version__
from specbench.console import CLOSED_PIPE, INTERRUPTED, discard_output, fail, show_warning, stderr, stdout
from specbench.errors import ConfigError, nearest

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
# The base of all mistakes in the command line: click's, or the copy of it that newer versions of typer hold.
UsageError: type[typer.BadParameter] = typer.BadParameter.__mro__[2]


def print_version(wanted: bool) -> None:
    if wanted:
        stdout.print(f"specbench {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", is_eager=True, callback=print_version)
    ] = False,
) -> None:
    """Benchmark speculative decoding of language models."""


@app.command()
def run(
    task: Annotated[str, typer.Option(help="Task names or YAML files, separated by commas.")],
    method: Annotated[str, typer.Option(help="Method names or YAML files, separated by commas; ar always joins them.")],
    subset: Annotated[
        str | None, typer.Option(help="Subsets (languages), separated by commas; all when absent.")
    ] = None,
    target: Annotated[
        str | None, typer.Option(help="Target model: hub id or folder; the embedded pair when absent.")
    ] = None,
    drafter: Annotated[str | None, typer.Option(help="Draft model: hub id or folder.")] = None,
    target_revision: Annotated[str | None, typer.Option(help="Hub revision of the target.")] = None,
    drafter_revision: Annotated[str | None, typer.Option(help="Hub revision of the drafter.")] = None,
    data: Annotated[str | None, typer.Option(help="hub, sample, or a folder or file of rows.")] = None,
    limit: Annotated[int | None, typer.Option(help="Examples per subset.")] = None,
    repeats: Annotated[int, typer.Option(help="Times that every example is measured.")] = 1,
    set_: Annotated[list[str] | None, typer.Option("--set", help="Override a key: verification.threshold=0.3")] = None,
    seed: Annotated[int, typer.Option(help="Seed of every random stream.")] = 0,
    dtype: Annotated[str, typer.Option(help="auto, float32, bfloat16 or float16.")] = "auto",
    device: Annotated[str, typer.Option(help="auto, cuda, mps or cpu.")] = "auto",
    chat: Annotated[str, typer.Option(help="Chat template: auto, always or never.")] = "auto",
    threads: Annotated[
        int | None, typer.Option(help="CPU threads; 1 for the embedded pair, else torch's choice.")
    ] = None,
    output: Annotated[str | None, typer.Option(help="Folder of the run; the same one resumes.")] = None,
    leaderboard: Annotated[str | None, typer.Option(help="Leaderboard JSON that the rows are merged into.")] = None,
    plot: Annotated[str | None, typer.Option(help="Picture of speed-up and acceptance, such as speed.png.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the rows as JSON instead of tables.")] = False,
) -> None:
    """Measure methods on tasks, beside autoregressive decoding; the same command resumes an interrupted run."""
    from specbench.execute import Request, execute

    request = Request(
        tasks=split(task), methods=split(method), subsets=split(subset) if subset is not None else None,
        overrides=set_ or [], target=target, drafter=drafter, threads=threads,
        output=path("--output", output), leaderboard=path("--leaderboard", leaderboard), plot=path("--plot", plot),
        command=shlex.join(["specbench", *sys.argv[1:]]),
        options={"target_revision": target_revision, "drafter_revision": drafter_revision, "data": data, "limit": limit,
                 "repeats": repeats, "seed": seed, "dtype": dtype, "device": device, "chat": chat},
    )  # fmt: skip
    outcome = execute(request, stderr)
    if as_json:
        stdout.out(json.dumps([row.model_dump(mode="json") for row in outcome.rows], ensure_ascii=False, indent=2))
        return
    from specbench.results.tables import run_table

    for group in outcome.tables():
        stdout.print(run_table(group))
    stdout.print(f"rows: {outcome.leaderboard}\nrecords: {outcome.records}", soft_wrap=True)


@app.command("list")
def list_(
    kind: Annotated[str, typer.Argument(help="tasks, methods or metrics; all when absent.")] = "all",
) -> None:
    """List the tasks and methods (built in or from plug-ins), and what the metrics mean."""
    from specbench.listing import methods_table, metrics_table, tasks_table

    tables = {"tasks": tasks_table, "methods": methods_table, "metrics": metrics_table}
    if kind != "all" and kind not in tables:
        raise ConfigError(f"specbench list {kind}: unknown kind '{kind}': {nearest(kind, tables)}")
    for name, make in tables.items():
        if kind in ("all", name):
            stdout.print(make())


@app.command()
def validate(files: Annotated[list[Path], typer.Argument(help="Task or method YAML files.")]) -> None:
    """Check task and method files; says what is wrong with each and exits with 2 if any is."""
    from specbench.catalogue import load_file

    num_wrong = 0
    for file in files:
        try:
            spec = load_file(file)
        except ConfigError as error:
            num_wrong += 1
            fail(error)
        else:
            stdout.print(f"ok: {file} ({type(spec).__name__.removesuffix('Spec').lower()} {spec.name})", soft_wrap=True)
    if num_wrong:
        raise typer.Exit(2)


def split(names: str) -> list[str]:
    """The parts of a comma-separated option, without blanks."""
    return [part.strip() for part in names.split(",") if part.strip()]


def path(option: str, text: str | None) -> Path | None:
    """The path that an option gives. Raises ConfigError for an empty one, which would mean the current folder."""
    if text is not None and not text.strip():
        raise ConfigError(f"{option} '{text}': is empty: give a path, or leave the option out")
    return None if text is None else Path(text)


def main() -> None:
    """The console script: a user's mistake is one line on stderr and exit code 2."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # no α in this encoding is no reason to lose a result
    warnings.showwarning = show_warning
    try:
        code = call_app()
        sys.stdout.flush()
    except OSError as error:
        if error.filename is not None:  # of a file, not of what is printed
            raise
        discard_output()
        code = CLOSED_PIPE if isinstance(error, BrokenPipeError) else 2
    sys.exit(code)


def call_app() -> int:
    """Parse the command line and run its command: the exit code."""
    try:
        return int(app(standalone_mode=False) or 0)
    except ConfigError as error:
        return fail(error)
    except typer.Abort:
        return INTERRUPTED
    except UsageError as error:
        if not sys.argv[1:]:  # no arguments at all: the message is the help
            error.show()
            return error.exit_code
        return fail(ConfigError(error.format_message()))


if __name__ == "__main__":
    main()
