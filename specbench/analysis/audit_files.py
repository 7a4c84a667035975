"""The report as a file."""

from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import ValidationError

from specbench.core import bounded, files
from specbench.core.errors import ConfigError
from specbench.core.files import write_atomically
from specbench.results.row import Evidence, Row

if TYPE_CHECKING:
    pass


def check_place(path: Path, option: str = "--output") -> None:
    """Raise ConfigError where `write_report` could not write: asked before anything is computed."""
    path = path.resolve()
    try:
        files.check_place(path)
    except OSError as error:
        raise _refused(option, path, error.strerror) from error


def write_report(path: Path, text: str, option: str = "--output") -> None:
    """Replace the file in one step."""
    try:
        write_atomically(path.resolve(), text + "\n")
    except OSError as error:
        raise _refused(option, path, error.strerror) from error


def _refused(option: str, path: Path, problem: str | None) -> ConfigError:
    return ConfigError(f"{option} {path}: cannot write the report: {problem}: name another file")


def verdict_in_report(path: Path, row: Row) -> tuple[str, Evidence] | None:
    """Returns the verdict of an audit's report on a row, with its evidence; None where it has none."""
    return read_report(path).verdict_of(row)


def read_report(path: Path) -> "Audit":
    """Returns the report of an audit. Raises ConfigError for a file that is none."""
    from specbench.analysis.audit import AuditReport

    try:
        return AuditReport.model_validate(bounded.read_json(path, "restore it from a copy"))
    except ValidationError as error:
        problem = error.errors()[0]
        key = ".".join(map(str, problem["loc"]))
        raise ConfigError(
            f"{path}: {key} = {problem['input']!r:.60}: {problem['msg']}: not the report of an audit"
        ) from error
