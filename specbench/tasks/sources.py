"""The sources of a task's rows: the bundled sample, the hub, or local files, with the files of each subset."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from glob import escape
from pathlib import Path
from typing import Any, Literal

from specbench.core.errors import ConfigError, nearest
from specbench.core.files import file_digest
from specbench.core.registry import READERS
from specbench.specs.task import DatasetSpec, TaskSpec
from specbench.tasks import hub as hub_data
from specbench.tasks.local_files import SUFFIXES, Files, Row, find_files, find_parallel, parallel_rows, read_rows


@dataclass(frozen=True)
class LocalFiles:
    """The files of a subset. `aligned`: if each column has its own file. `shared`: other subsets use one of these files
    too."""

    paths: tuple[Path, ...]
    aligned: tuple[Files, ...] = ()
    shared: bool = False


def local_files(task: TaskSpec, subset: str, data: Path, num_subsets: int) -> LocalFiles:
    """Returns the subset's files in a folder, or the given file. Raises ConfigError naming the patterns that were
    tried."""
    aligned = _aligned(task, subset, data)
    if aligned:
        shared = num_subsets > 1 and any(_aligned(task, other, data) == aligned for other in read_alike(task, subset))
        return LocalFiles(tuple(path for files in aligned for path in files.values()), tuple(aligned), shared)
    paths = _found_files(task, subset, data)
    return LocalFiles(tuple(paths), shared=num_subsets > 1 and _is_shared(task, subset, data, paths))


def subsets_with_files(task: TaskSpec, data: Path) -> list[str]:
    """Returns the subsets that have files in a folder; for one file, those that it may hold according to its name.

    Raises ConfigError for a path that cannot be read.
    """
    try:
        return [name for name in task.subset_names if _has_files(task, name, data)]
    except OSError as error:
        raise unreadable(data, error) from error


def unreadable(data: Path, error: OSError) -> ConfigError:
    return ConfigError(f"--data {str(data)[:200]}: cannot be read: {error.strerror}: check the path")


def read_alike(task: TaskSpec, subset: str) -> list[str]:
    """Returns the other subsets that would take the same rows of a file by mistake: those with the same reader, unless
    the task says that its files are shared."""
    chosen = task.subset(subset)
    if chosen.local.subsets_share_files:
        return []
    return [name for name in others_of(task, subset) if task.subset(name).reader == chosen.reader]


def others_of(task: TaskSpec, subset: str) -> list[str]:
    return [name for name in task.subset_names if name != subset]


def files_name(files: Sequence[Path]) -> str:
    return str(files[0]) if len(files) == 1 else f"{files[0]} … {files[-1].name} ({len(files)} files)"


def _has_files(task: TaskSpec, subset: str, data: Path) -> bool:
    if data.is_file():
        return not _named_after_others(task, subset, data)
    return bool(_aligned(task, subset, data) or find_files(data, _stems(task, subset)))


def _is_shared(task: TaskSpec, subset: str, data: Path, files: list[Path]) -> bool:
    """Returns whether another subset of the task uses one of these files."""
    if data.is_file():
        return bool(read_alike(task, subset)) and not _is_named_after(task, subset, data)
    ours = {path.resolve() for path in files}
    theirs = (path for other in read_alike(task, subset) for path in find_files(data, _stems(task, other)))
    return any(path.resolve() in ours for path in theirs)


def _aligned(task: TaskSpec, subset: str, data: Path) -> list[Files]:
    patterns = task.subset(subset).local.parallel
    filled = {column: _filled_pattern(task, subset, pattern) for column, pattern in patterns.items()}
    dataset = task.subset(subset).dataset
    return find_parallel(data, filled, dataset.split if dataset else "test") if data.is_dir() else []


def _stems(task: TaskSpec, subset: str) -> list[str]:
    """Returns the names of the subset's files without extension; they may hold wildcards."""
    return [_filled_pattern(task, subset, stem) for stem in task.subset(subset).local.files]


def _filled_pattern(task: TaskSpec, subset: str, pattern: str) -> str:
    dataset = task.subset(subset).dataset
    fields = {"task": task.name, "subset": subset, "split": dataset.split if dataset else "test"}
    return pattern.format(**{key: escape(value) for key, value in fields.items()})


def _found_files(task: TaskSpec, subset: str, data: Path) -> list[Path]:
    if data.is_file():
        others = _named_after_others(task, subset, data)
        if others:
            raise ConfigError(
                f"--data {data}: by its name it holds '{others[0]}', not '{subset}': give --subset {others[0]}, or a "
                f"file or folder that holds '{subset}'"
            )
        return [data]
    if not data.is_dir():
        raise ConfigError(f"--data {data}: no such folder or file: check the path")
    stems = _stems(task, subset)
    files = find_files(data, stems)
    if not files:
        aligned = [_filled_pattern(task, subset, pattern) for pattern in task.subset(subset).local.parallel.values()]
        both = f"aligned files {' and '.join(aligned)} with the same text for each *, and " if aligned else ""
        raise ConfigError(
            f"--data {data}: no file for subset '{subset}' of task '{task.name}': tried {both}{', '.join(stems)} with "
            f"{', '.join(SUFFIXES[::2])} (also .gz): add one, or choose other subsets with --subset"
        )
    return files


def _named_after_others(task: TaskSpec, subset: str, file: Path) -> list[str]:
    """Returns the other subsets that a file is named after; none if it is named after this one too."""
    if _is_named_after(task, subset, file):
        return []
    return [name for name in others_of(task, subset) if _is_named_after(task, name, file)]


def _is_named_after(task: TaskSpec, subset: str, file: Path) -> bool:
    stems = [stem.rpartition("/")[2] for stem in _stems(task, subset)]
    return any(subset in stem and file.match(stem + suffix) for stem in stems for suffix in SUFFIXES)


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

    def asked_for(self, made: Iterator[tuple[str, Row]]) -> Iterator[tuple[str, Row]]:
        """Yields the rows made by a reader that the task requests from the hub."""
        return made if self.dataset is None else hub_data.asked_for(self.dataset, made)


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
    shared = num_subsets > 1 and any(task.subset(other).sample == sample for other in others_of(task, subset))
    rows = _file_rows(task, subset, LocalFiles((path,), shared=shared))
    return Source("sample", path.name, file_digest(path), rows)


def _hub(task: TaskSpec, subset: str) -> Source:
    dataset = task.subset(subset).dataset
    if dataset is None:
        raise ConfigError(f"task '{task.name}' has no dataset on the hub: give local files with --data FOLDER")
    dataset = hub_data.filled(dataset, task.name, subset)
    location = hub_data.location(dataset)
    commit = hub_data.resolve_revision(dataset)
    return Source("hub", location, commit, _placed(location, hub_data.read_rows(dataset, commit)), dataset)


def _placed(place: str, rows: Iterable[Row]) -> Iterator[tuple[str, Row]]:
    return ((f"{place}, row {number}", row) for number, row in enumerate(rows, start=1))


def _local(task: TaskSpec, subset: str, data: Path, num_subsets: int) -> Source:
    files = local_files(task, subset, data, num_subsets)
    digests = "+".join(file_digest(path) for path in files.paths)
    return Source("local", files_name(files.paths), digests, _file_rows(task, subset, files))


def _file_rows(task: TaskSpec, subset: str, files: LocalFiles) -> Iterator[tuple[str, Row]]:
    """Yields the subset's rows: those whose column `subset` names it, and all rows without the column. Raises
    ConfigError if there are none, and if several subsets share a file without the column."""
    seen: set[str] = set()
    num_taken = 0
    for place, row in _all_rows(task.subset(subset), files):
        if task.subsets and "subset" in row:
            seen.add(str(row["subset"]))
            if str(row["subset"]) != subset:
                continue
        elif files.shared:
            path = place.rpartition(", ")[0]
            raise ConfigError(
                f"{path}: has no column 'subset' to tell several subsets apart: choose one of them, or add it"
            )
        num_taken += 1
        yield place, row
    if num_taken == 0 and seen:
        raise NoRows(f"{files_name(files.paths)}: holds no rows of subset '{subset}': {nearest(subset, seen)}")
    if num_taken == 0:
        raise ConfigError(f"{files_name(files.paths)}: holds no rows: give a file that does")


def _all_rows(chosen: TaskSpec, files: LocalFiles) -> Iterator[tuple[str, Row]]:
    for aligned in files.aligned:
        yield from parallel_rows(aligned)
    columns = () if chosen.reader else chosen.columns()
    for path in () if files.aligned else files.paths:
        yield from _placed(str(path), read_rows(path, column_names=chosen.local.column_names, columns=columns))


Join = Callable[[Row, Row], Row | None]


def rows_of(task: TaskSpec, source: Source) -> Iterator[tuple[str, Row]]:
    """Yields the rows that the reader makes of each source row, with their place; a sample has the final layout
    already.

    A reader may have `join(row, next) -> Row | None`, which merges two consecutive rows, or returns None. Raises
    ConfigError naming the place of a row on which the reader fails.
    """
    if task.reader is None or source.kind == "sample":
        yield from source.rows
        return
    read: Callable[[Row], Any] = READERS.get(task.reader)()
    join: Join | None = getattr(read, "join", None)
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
