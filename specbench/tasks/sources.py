"""Where a task's rows come from: the bundled sample, the hub, or local files of each subset."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from glob import escape
from itertools import chain, islice
from pathlib import Path
from typing import Any, Literal

from specbench.core.errors import ConfigError, nearest
from specbench.core.registry import READERS
from specbench.core.values import file_digest
from specbench.specs.components import equal_codes
from specbench.specs.task import DatasetSpec, TaskSpec
from specbench.tasks.local_files import SUFFIXES, Files, Row, find_files, find_parallel, parallel_rows, read_rows


class SubsetFiles:
    """The files of a subset. `data`: a folder, or one file, which may hold several subsets.

    `stems`: the file names to look for, without extension and with wildcards. `aligned`: groups of files by column, if
    every column has its own file. Raises OSError if the folder cannot be read.
    """

    def __init__(self, task: TaskSpec, subset: str, data: Path) -> None:
        self.task, self.subset, self.data, self.merged = task, subset, data, task.subset(subset)
        local, fields = self.merged.local, self.merged.file_fields(subset)
        escaped = {name: escape(text) for name, text in fields.items()}
        self.stems = [stem.format(**escaped) for stem in local.files]
        self.columns: dict[str, list[str]] = {}  # the patterns of each, also with the other codes of a language in vars
        for column, pattern in local.parallel.items():
            named = [name for name in self.merged.vars if f"{{{name}}}" in pattern]
            codes = [{}, *({name: code} for name in named for code in equal_codes(escaped[name])[1:])]
            self.columns[column.format(**fields)] = [pattern.format(**{**escaped, **other}) for other in codes]
        self.aligned = find_parallel(data, self.columns, fields["split"]) if data.is_dir() else []

    @cached_property
    def paths(self) -> list[Path]:
        if self.aligned:
            return [path for files in self.aligned for path in files.values()]
        return [self.data] if self.data.is_file() else find_files(self.data, self.stems)

    @property
    def is_named(self) -> bool:
        """Returns whether the file `data` is named after the subset."""
        stems = [stem.rpartition("/")[2] for stem in self.stems]
        return any(self.subset in stem and self.data.match(stem + suffix) for stem in stems for suffix in SUFFIXES)

    def other_subsets(self) -> Iterator["SubsetFiles"]:
        """Yields the files of the other subsets."""
        return (SubsetFiles(self.task, name, self.data) for name in self.task.subset_names if name != self.subset)

    def are_shared(self) -> bool:
        """Returns whether another subset with the same reader would take the same rows by mistake. False if the task
        says that its subsets share files."""
        if self.merged.local.subsets_share_files:
            return False
        alike = [other for other in self.other_subsets() if other.merged.reader == self.merged.reader]
        if self.data.is_file():
            return bool(alike) and not self.is_named
        if self.aligned:
            return any(other.aligned == self.aligned for other in alike)
        paths = {path.resolve() for path in self.paths}
        return any(path.resolve() in paths for other in alike for path in find_files(self.data, other.stems))


def find_subset_files(task: TaskSpec, subset: str, data: Path) -> SubsetFiles:
    """Returns the subset's files in a folder, or the given file. Raises ConfigError, with the patterns that were tried,
    if there are none."""
    files = SubsetFiles(task, subset, data)
    if data.is_file():
        named = (other.subset for other in files.other_subsets() if other.is_named)
        if not files.is_named and (other := next(named, None)) is not None:
            raise ConfigError(
                f"--data {data}: is named after the subset '{other}', not '{subset}': give --subset {other}, or a file "
                f"or folder that holds '{subset}'"
            )
    elif not data.is_dir():
        raise ConfigError(f"--data {data}: no such folder or file: check the path")
    if not files.paths:
        columns = " and ".join(" or ".join(patterns) for patterns in files.columns.values())
        both = f"aligned files {columns} with the same text for each *, and " if columns else ""
        raise ConfigError(
            f"--data {data}: no file for subset '{subset}' of task '{task.name}': tried {both}{', '.join(files.stems)} "
            f"with {', '.join(SUFFIXES[::2])} (also .gz): add one, or choose other subsets with --subset"
        )
    return files


def subsets_with_files(task: TaskSpec, data: Path) -> list[str]:
    """Returns the subsets that have files in a folder; for one file, the subsets that it is named after, else all.
    Raises ConfigError for a path that cannot be read."""
    try:
        by_subset = [SubsetFiles(task, name, data) for name in task.subset_names]
        if data.is_file():
            return [files.subset for files in by_subset if files.is_named] or list(task.subset_names)
        return [files.subset for files in by_subset if files.paths]
    except OSError as error:
        raise unreadable_error(data, error) from error


def unreadable_error(data: Path, error: OSError) -> ConfigError:
    return ConfigError(f"--data {str(data)[:200]}: cannot be read: {error.strerror}: check the path")


def format_paths(files: Sequence[Path]) -> str:
    return str(files[0]) if len(files) == 1 else f"{files[0]} … {files[-1].name} ({len(files)} files)"


Kind = Literal["hub", "local", "sample"]


class NoRows(ConfigError):
    """The data exists, but none of its rows belongs to the subset."""


@dataclass(frozen=True)
class Source:
    """Rows that are read lazily, each with its place ("mgsm_en.tsv, row 3"). `revision`: the commit on the hub, or the
    digest of the files' bytes. `dataset`: the location on the hub. `is_streamed`: whether further rows are downloaded
    when they are read."""

    kind: Kind
    location: str
    revision: str | None
    rows: Iterator[tuple[str, Row]]
    dataset: DatasetSpec | None = None
    is_streamed: bool = False

    def limit_rows(self, task_rows: Iterator[tuple[str, Row]]) -> Iterator[tuple[str, Row]]:
        """Yields the first or last rows from the hub if the task limits them. `task_rows`: made by the reader."""
        if self.dataset is None:
            return task_rows
        if self.dataset.last_rows is not None:
            return iter(deque(task_rows, maxlen=self.dataset.last_rows))
        return islice(task_rows, self.dataset.first_rows)


def open_source(task: TaskSpec, subset: str, data: str, num_subsets: int) -> Source:
    """Returns the rows of a subset. `data`: "sample", "hub", or the path of a folder or a file."""
    merged = task.subset(subset)
    if data == "hub":
        from specbench.tasks import hub

        if merged.dataset is None:
            raise ConfigError(f"task '{task.name}' has no dataset on the hub: give local files with --data FOLDER")
        return hub.try_locations(hub.fill_fields(merged.dataset, task.name, subset), open_hub)
    try:
        if data != "sample":
            files = find_subset_files(task, subset, Path(data))
            digests = "+".join(file_digest(path) for path in files.paths)
            rows = _file_rows(task, subset, files.paths, files.aligned, num_subsets > 1 and files.are_shared())
            return Source("local", format_paths(files.paths), digests, rows)
        if merged.sample is None:
            remedy = "give --data FOLDER" + (" or --data hub" if merged.dataset else "")
            subject = f"subset '{subset}' of task '{task.name}'" if task.has_sample else f"task '{task.name}'"
            raise ConfigError(f"{subject} has no bundled sample: {remedy}")
        path = Path(merged.sample)
        if not path.is_file():
            raise ConfigError(f"task '{task.name}': sample = '{path}': no such file: correct the key `sample`")
        num_users = sum(task.sample_of(name) == merged.sample for name in task.subset_names)
        rows = _file_rows(task, subset, [path], are_shared=num_subsets > 1 and num_users > 1)
        return Source("sample", path.name, file_digest(path), rows)
    except OSError as error:
        raise unreadable_error(Path(data), error) from error


def open_hub(dataset: DatasetSpec, downloads: bool = True) -> Source:
    """Returns the rows of one location on the hub. Raises ConfigError if the first row cannot be read."""
    from specbench.tasks import hub

    location, commit = hub.location(dataset), hub.resolve_revision(dataset)
    rows = hub.read_rows(dataset, commit, downloads=downloads)
    first = list(islice(rows, 1))
    is_streamed = not hub.is_fetched(dataset, commit)
    return Source("hub", location, commit, _with_places(location, chain(first, rows)), dataset, is_streamed)


def _with_places(location: str, rows: Iterable[Row]) -> Iterator[tuple[str, Row]]:
    return ((f"{location}, row {number}", row) for number, row in enumerate(rows, start=1))


def _file_rows(
    task: TaskSpec, subset: str, paths: Sequence[Path], aligned: Sequence[Files] = (), are_shared: bool = False
) -> Iterator[tuple[str, Row]]:
    """Yields the subset's rows: those whose column `subset` names it, and all rows without that column. Raises
    ConfigError if there are none, and if several subsets share a file without the column."""
    seen, num_taken = set[str](), 0
    column_names = task.subset(subset).local.column_names
    parts = [parallel_rows(files) for files in aligned] or [
        _with_places(str(path), read_rows(path, column_names=column_names)) for path in paths
    ]
    for place, row in chain.from_iterable(parts):
        if task.subsets and "subset" in row:
            seen.add(str(row["subset"]))
            if str(row["subset"]) != subset:
                continue
        elif are_shared:
            path = place.rpartition(", ")[0]
            raise ConfigError(
                f"{path}: has no column 'subset' to tell several subsets apart: choose one subset, or add the column"
            )
        num_taken += 1
        yield place, row
    if num_taken == 0 and seen:
        raise NoRows(f"{format_paths(paths)}: holds no rows of subset '{subset}': {nearest(subset, seen)}")
    if num_taken == 0:
        raise ConfigError(f"{format_paths(paths)}: holds no rows: give a file that does")


Join = Callable[[Row, Row], Row | None]


def read_task_rows(task: TaskSpec, source: Source) -> Iterator[tuple[str, Row]]:
    """Yields the rows that the task's reader makes of the source rows, with their places. A sample is not read again:
    it has the task's layout. Raises ConfigError naming the place of a row on which the reader fails."""
    if task.reader is None or source.kind == "sample":
        yield from source.rows
        return
    read: Callable[[Row], Any] = READERS.get(task.reader)()
    join = READERS.features(task.reader).join
    for place, raw in _join_rows(task, source.rows, join) if join else source.rows:
        with _locate_errors(task, place, raw):
            made = read(raw)
        for row in made if isinstance(made, list) else [made]:
            yield place, row


def _join_rows(task: TaskSpec, rows: Iterable[tuple[str, Row]], join: Join) -> Iterator[tuple[str, Row]]:
    """Yields the rows; consecutive ones that `join` merges become one row, with the place of the first."""
    iterator = iter(rows)
    if (pending := next(iterator, None)) is None:
        return
    for place, row in iterator:
        with _locate_errors(task, place, row):
            merged = join(pending[1], row)
        if merged is None:
            yield pending
        pending = (place, row) if merged is None else (pending[0], merged)
    yield pending


@contextmanager
def _locate_errors(task: TaskSpec, place: str, row: Row) -> Iterator[None]:
    """Turns any exception of the reader into a ConfigError that names the row's place."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError(f"{place}: {error}") from error
    except Exception as error:  # a reader may fail on any row
        raise ConfigError(
            f"{place}: the reader '{task.reader}' fails: {type(error).__name__}: {error}: the row has the columns "
            f"{', '.join(map(str, row))}: correct the row, or give the rows in the layout of the task"
        ) from error
