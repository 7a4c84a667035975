"""Files as a whole: written in one step, and named by their bytes."""

import errno
import hashlib
import os
from contextlib import suppress
from pathlib import Path

TRAINING_RECORD = "training.json"  # in the folder of every drafter that `specbench train` makes


def write_atomically(path: Path, text: str) -> None:
    """A text, in UTF-8, as `write_bytes`; OSError too for a text that cannot be UTF-8, such as some names of files."""
    try:
        content = text.encode("utf-8")
    except UnicodeEncodeError as error:
        wrong = text[max(0, error.start - 20) : error.end + 20]
        problem = f"it would hold {wrong!r}, which is not UTF-8: rename the file or folder"
        raise OSError(errno.EILSEQ, problem) from error
    write_bytes(path, content)


def write_bytes(path: Path, content: bytes | memoryview) -> None:
    """Replace a file in one step: a reader or a crash sees the old content or the new one. Raises OSError, and then the
    file is as it was."""
    temporary = temporary_path(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError:
        with suppress(OSError):
            temporary.unlink()
        raise


def check_place(path: Path) -> None:
    """Raise OSError where `write_atomically` could not replace the file: asked before there is anything to write."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, "it is a folder")
    temporary_path(path).open("w").close()
    temporary_path(path).unlink()


def temporary_path(path: Path) -> Path:
    """Where a file is written before it takes its place; in the same folder, and this process's own."""
    return path.with_name(f".{path.name}.{os.getpid()}.tmp")


def file_digest(path: Path) -> str:
    """12 hex digits of SHA-256 over the bytes of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:12]
