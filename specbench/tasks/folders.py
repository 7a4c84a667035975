"""Which of a user's files hold the rows of a subset."""

from collections.abc import Sequence
from dataclasses import dataclass
from glob import escape
from pathlib import Path

from specbench.core.errors import ConfigError
from specbench.specs.task import TaskSpec
from specbench.tasks.local_files import SUFFIXES, Files, find_files, find_parallel


@dataclass(frozen=True)
class LocalFiles:
    """`aligned`: where the columns lie in files of their own. `shared`: other subsets have a file of these too."""

    paths: tuple[Path, ...]
    aligned: tuple[Files, ...] = ()
    shared: bool = False


def local_files(task: TaskSpec, subset: str, data: Path, num_subsets: int) -> LocalFiles:
    """The subset's files in a folder, or the one file given. Raises ConfigError naming what was looked for."""
    aligned = _aligned(task, subset, data)
    if aligned:
        shared = num_subsets > 1 and any(_aligned(task, other, data) == aligned for other in read_alike(task, subset))
        return LocalFiles(tuple(path for files in aligned for path in files.values()), tuple(aligned), shared)
    paths = _found(task, subset, data)
    return LocalFiles(tuple(paths), shared=num_subsets > 1 and _is_shared(task, subset, data, paths))


def subsets_with_files(task: TaskSpec, data: Path) -> list[str]:
    """The subsets that have files in a folder; of one file those that it may hold by its name.

    Raises ConfigError for a path that cannot be looked at.
    """
    try:
        return [name for name in task.subset_names if _has_files(task, name, data)]
    except OSError as error:
        raise unreadable(data, error) from error


def unreadable(data: Path, error: OSError) -> ConfigError:
    return ConfigError(f"--data {str(data)[:200]}: cannot be read: {error.strerror}: check the path")


def read_alike(task: TaskSpec, subset: str) -> list[str]:
    """The other subsets that would take the same rows of a file by mistake: those whose reader is no other one, unless
    the task says that its files are shared."""
    chosen = task.subset(subset)
    if chosen.local.shared:
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
    """Whether another subset of the task has a file of this one."""
    if data.is_file():
        return bool(read_alike(task, subset)) and not _is_named_after(task, subset, data)
    ours = {path.resolve() for path in files}
    theirs = (path for other in read_alike(task, subset) for path in find_files(data, _stems(task, other)))
    return any(path.resolve() in ours for path in theirs)


def _aligned(task: TaskSpec, subset: str, data: Path) -> list[Files]:
    patterns = task.subset(subset).local.parallel
    filled = {column: _filled(task, subset, pattern) for column, pattern in patterns.items()}
    dataset = task.subset(subset).dataset
    return find_parallel(data, filled, dataset.split if dataset else "test") if data.is_dir() else []


def _stems(task: TaskSpec, subset: str) -> list[str]:
    """What the subset's files may be called, without extension; wildcards allowed."""
    return [_filled(task, subset, stem) for stem in task.subset(subset).local.files]


def _filled(task: TaskSpec, subset: str, pattern: str) -> str:
    dataset = task.subset(subset).dataset
    fields = {"task": task.name, "subset": subset, "split": dataset.split if dataset else "test"}
    return pattern.format(**{key: escape(value) for key, value in fields.items()})


def _found(task: TaskSpec, subset: str, data: Path) -> list[Path]:
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
        aligned = [_filled(task, subset, pattern) for pattern in task.subset(subset).local.parallel.values()]
        both = f"aligned files {' and '.join(aligned)} with the same text for each *, and " if aligned else ""
        raise ConfigError(
            f"--data {data}: no file for subset '{subset}' of task '{task.name}': tried {both}{', '.join(stems)} with "
            f"{', '.join(SUFFIXES[::2])} (also .gz): add one, or choose other subsets with --subset"
        )
    return files


def _named_after_others(task: TaskSpec, subset: str, file: Path) -> list[str]:
    """The other subsets that a file is named after; none where it is named after this one too."""
    if _is_named_after(task, subset, file):
        return []
    return [name for name in others_of(task, subset) if _is_named_after(task, name, file)]


def _is_named_after(task: TaskSpec, subset: str, file: Path) -> bool:
    stems = [stem.rpartition("/")[2] for stem in _stems(task, subset)]
    return any(subset in stem and file.match(stem + suffix) for stem in stems for suffix in SUFFIXES)
