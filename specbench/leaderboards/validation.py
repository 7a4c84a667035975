"""One leaderboard file → what is wrong with it, all of it where that can be told apart, else the first."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from specbench.errors import ConfigError
from specbench.leaderboards.runs import RecordedRun, Runs, place_of
from specbench.leaderboards.together import check_together
from specbench.results.leaderboard import load
from specbench.results.row import Row

if TYPE_CHECKING:
    from specbench.leaderboards.recompute import Comparison

NAMED = 3  # fields of a row in a message


@dataclass(frozen=True)
class Validity:
    """`problems`: one line each; none where the file is sound. `stated`: by field in how many rows nothing was compared
    with it."""

    num_rows: int
    num_recomputed: int
    problems: tuple[str, ...]
    stated: Counter[str] = field(default_factory=Counter)

    def __str__(self) -> str:
        """What was checked of a sound file."""
        rows = f"{self.num_rows} rows"
        if not self.num_recomputed:
            return f"{rows}: their digests are right; nothing was recomputed"
        told = f"{rows}, all recomputed from the folders of their runs"
        fields = ", ".join(f"{name} of {num} {'row' if num == 1 else 'rows'}" for name, num in self.stated.items())
        return told + (f"; stated, not recomputed: {fields}" if fields else "")


def validate(file: Path, with_records: bool, folders: Sequence[Path] = ()) -> Validity:
    """Check schema, digests, duplicates, and that the rows go together; `with_records`: that they are what the folders
    of their runs give. `folders`: of runs in which rows are looked for that do not say where theirs is."""
    try:
        rows = load(file)
        check_together([(f"{file}: rows.{number}", row) for number, row in enumerate(rows)])
    except ConfigError as error:
        return Validity(0, 0, (str(error),))
    if not with_records:
        return Validity(len(rows), 0, ())
    runs, problems, stated = Runs(), [], Counter[str]()
    for number, row in enumerate(rows):
        try:
            found = _compared(row, file, runs, folders)
        except (ConfigError, ValueError) as error:
            problem: str | None = f"cannot be recomputed: {error}"
        else:
            problem = _problem(found)
            stated.update(() if problem else found.stated)
        if problem is not None:
            problems.append(f"{file}: rows.{number} ({row.place}): {problem}")
    return Validity(len(rows), len(rows) - len(problems), tuple(problems), stated)


def _compared(row: Row, file: Path, runs: Runs, folders: Sequence[Path]) -> "Comparison":
    from specbench.leaderboards.recompute import compare_with_run

    return compare_with_run(row, _run_of(row, file, runs, folders), file)


def _problem(found: "Comparison") -> str | None:
    wrong = found.mismatches
    if not wrong:
        return None
    more = f" and {len(wrong) - NAMED} more" if len(wrong) > NAMED else ""
    return f"{'; '.join(map(str, wrong[:NAMED]))}{more}: the row is not that of its run: add its run again"


def _run_of(row: Row, file: Path, runs: Runs, folders: Sequence[Path]) -> RecordedRun:
    """The run that a row names, if it is there; else the given one that has its row."""
    place = place_of(row, file)
    if place is not None and place.is_dir():
        return runs.at(place)
    for folder in folders:
        if any(known.key == row.key for known in runs.at(folder).rows):
            return runs.at(folder)
    told = f"its run is not at {place}" if place is not None else "it does not say where its run is"
    raise ConfigError(f"{told}: name the folder with --run")
