"""Checks leaderboard files: schema, digests, and the rows against the folders of their runs."""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from specbench.core import dotted
from specbench.core.console import counted
from specbench.core.errors import ConfigError
from specbench.results.conditions import FieldDifference, conflicts, differences
from specbench.results.leaderboard import read
from specbench.results.row import STATED, Evidence, Row
from specbench.results.runs import RecordedRun, RecordedRuns, run_folder_of
from specbench.results.verdict import FAILS_BELOW

ROUNDING = 1e-12  # relative; processors sum with different rounding
AUDIT_VERDICTS = ("lossless", "undecided")  # only an audit gives these
CLEAN = ("lossless", "greedy equal")
MAX_SHOWN = 80  # characters of a value in a message
FROM_REPORT = "verdict (equal to its audit's report)"

# Takes the file of an audit's report and a row; returns the verdict with its evidence, None if the report has none.
ReportReader = Callable[[Path, Row], tuple[str, Evidence] | None]


def mismatch_text(found: FieldDifference) -> str:
    """Returns a field with its value in the row and its value from the run, each cut to the part that differs."""
    in_row, in_run = repr(found.first), repr(found.second)
    same = next((at for at, (mine, other) in enumerate(zip(in_row, in_run, strict=False)) if mine != other), 0)
    start = max(0, same - 20) if max(len(in_row), len(in_run)) > MAX_SHOWN else 0
    end = start + MAX_SHOWN
    row_value, run_value = (
        f"{'…' if start else ''}{text[start:end]}{'…' if len(text) > end else ''}" for text in (in_row, in_run)
    )
    return f"{found.field} = {row_value}, but its run gives {run_value}"


@dataclass(frozen=True)
class RowCheck:
    """A row compared with its run. `mismatches`: the fields that differ. `stated`: the fields that were not
    compared."""

    mismatches: tuple[FieldDifference, ...]
    stated: tuple[str, ...]


def compare_with_run(row: Row, run: RecordedRun, file: Path, verdict_in: ReportReader | None = None) -> RowCheck:
    """Compares a row of a file with its run. `verdict_in`: reads an audit's report; without it the verdict of an audit
    is not compared. Raises ConfigError if the row cannot be recomputed."""
    own = run.recompute_row(row)
    values, own_values = (dotted.flat(each.model_dump(mode="json", exclude=set(STATED))) for each in (row, own))
    found, stated = (
        differences(values, own_values, "absent", _is_equal),
        ["fairness"] if row.fairness is not None else [],
    )
    if row.evidence is not None:
        found = [each for each in found if each.field != "verdict"]
        expected, report = expected_verdict(row, own), row.evidence.report and file.parent / row.evidence.report
        if expected != row.verdict:
            found.append(FieldDifference("verdict", row.verdict, expected))
        elif not report or not report.is_file() or verdict_in is None:
            stated = ["verdict", "evidence", *stated]
        else:
            found += _of_report(row, own, report, verdict_in)
            stated = [FROM_REPORT, *stated]
    return RowCheck(tuple(found), tuple(stated))


def _is_equal(mine: Any, other: Any) -> bool:
    if isinstance(mine, float) and isinstance(other, float):
        return math.isclose(mine, other, rel_tol=ROUNDING, abs_tol=1e-15)
    return type(mine) is type(other) and bool(mine == other)


def expected_verdict(row: Row, own: Row) -> str:
    """Returns the verdict that a row with this evidence may have. A rule that is lossy by design keeps this verdict,
    and outputs that differ are never lossless, whatever an audit found. `own`: the row recomputed from its run."""
    if own.verdict == "lossy by design" or (own.verdict in ("near-tie only", "diverged") and row.verdict in CLEAN):
        return own.verdict
    if row.verdict == "lossless" and (found := row.evidence) is not None:  # needs greedy outputs, and passing draws
        passed = found.p_value is not None and found.p_value >= FAILS_BELOW
        return "lossless" if found.num_prompts and found.num_draws and passed else "undecided"
    return row.verdict


def _of_report(row: Row, own: Row, path: Path, verdict_in: ReportReader) -> list[FieldDifference]:
    """Returns the fields that the audit's report contradicts."""
    reported = verdict_in(path, own)
    if reported is None:
        raise ConfigError(f"evidence.report = {path}: has no verdict on this row: give the report of its audit")
    evidence = reported[1].model_copy(update={"report": row.evidence and row.evidence.report})
    return differences(
        {"verdict": row.verdict, "evidence": row.evidence}, {"verdict": reported[0], "evidence": evidence}
    )


MAX_FIELDS = 3  # fields of a row in a message


@dataclass(frozen=True)
class Validity:
    """The result of a validation. `num_recomputed`: rows that were compared with their runs. `problems`: one line each;
    empty if the file is valid. `stated`: for each field the number of rows in which it was not compared."""

    num_rows: int
    num_recomputed: int
    problems: tuple[str, ...]
    stated: Counter[str] = field(default_factory=Counter)

    def __str__(self) -> str:
        """Returns in words what was checked, for a valid file."""
        rows = counted(self.num_rows, "row")
        if not self.num_recomputed:
            return f"{rows}: their digests are right; nothing was recomputed"
        fields = ", ".join(f"{name} of {counted(num, 'row')}" for name, num in self.stated.items())
        stated = f"; stated, not recomputed: {fields}" if fields else ""
        return f"{rows}, all recomputed from the folders of their runs{stated}"


def validate(
    file: Path, with_records: bool, folders: Sequence[Path] = (), verdict_in: ReportReader | None = None
) -> Validity:
    """Checks schema, digests, duplicates, and that the rows may share a file. `with_records`: also compares the rows
    with their runs. `folders`: runs to search for rows that do not name their folder. `verdict_in`: reads an audit's
    report."""
    try:
        rows, problems = read(file)
    except ConfigError as error:
        return Validity(0, 0, (str(error),))
    problems += conflicts([(f"{file}: rows.{number}", row) for number, row in rows.items()])
    if not with_records:
        return Validity(len(rows), 0, tuple(problems))
    runs, stated = RecordedRuns(), Counter[str]()
    for number, row in rows.items():
        try:
            found = compare_with_run(row, _run_of(row, file, runs, folders), file, verdict_in)
        except (ConfigError, ValueError) as error:
            problem: str | None = f"cannot be recomputed: {error}"
        else:
            problem = _problem(found)
            stated.update(() if problem else found.stated)
        if problem is not None:
            problems.append(f"{file}: rows.{number} ({row.place}): {problem}")
    return Validity(len(rows), len(rows), tuple(problems), stated)


def _problem(found: RowCheck) -> str | None:
    wrong = found.mismatches
    if not wrong:
        return None
    more = f" and {len(wrong) - MAX_FIELDS} more" if len(wrong) > MAX_FIELDS else ""
    return f"{'; '.join(map(mismatch_text, wrong[:MAX_FIELDS]))}{more}: the row differs from its run: add the run again"


def _run_of(row: Row, file: Path, runs: RecordedRuns, folders: Sequence[Path]) -> RecordedRun:
    """Returns the run that a row names if it exists, otherwise the one of `folders` that has the row."""
    place = run_folder_of(row, file)
    if place is not None and place.is_dir():
        return runs.at(place)
    for folder in folders:
        if any(known.key == row.key for known in runs.at(folder).rows):
            return runs.at(folder)
    problem = f"its run is not at {place}" if place is not None else "it does not name the folder of its run"
    raise ConfigError(f"{problem}: give the folder with --run")
