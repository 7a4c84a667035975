"""The sources of a task's rows: the bundled sample, the hub, or local files, with the files of each subset."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from glob import escape
from itertools import chain, islice
from pathlib import Path
from typing import Any, Literal

from specbench.core.digests import file_digest
from specbench.core.errors import ConfigError, nearest
from specbench.core.registry import READERS
from specbench.specs.task import DatasetSpec, TaskSpec
from specbench.tasks import hub as hub_data
from specbench.tasks.local_files import SUFFIXES, Files, Row, find_files, find_parallel, parallel_rows, read_rows


class SubsetFiles:
    """The files of a subset in `data`: in a folder, or one file, which may hold several subsets.

    `stems`: the names without extension that the files may have, with wildcards. `aligned`: for each file the files of
    its columns, if each column has its own. Raises OSError if the folder cannot be read.
    """

    def __init__(self, task: TaskSpec, subset: str, data: Path) -> None:
        self.task, self.subset, self.data, self.chosen = task, subset, data, task.subset(subset)
        split = self.chosen.dataset.split if self.chosen.dataset else "test"
        fields = {"task": escape(task.name), "subset": escape(subset), "split": escape(split)}
        local = self.chosen.local
        self.stems = [stem.format(**fields) for stem in local.files]
        self.columns = {column: pattern.format(**fields) for column, pattern in local.parallel.items()}
        self.aligned = find_parallel(data, self.columns, split) if data.is_dir() else []

    @cached_property
    def paths(self) -> list[Path]:
        if self.aligned:
            return [path for files in self.aligned for path in files.values()]
        return [self.data] if self.data.is_file() else find_files(self.data, self.stems)

    @property
    def is_named(self) -> bool:
        """Returns whether the one file is named after the subset."""
        stems = [stem.rpartition("/")[2] for stem in self.stems]
        return any(self.subset in stem and self.data.match(stem + suffix) for stem in stems for suffix in SUFFIXES)

    def others(self) -> Iterator["SubsetFiles"]:
        """Yields the files of the other subsets."""
        return (SubsetFiles(self.task, name, self.data) for name in self.task.subset_names if name != self.subset)

    def are_shared(self) -> bool:
        """Returns whether another subset would take the same rows by mistake: one with the same reader, unless the task
        says that its subsets share files."""
        if self.chosen.local.subsets_share_files:
            return False
        alike = [other for other in self.others() if other.chosen.reader == self.chosen.reader]
        if self.data.is_file():
            return bool(alike) and not self.is_named
        if self.aligned:
            return any(other.aligned == self.aligned for other in alike)
        own = {path.resolve() for path in self.paths}
        return any(path.resolve() in own for other in alike for path in find_files(self.data, other.stems))


def local_files(task: TaskSpec, subset: str, data: Path) -> SubsetFiles:
    """Returns the subset's files in a folder, or the given file. Raises ConfigError naming the patterns that were
    tried."""
    files = SubsetFiles(task, subset, data)
    if data.is_file():
        other = None if files.is_named else next((other.subset for other in files.others() if other.is_named), None)
        if other is not None:
            raise ConfigError(
                f"--data {data}: by its name it holds '{other}', not '{subset}': give --subset {other}, or a file or "
                f"folder that holds '{subset}'"
            )
    elif not data.is_dir():
        raise ConfigError(f"--data {data}: no such folder or file: check the path")
    if not files.paths:
        columns = " and ".join(files.columns.values())
        both = f"aligned files {columns} with the same text for each *, and " if columns else ""
        raise ConfigError(
            f"--data {data}: no file for subset '{subset}' of task '{task.name}': tried {both}{', '.join(files.stems)} "
            f"with {', '.join(SUFFIXES[::2])} (also .gz): add one, or choose other subsets with --subset"
        )
    return files


def subsets_with_files(task: TaskSpec, data: Path) -> list[str]:
    """Returns the subsets that have files in a folder; for one file, those that it is named after, or else all.

    Raises ConfigError for a path that cannot be read.
    """
    try:
        found = [SubsetFiles(task, name, data) for name in task.subset_names]
        if data.is_file():
            return [each.subset for each in found if each.is_named] or list(task.subset_names)
        return [each.subset for each in found if each.paths]
    except OSError as error:
        raise unreadable(data, error) from error


def unreadable(data: Path, error: OSError) -> ConfigError:
    return ConfigError(f"--data {str(data)[:200]}: cannot be read: {error.strerror}: check the path")


def files_name(files: Sequence[Path]) -> str:
    return str(files[0]) if len(files) == 1 else f"{files[0]} … {files[-1].name} ({len(files)} files)"


Kind = Literal["hub", "local", "sample"]


class NoRows(ConfigError):
    """The data exists, but none of its rows belongs to the subset."""


@dataclass(frozen=True)
class Source:
    """Rows, each with its place ("mgsm_en.tsv, row 3"), read lazily. `revision`: the commit on the hub, or the digest
    of the files' bytes. `dataset`: the place on the hub."""

    kind: Kind
    location: str
    revision: str | None
    rows: Iterator[tuple[str, Row]]
    dataset: DatasetSpec | None = None

    def limited(self, made: Iterator[tuple[str, Row]]) -> Iterator[tuple[str, Row]]:
        """Yields the rows made by a reader that the task requests from the hub."""
        return made if self.dataset is None else hub_data.limited(self.dataset, made)


def open_source(task: TaskSpec, subset: str, data: str, num_subsets: int) -> Source:
    """Returns the rows of a subset. `data`: "sample", "hub", or the path of a folder or a file."""
    if data == "hub":
        return _hub(task, subset)
    try:
        if data == "sample":
            return _sample(task, subset, num_subsets)
        return _local(task, subset, Path(data), num_subsets)
    except OSError as error:
        raise unreadable(Path(data), error) from error


def _sample(task: TaskSpec, subset: str, num_subsets: int) -> Source:
    sample = task.subset(subset).sample
    if sample is None:
        hub = " or --data hub" if task.subset(subset).dataset else ""
        whole = f"subset '{subset}' of task '{task.name}'" if task.has_sample else f"task '{task.name}'"
        raise ConfigError(f"{whole} has no bundled sample: give --data FOLDER{hub}")
    path = Path(sample)
    if not path.is_file():
        raise ConfigError(f"task '{task.name}': sample = '{path}': no such file: correct the key `sample`")
    users = [name for name in task.subset_names if task.sample_of(name) == sample]
    rows = _file_rows(task, subset, [path], are_shared=num_subsets > 1 and len(users) > 1)
    return Source("sample", path.name, file_digest(path), rows)


def _hub(task: TaskSpec, subset: str) -> Source:
    dataset = task.subset(subset).dataset
    if dataset is None:
        raise ConfigError(f"task '{task.name}' has no dataset on the hub: give local files with --data FOLDER")
    return hub_data.first_that_works(hub_data.filled(dataset, task.name, subset), hub_source)


def hub_source(dataset: DatasetSpec, downloads: bool = True) -> Source:
    """Returns the rows of one location on the hub. Raises ConfigError if the first row cannot be read."""
    location = hub_data.location(dataset)
    commit = hub_data.resolve_revision(dataset)
    rows = hub_data.read_rows(dataset, commit, downloads=downloads)
    first = list(islice(rows, 1))
    return Source("hub", location, commit, _placed(location, chain(first, rows)), dataset)


def _placed(place: str, rows: Iterable[Row]) -> Iterator[tuple[str, Row]]:
    return ((f"{place}, row {number}", row) for number, row in enumerate(rows, start=1))


def _local(task: TaskSpec, subset: str, data: Path, num_subsets: int) -> Source:
    files = local_files(task, subset, data)
    digests = "+".join(file_digest(path) for path in files.paths)
    rows = _file_rows(task, subset, files.paths, files.aligned, num_subsets > 1 and files.are_shared())
    return Source("local", files_name(files.paths), digests, rows)


def _file_rows(
    task: TaskSpec, subset: str, paths: Sequence[Path], aligned: Sequence[Files] = (), are_shared: bool = False
) -> Iterator[tuple[str, Row]]:
    """Yields the subset's rows: those whose column `subset` names it, and all rows without the column. Raises
    ConfigError if there are none, and if several subsets share a file without the column."""
    chosen, seen, num_taken = task.subset(subset), set[str](), 0
    columns = () if chosen.reader else chosen.columns()
    parts = [parallel_rows(files) for files in aligned] or [
        _placed(str(path), read_rows(path, column_names=chosen.local.column_names, columns=columns)) for path in paths
    ]
    for place, row in chain.from_iterable(parts):
        if task.subsets and "subset" in row:
            seen.add(str(row["subset"]))
            if str(row["subset"]) != subset:
                continue
        elif are_shared:
            path = place.rpartition(", ")[0]
            raise ConfigError(
                f"{path}: has no column 'subset' to tell several subsets apart: choose one of them, or add it"
            )
        num_taken += 1
        yield place, row
    if num_taken == 0 and seen:
        raise NoRows(f"{files_name(paths)}: holds no rows of subset '{subset}': {nearest(subset, seen)}")
    if num_taken == 0:
        raise ConfigError(f"{files_name(paths)}: holds no rows: give a file that does")


Join = Callable[[Row, Row], Row | None]


def rows_of(task: TaskSpec, source: Source) -> Iterator[tuple[str, Row]]:
    """Yields the rows that the reader makes of each source row, with their place; a sample has the final layout
    already.

    Raises ConfigError naming the place of a row on which the reader fails.
    """
    if task.reader is None or source.kind == "sample":
        yield from source.rows
        return
    read: Callable[[Row], Any] = READERS.get(task.reader)()
    join = READERS.features(task.reader).join
    for place, raw in _joined(task, source.rows, join) if join else source.rows:
        with _naming(task, place, raw):
            made = read(raw)
        for row in made if isinstance(made, list) else [made]:
            yield place, row


def _joined(task: TaskSpec, rows: Iterable[tuple[str, Row]], join: Join) -> Iterator[tuple[str, Row]]:
    """Yields the rows, merged where `join` merges them, with the place of the first; it reads one row ahead."""
    held: tuple[str, Row] | None = None
    for place, row in rows:
        if held is None:
            held = place, row
            continue
        with _naming(task, place, row):
            together = join(held[1], row)
        if together is None:
            yield held
        held = (place, row) if together is None else (held[0], together)
    if held is not None:
        yield held


@contextmanager
def _naming(task: TaskSpec, place: str, row: Row) -> Iterator[None]:
    """Raises ConfigError with the row's place for whatever the reader raises."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError(f"{place}: {error}") from error
    except Exception as error:  # a reader may fail on any row
        raise ConfigError(
            f"{place}: the reader '{task.reader}' fails: {type(error).__name__}: {error}: the row has the columns "
            f"{', '.join(map(str, row))}: correct the row, or give the rows in the layout of the task"
        ) from error
