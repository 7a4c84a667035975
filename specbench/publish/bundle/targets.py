"""Which weights a board knows under the name of a target."""

from collections.abc import Iterator
from pathlib import Path

from specbench.core import bounded
from specbench.core.errors import ConfigError
from specbench.results.leaderboard import load

REMEDY = "give a leaderboard file (.json), or lines of REVISION NAME, such as 989aa7980e4c Qwen/Qwen2.5-1.5B"


def read_targets(file: Path) -> dict[str, str]:
    """Returns the revision of each target by its name: of the rows of a leaderboard, or of a list with a line for each,
    REVISION NAME, as lists of checksums have them; # begins a comment. Raises ConfigError for another file, and for a
    name with two revisions."""
    found: dict[str, str] = {}
    for place, name, revision in _of_board(file) if file.suffix == ".json" else _of_list(file):
        if found.setdefault(name, revision) != revision:
            raise ConfigError(
                f"{place}: target {name} has the revision {revision}, but the file knows it with {found[name]}: keep "
                "the one that the board means, and give the other weights a name"
            )
    if not found:
        raise ConfigError(f"{file}: names no target with its revision: {REMEDY}")
    return found


def _of_board(file: Path) -> Iterator[tuple[str, str, str]]:
    for number, row in enumerate(load(file)):
        if row.target_revision is not None:
            yield f"{file}: rows.{number}", row.target, row.target_revision


def _of_list(file: Path) -> Iterator[tuple[str, str, str]]:
    for number, line in enumerate(bounded.read_text(file, REMEDY).splitlines(), start=1):
        text = line.partition("#")[0].strip()
        if not text:
            continue
        revision, *name = text.split(maxsplit=1)
        if not name:
            raise ConfigError(f"{file}, line {number}: '{text:.100}' has no name: write REVISION NAME")
        yield f"{file}, line {number}", name[0], revision
