"""Where a task's rows come from: the bundled sample, the hub, or local files."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from specbench.core.errors import ConfigError, nearest
from specbench.core.files import file_digest
from specbench.core.registry import READERS
from specbench.specs.task import DatasetSpec, TaskSpec
from specbench.tasks import hub as hub_data
from specbench.tasks.folders import LocalFiles, files_name, local_files, others_of, unreadable
from specbench.tasks.local_files import Row, parallel_rows, read_rows

Kind = Literal["hub", "local", "sample"]


class NoRows(ConfigError):
    """The data are there, and none of their rows is of the subset."""


@dataclass(frozen=True)
class Source:
    """Rows, each with its place ("mgsm_en.tsv, row 3"), read lazily. `revision`: the commit on the hub, for files the
    digest of their bytes. `dataset`: the place on the hub."""

    kind: Kind
    location: str
    revision: str | None
    rows: Iterator[tuple[str, Row]]
    dataset: DatasetSpec | None = None

    def asked_for(self, made: Iterator[tuple[str, Row]]) -> Iterator[tuple[str, Row]]:
        """Of what a reader has made of the rows, those that the task asks of the hub."""
        return made if self.dataset is None else hub_data.asked_for(self.dataset, made)


def open_source(task: TaskSpec, subset: str, data: str, num_subsets: int) -> Source:
    """The rows of a subset. `data`: "sample", "hub", or the path of a folder or a file."""
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
    """The subset's rows: of rows with a column `subset` those that name it, and all others. Raises ConfigError when
    there are none, and when a file is shared by several subsets but has no such column."""
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
        yield from _placed(str(path), read_rows(path, headerless=chosen.local.headerless, columns=columns))


Join = Callable[[Row, Row], Row | None]


def rows_of(task: TaskSpec, source: Source) -> Iterator[tuple[str, Row]]:
    """The rows that the reader makes of each of the source's, with their place; a sample is in the layout already.

    A reader may have `join(row, next) -> Row | None`: what two rows in succession are together, None where they are
    two. Raises ConfigError naming the place of a row on which the reader fails.
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
    """The rows, those that belong together as one, with the place of the first; one row is read ahead."""
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
    """Whatever the reader raises ends in one line with the row's place."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError(f"{place}: {error}") from error
    except Exception as error:  # readers meet rows that nobody has seen
        raise ConfigError(
            f"{place}: the reader '{task.reader}' fails: {type(error).__name__}: {error}: the row has the columns "
            f"{', '.join(map(str, row))}: correct the row, or give the rows in the layout of the task"
        ) from error
