"""The rows of a submission beside those that a board has of the same target, task and method."""

from collections.abc import Sequence

from specbench.core.console import counted
from specbench.core.table import Column, Table, text_columns
from specbench.publish.board.stored import StoredRun, row_name
from specbench.publish.bundle.agreement import JUDGED_BY, Agreement
from specbench.publish.bundle.verify import CheckedBundle, Verification
from specbench.results.conditions import conditions_that_differ
from specbench.results.metric_format import NULL, metric_of, with_interval
from specbench.results.paired import unpaired_ratio
from specbench.results.row import Row
from specbench.results.runs import rows_of_subsets
from specbench.statistics.bootstrap import Estimate

MOST_CONDITIONS = 3  # that a row names
MOST_ROWS = 200


def difference_table(
    verification: Verification, new: Sequence[CheckedBundle], stored: Sequence[StoredRun], tolerance: float
) -> Table | None:
    """Returns a line for each row of a method over all subsets of its task; None without rows. `verification`: of the
    new bundles, and of those of the board that have a run of the same configuration. `tolerance`: the change beyond
    which the last column points at a row."""
    rows: list[list[str]] = []
    num_left_out = 0
    for bundle in new:
        for run in bundle.runs:
            whole = {id(row) for row in rows_of_subsets(run.sound_rows, [])}
            for each in run.rows:
                if each.wrong is not None or each.row.is_baseline or id(each.row) not in whole:
                    num_left_out += 1
                    continue
                level = str(verification.level_of(bundle, each))
                place = f"{bundle.file.name}:{run.name}"
                cells, remarks = _against_board(each.row, _agreement(verification, each.row, place), stored, tolerance)
                remarks += [warning.code.replace("_", " ") for warning in each.row.warnings]
                rows.append([
                    row_name(each.row, bundle.file.name, run.name), bundle.file.name, each.row.task_name,
                    f"{each.row.subset} {each.row.level}".rstrip(), each.row.shown_method, *cells, level,
                    "; ".join(remarks) or NULL,
                ])  # fmt: skip
    if not rows:
        return None
    columns = [Column("row", folds=False), Column("bundle", folds=False), *text_columns("task", "subset", "method")]
    for metric in JUDGED_BY:
        label = metric_of(metric).label.replace("\n", " ")
        columns += [Column(label, True), Column("of the board", True), Column("change", True)]
    columns += [Column("level"), Column("for the reviewer")]
    caption = list(NOTES)
    if num_left_out:
        caption.append(f"not listed: {counted(num_left_out, 'row')} of AR and of subsets of rows over all")
    if len(rows) > MOST_ROWS:
        caption.append(f"not listed: {counted(len(rows) - MOST_ROWS, 'more row')}")
    return Table("Rows beside those of the board", columns, rows[:MOST_ROWS], caption)


NOTES = (
    "values with 95 % intervals; change: new ÷ the board's row of the same target, task and method with the fewest "
    "other conditions, unpaired",
    "a run of the same configuration is paired prompt by prompt, with E_n: up to 1 the runs agree; no row is replaced",
)


def _agreement(verification: Verification, row: Row, place: str) -> Agreement | None:
    """Returns how the row agrees with the first other run of its configuration."""
    found = verification.reruns.get((row.key, row.created))
    pairs = found.pairs if found is not None else ()
    return next((each for each in pairs if each.second.source == place), None)


def _against_board(
    row: Row, agreement: Agreement | None, stored: Sequence[StoredRun], tolerance: float
) -> tuple[list[str], list[str]]:
    """Returns for each metric the row's value, the board's, and their ratio; and what a reviewer looks at."""
    remarks: list[str] = []
    other: Row | None = None
    if agreement is not None:
        other = agreement.first.row
        agrees = "agrees with" if agreement.agrees else "differs from"
        remarks.append(f"re-run: {agrees} {agreement.first.source}")
        for of, answers in (("answers", agreement.answers), ("answers of ar", agreement.baseline_answers)):
            remarks += [] if answers is None or answers.agree else [f"{of}: {answers}"]
    else:
        peers = [
            (len(conditions_that_differ(row, each)), run.bundle, each) for run in stored for each in run.rows
            if (each.target, *each.names, each.level) == (row.target, *row.names, row.level)
        ]  # fmt: skip
        if peers:
            _, bundle, other = min(peers, key=lambda peer: (peer[0], peer[2].created, peer[1]))
            differ = [str(each) for each in conditions_that_differ(other, row)]
            more = f" and {len(differ) - MOST_CONDITIONS} more" if len(differ) > MOST_CONDITIONS else ""
            remarks.append(f"beside {bundle}: {'; '.join(differ[:MOST_CONDITIONS]) or 'same conditions'}{more}")
        else:
            remarks.append("the first of its kind")
    cells: list[str] = []
    for metric in JUDGED_BY:
        cells.append(with_interval(row.metric(metric)))
        if other is None:
            cells += [NULL, NULL]
            continue
        known = next((each for each in agreement.changes if each.metric == metric), None) if agreement else None
        change = unpaired_ratio(other.metric(metric), row.metric(metric)) if known is None else known.ratio
        error = "" if known is None or known.error is None else f", E_n {known.error:.2f}"
        cells += [with_interval(other.metric(metric)), f"{with_interval(change, 3)}{error}"]
        remarks += _beyond(metric, change, tolerance)
    return cells, remarks


def _beyond(metric: str, change: Estimate, tolerance: float) -> list[str]:
    """Returns a remark on a ratio that is further from 1 than the tolerance, unless its interval contains 1."""
    low, high = change.low, change.high
    if change.value is None or abs(change.value - 1) <= tolerance:
        return []
    if low is not None and high is not None and low <= 1 <= high:
        return []
    label = metric_of(metric).label.replace("\n", " ")
    return [f"{label} changes by {change.value - 1:+.0%}, more than {tolerance:.0%}"]
