"""`specbench validate`."""

from pathlib import Path
from typing import Annotated

import typer

from specbench.console import fail, stdout
from specbench.errors import ConfigError
from specbench.specs import MethodSpec, TaskSpec


def validate(files: Annotated[list[Path], typer.Argument(help="Task, method or suite YAML files.")]) -> None:
    """Check task, method and suite files; says what is wrong with each and exits with 2 if any is."""
    from specbench.catalogue import load_file, namesake
    from specbench.suite.cells import is_suite, load_suite

    num_wrong = 0
    for file in files:
        try:
            if is_suite(file):
                stdout.print(f"ok: {file} (suite {load_suite(file).name})", soft_wrap=True)
                continue
            spec = load_file(file)
            check_code(file, spec)
        except ConfigError as error:
            num_wrong += 1
            fail(error)
        else:
            kind = "methods" if isinstance(spec, MethodSpec) else "tasks"
            stdout.print(f"ok: {file} ({type(spec).__name__.removesuffix('Spec').lower()} {spec.name})", soft_wrap=True)
            if line := namesake(kind, str(file)):
                stdout.print(line, soft_wrap=True, markup=False)
    if num_wrong:
        raise typer.Exit(2)


def check_code(file: Path, spec: TaskSpec | MethodSpec) -> None:
    """Raise ConfigError where the code of an external decoder cannot be loaded."""
    if not isinstance(spec, MethodSpec) or spec.decoder is None:
        return
    from specbench.external.entry import load

    try:
        load(spec.decoder.entry)
    except ConfigError as error:
        raise ConfigError(f"{file}: decoder.entry: {error}") from error
