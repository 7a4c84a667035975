"""`specbench validate`."""

from pathlib import Path
from typing import Annotated

import typer

from specbench.console import fail, stdout
from specbench.errors import ConfigError


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
