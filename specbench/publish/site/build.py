"""Leaderboard files → a site."""

import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.resources import files as package_files
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from specbench import __version__
from specbench.core import bounded
from specbench.core.errors import ConfigError
from specbench.core.files import locked
from specbench.publish.site.entries import Entries, read
from specbench.publish.site.index import Line, choices, columns_of, lines, with_more
from specbench.publish.site.plane import FRAME, planes, predicted
from specbench.publish.site.plane import PREDICTED_FRAME as SQUARE
from specbench.publish.site.published import published
from specbench.publish.site.row_page import RowPage, row_page, siblings

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


MOST_BESIDE = 20
ASSETS = ("site.css", "site.js")
Page = tuple[str, str]  # address from the site's folder, content


@dataclass(frozen=True)
class Built:
    """`told`: what a user must know of it."""

    num_rows: int
    num_files: int
    told: tuple[str, ...]


def build(files: Sequence[Path], folder: Path, title: str) -> Built:
    """Raises ConfigError for files that are no leaderboards or have no rows, and a folder that holds other things."""
    check_replaceable(folder)
    entries = read(files)
    num_files = write_site(folder, pages(entries, title), {"title": title, "rows": len(entries.all)})
    return Built(len(entries.all), num_files, entries.told)


def pages(entries: Entries, title: str) -> Iterator[Page]:
    """All files of a site, the index last."""
    render = _renderer(title, entries)
    for name in ASSETS:
        yield name, (package_files("specbench.publish.site") / "assets" / name).read_text(encoding="utf-8")
    found = lines(entries)
    for page in row_pages(entries, found):
        yield page.entry.address, render("row.html", root="../", page=page)
    yield "plane.html", render("plane.html", planes=planes(entries), frame=FRAME)
    yield "predicted.html", render("predicted.html", found=predicted(entries), frame=SQUARE)
    yield "published.html", render("published.html", tables=published(entries))
    yield (
        "index.html",
        render(
            "index.html", columns=columns_of(found), lines=found, filters=choices(found), with_more=with_more(found)
        ),
    )


def row_pages(entries: Entries, found: Sequence[Line]) -> Iterator[RowPage]:
    """The pages of all rows, with up to MOST_BESIDE of the rows that compare with each."""
    groups: dict[str, list[Line]] = {}
    for line in found:
        groups.setdefault(line.entry.group.key, []).append(line)
    baselines = {(e.group.key, e.row.command): e.row for e in entries.all if e.row.method_name == "ar"}
    families = siblings(entries.all)
    for group in groups.values():
        for place, line in enumerate(group):
            start = max(0, min(place - MOST_BESIDE // 2, len(group) - MOST_BESIDE))
            beside = group[start : start + MOST_BESIDE]
            baseline = baselines.get((line.entry.group.key, line.entry.row.command))
            yield row_page(line, families[line.entry.digest], beside, baseline)


def _renderer(title: str, entries: Entries) -> Callable[..., str]:
    environment = Environment(
        loader=PackageLoader("specbench.publish.site"), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True,
    )  # fmt: skip
    environment.globals = {
        **environment.globals, "title": title, "version": __version__, "num_rows": len(entries.all),
        "dates": _dates(entries), "root": "",
    }  # fmt: skip

    def render(name: str, **values: Any) -> str:
        return environment.get_template(name).render(**values)

    return render


def _dates(entries: Entries) -> str:
    """When the rows were measured: the same rows give the same pages, whenever they are built."""
    days = sorted({entry.row.created[:10] for entry in entries.all})
    return days[0] if len(days) == 1 else f"{days[0]} to {days[-1]}"
