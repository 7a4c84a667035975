"""Bundles → all that a board shows: leaderboard files, BOARD.md, RULES.md and the site. Nothing is edited by hand, and
the same bundles give the same bytes."""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from specbench.core.console import counted
from specbench.core.errors import ConfigError
from specbench.core.files import replacing, write_atomically, writing
from specbench.core.table import Column, Table, escaped_markdown
from specbench.publish.board.changes import BUNDLES, bundle_files
from specbench.publish.board.check import copies, signers_of
from specbench.publish.board.rules import RULES_FILE, rules_text
from specbench.publish.board.spec import FILE, BoardSpec, read_board
from specbench.publish.board.stored import NAME_DIGITS, StoredRun, is_measured_again, placed, stored_run
from specbench.publish.bundle.verify import CheckedBundle, verified, verify
from specbench.publish.site.build import BuiltSite, build
from specbench.report.ranking import DEFAULT_METRIC, ranking_tables
from specbench.results.conditions import shared_values
from specbench.results.leaderboard import write
from specbench.results.level import Level, Levels
from specbench.results.metric_format import NULL, without_digest
from specbench.results.row import Row
from specbench.results.runs import RecordedRuns, rows_of_subsets

LEADERBOARDS = "leaderboards"
PAGE = "BOARD.md"
SITE = "site"


@dataclass(frozen=True)
class BoardRow:
    """A row that the board shows. `row`: with the place of its records."""

    row: Row
    bundle: str
    level: Level

    @property
    def digest(self) -> str:
        return self.row.content_digest


@dataclass(frozen=True)
class Merged:
    """`left_out`: a line for each set of rows that board.yaml no longer takes. `site`: None without rows."""

    num_bundles: int
    num_rows: int
    left_out: Sequence[str]
    site: BuiltSite | None

    def __str__(self) -> str:
        return f"{counted(self.num_bundles, 'bundle')}, {counted(self.num_rows, 'row')}"


def merge_board(folder: Path) -> Merged:
    """Writes the files of a board from its bundles, and nothing if one of them has a problem. Raises ConfigError with
    the first problem, and the others beside it."""
    board = read_board(folder)
    with ExitStack() as stack:
        bundles = stack.enter_context(verified(bundle_files(folder), signers_of(folder)))
        problems: list[str] = []
        known: list[StoredRun] = []
        for each in bundles:
            own = [stored_run(each.file.name, run.run.path, run.sound_rows) for run in each.runs if not run.problem]
            problems += [f"{BUNDLES}/{each.file.name}: {line}" for line in (*each.all_problems(), *copies(own, known))]
            known += own
        if problems:
            remedy = "remove the bundle: specbench board check says what is wrong before it is merged"
            raise ConfigError(f"{problems[0]}: nothing was written: {remedy}", problems[1:])
        rows, left_out = _rows(bundles, board)
        files = by_file([each.row for each in rows])
        with writing(folder / LEADERBOARDS, "free the folder, or repair the disk"):
            with replacing(folder / LEADERBOARDS) as building:
                for name, of_file in files.items():
                    write(building / name, of_file)
                (building / ".gitkeep").touch()
            write_atomically(folder / RULES_FILE, rules_text(board))
        # The records lie where rows say that they are, so that ranks are paired and pages have answers.
        scratch = Path(stack.enter_context(TemporaryDirectory(prefix="specbench-board-")))
        (scratch / BUNDLES).mkdir()
        for bundle in bundles:
            (scratch / BUNDLES / bundle.file.name).symlink_to(bundle.runs[0].run.path.parent.parent)
        shown = [scratch / LEADERBOARDS / name for name in files]
        for path, of_file in zip(shown, files.values(), strict=True):
            path.parent.mkdir(exist_ok=True)
            write(path, of_file)
        levels = {each.digest: each.level for each in rows}
        with writing(folder / PAGE, "repair the disk"):
            write_atomically(
                folder / PAGE,
                _page(board, bundles, rows, dict(zip(shown, files.values(), strict=True)), levels, left_out),
            )
        site = build(shown, folder / SITE, board.title, levels=levels) if rows else None
    return Merged(len(bundles), len(rows), left_out, site)


def _rows(bundles: Sequence[CheckedBundle], board: BoardSpec) -> tuple[list[BoardRow], list[str]]:
    """Returns the rows of a board, oldest first, and lines about those that board.yaml does not take any more."""
    verification = verify(bundles)
    found: list[BoardRow] = []
    left_out: dict[str, int] = {}
    for bundle in bundles:
        for run in bundle.runs:
            for each in run.rows:
                misfit = next(board.misfits(each.row), None)
                if misfit is not None:
                    line = f"{BUNDLES}/{bundle.file.name}: {misfit}"
                    left_out[line] = left_out.get(line, 0) + 1
                    continue
                row = placed(each.row, bundle.file.name, run.name)
                found.append(BoardRow(row, bundle.file.name, verification.level_of(bundle, each)))
    found.sort(key=lambda each: (each.row.created, each.bundle, each.row.place, each.digest))
    return first_runs(found), [f"{line} ({counted(number, 'row')})" for line, number in left_out.items()]


def first_runs(rows: Sequence[BoardRow]) -> list[BoardRow]:
    """Returns rows without later runs of one configuration on one machine, which are re-runs of the first: whoever
    measures until a number is good enough changes nothing. `rows`: oldest first."""
    kept: list[BoardRow] = []
    known: dict[tuple[str, ...], list[Row]] = {}
    for each in rows:
        same = known.setdefault((each.row.device, *each.row.names), [])
        if not any(is_measured_again(row, each.row) for row in same):
            same.append(each.row)
            kept.append(each)
    return kept


def by_file(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """Returns rows by the name of their file: each goes into the first one of its machine and libraries with whose rows
    it may share a file."""
    files: dict[str, list[Row]] = {}
    shared: dict[str, dict[tuple[str, str], Any]] = {}
    for row in rows:
        own = {(field, scope): value for field, scope, value in shared_values(row)}
        stem = f"{_plain(row.device)}-torch-{_plain(str(row.versions.get('torch')))}"
        names: Iterator[str] = (
            f"{stem}{'' if number == 1 else f'-{number}'}.json" for number in range(1, len(rows) + 1)
        )
        for name in names:
            known = shared.setdefault(name, {})
            if all(known.get(key, value) == value for key, value in own.items()):
                known |= own
                files.setdefault(name, []).append(row)
                break
    return files


def _plain(text: str) -> str:
    return re.sub(r"[^a-z0-9.]+", "-", text.lower()).strip("-.")[:60]


def _page(
    board: BoardSpec, bundles: Sequence[CheckedBundle], rows: Sequence[BoardRow], files: Mapping[Path, Sequence[Row]],
    levels: Levels, left_out: Sequence[str],
) -> str:  # fmt: skip
    """Returns BOARD.md: ranked tables, where the records of each row are, and the bundles."""
    parts = [
        f"# {escaped_markdown(board.title)}",
        f"Made by `specbench board merge` from `{BUNDLES}/`: do not edit it.",
    ]
    if not rows:
        parts.append(f"No rows yet. [{RULES_FILE}]({RULES_FILE}) says how to submit some.")
    runs = RecordedRuns()
    for file, of_file in files.items():
        whole = rows_of_subsets(of_file, [])
        sides = {row.content_digest[:NAME_DIGITS]: runs.with_records(row, file) for row in whole}
        parts += [f"## {escaped_markdown(of_file[0].device)}"]
        parts += [each.markdown() for each in ranking_tables(sides, DEFAULT_METRIC, levels)]
    if rows:
        columns = [Column("row"), *map(Column, ("task", "subset", "method", "target", "records", "level"))]
        cells = [
            [
                each.digest[:NAME_DIGITS], without_digest(each.row.task),
                f"{each.row.subset} {each.row.level}".rstrip(), each.row.shown_method, each.row.target,
                f"{each.bundle}: {Path(str(each.row.run)).name}", str(each.level),
            ]
            for each in rows
        ]  # fmt: skip
        note = "`specbench board rerun ROW` prints the commands that measure a row again"
        parts.append(Table("Rows", columns, cells).markdown() + f"\n{note}.\n")
        lines = [
            [
                each.file.name, str(len(each.rows)), each.signer or NULL,
                (each.licence or NULL).removeprefix("https://spdx.org/licenses/"), each.identifier or NULL,
            ]
            for each in bundles
        ]  # fmt: skip
        columns = [Column("bundle"), Column("rows", True), *map(Column, ("signed by", "licence", "identifier"))]
        parts.append(Table("Bundles", columns, lines).markdown())
    if left_out:
        parts += [f"### Left out by {FILE}", "\n".join(f"- {escaped_markdown(each)}" for each in left_out)]
    return "\n\n".join(part.strip("\n") for part in parts) + "\n"
