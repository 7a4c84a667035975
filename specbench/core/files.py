"""File locks, atomic writes, and the folder of one resumable job."""

import errno
import json
import os
import re
import shutil
import time
import warnings
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import IO, Any

from specbench.core import bounded, dotted
from specbench.core.errors import ConfigError


def _module(name: str) -> Any:
    try:
        return import_module(name)
    except ImportError:
        return None


fcntl, msvcrt = _module("fcntl"), _module("msvcrt")
PAUSE, READERS = 0.05, 10.0  # seconds on Windows: between two tries, and the longest wait for another reader


@contextmanager
def locked(path: Path, *, wait: bool, shared: bool = False) -> Iterator[None]:
    """Holds a lock file. The file and its folder are created if absent. The system releases the lock when the process
    ends. `shared`: several processes may hold the lock. Windows has no such locks, so they take turns there.

    Raises OSError if the file cannot be created, and BlockingIOError if another process holds it and `wait` is False.
    Warns if the file system does not support locks.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        is_held = _take(file, path, wait, shared)
        try:
            yield
        finally:
            if is_held and fcntl is None:
                file.seek(0)
                msvcrt.locking(file.fileno(), msvcrt.LK_UNLCK, 1)


def _take(file: IO[str], path: Path, wait: bool, shared: bool) -> bool:
    """Locks a file and returns True. Warns and returns False if the file system does not support locks."""
    try:
        if fcntl is not None:
            fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | (0 if wait else fcntl.LOCK_NB))
        else:
            _lock_byte(file, wait, READERS if shared else 0.0)
    except BlockingIOError:
        raise
    except OSError as error:
        problem = f"{path.parent}: file locking unavailable ({error.strerror or error})"
        warnings.warn(f"{problem}: let one process at a time write", stacklevel=1)
        return False
    return True


def _lock_byte(file: IO[str], wait: bool, seconds: float) -> None:
    """Locks the first byte, as is usual on Windows. Retries forever if `wait`, else for up to `seconds`."""
    end = time.monotonic() + seconds
    while True:
        file.seek(0)
        try:
            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
            return
        except PermissionError as error:  # another process holds it
            if not wait and time.monotonic() >= end:
                raise BlockingIOError(errno.EAGAIN, "another process holds it") from error
        time.sleep(PAUSE)


# These flags neither truncate another writer's file nor follow links. Some systems lack the last two.
FLAGS = os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
TRAINING_RECORD = "training.json"  # in the folder of every drafter that `specbench train` makes


def write_atomically(path: Path, content: str | bytes) -> None:
    """Replaces a file atomically, as `replacing_file` does. A text is written in UTF-8. Raises OSError and leaves the
    file unchanged if that fails, also for a text that UTF-8 cannot encode."""
    if isinstance(content, str):
        try:
            content = content.encode("utf-8")
        except UnicodeEncodeError as error:
            wrong = content[max(0, error.start - 20) : error.end + 20]
            problem = f"it would hold {wrong!r}, which is not UTF-8: rename the file or folder"
            raise OSError(errno.EILSEQ, problem) from error
    with replacing_file(path) as file:
        file.write(content)


@contextmanager
def replacing_file(path: Path) -> Iterator[IO[bytes]]:
    """Opens a file to write, which replaces `path` at the end: even after a crash, readers see either the old or the
    new content. Raises OSError and leaves the file unchanged if that fails. Removes temporary files that killed writers
    of this file left behind."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary, file = _open_temporary(path)
    try:
        with file:
            yield file
            file.flush()
            os.fsync(file.fileno())
            if fcntl is None:  # Windows cannot rename an open file
                file.close()
            os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise
    _remove_leftovers(path)


def check_place(path: Path) -> None:
    """Raises OSError if `replacing_file` could not replace the file, before there is content to write."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, "it is a folder")
    temporary, file = _open_temporary(path)
    if fcntl is None:
        file.close()
    temporary.unlink()
    file.close()


def check_output(option: str, path: Path) -> None:
    """Raises ConfigError if `write_output` could not replace the file of an option, before anything is measured."""
    with writing(f"{option} {path}"):
        check_place(path.resolve())


def write_output(option: str, path: Path, content: str | bytes, kept: str = "") -> None:
    """Replaces the file of an option such as --output. Raises ConfigError if it cannot be written. `kept`: a part of
    that message that says where other results are."""
    with writing(f"{option} {path}", kept=kept):
        write_atomically(path.resolve(), content)


@contextmanager
def writing(place: object, remedy: str = "name another file", kept: str = "") -> Iterator[None]:
    """Turns a disk error into the one line of `write_error`."""
    try:
        yield
    except OSError as error:
        raise write_error(place, error, remedy, kept) from error


def write_error(place: object, error: OSError, remedy: str, kept: str = "") -> ConfigError:
    """Returns "PLACE: cannot be written (REASON)KEPT: REMEDY". `place`: a path, with the option that names it. `kept`:
    which results are safe, such as "; the runs are kept"."""
    if isinstance(error, BlockingIOError):
        return ConfigError(f"{place}: another process is using it: wait for it, or {remedy}")
    reason = error.strerror or str(error)
    if isinstance(error, FileExistsError):
        reason = "it is a file, not a folder"
    elif isinstance(error, FileNotFoundError) and error.filename:
        reason = f"{error.filename}: {reason}"  # another program may delete a folder while this one works in it
    return ConfigError(f"{place}: cannot be written ({reason}){kept}: {remedy}")


def _open_temporary(path: Path) -> tuple[Path, IO[bytes]]:
    """Returns a new file in the same folder. It is locked, so that other processes know that its writer is alive."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    while True:
        file = os.fdopen(os.open(temporary, FLAGS, 0o666), "r+b")
        if not _lock(file, wait=True) or _is_at(file, temporary):
            file.truncate()
            return temporary, file
        file.close()  # another process has just removed it as a leftover


def _remove_leftovers(path: Path) -> None:
    """Removes temporary files of this file whose writers were killed, so that no process has locked them."""
    pattern = re.compile(re.escape(f".{path.name}.") + r"\d+\.tmp")
    with suppress(OSError):
        for leftover in [path.with_name(name) for name in os.listdir(path.parent) if pattern.fullmatch(name)]:
            with suppress(OSError), leftover.open("r+b") as file:
                if _lock(file, wait=False) and _is_at(file, leftover):
                    leftover.unlink()


def _lock(file: IO[bytes], wait: bool) -> bool:
    """Returns whether this process now holds an exclusive lock. It is False on systems without such locks."""
    if fcntl is None:
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except OSError:
        return False
    return True


def _is_at(file: IO[bytes], path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False


# Settings that no command brings back: the machine's software, and this package itself.
OF_VERSION = re.compile(r"(?:\S+\.)?(?:commit|python|platform|versions\.\S+): ")
MAX_CHANGES = 3  # maximum number of settings named in a message
COMMAND = "command"  # the key of the command that began the work, which is no setting


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
    def held(self, identity: Mapping[str, object] | None = None) -> Iterator[None]:
        """Locks the folder until the block ends, and claims it if an identity is given. Creates it if absent.

        Raises ConfigError if another process holds the folder, it cannot be written, or it belongs to other work.
        """
        with ExitStack() as lock:
            with self.writing():
                lock.enter_context(locked(self.work / self.LOCK, wait=False))
                if identity is not None:
                    self.claim(json.loads(json.dumps(identity)))
            yield

    def check_free(self) -> None:
        """Raises ConfigError if another process holds the folder. Nothing is created."""
        lock = self.work / self.LOCK
        if lock.is_file():
            with self.writing(), locked(lock, wait=False, shared=True):
                pass

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Turns a disk error into a one-line ConfigError."""
        try:
            yield
        except OSError as error:
            is_in_use = isinstance(error, BlockingIOError)
            repair = "" if is_in_use else ", or repair this one and repeat the command"
            remedy = f"choose another {self.option}{repair}"
            raise write_error(f"{self.option} {self.path}", error, remedy, self.kept()) from error

    def claim(self, identity: dict[str, object]) -> None:
        """Writes the identity into a new folder, or compares it with the existing one. Raises ConfigError with the
        differences, and OSError."""
        file = self.work / self.IDENTITY
        if not file.exists():
            write_identity(file, identity)
            return
        self.compare(bounded.read_mapping(file, self.repair(), strict=False), identity)

    def compare(self, old: Mapping[str, Any], now: Mapping[str, Any]) -> None:
        """Raises ConfigError with the differences of two identities."""
        changes = self.changes(old, now)
        if changes:
            more = f" and {len(changes) - MAX_CHANGES} more" if len(changes) > MAX_CHANGES else ""
            old_version = " with the old version" if any(map(OF_VERSION.match, changes)) else ""
            command = f": {old[COMMAND]}" if COMMAND in old else ""
            raise ConfigError(
                f"{self.option} {self.path}: {self.holds()} of another configuration "
                f"({'; '.join(changes[:MAX_CHANGES])}{more}): choose another {self.option}, or repeat the old command"
                f"{old_version} to resume it{command}"
            )

    def changes(self, old: Mapping[str, object], now: Mapping[str, object]) -> list[str]:
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


def write_identity(file: Path, identity: Mapping[str, object]) -> None:
    write_atomically(file, json.dumps(identity, indent=2, ensure_ascii=False) + "\n")


def changed_settings(old: Mapping[str, object], now: Mapping[str, object]) -> list[str]:
    """Returns a text "key: before → now" for each dotted key whose values differ. An absent key is null, as settings
    that a later version adds are where nobody gave them."""
    flat = (dotted.flat(data, lists=True).items() for data in (old, now))
    before, after = (
        {key: json.dumps(value, ensure_ascii=False) for key, value in each if value != {}} for each in flat
    )
    changed = sorted(key for key in {*before, *after} if before.get(key, "null") != after.get(key, "null"))
    return [f"{key}: {before.get(key, 'absent')} → {after.get(key, 'absent')}" for key in changed]


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
            earlier = folder.with_name(f".{folder.name}.earlier")
            remove_folder(earlier)
            if folder.exists():
                os.rename(folder, earlier)
            try:
                os.rename(building, folder)
            except OSError:
                with suppress(OSError):
                    os.rename(earlier, folder)
                raise
            remove_folder(earlier)
        finally:
            remove_folder(building)


def lock_of(folder: Path) -> Path:
    return folder.with_name(f".{folder.name}.lock")


def remove_folder(folder: Path) -> None:
    """Removes a folder and its content. Several files at a time: some file systems take milliseconds per file."""
    with ThreadPoolExecutor(8) as threads, suppress(OSError):
        list(threads.map(os.unlink, [path for path in folder.rglob("*") if not is_real_folder(path)]))
    shutil.rmtree(folder, ignore_errors=True)


def is_real_folder(path: Path) -> bool:
    """Returns whether a path is a folder and not a link to one."""
    return path.is_dir() and not path.is_symlink()
