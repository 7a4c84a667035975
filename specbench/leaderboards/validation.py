"""One board file → what is wrong with it, all of it where that can be told apart, else the first."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from specbench import bounded
from specbench.errors import ConfigError
from specbench.leaderboards.runs import RecordedRun, Runs, place_of
from specbench.leaderboards.together import check_together
from specbench.results.board_format import FIRST_WITH_DIGESTS
from specbench.results.leaderboard import load
from specbench.results.row import Row

NAMED = 3  # fields of a row in a message


@dataclass(frozen=True)
class Validity:
    """`problems`: one line each; none where the file is sound. `notes`: what the file is too old to tell."""

    num_rows: int
    num_recomputed: int
    problems: tuple[str, ...]
    notes: tuple[str, ...] = ()


def validate(file: Path, with_records: bool, folders: Sequence[Path] = ()) -> Validity:
    """Check schema, digests, duplicates, and that the rows go together; `with_records`: that they are what their
    records give. `folders`: of runs in which rows are looked for that do not say where theirs is."""
    try:
        rows = load(file)
        check_together([(f"{file}: rows.{number}", row) for number, row in enumerate(rows)])
    except ConfigError as error:
        return Validity(0, 0, (str(error),))
    notes = _notes(file)
    if not with_records:
        return Validity(len(rows), 0, (), notes)
    runs = Runs()
    found = [(number, _problem(row, file, rows, runs, folders)) for number, row in enumerate(rows)]
    problems = [f"{file}: rows.{number} ({rows[number].place}): {problem}" for number, problem in found if problem]
    return Validity(len(rows), len(rows) - len(problems), tuple(problems), notes)


def _notes(file: Path) -> tuple[str, ...]:
    version = bounded.read_json(file, "restore it")["format"]
    if version >= FIRST_WITH_DIGESTS:
        return ()
    return (
        f"{file}: is of format {version}, whose rows carry no digest: whether one was edited, only its records tell "
        f"(--records); `specbench leaderboard merge {file} --to {file}` writes them with digests from now on",
    )


def _problem(row: Row, file: Path, rows: Sequence[Row], runs: Runs, folders: Sequence[Path]) -> str | None:
    from specbench.leaderboards.recompute import mismatches

    try:
        wrong = mismatches(row, _run_of(row, file, runs, folders), rows)
    except (ConfigError, ValueError) as error:
        return f"cannot be recomputed: {error}"
    if not wrong:
        return None
    more = f" and {len(wrong) - NAMED} more" if len(wrong) > NAMED else ""
    return f"{'; '.join(map(str, wrong[:NAMED]))}{more}: the row is not that of its records: add its run again"


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
