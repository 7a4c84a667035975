"""What a submission touches: its files against those of the board, by git or between two folders.

Nothing in the submission is trusted. Files are listed and compared as bytes; no link is followed.
"""

import os
import re
import stat
import subprocess
import tarfile
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

from specbench.core.console import counted
from specbench.core.errors import ConfigError
from specbench.core.values import WHOLE, file_digest
from specbench.publish.bundle.signature import SUFFIX

BUNDLES = "bundles"
ENDING = ".tar.gz"
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")  # of a bundle, without its ending
KEPT = f"{BUNDLES}/.gitkeep"
SECONDS = 600
MAX_FILES = 100_000
MAX_SIGNATURE = 100_000  # bytes

Change = Literal["added", "changed", "deleted"]


@contextmanager
def base_of(folder: Path, base: str | None) -> Iterator[tuple[Path | None, dict[str, Change]]]:
    """Yields the folder of the board without the submission, and what the submission changes, by path. `base`: a folder
    or a git revision; None: the folder is all there is. A revision is unpacked for the time of the block; changes are
    those since the last commit that both sides share. Raises ConfigError for what is neither."""
    if base is None:
        yield None, {}
    elif Path(base).is_dir():
        if Path(base).resolve() == folder.resolve():
            raise ConfigError(f"--base {base}: is the folder of the submission itself: give the board without it")
        yield Path(base), _between(_files(Path(base)), _files(folder))
    else:
        commit = _git(
            folder, base, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{base}^{{commit}}"
        ).strip()
        with TemporaryDirectory(prefix="specbench-board-") as scratch:
            archive = Path(scratch) / "base.tar"
            _git(folder, base, "archive", "--format=tar", f"--output={archive}", commit)
            try:
                with tarfile.open(archive) as tar:
                    tar.extractall(Path(scratch) / "base", filter="data")
            except tarfile.TarError as error:
                raise ConfigError(f"--base {base}: cannot be unpacked: {error}: give a folder") from error
            yield Path(scratch) / "base", _since(folder, base, commit)


def _files(folder: Path) -> dict[str, Path]:
    """Returns all files, links and other things in a folder but .git, by their path in it."""
    found: dict[str, Path] = {}
    for place, folders, names in os.walk(folder):
        if Path(place) == folder:
            folders[:] = [name for name in folders if name != ".git"]
            names = [name for name in names if name != ".git"]
        links = [name for name in folders if (Path(place) / name).is_symlink()]
        for name in (*names, *links):
            path = Path(place) / name
            found[path.relative_to(folder).as_posix()] = path
        if len(found) > MAX_FILES:
            raise ConfigError(f"{folder}: has more than {MAX_FILES:,} files: give the folder of a board repository")
    return found


# What git ignores in a board: the site and locks, which `merge` makes. Nobody submits them, so an added one counts.
IGNORED = re.compile(r"site/|\.[^/]+\.(lock$|building/|earlier/)")


def _between(before: Mapping[str, Path], after: Mapping[str, Path]) -> dict[str, Change]:
    known = {name: path for name, path in before.items() if not IGNORED.match(name)}
    changes: dict[str, Change] = dict.fromkeys(known.keys() - after.keys(), "deleted")
    changes |= dict.fromkeys(after.keys() - before.keys(), "added")
    for name in known.keys() & after.keys():
        if not _is_same(before[name], after[name]):
            changes[name] = "changed"
    return dict(sorted(changes.items()))


def _is_same(first: Path, second: Path) -> bool:
    kinds = [path.lstat() for path in (first, second)]
    if [stat.S_IFMT(each.st_mode) for each in kinds] != [stat.S_IFREG] * 2 or kinds[0].st_size != kinds[1].st_size:
        return all(path.is_symlink() for path in (first, second)) and os.readlink(first) == os.readlink(second)
    return file_digest(first, WHOLE) == file_digest(second, WHOLE)


KINDS: Mapping[str, Change] = {"A": "added", "D": "deleted"}


def _since(folder: Path, base: str, commit: str) -> dict[str, Change]:
    """Returns what the working folder changes since the last commit that it shares with another one."""
    shared = _git(folder, base, "merge-base", commit, "HEAD").strip()
    told = _git(
        folder, base, "diff", "--name-status", "-z", "--no-renames", "--no-ext-diff", "--no-textconv", "--relative",
        shared, "--",
    ).split("\0")  # fmt: skip
    changes: dict[str, Change] = {
        name: KINDS.get(kind, "changed") for kind, name in zip(told[::2], told[1::2], strict=False)
    }
    untracked = _git(folder, base, "ls-files", "-z", "--others", "--exclude-standard").split("\0")
    changes |= dict.fromkeys(filter(None, untracked), "added")
    return dict(sorted(changes.items()))


def _git(folder: Path, base: str, *arguments: str) -> str:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments], capture_output=True, encoding="utf-8", errors="surrogateescape",
            timeout=SECONDS, stdin=subprocess.DEVNULL, env=environment,
        )  # fmt: skip
    except FileNotFoundError as error:
        raise ConfigError(f"--base {base}: git is not installed: install it, or give a folder") from error
    except subprocess.TimeoutExpired as error:
        raise ConfigError(f"--base {base}: git {arguments[0]} took more than {SECONDS} s: give a folder") from error
    if done.returncode:
        reason = next(
            (line for line in done.stderr.splitlines() if line.strip()), "it is not a commit that both sides share"
        )
        raise ConfigError(
            f"--base {base}: no such folder, and git {arguments[0]} says: {reason[:200]}: give a folder, or a branch "
            "or commit that this clone has (git fetch)"
        )
    return done.stdout


def bundle_files(folder: Path) -> list[Path]:
    """Returns the bundles of a board by name. Raises ConfigError if their folder or one of them is a link."""
    place = folder / BUNDLES
    if place.is_symlink() or not place.is_dir():
        raise ConfigError(f"{place}: no such folder: give the folder of a board repository")
    found = sorted(path for path in place.iterdir() if path.name.endswith(ENDING))
    for path in found:
        if path.is_symlink() or not path.is_file():
            raise ConfigError(f"{path}: is a link or a folder: a board takes files only: remove it")
    return found


def refused_changes(folder: Path, changes: Mapping[str, Change]) -> dict[str, str]:
    """Returns a line for each change that a submission may not make, by its path: it adds bundles, and their
    signatures. Changes elsewhere have one line together."""
    refused: dict[str, str] = {}
    others: dict[Change, list[str]] = {}
    is_link = (folder / BUNDLES).is_symlink()
    here = Counter(path.name.casefold() for path in (folder / BUNDLES).iterdir()) if not is_link else Counter[str]()
    for name, change in changes.items():
        if not name.startswith(f"{BUNDLES}/"):
            others.setdefault(change, []).append(name)
        elif change != "added":
            refused[name] = f"{_shown(name)}: was {change}: bundles that are here stay as they are: restore it"
        elif problem := NO_FILE if is_link else _problem(folder, name, changes, here):
            refused[name] = f"{_shown(name)}: {problem}"
    for change, names in others.items():
        more = f" and {counted(len(names) - 1, 'more file')}" if len(names) > 1 else ""
        remedy = "remove" if change == "added" else "restore"
        refused[names[0]] = (
            f"{_shown(names[0])}{more}: was {change}, and a submission adds files in {BUNDLES}/ only: {remedy} it"
        )
    return refused


NO_FILE = f"is a link, a folder or another repository: {BUNDLES}/ has plain files only: put the file there"


def _problem(folder: Path, name: str, changes: Mapping[str, Change], here: Mapping[str, int]) -> str | None:
    """Returns why a file may not be added to the bundles. `here`: how many of them have a name on systems that do not
    distinguish capitals."""
    stem = name.removeprefix(f"{BUNDLES}/")
    bundle = stem.removesuffix(SUFFIX)
    path = folder / name
    if path.is_symlink() or not path.is_file():
        return NO_FILE
    if not bundle.endswith(ENDING) or not NAME.fullmatch(bundle.removesuffix(ENDING)):
        return (
            f"is not a name of a bundle: call it NAME{ENDING}, and its signature NAME{ENDING}{SUFFIX}, with up to 100 "
            "letters, digits, '_', '.' and '-'"
        )
    if here[stem.casefold()] > 1:
        return "is the name of another bundle on some systems: choose another name"
    if stem == bundle:
        return None
    if f"{BUNDLES}/{bundle}" not in changes:
        return f"signs {bundle}, which this submission does not add: only who adds a bundle signs it: remove it"
    if (size := path.stat().st_size) > MAX_SIGNATURE:
        return f"has {size:,} bytes, and a signature up to {MAX_SIGNATURE:,}: sign with `specbench bundle sign`"
    return None


def _shown(name: str) -> str:
    return name if name.isprintable() and len(name) <= 200 else ascii(name)[:200]
