"""The folder of a site: built beside its place, and moved there when it is whole."""

import json
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from specbench import bounded
from specbench.errors import ConfigError
from specbench.running.file_lock import locked

MARK = "specbench-site.json"  # names every file of a site; by it an earlier one is known
KIND = "specbench site"


def write_site(folder: Path, pages: Iterable[tuple[str, str]], about: Mapping[str, Any]) -> int:
    """Put a site of these files (address, content) in the place of an earlier one; how many there are.

    They are written into `.NAME.building` beside it, and the whole folder is renamed: interrupted, the site is the
    earlier one, or none. Raises ConfigError where the folder holds anything else, and where it cannot be written.
    """
    check_replaceable(folder)
    folder = folder.resolve()
    try:
        with _workplace(folder) as building:
            names = [_write(building, name, text) for name, text in pages]
            mark = {"kind": KIND, **about, "files": sorted(names)}
            _write(building, MARK, json.dumps(mark, ensure_ascii=False, indent=1) + "\n")
            check_replaceable(folder)
            _swap(building, folder)
    except BlockingIOError as error:
        raise ConfigError(f"--out {folder}: another process builds this site: wait until it has ended") from error
    except OSError as error:
        raise ConfigError(
            f"--out {folder}: cannot be written: {error.strerror or error}; an earlier site is as it was"
        ) from error
    return len(names)


def check_replaceable(folder: Path) -> None:
    """Raise ConfigError unless the folder is absent, empty, or holds a site and nothing else."""
    try:
        if not folder.exists():
            return
        if folder.resolve() == Path.cwd():
            raise ConfigError(f"--out {folder}: is the current folder, which would be replaced: name one in it")
        if not folder.is_dir():
            raise ConfigError(f"--out {folder}: is a file: name a folder")
        there = sorted(each.relative_to(folder).as_posix() for each in folder.rglob("*") if not _is_folder(each))
        strange = sorted(set(there) - {MARK} - _files_of_site(folder))
    except OSError as error:
        raise ConfigError(f"--out {folder}: cannot be read: {error.strerror or error}") from error
    if strange:
        raise ConfigError(
            f"--out {folder}: holds {strange[0]}, which is of no earlier site (its {MARK} names all files of one): "
            "name another folder, or empty this one"
        )


def _is_folder(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()


def _files_of_site(folder: Path) -> set[str]:
    """The files that an earlier site says it has; none where there is no such site."""
    try:
        mark = bounded.read_json(folder / MARK, "name another folder")
    except ConfigError:
        return set()
    is_site = isinstance(mark, dict) and mark.get("kind") == KIND and isinstance(mark.get("files"), list)
    return {name for name in mark["files"] if isinstance(name, str)} if is_site else set()


@contextmanager
def _workplace(folder: Path) -> Iterator[Path]:
    """An empty folder beside the site's, this process's alone for as long as the block runs; gone afterwards."""
    building = folder.with_name(f".{folder.name}.building")
    with locked(lock_of(folder), wait=False):
        _remove(building)  # what a killed build left
        building.mkdir()
        try:
            yield building
        finally:
            _remove(building)


def lock_of(folder: Path) -> Path:
    return folder.with_name(f".{folder.name}.lock")


def _remove(folder: Path) -> None:
    """A folder with all in it, several files at a time: some file systems take milliseconds for each."""
    with ThreadPoolExecutor(8) as threads, suppress(OSError):
        list(threads.map(os.unlink, [each for each in folder.rglob("*") if not _is_folder(each)]))
    shutil.rmtree(folder, ignore_errors=True)


def _write(building: Path, name: str, text: str) -> str:
    path = building / name
    try:
        path.write_bytes(text.encode("utf-8", "replace"))
    except FileNotFoundError:
        path.parent.mkdir(parents=True)
        path.write_bytes(text.encode("utf-8", "replace"))
    return name


def _swap(building: Path, folder: Path) -> None:
    """The new site in the place of the earlier one, which comes back where that fails."""
    earlier = folder.with_name(f".{folder.name}.earlier")
    _remove(earlier)
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
    _remove(earlier)
