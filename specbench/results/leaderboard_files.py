"""Adds rows to leaderboard files, from finished runs, other files and dataset repositories of the Hugging Face hub, and
pushes rows to such a repository; checks the rows of files against the folders of their runs."""

import math
import os
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from specbench.core import dotted
from specbench.core.console import counted
from specbench.core.errors import ConfigError
from specbench.results.conditions import FieldDifference, Sourced, check_together, conflicts, differences
from specbench.results.leaderboard import ROWS, check_writable, edit_rows, load, merge_rows, read
from specbench.results.metric_format import OF_SCORES, number
from specbench.results.row import LATER_METRICS, LATER_WARNINGS, UNVERIFIABLE_FIELDS, Evidence, Row
from specbench.results.runs import RecordedRun, RecordedRuns, finished_run, run_folder_of
from specbench.results.scorer_versions import OTHER_VERSION, SACREBLEU, signed_versions, without_version
from specbench.results.verdict import FAILS_BELOW
from specbench.results.warnings import in_words_of
from specbench.tasks.judge import JUDGED


@dataclass(frozen=True)
class Added:
    """The outcome of adding rows. `new`, `known`: the number of new rows, and of rows that the file already had.
    `replaced`: a line for each row that replaced another result of its configuration. `total`: the rows of the file."""

    new: int
    replaced: tuple[str, ...]
    known: int
    total: int

    def __str__(self) -> str:
        added = counted(self.new, "row")
        return f"{added} added, {len(self.replaced)} replaced, {self.known} there already; it has {self.total}"


def add_runs(runs: Sequence[Path], file: Path) -> Added:
    """Puts the rows of runs into a file. Other results of the same configuration are replaced. A row that the file has
    is kept, with what an audit or `specbench fairness` added to it. Raises ConfigError for a path that is not a
    finished run, and for rows that may not share a file; the file is then unchanged."""
    return put(
        file,
        [
            (f"{path / ROWS}: rows.{place}", _with_place(_moved(row, path / ROWS, file), path, file))
            for path in runs for place, row in enumerate(finished_run(path).rows)
        ],
    )  # fmt: skip


def add_rows(file: Path, rows: Sequence[Row], folder: Path) -> Added:
    """Puts newly measured rows into a file, with the place of their records."""
    return put(file, [(str(folder), _with_place(row, folder, file)) for row in rows])


def merge_files(files: Sequence[Path], to: Path) -> Added:
    """Puts all rows of several files into one. A row of several files is added once. Raises ConfigError if two files
    have different results of one configuration, and for rows that may not share a file."""
    rows = [(f"{file}: rows.{place}", _moved(row, file, to)) for file in files for place, row in enumerate(load(file))]
    seen: dict[str, Sourced] = {}
    for where, row in rows:
        first_where, first = seen.setdefault(row.key, (where, row))
        if is_same(row, first):
            seen[row.key] = first_where, with_added(first, row, f"{where} and {first_where}")
        else:
            problem = f"{where} and {first_where} are different results of one configuration ({row.place}):"
            raise _two_results(problem, row, first)
    return put(to, list(seen.values()), replace=False)


def put(file: Path, rows: Sequence[Sourced], replace: bool = True) -> Added:
    """Puts rows into a file, which is created if absent. `replace`: whether they replace other results of the same
    configuration; if not, other results raise ConfigError."""
    with edit_rows(file) as present:
        check_together([*((f"{file}: rows.{place}", row) for place, row in enumerate(present)), *rows])
        before, added = {row.key: row for row in present}, [row for _, row in rows]
        judged = [row for row in (*present, *added) if JUDGED in row.signatures]
        known = {row.key for row in added if row.key in before and is_same(row, before[row.key])}
        known |= {row.key for row in added if any(is_unjudged(row, other) for other in judged)}
        replaced = {row.key: row for row in added if row.key in before and row.key not in known}
        chosen = [row for row in added if row.key not in known]
        for where, row in rows:
            old = before.get(row.key)
            if old is not None and row.key in known:
                chosen.insert(0, with_added(old, row, where if replace else f"{where} and {file}", refuse=not replace))
            elif old is not None and not replace:
                raise _two_results(f"{where} ({row.place}): {file} has another result of this configuration:", row, old)
        present[:] = merge_rows(present, chosen)
    num_new = len({row.key for row in added} - before.keys() - known)
    lines = (f"replaced: {row.place}: {_two_values(before[key], row)}" for key, row in replaced.items())
    return Added(num_new, tuple(lines), len(known), len(before) + num_new)


def _two_results(problem: str, row: Row, other: Row) -> ConfigError:
    return ConfigError(f"{problem} {_two_values(row, other, ' and ')}: remove one of the two")


def _two_values(row: Row, other: Row, join: str = " → ") -> str:
    speedups = join.join(number(each.metric("speedup"), 4) for each in (row, other))
    return f"created {row.created}{join}{other.created}, speed-up {speedups}"


def is_same(row: Row, other: Row) -> bool:
    """Returns whether two rows are copies of one result. Fields that were added later, and places, may differ."""
    return (row.key, row.created, row.metrics) == (other.key, other.created, other.metrics)


def is_unjudged(row: Row, judged: Row) -> bool:
    if JUDGED in row.signatures or row.key != judged.model_copy(update={"signatures": {}}).key:
        return False
    return all(judged.metric(name) == row.metric(name) for name in ("tpot_seconds", "new_tokens", "speedup"))


def _with_place(row: Row, folder: Path, file: Path) -> Row:
    return row.model_copy(update={"run": relative(folder, file)})


def _moved(row: Row, file: Path, to: Path) -> Row:
    """Returns the row with the places of its run and of its audit's report relative to the file `to`."""
    if row.evidence is not None and row.evidence.report is not None:
        report = relative(file.parent / row.evidence.report, to)
        row = row.model_copy(update={"evidence": row.evidence.model_copy(update={"report": report})})
    place = run_folder_of(row, file)
    return row if place is None else _with_place(row, place, to)


def relative(folder: Path, file: Path) -> str:
    """Returns the path of a folder relative to a file's folder, with "/"; the absolute path if the drives differ."""
    try:
        return Path(os.path.relpath(folder.resolve(), file.resolve().parent)).as_posix()
    except ValueError:
        return folder.resolve().as_posix()


def with_added(row: Row, other: Row, where: str, refuse: bool = True) -> Row:
    """Returns a row with the verdict of an audit and the fairness numbers of another copy of it. Raises ConfigError if
    the copies contradict each other. Without `refuse`, the verdict of `row` and the numbers of `other` win."""
    verdicts = sorted((row, other), key=_evidence_strength, reverse=True)
    fairness = row.fairness or other.fairness if refuse else other.fairness or row.fairness
    contradictions = {
        "verdict": _evidence_strength(row) == _evidence_strength(other)
        and (row.verdict, row.evidence) != (other.verdict, other.evidence),
        "fairness": other.fairness is not None and other.fairness != fairness,
    }
    for name, differ in contradictions.items():
        if differ and refuse:
            first, second = (f"{getattr(each, name)!s:.80}" for each in (other, row))
            raise ConfigError(
                f"{where} are one result ({row.place}) with two {name}s, {first} and {second}: remove one of the two"
            )
    best = verdicts[0]
    return row.model_copy(update={"verdict": best.verdict, "evidence": best.evidence, "fairness": fairness})


def _evidence_strength(row: Row) -> int:
    """Returns how strong the evidence of a verdict is: none, the run's own outputs, an audit, an audit with its
    evidence."""
    if row.evidence is not None or row.verdict in AUDIT_VERDICTS:
        return 2 + (row.evidence is not None)
    return int(row.verdict != "not audited")


ATTEMPTS = 5  # of a push, while others push too


def push(file: Path, repository: str, name: str, private: bool) -> tuple[Added, str]:
    """Puts the rows of a file into the file `name` of a repository, which is created where it does not exist. Returns
    what was added, and the address of the commit. The places of records and audit reports, which stay on this machine,
    are left out. Raises ConfigError for rows that do not go together, and for any failure of the hub."""
    import huggingface_hub

    rows = [(f"{file}: rows.{place}", without_places(row)) for place, row in enumerate(load(file))]
    hub = huggingface_hub.HfApi()
    try:
        hub.create_repo(repository, repo_type="dataset", private=private, exist_ok=True)
        for attempt in range(ATTEMPTS):
            with TemporaryDirectory() as folder:
                commit, merged = fetched(repository, name, None, Path(folder))
                added = put(merged, rows)
                try:
                    made = hub.upload_file(
                        path_or_fileobj=merged, path_in_repo=name, repo_id=repository, repo_type="dataset",
                        commit_message=f"specbench: {added}", parent_commit=commit,
                    )  # fmt: skip
                except huggingface_hub.errors.HfHubHTTPError as error:
                    if error.response.status_code not in (409, 412) or attempt == ATTEMPTS - 1:
                        raise
                    continue  # another push came first
                return added, str(made.commit_url)
    except ConfigError:
        raise
    except Exception as error:  # offline, not logged in, no right to write: many classes of several libraries
        raise failure("push to", repository, error) from error
    raise AssertionError("the last attempt returns or raises")


def pull(repository: str, name: str, revision: str | None, to: Path) -> tuple[Added, str]:
    """Puts the rows of a repository's file into a local file. Returns what was added, and the commit. Raises
    ConfigError for an absent or broken file, rows that do not go together, and any failure of the hub."""
    check_writable(to)
    with TemporaryDirectory() as folder:
        try:
            commit, file = fetched(repository, name, revision, Path(folder))
        except Exception as error:  # as in `push`
            raise failure("pull from", repository, error) from error
        if not file.exists():
            raise ConfigError(f"dataset '{repository}' has no file '{name}': name another one with --name")
        try:
            rows = load(file)
        except ConfigError as error:
            raise ConfigError(str(error).replace(str(file), f"{repository}/{name}")) from error
    return put(to, [(f"{repository}/{name}: rows.{number}", row) for number, row in enumerate(rows)]), commit


def fetched(repository: str, name: str, revision: str | None, folder: Path) -> tuple[str, Path]:
    """Returns the commit of a repository and the path of its file in a folder, where there is one. Raises what the
    hub's client raises."""
    import huggingface_hub

    info = huggingface_hub.HfApi().dataset_info(repository, revision=revision)
    if name in {sibling.rfilename for sibling in info.siblings or []}:
        huggingface_hub.hf_hub_download(
            repository, name, repo_type="dataset", revision=info.sha, local_dir=folder, force_download=True
        )
    return str(info.sha), folder / name


def without_places(row: Row) -> Row:
    """Returns the row without the places of its run and its audit's report, which mean nothing on another machine."""
    evidence = row.evidence and row.evidence.model_copy(update={"report": None})
    return row.model_copy(update={"run": None, "evidence": evidence})


def failure(action: str, repository: str, error: Exception) -> ConfigError:
    reason = next((line.strip() for line in str(error).splitlines() if line.strip()), "no reason given")
    return ConfigError(
        f"cannot {action} dataset '{repository}': {type(error).__name__}: {reason[:200]}: check the name and the "
        "connection, and log in (hf auth login, or HF_TOKEN)"
    )


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


def compare_with_run(
    row: Row, run: RecordedRun, file: Path, verdict_in: ReportReader | None = None,
    part_of: Callable[[Row], Row] = lambda row: row,
) -> tuple[list[FieldDifference], list[str]]:  # fmt: skip
    """Returns the fields in which a row of a file differs from its run, and the fields that were not compared.
    `verdict_in`: reads an audit's report; without it the verdict of an audit is not compared. `part_of`: returns what
    the run can confirm of a row, by default the whole. Raises ConfigError if the row cannot be recomputed."""
    row, own = part_of(row), part_of(run.recompute_row(row))
    own = own.model_copy(update={"warnings": in_words_of(row, own.warnings)})
    stated = ["fairness"] if row.fairness is not None else []
    for told, later in LATER_METRICS.items():
        if later.isdisjoint(row.metrics) and not later.isdisjoint(own.metrics):  # a row of an earlier version
            metrics = {name: each for name, each in own.metrics.items() if name not in later}
            warnings = tuple(each for each in own.warnings if each.code != told)
            own = own.model_copy(update={"metrics": metrics, "warnings": warnings})
            stated.append(told)
    if newer := sorted(LATER_WARNINGS & {each.code for each in own.warnings} - {each.code for each in row.warnings}):
        warnings = tuple(each for each in own.warnings if each.code not in newer)
        own = own.model_copy(update={"warnings": warnings})
        stated += [f"warning {name}" for name in newer]
    for name, is_added in (  # which a row of an earlier version lacks
        ("differences", row.differences is None),
        (
            "batch_width",
            row.batch_width is None and own.batch_width is not None and own.batch_width.share_equal is None,
        ),
    ):
        if is_added and getattr(own, name) is not None:
            own = own.model_copy(update={name: None})
            stated.append(name)
    own, by_others = _by_other_versions(row, own)
    stated += by_others
    values, own_values = (
        dotted.flat(each.model_dump(mode="json", exclude=set(UNVERIFIABLE_FIELDS))) for each in (row, own)
    )
    found = differences(values, own_values, "absent", _is_equal)
    if row.evidence is None:
        return found, stated
    found = [each for each in found if each.field != "verdict"]
    expected = expected_verdict(row, own)
    report = row.evidence.report and file.parent / row.evidence.report
    if expected != row.verdict:
        return [*found, FieldDifference("verdict", row.verdict, expected)], stated
    if not report or not report.is_file() or verdict_in is None:
        return found, ["verdict", "evidence", *stated]
    reported = verdict_in(report, own)
    if reported is None:
        raise ConfigError(f"evidence.report = {report}: has no verdict on this row: give the report of its audit")
    evidence = reported[1].model_copy(update={"report": row.evidence.report})
    contradicted = differences(
        {"verdict": row.verdict, "evidence": row.evidence}, {"verdict": reported[0], "evidence": evidence}
    )
    return [*found, *contradicted], [FROM_REPORT, *stated]


def _by_other_versions(row: Row, own: Row) -> tuple[Row, list[str]]:
    """Returns the recomputed row, with the corpus scores of the row wherever sacrebleu's signatures differ in nothing
    but its version; and the names of these scores among the fields that were not compared."""
    signatures, metrics, told = dict(own.signatures), dict(own.metrics), []
    for name, signature in row.signatures.items():
        here = own.signatures.get(name, "")
        if signature == here or without_version(signature) != without_version(here):
            continue
        signatures[name] = signature
        of_score = {f"{name}{end}" for end in ("", *OF_SCORES)} & row.metrics.keys() & metrics.keys()
        metrics |= {each: row.metrics[each] for each in of_score}
        theirs, ours = ("+".join(dict.fromkeys(signed_versions([text]))) for text in (signature, here))
        told.append(f"{name} ({OTHER_VERSION}: {SACREBLEU} {theirs} there and {ours} here)")
    return own.model_copy(update={"signatures": signatures, "metrics": metrics}), told


def _is_equal(mine: Any, other: Any) -> bool:
    if isinstance(mine, float) and isinstance(other, float):
        return math.isclose(mine, other, rel_tol=ROUNDING, abs_tol=1e-15)
    return type(mine) is type(other) and bool(mine == other)


def expected_verdict(row: Row, own: Row) -> str:
    """Returns the verdict that a row with this evidence may have. A rule that is lossy by design keeps this verdict,
    and outputs that differ are never lossless, whatever an audit found. `own`: the row recomputed from its run."""
    if own.verdict == "lossy by design" or (
        own.verdict in ("near-tie only", "width only", "diverged") and row.verdict in CLEAN
    ):
        return own.verdict
    if row.verdict == "lossless" and (found := row.evidence) is not None:  # needs greedy outputs, and passing draws
        passed = found.p_value is not None and found.p_value >= FAILS_BELOW
        return "lossless" if found.num_prompts and found.num_draws and passed else "undecided"
    return row.verdict


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
    problems += conflicts([(f"{file}: rows.{place}", row) for place, row in rows.items()])
    if not with_records:
        return Validity(len(rows), 0, tuple(problems))
    runs = RecordedRuns()
    stated = Counter[str]()
    for place, row in rows.items():
        try:
            wrong, not_compared = compare_with_run(row, _run_of(row, file, runs, folders), file, verdict_in)
        except (ConfigError, ValueError) as error:
            problems.append(f"{file}: rows.{place} ({row.place}): cannot be recomputed: {error}")
            continue
        if not wrong:
            stated.update(not_compared)
            continue
        more = f" and {len(wrong) - MAX_FIELDS} more" if len(wrong) > MAX_FIELDS else ""
        problems.append(
            f"{file}: rows.{place} ({row.place}): {'; '.join(map(mismatch_text, wrong[:MAX_FIELDS]))}{more}: the row "
            "differs from its run: restore the file from a copy, or remove the row and add its run again (a run's own "
            f"{ROWS}: move it away and repeat the run's command, which makes it again from the records)"
        )
    return Validity(len(rows), len(rows), tuple(problems), stated)


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
