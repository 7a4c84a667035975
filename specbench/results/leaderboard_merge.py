"""Adds rows to a leaderboard file, from finished runs, from other files, and from a dataset repository of the Hugging
Face hub; also pushes rows to such a repository. Files are locked, and replaced atomically."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from specbench.core.console import counted
from specbench.core.errors import ConfigError
from specbench.results.conditions import Sourced, check_together
from specbench.results.leaderboard import ROWS, check_writable, edit_rows, load, merge_rows
from specbench.results.row import Row
from specbench.results.runs import finished_run, run_folder_of
from specbench.results.units import number
from specbench.results.validation import AUDIT_VERDICTS
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
    is kept, with what an audit or `specbench fairness` added to it.

    Raises ConfigError for a path that is no finished run, and for rows that may not share a file; the file is then
    unchanged.
    """
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
    """Puts all rows of several files into one. A row of several files is added once.

    Raises ConfigError if two files have different results of one configuration, and for rows that may not share a file.
    """
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
    """Returns the dates and the speed-ups of two results in words."""
    speedups = join.join(number(each.metric("speedup"), 4) for each in (row, other))
    return f"created {row.created}{join}{other.created}, speed-up {speedups}"


def is_same(row: Row, other: Row) -> bool:
    """Returns whether two rows are copies of one result. Fields that were added later, and places, may differ."""
    return (row.key, row.created, row.metrics) == (other.key, other.created, other.metrics)


def is_unjudged(row: Row, judged: Row) -> bool:
    """Returns whether a row is the result `judged` without the judge's ratings."""
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
    """Returns a row with the verdict of an audit and the fairness numbers of another copy of it.

    Raises ConfigError if the copies contradict each other. Without `refuse`, the verdict of `row` and the numbers of
    `other` win.
    """
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
    what was added, and the address of the commit.

    The places of records and audit reports, which stay on this machine, are left out. Raises ConfigError for rows that
    do not go together, and for any failure of the hub.
    """
    import huggingface_hub

    rows = [(f"{file}: rows.{number}", without_places(row)) for number, row in enumerate(load(file))]
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
    """Puts the rows of a repository's file into a local file. Returns what was added, and the commit.

    Raises ConfigError for an absent or broken file, rows that do not go together, and any failure of the hub.
    """
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
