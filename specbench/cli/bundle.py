"""`specbench bundle`: runs in one archive that others verify, sign and compare."""

from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from specbench.cli.arguments import AsJson, Signers, flag, path_option, print_result
from specbench.core.console import counted, fail, stdout
from specbench.core.errors import ConfigError
from specbench.core.progress import status_line

MAKE = "make"


class BundleGroup(TyperGroup):
    """A group in which `bundle RUN` is short for `bundle make RUN`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        is_command = not args or args[0] in (*self.commands, *ctx.help_option_names)
        rest: list[str] = super().parse_args(ctx, args if is_command else [MAKE, *args])
        return rest


bundle = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False, cls=BundleGroup)
BundleFiles = Annotated[list[Path], typer.Argument(metavar="FILE...", help="Bundles (.tar.gz).")]


@bundle.callback()
def about() -> None:
    """Bundle runs into an archive, verify bundles from the archive alone, and sign them.

    `specbench bundle RUN... --output FILE` is short for `specbench bundle make RUN... --output FILE`.
    """


@bundle.command(MAKE)
def make(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Folders of finished runs.")],
    output: Annotated[Path, path_option(help="Archive to write, such as my-board.tar.gz.")],
    title: Annotated[str | None, typer.Option(help="Title of the bundle; by default the names of the runs.")] = None,
    author: Annotated[
        list[str] | None, typer.Option(help="Name, or NAME <ORCID>; may be repeated. Makes a CITATION.cff.")
    ] = None,
    license_: Annotated[
        str | None,
        typer.Option("--license", help="Licence of the bundle: an SPDX identifier such as CC-BY-4.0, or a URL."),
    ] = None,
    doi: Annotated[
        str | None, typer.Option(help="DOI under which the bundle is published: 10.5281/zenodo.1234.")
    ] = None,
    without_texts: Annotated[
        bool, flag("--without-texts", help="Leave out answers, references and token ids; digests stay.")
    ] = False,
) -> None:
    """Write runs into one archive: records, specs, rows, environment, commands, data digests, metadata and a README.

    Secrets of your environment, .netrc and token files, texts in the form of keys, and home folders are taken out.

    With --without-texts rows are stated: what depends on the content of answers cannot be made again.

    The same runs give the same bytes.
    """
    from specbench.publish.bundle.crate import About, Author
    from specbench.publish.bundle.make import make_bundle

    named = title or f"Measurements by specbench: {', '.join(path.resolve().name for path in runs)}"
    about = About(named, [Author.of(text) for text in author or ()], license_, doi)
    with status_line("copying the runs"):
        made = make_bundle(runs, output, about, with_texts=not without_texts)
    rows = counted(sum(len(run.rows) for run in made), "row")
    size = f"{output.stat().st_size:,} bytes"
    stdout.print(f"{output}: {counted(len(made), 'run')}, {rows}, {size}", soft_wrap=True)
    stdout.print(f"next: specbench bundle verify {output}", soft_wrap=True)


@bundle.command()
def verify(
    files: BundleFiles,
    signers: Signers = None,
    targets: Annotated[
        Path | None,
        path_option(
            help="Known targets: a leaderboard (.json), or a file with lines REVISION NAME. A target of this name with "
            "other weights is refused."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Compute all rows of bundles again, from the archives alone, and print the checklist of an artefact review.

    No model, no network and no code of the bundle is used. Exit code 2 if anything contradicts a bundle.

    Rules look for results that are right and mislead, such as loops. Exit code 2 too if one refuses a row.

    Several bundles are compared: independent runs of one configuration get the mark re-run, with their agreement.

    Greedy answers agree if they are equal up to near-ties and widths of passes, numbers if E_n is at most 1.

    From three runs on, the variance between runs and the interval of one more run are printed.
    """
    from specbench.publish.bundle import tables
    from specbench.publish.bundle.targets import read_targets
    from specbench.publish.bundle.verify import verified, verify

    known = {} if targets is None else read_targets(targets)
    with status_line("verifying"), verified(files, signers, known) as bundles:
        found = verify(bundles)
        result = tables.as_json(found) if as_json else None
        shown = [] if as_json else list(tables.tables(found))
        problems = [f"{each.file}: {line}" for each in bundles for line in each.all_problems()]
    print_result(result, as_json, lambda: shown)
    for line in problems[:MOST_PROBLEMS]:
        fail(ConfigError(line))
    if problems:
        raise typer.Exit(2)


MOST_PROBLEMS = 50


@bundle.command()
def sign(
    file: Annotated[Path, typer.Argument(help="Bundle (.tar.gz).")],
    key: Annotated[Path, path_option(help="Private ssh key, or the public one of a key in your agent.")],
) -> None:
    """Sign the exact bytes of a bundle with an ssh key, as git signs commits. Writes FILE.sig beside it.

    A signature says who sent the bundle, not that its numbers are true.
    """
    from specbench.publish.bundle.signature import sign as sign_file

    stdout.print(f"{sign_file(file, key)}: signed; send both files", soft_wrap=True)
