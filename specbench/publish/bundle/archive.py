"""The archive of a bundle: plain files in a gzip-compressed tar, the same bytes for the same files.

Archives come from strangers. Each header is read by itself, and only plain files with short relative names are taken:
no links, devices and folders, and no extended headers, whose size a reader would have to believe. Files are copied in
pieces, so that memory does not grow with the archive.
"""

import gzip
import os
import re
import tarfile
import unicodedata
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from specbench.core import bounded
from specbench.core.errors import ConfigError
from specbench.core.files import writing

PIECE = 2**20  # bytes that are copied at once
LEVEL = 6  # of compression
BLOCK = tarfile.BLOCKSIZE
LARGEST = 2**33 - 1  # bytes of a file, as plain headers can say it
MAX_FILES = 10_000
MAX_NAME = 200  # bytes
# Reserved on Windows, or trimmed there: such a name would be another file.
NOT_PORTABLE = re.compile(
    r'[<>:"|?*\\\x00-\x1f\x7f]|[. ](/|$)|(^|/)(con|prn|aux|nul|com\d|lpt\d)(\.|/|$)', re.IGNORECASE
)
REMEDY = "ask for a bundle that `specbench bundle` made"


def write_archive(folder: Path, names: Sequence[str], to: Path) -> None:
    """Writes files of a folder into an archive in the given order, without times, owners and rights. An earlier archive
    is replaced once the new one is whole. Raises ConfigError for a disk error."""
    building = to.with_name(f".{to.name}.building")
    with writing(f"--output {to}"):
        to.parent.mkdir(parents=True, exist_ok=True)
        try:
            with (
                building.open("wb") as file,
                gzip.GzipFile("", "wb", LEVEL, file, mtime=0) as packed,
                tarfile.open(fileobj=packed, mode="w|", format=tarfile.USTAR_FORMAT, bufsize=PIECE) as tar,
            ):
                for name in names:
                    member = tarfile.TarInfo(name)
                    member.size, member.mode = (folder / name).stat().st_size, 0o644
                    if member.size > LARGEST:
                        raise ConfigError(
                            f"{name}: has {member.size:,} bytes, and a bundle takes files up to {LARGEST:,}"
                        )
                    with (folder / name).open("rb") as content:
                        tar.addfile(member, content)
            os.replace(building, to)
        finally:
            building.unlink(missing_ok=True)


def unpack(file: Path, folder: Path) -> list[str]:
    """Writes the files of an archive into an empty folder. Returns their names in the order of the archive. Raises
    ConfigError for an archive that `write_archive` would not have made, before anything outside the folder is touched,
    and for one that expands beyond `bounded.expanded_bound`."""
    names: dict[str, str] = {}
    left = bounded.expanded_bound(file.stat().st_size) if file.is_file() else 0
    with _opened(file) as packed:
        while (header := _next_header(packed, file)) is not None:
            name, size = header
            if (same := names.setdefault(_folded(name), name)) != name or len(names) > MAX_FILES:
                problem = (
                    f"has {same!r} and {name!r}, one file on some systems" if same != name else "has too many files"
                )
                raise ConfigError(f"{file}: {problem}: {REMEDY}")
            target = folder / name
            if target.exists():
                raise ConfigError(f"{file}: has {name!r} twice: {REMEDY}")
            left -= size
            if left < 0:
                raise bounded.too_large(file)
            _copy(packed, target, size, file)
        while piece := packed.read(PIECE):  # the end of a tar is padded with zeros
            left -= len(piece)
            if left < 0 or piece.strip(b"\0"):
                raise ConfigError(f"{file}: goes on behind its end: {REMEDY}")
    return list(names.values())


@contextmanager
def _opened(file: Path) -> Iterator[IO[bytes]]:
    """Opens a compressed file, and turns what can go wrong while it is read into one line."""
    try:
        with gzip.open(file, "rb") as packed:
            yield packed  # type: ignore[misc]
    except (gzip.BadGzipFile, zlib.error) as error:
        raise ConfigError(f"{file}: is not a bundle ({error}): {REMEDY}") from error
    except EOFError as error:
        raise ConfigError(f"{file}: is cut off: fetch it again") from error
    except OSError as error:
        raise ConfigError(f"{file}: cannot be read: {error.strerror or error}: check the path") from error


def _next_header(packed: IO[bytes], file: Path) -> tuple[str, int] | None:
    """Returns name and size of the next file; None at the end."""
    block = packed.read(BLOCK)
    if len(block) < BLOCK:
        raise EOFError
    if not block.strip(b"\0"):
        return None
    try:
        found = tarfile.TarInfo.frombuf(block, "utf-8", "strict")
    except (tarfile.HeaderError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file}: is not a bundle ({error}): {REMEDY}") from error
    if problem := _problem(found):
        raise ConfigError(f"{file}: {found.name[:MAX_NAME]!r} {problem}: nothing was unpacked from there on: {REMEDY}")
    return found.name, found.size


KINDS = {
    tarfile.SYMTYPE: "is a link", tarfile.LNKTYPE: "is a link", tarfile.CHRTYPE: "is a device",
    tarfile.BLKTYPE: "is a device", tarfile.FIFOTYPE: "is a pipe", tarfile.DIRTYPE: "is a folder",
}  # fmt: skip


def _problem(found: tarfile.TarInfo) -> str | None:
    """Returns why a file of an archive is refused; None if it is taken."""
    name = found.name
    if found.type != tarfile.REGTYPE:
        return KINDS.get(found.type, "is of another kind") + ", and a bundle has plain files only"
    if not name or name.startswith("/") or not {"", ".", ".."}.isdisjoint(name.split("/")):
        return "leads out of the folder"
    if NOT_PORTABLE.search(name) or len(name.encode()) > MAX_NAME:
        return "is a name that not every system can have"
    return "has an impossible size" if found.size < 0 else None


def _folded(name: str) -> str:
    return unicodedata.normalize("NFC", name).casefold()


def _copy(packed: IO[bytes], target: Path, size: int, file: Path) -> None:
    """Writes the next `size` bytes into a file, and reads over the padding behind them."""
    remedy = "free some space, or set TMPDIR to a folder with more"
    with writing(target, remedy):
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            written = target.open("xb")
        except (FileExistsError, NotADirectoryError) as error:
            raise ConfigError(f"{file}: has a file and a folder of one name, {target.name!r}: {REMEDY}") from error
    with written:
        left = size
        while left:
            piece = packed.read(min(PIECE, left))
            if not piece:
                raise EOFError
            with writing(target, remedy):
                written.write(piece)
            left -= len(piece)
    if len(packed.read(-size % BLOCK)) < -size % BLOCK:
        raise EOFError
