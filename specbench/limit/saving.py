"""The report as a JSON file."""

from pathlib import Path

from specbench.errors import ConfigError
from specbench.files import check_place, write_atomically
from specbench.limit.report import LimitReport


def check_output(option: str, path: Path) -> None:
    """Raise ConfigError where the file of an option could not be written: asked before anything is measured."""
    try:
        check_place(path)
    except OSError as error:
        raise _refused(option, path, error) from error


def write(path: Path, report: LimitReport) -> None:
    """Replace the file of --output by the report, in one step. Raises ConfigError where it cannot be written."""
    try:
        write_atomically(path, report.model_dump_json(indent=2) + "\n")
    except OSError as error:
        raise _refused("--output", path, error) from error


def _refused(option: str, path: Path, error: OSError) -> ConfigError:
    return ConfigError(f"{option} {path}: cannot be written ({error.strerror or error}): name another file")
