"""Whether a board file takes what this machine measures: asked before anything is loaded or measured."""

from collections.abc import Mapping
from pathlib import Path

from specbench.core.errors import ConfigError
from specbench.models.loading import choose_device
from specbench.results.comparable import VERSIONS, conditions
from specbench.results.environment import environment
from specbench.results.leaderboard import check_writable, load


def check_takes(file: Path, device: str) -> None:
    """Raise ConfigError for a file that cannot be written, is broken, or has rows of another machine or other versions;
    `device`: as --device names it. Threads are part of what a machine is called: they are set before."""
    check_writable(file)
    if not file.exists():
        return
    here = environment(str(choose_device(device)), "", "")
    check_rows(file, here["device"], here["versions"])


def check_rows(file: Path, device: str, versions: Mapping[str, str | None]) -> None:
    """Raise ConfigError for a file with rows of another machine or other versions; `device`: as rows name it."""
    now = {"device": device, **{f"versions.{name}": versions.get(name) for name in VERSIONS}}
    for number, row in enumerate(load(file)):
        known = conditions(row)
        for field, value in now.items():
            if known[field] != value:
                raise ConfigError(
                    f"--leaderboard {file}: rows.{number} has {field} = {known[field]}, and this is {value}: such rows "
                    "do not go into one file; nothing was measured: name another file"
                )
