"""The report as a file."""

from pathlib import Path

from specbench import files
from specbench.errors import ConfigError
from specbench.files import write_atomically


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
