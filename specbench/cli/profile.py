"""`specbench profile`."""

from pathlib import Path
from typing import Annotated

import typer

from specbench.cli.arguments import AsJson, one_of, path_option, print_result, split
from specbench.core.console import say, stderr, stdout
from specbench.core.errors import ConfigError
from specbench.core.progress import status_line

RUNS = "RUN, RUN:METHOD or FILE:NUMBER of a row; or one profile, to export it."


def profile(
    runs: Annotated[list[str], typer.Argument(metavar="RUN...", help=RUNS)],
    task: Annotated[str | None, typer.Option(help="Tasks, separated by commas; by default all.")] = None,
    subset: Annotated[str | None, typer.Option(help="Subsets, separated by commas; by default all.")] = None,
    export: Annotated[
        str | None,
        typer.Option(
            help="Write it for vllm, sglang, tensorrt-llm, llama.cpp or inferencex.",
            autocompletion=one_of("specbench.analysis.profile.exports:NAMES"),
        ),
    ] = None,
    entry: Annotated[str | None, typer.Option(help="With --export: id or method of an entry.")] = None,
    cell: Annotated[
        str | None, typer.Option(help="With --export: BY=VALUE, such as language=de; by default the total.")
    ] = None,
    form: Annotated[
        str | None,
        typer.Option(
            help="With --export: rates or length; by default rates where the engine takes them.",
            autocompletion=one_of("specbench.analysis.profile.exports:FORMS"),
        ),
    ] = None,
    short_drafts: Annotated[
        str | None,
        typer.Option(
            help="With --export: positions that a step did not draft are left out (skip, the default), or count as "
            "rejected (reject).",
            autocompletion=one_of("specbench.analysis.profile.exports:SHORT_DRAFTS"),
        ),
    ] = None,
    lengths: Annotated[
        str | None,
        typer.Option(help="With --export inferencex: draft lengths that were not measured, to compute from rates."),
    ] = None,
    output: Annotated[Path | None, path_option(help="File for the profile (JSON), or for the export.")] = None,
    as_json: AsJson = False,
) -> None:
    """Make an acceptance profile of recorded runs: how often the draft token at each position is accepted.

    a = accepted ÷ verified at a position; r = the product of a up to it. Positions without a verdict count nowhere.

    An entry is a method on a pair of models at one draft length; its cells part it by subset, language, context and
    reasoning.

    --export prints the profile as an engine's setting for forced acceptance. The drafter `synthetic` reads the profile
    itself.
    """
    from specbench.analysis.profile import exports

    # 1. Options that do not go together.
    of_export = {"--entry": entry, "--cell": cell, "--form": form, "--short-drafts": short_drafts, "--lengths": lengths}
    unused = [name for name, value in of_export.items() if value is not None]
    if export is None and unused:
        raise ConfigError(f"{unused[0]}: has no effect without --export: add --export ENGINE, or remove {unused[0]}")
    if export is not None and as_json:
        raise ConfigError(f"--json: has no effect with --export {export}: remove one of them")
    numbers = [_draft_length(text) for text in split(lengths or "")]
    if export is not None:
        exports.check_options(export, form, short_drafts or "skip", numbers)

    from specbench.core.files import check_output, write_output
    from specbench.records.profile import is_profile, read_profile

    if output is not None:
        check_output("--output", output)
    # 2. The profile.
    files = [text for text in runs if is_profile(Path(text))]
    if files and (len(runs) > 1 or task or subset or export is None):
        raise ConfigError(f"{files[0]}: is a profile, not a run: give it alone, with --export ENGINE")
    if files:
        found = read_profile(Path(files[0]))
    else:
        from specbench.analysis.profile.profile import profile_of_runs

        with status_line("reading the records"):
            found = profile_of_runs(runs, split(task or ""), split(subset or ""))
    # 3. What was asked for.
    if export is None:
        if output is not None:
            write_output("--output", output, found.model_dump_json(indent=1) + "\n")
        from specbench.analysis.profile.tables import tables

        print_result(found, as_json, lambda: tables(found))
        if output is not None:
            (stderr if as_json else stdout).print(f"profile: {output}", soft_wrap=True)
        return
    try:
        text, notes = exports.export(
            found, export, entry=entry, cell=cell, form=form, short_drafts=short_drafts or "skip", lengths=numbers
        )
    except ConfigError as error:
        raise ConfigError(f"{' '.join(runs)}: {error}") from error
    for note in notes:
        say(stderr, f"note: {note}")
    if output is None:
        stdout.out(text, highlight=False)
    else:
        write_output("--output", output, text + "\n")
        stdout.print(f"{export}: {output}", soft_wrap=True)


def _draft_length(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 64:
        raise ConfigError(f"--lengths {text}: give numbers of draft tokens from 1 to 64, separated by commas")
    return int(text)
