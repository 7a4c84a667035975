"""What a submission adds to a board, and everything for which it is refused.

No code of the submission runs: its files are listed, and its archives are read as `specbench bundle verify` reads them.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from specbench.core.console import counted
from specbench.core.errors import ConfigError
from specbench.core.table import Table, escaped_markdown
from specbench.publish.board.changes import (
    BUNDLES,
    KEPT,
    Change,
    base_of,
    bundle_files,
    refused_changes,
)
from specbench.publish.board.differences import difference_table
from specbench.publish.board.spec import FILE, BoardSpec, read_board
from specbench.publish.board.stored import StoredRun, is_measured_again, measured_targets, stored_run, stored_runs
from specbench.publish.bundle.agreement import is_same_configuration
from specbench.publish.bundle.signature import SUFFIX, signature_problem
from specbench.publish.bundle.verify import CheckedBundle, verified, verify
from specbench.publish.rules import Finding
from specbench.results.row import Row
from specbench.results.scorer_versions import OTHER_VERSION

SIGNERS = "allowed_signers"
MOST_LINES = 10  # problems of a bundle that are told
MOST_PROBLEMS = 50  # of a submission


@dataclass(frozen=True)
class CheckedSubmission:
    """`problems`: a line for each reason to refuse it. `table`: its rows beside those of the board; None without rows.
    `marks`: what a reader must know of its rows, a line each."""

    num_bundles: int
    num_rows: int
    problems: Sequence[str]
    table: Table | None
    marks: Sequence[str]

    def __str__(self) -> str:
        return f"{counted(self.num_bundles, 'bundle')}, {counted(self.num_rows, 'row')}"

    def markdown(self) -> str:
        """Returns the report for a pull request. Whatever strangers named is escaped, and mentions nobody."""
        lines = [f"## {'Refused' if self.problems else 'Accepted'}: {self}", ""]
        lines += [f"- {escaped_markdown(each)}" for each in self.problems[:MOST_PROBLEMS]]
        if (num_more := len(self.problems) - MOST_PROBLEMS) > 0:
            lines.append(f"- and {counted(num_more, 'more problem')}")
        lines += [""] if self.problems else []
        lines += [self.table.markdown()] if self.table is not None else []
        lines += ["### Marks", "", *(f"- {escaped_markdown(each)}" for each in self.marks), ""] if self.marks else []
        return "\n".join(lines).replace("@", "@\u200b")


def signers_of(folder: Path) -> Path | None:
    """Returns the file of the keys that a board knows; None if it has none."""
    path = folder / SIGNERS
    return path if path.is_file() else None


def check_submission(folder: Path, base: str | None = None) -> CheckedSubmission:
    """Checks what a folder adds to a board. `base`: a folder or a git revision of the board without it; None: all
    bundles of the folder are checked. The board's own rules are those of the base. Raises ConfigError for a folder that
    is not a board, and for a base that does not exist."""
    with base_of(folder, base) as (known, changes), ExitStack() as stack:
        board_folder = folder if known is None else known
        board = read_board(board_folder)
        stored = [] if known is None else bundle_files(known)
        if known is None:
            here = (folder / BUNDLES).iterdir() if bundle_files(folder) or (folder / BUNDLES).is_dir() else ()
            names = sorted(f"{BUNDLES}/{path.name}" for path in here)
            changes = {name: "added" for name in names if name != KEPT}
        refused = refused_changes(folder, changes)
        problems = list(refused.values())
        new = [folder / name for name in _new_bundles(changes) if refused.keys().isdisjoint((name, name + SUFFIX))]
        new, too_much = _within_limits(new, board)
        problems += too_much
        runs = stored_runs(stored)
        # 1. Every bundle alone: what it claims, then what the board accepts, then whether it is somebody's already.
        signers = signers_of(board_folder)
        bundles: list[CheckedBundle] = []
        added: list[StoredRun] = []
        for path in new:
            place = f"{BUNDLES}/{path.name}"
            try:
                [bundle] = stack.enter_context(verified([path], signers, measured_targets(runs)))
                of_bundle = [
                    stored_run(path.name, each.run.path, each.sound_rows)
                    for each in bundle.runs
                    if each.problem is None
                ]
            except ConfigError as error:
                problems.append(str(error).replace(f"{path}", place))
                continue
            found = [*bundle.all_problems(), *_not_accepted(bundle, board), *copies(of_bundle, [*runs, *added])]
            found += _earlier_than_known(of_bundle, runs)
            more = f"{place}: and {counted(len(found) - MOST_LINES, 'more problem')}"
            problems += [f"{place}: {line}" for line in found[:MOST_LINES]] + [more] * (len(found) > MOST_LINES)
            bundles.append(bundle)
            added += of_bundle
        # 2. All together: their rows beside those of the board, of which runs of one configuration are compared.
        rows = [row for run in added for row in run.rows]
        related = {
            run.bundle
            for run in runs
            for row in run.rows
            if any(is_same_configuration(row, new_row) for new_row in rows)
        }
        others = stack.enter_context(verified([path for path in stored if path.name in related], signers))
        verification = verify([*others, *bundles])
        return CheckedSubmission(
            len(new), len(rows), problems, difference_table(verification, bundles, runs, board.tolerance),
            [line for bundle in bundles for line in _marks(bundle)],
        )  # fmt: skip


def _new_bundles(changes: Mapping[str, Change]) -> list[str]:
    return [
        name for name, change in changes.items()
        if change == "added" and name.startswith(f"{BUNDLES}/") and not name.endswith(SUFFIX)
    ]  # fmt: skip


def _within_limits(new: Sequence[Path], board: BoardSpec) -> tuple[list[Path], list[str]]:
    """Returns the bundles that are read, and a line for each that is too large, or too many."""
    problems = []
    if len(new) > board.most_bundles:
        problems.append(
            f"{BUNDLES}/{new[board.most_bundles].name}: is one of {len(new)} new bundles, and {FILE} has most_bundles "
            f"= {board.most_bundles}: submit the others apart"
        )
    kept = []
    for path in new[: board.most_bundles]:
        size = path.stat().st_size
        if size > board.largest_bundle_mb * 10**6:
            problems.append(
                f"{BUNDLES}/{path.name}: has {size:,} bytes, and {FILE} has largest_bundle_mb = "
                f"{board.largest_bundle_mb}: submit fewer runs in one bundle"
            )
        else:
            kept.append(path)
    return kept, problems


def _not_accepted(bundle: CheckedBundle, board: BoardSpec) -> Iterator[str]:
    """Yields a line for whatever the board does not accept of a bundle, naming a row that has it."""
    licence = bundle.licence and bundle.licence.removeprefix("https://spdx.org/licenses/")
    if licence is None:
        yield "license is not stated: make the bundle again with --license, such as CC-BY-4.0"
    elif board.licences and licence not in board.licences:
        yield f"license = {licence:.100}: {FILE} has {', '.join(board.licences)}: make the bundle again with --license"
    for run in bundle.runs:
        if board.texts == "required" and not run.has_texts:
            yield f"{run.name}: its texts are left out, and {FILE} has texts = required: make the bundle with texts"
    if (problem := signature_problem(bundle.file)) is not None:
        yield f"{bundle.file.name}{SUFFIX} {problem}: sign again with `specbench bundle sign`"
    elif board.signatures == "required" and bundle.signer is None:
        yield (
            f"signature: {bundle.about_signature}: {FILE} has signatures = required: sign with `specbench bundle "
            f"sign`, and ask the maintainers to add your public key to {SIGNERS}"
        )
    misfits: dict[str, list[Row]] = {}
    for each in bundle.rows:
        for text in board.misfits(each.row):
            misfits.setdefault(text, []).append(each.row)
    for text, rows in misfits.items():
        more = f" and {counted(len(rows) - 1, 'more row')}" if len(rows) > 1 else ""
        yield f"{rows[0].place}{more}: {text}"
    yield from board.absent_subsets([each.row for each in bundle.rows])
    for finding in bundle.findings:
        if finding.weight == "marked" and finding.rule in board.refused_marks:
            yield f"{finding.place}: '{finding.rule}' is in refused_marks of {FILE}: {finding.text}"


def copies(new: Sequence[StoredRun], known: Sequence[StoredRun]) -> Iterator[str]:
    """Yields a line for each run that is another one, of the board or of the submission."""
    for place, run in enumerate(new):
        for other in (*known, *new[:place]):
            if reason := run.copy_of(other):
                yield f"{run.name} {reason} {BUNDLES}/{other}: it is one measurement: leave it out, or measure again"
                break


def _earlier_than_known(new: Sequence[StoredRun], known: Sequence[StoredRun]) -> Iterator[str]:
    """Yields a line for each run that would replace a row of the board, of which the first measured one stands: whoever
    sets a date back would replace whatever is there."""
    for run in new:
        for row, other, bundle in ((row, each, old.bundle) for old in known for each in old.rows for row in run.rows):
            if row.created < other.created and is_measured_again(other, row):
                yield (
                    f"{run.name}: {row.place}: created = {row.created}: is before {BUNDLES}/{bundle} measured it "
                    f"({other.created}), whose row it would replace: measure it again"
                )
                break


def _marks(bundle: CheckedBundle) -> Iterator[str]:
    """Yields a line for a signature that counts for nothing, for scores that another version made, and for each rule
    that marks rows of a bundle, with the first of its findings."""
    if bundle.signer is None and bundle.file.with_name(bundle.file.name + SUFFIX).is_file():
        yield f"{BUNDLES}/{bundle.file.name}: its rows are not signed: {bundle.about_signature}"
    stated = dict.fromkeys(name for each in bundle.rows for name in each.stated if OTHER_VERSION in name)
    for name in stated:
        yield f"{BUNDLES}/{bundle.file.name}: not made again: {name}"
    found: dict[str, list[Finding]] = {}
    for each in bundle.findings:
        if each.weight == "marked":
            found.setdefault(each.rule, []).append(each)
    for rule, findings in found.items():
        more = f"; and {counted(len(findings) - 1, 'more finding')}" if len(findings) > 1 else ""
        yield f"{BUNDLES}/{bundle.file.name}: '{rule}': {findings[0].place}: {findings[0].text.rstrip('.')}{more}"
