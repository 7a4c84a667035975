"""A folder of one resumable job: one process at a time works in it, the same command resumes the job, and results are
written completely or not at all."""

import json
import os
import shutil
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from specbench.core import bounded, dotted
from specbench.core.errors import ConfigError
from specbench.core.files import locked, write_atomically

MAX_CHANGES = 3  # maximum number of settings named in a message


class ResumableFolder:
    """A locked folder with the identity of the work that is done in it.

    `path`: the folder that messages name. `option`: the command-line option that sets it. `work`: the folder of the
    lock and the identity, by default `path`. Subclasses override parts of messages and how identities are compared.
    """

    IDENTITY = "identity.json"
    LOCK = ".lock"

    def __init__(self, path: Path, option: str = "--output", work: Path | None = None) -> None:
        self.path = path
        self.option = option
        self.work = work or path

    @contextmanager
    def held(self, identity: Mapping[str, Any] | None = None) -> Iterator[None]:
        """Locks the folder until the block ends, and claims it if an identity is given. Creates it if absent.

        Raises ConfigError if another process holds the folder, it cannot be written, or it belongs to other work.
        """
        with ExitStack() as lock:
            with self.writing():
                lock.enter_context(locked(self.work / self.LOCK, wait=False))
                if identity is not None:
                    self.claim(json.loads(json.dumps(identity)))
            yield

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Turns a disk error into a one-line ConfigError."""
        try:
            yield
        except BlockingIOError as error:
            raise ConfigError(
                f"{self.option} {self.path}: another process works in it: wait for it, or choose another {self.option}"
            ) from error
        except OSError as error:
            raise ConfigError(
                f"{self.option} {self.path}: {_write_problem(self.path, error)}{self.kept()}; choose another folder, "
                "or repair this one and repeat the command"
            ) from error

    def claim(self, identity: dict[str, Any]) -> None:
        """Writes the identity into a new folder, or compares it with the existing one. Raises ConfigError with the
        differences, and OSError."""
        file = self.work / self.IDENTITY
        if not file.exists():
            write_identity(file, identity)
            return
        old = bounded.read_mapping(file, self.repair(), strict=False)
        changes = self.changes(old, identity)
        if changes:
            more = f" and {len(changes) - MAX_CHANGES} more" if len(changes) > MAX_CHANGES else ""
            raise ConfigError(
                f"{self.option} {self.path}: {self.holds()} of another configuration "
                f"({'; '.join(changes[:MAX_CHANGES])}{more}): choose another {self.option}, or repeat the old command "
                "to resume it"
            )

    def changes(self, old: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
        """Returns a text for each changed setting that prevents this work from resuming the old one."""
        return changed_settings(old, now)

    def repair(self) -> str:
        """Returns the remedy for an unreadable identity."""
        return f"delete {self.work} to start again, or choose another {self.option}"

    def holds(self) -> str:
        """Returns a description of the content, such as "holds records"."""
        return "holds work"

    def kept(self) -> str:
        """Returns the end of a disk error's sentence that names what is kept. It is empty by default."""
        return ""


def write_identity(file: Path, identity: Mapping[str, Any]) -> None:
    """Writes an identity atomically. Raises OSError."""
    write_atomically(file, json.dumps(identity, indent=2, ensure_ascii=False) + "\n")


def _write_problem(path: Path, error: OSError) -> str:
    """Returns the reason why a folder cannot be written."""
    if path.is_file():
        return "it is a file, not a folder"
    if isinstance(error, FileNotFoundError):
        is_inside = error.filename is not None and Path(error.filename) not in (path, *path.parents)
        return f"{error.filename} is missing or was deleted" if is_inside else "no folder can be created there"
    return f"cannot write there ({error.strerror or error})"


def changed_settings(old: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Returns a text "key: before → now" for each dotted key whose values differ."""
    before, after = (
        {
            key: json.dumps(value, ensure_ascii=False)
            for key, value in dotted.flat(data, lists=True).items()
            if value != {}
        }
        for data in (old, now)
    )
    return [
        f"{key}: {before.get(key, 'absent')} → {after.get(key, 'absent')}"
        for key in sorted({*before, *after})
        if before.get(key) != after.get(key)
    ]


@contextmanager
def replacing(folder: Path) -> Iterator[Path]:
    """Yields an empty folder `.NAME.building` that replaces `folder` when the block ends without an error.

    If the process is killed, the old folder is unchanged, and the next process removes the leftovers. A lock file next
    to the folder keeps other processes out. Raises BlockingIOError if another process is replacing the same folder.
    Raises OSError, and leaves the old folder unchanged, for a disk error.
    """
    folder = folder.resolve()
    building = folder.with_name(f".{folder.name}.building")
    with locked(lock_of(folder), wait=False):
        remove_folder(building)
        building.mkdir()
        try:
            yield building
            _put_in_place(building, folder)
        finally:
            remove_folder(building)


def lock_of(folder: Path) -> Path:
    """Returns the path of the lock file that `replacing` holds."""
    return folder.with_name(f".{folder.name}.lock")


def _put_in_place(building: Path, folder: Path) -> None:
    """Moves the new folder to the place of the old one. Restores the old one if that fails."""
    earlier = folder.with_name(f".{folder.name}.earlier")
    remove_folder(earlier)
    if not folder.exists():
        os.rename(building, folder)
        return
    os.rename(folder, earlier)
    try:
        os.rename(building, folder)
    except OSError:
        with suppress(OSError):
            os.rename(earlier, folder)
        raise
    remove_folder(earlier)


def remove_folder(folder: Path) -> None:
    """Removes a folder and its content. Several files at a time: some file systems take milliseconds per file."""
    with ThreadPoolExecutor(8) as threads, suppress(OSError):
        list(threads.map(os.unlink, [path for path in folder.rglob("*") if not is_real_folder(path)]))
    shutil.rmtree(folder, ignore_errors=True)


def is_real_folder(path: Path) -> bool:
    """Returns whether a path is a folder and not a link to one."""
    return path.is_dir() and not path.is_symlink()
