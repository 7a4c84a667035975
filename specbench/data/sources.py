"""Where a task's rows come from: the bundled sample, the hub, or local files."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from glob import escape
from pathlib import Path
from typing import Literal

from specbench.data import hub as hub_data
from specbench.data.local import SUFFIXES, Row, find_files, read_rows
from specbench.errors import ConfigError, nearest
from specbench.files import file_digest
from specbench.specs import TaskSpec

Kind = Literal["hub", "local", "sample"]


@dataclass(frozen=True)
class Source:
    """Rows, each with its place ("mgsm_en.tsv, row 3"), read lazily. `revision`: the commit on the hub, for files the
    digest of their bytes."""

    kind: Kind
    location: str
    revision: str | None
    rows: Iterator[tuple[str, Row]]


def open_source(task: TaskSpec, subset: str, data: str, num_subsets: int) -> Source:
    """The rows of a subset. `data`: "sample", "hub", or the path of a folder or a file."""
    if data == "hub":
        return _hub(task, subset)
    try:
        if data == "sample":
            return _sample(task, subset, num_subsets)
        return _local(task, subset, Path(data), num_subsets)
    except OSError as error:
        raise ConfigError(f"--data {data[:200]}: cannot be read: {error.strerror}: check the path") from error


def _sample(task: TaskSpec, subset: str, num_subsets: int) -> Source:
    sample = task.subset(subset).sample
    if sample is None:
        hub = " or --data hub" if task.subset(subset).dataset else ""
        raise ConfigError(f"task '{task.name}' has no bundled sample: give --data FOLDER{hub}")
    path = Path(sample)
    if not path.is_file():
        raise ConfigError(f"task '{task.name}': sample = '{path}': no such file: correct the key `sample`")
    shared = num_subsets > 1 and any(task.subset(other).sample == sample for other in _others(task, subset))
    return Source("sample", path.name, file_digest(path), _file_rows(task, subset, [path], shared))


def _hub(task: TaskSpec, subset: str) -> Source:
    dataset = task.subset(subset).dataset
    if dataset is None:
        raise ConfigError(f"task '{task.name}' has no dataset on the hub: give local files with --data FOLDER")
    fields = {"task": task.name, "subset": subset, "split": dataset.split}
    path = dataset.path.format(**fields)
    part = (dataset.name or dataset.data_files or "").format(**fields)
    location = ":".join(filter(None, (path, part, dataset.split)))
    revision = hub_data.resolve_revision(dataset, path)
    return Source("hub", location, revision, _placed(location, hub_data.read_rows(dataset, revision, **fields)))


def _placed(place: str, rows: Iterable[Row]) -> Iterator[tuple[str, Row]]:
    return ((f"{place}, row {number}", row) for number, row in enumerate(rows, start=1))


def _local(task: TaskSpec, subset: str, data: Path, num_subsets: int) -> Source:
    files = _local_files(task, subset, data)
    shared = num_subsets > 1 and _is_shared(task, subset, data, files)
    digests = "+".join(file_digest(path) for path in files)
    return Source("local", _files_name(files), digests, _file_rows(task, subset, files, shared))


def _is_shared(task: TaskSpec, subset: str, data: Path, files: list[Path]) -> bool:
    """Whether another subset of the task has a file of this one."""
    if data.is_file():
        return not _is_named_after(task, subset, data)
    ours = {path.resolve() for path in files}
    theirs = (path for other in _others(task, subset) for path in find_files(data, _stems(task, other)))
    return any(path.resolve() in ours for path in theirs)


def _others(task: TaskSpec, subset: str) -> list[str]:
    return [name for name in task.subset_names if name != subset]


def _files_name(files: list[Path]) -> str:
    return str(files[0]) if len(files) == 1 else f"{files[0]} … {files[-1].name} ({len(files)} files)"


def _stems(task: TaskSpec, subset: str) -> list[str]:
    """What the subset's files may be called, without extension; wildcards allowed."""
    chosen = task.subset(subset)
    fields = {"task": task.name, "subset": subset, "split": chosen.dataset.split if chosen.dataset else "test"}
    return [stem.format(**{key: escape(value) for key, value in fields.items()}) for stem in chosen.local.files]


def _local_files(task: TaskSpec, subset: str, data: Path) -> list[Path]:
    """The subset's files in a folder, or the one file given. Raises ConfigError naming what was looked for."""
    if data.is_file():
        others = [name for name in _others(task, subset) if _is_named_after(task, name, data)]
        if others and not _is_named_after(task, subset, data):
            raise ConfigError(f"--data {data}: by its name it holds '{others[0]}', not '{subset}': give its folder")
        return [data]
    if not data.is_dir():
        raise ConfigError(f"--data {data}: no such folder or file: check the path")
    stems = _stems(task, subset)
    files = find_files(data, stems)
    if not files:
        raise ConfigError(
            f"--data {data}: no file for subset '{subset}' of task '{task.name}': tried {', '.join(stems)} with "
            f"{', '.join(SUFFIXES[::2])} (also .gz): add one, or choose other subsets with --subset"
        )
    return files


def _is_named_after(task: TaskSpec, subset: str, file: Path) -> bool:
    stems = [stem.rpartition("/")[2] for stem in _stems(task, subset)]
    return any(subset in stem and file.match(stem + suffix) for stem in stems for suffix in SUFFIXES)


def _file_rows(task: TaskSpec, subset: str, files: list[Path], shared: bool = False) -> Iterator[tuple[str, Row]]:
    """The subset's rows: of rows with a column `subset` those that name it, and all others. Raises ConfigError when
    there are none, and when a file is `shared` by several subsets but has no such column."""
    chosen = task.subset(subset)
    columns = () if chosen.reader else chosen.columns()
    seen: set[str] = set()
    num_taken = 0
    for path in files:
        for place, row in _placed(str(path), read_rows(path, headerless=chosen.local.headerless, columns=columns)):
            if task.subsets and "subset" in row:
                seen.add(str(row["subset"]))
                if str(row["subset"]) != subset:
                    continue
            elif shared:
                raise ConfigError(
                    f"{path}: has no column 'subset' to tell several subsets apart: choose one of them, or add it"
                )
            num_taken += 1
            yield place, row
    if num_taken == 0 and seen:
        raise ConfigError(f"{_files_name(files)}: holds no rows of subset '{subset}': {nearest(subset, seen)}")
    if num_taken == 0:
        raise ConfigError(f"{_files_name(files)}: holds no rows: give a file that does")
