"""The report as a JSON file."""

from pathlib import Path

from specbench.errors import ConfigError
from specbench.files import temporary_path, write_atomically
from specbench.limit.report import LimitReport


def check_output(path: Path) -> None:
    """Raise ConfigError where `write` could not write: asked before anything is measured."""
    try:
        if path.is_dir():
            raise IsADirectoryError("it is a folder")
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary_path(path).open("w").close()
        temporary_path(path).unlink()
    except OSError as error:
        raise _refused(path, error) from error


def write(path: Path, report: LimitReport) -> None:
    """Replace the file by the report, in one step. Raises ConfigError where it cannot be written."""
    try:
        write_atomically(path, report.model_dump_json(indent=2) + "\n")
    except OSError as error:
        raise _refused(path, error) from error


def _refused(path: Path, error: OSError) -> ConfigError:
    return ConfigError(f"--output {path}: cannot be written ({error.strerror or error}): name another file")
