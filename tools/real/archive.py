"""The records of a finished cell as one compressed file of the repository, the same bytes for the same records."""

import io
import json
import lzma
import tarfile
from pathlib import Path

from specbench.core.files import write_atomically
from specbench.records.folder import ENVIRONMENT
from specbench.records.records import RECORDS
from specbench.results.runs import FAIRNESS_FILE, NEEDED_FILES

OPTIONAL = (FAIRNESS_FILE, ENVIRONMENT)  # runs of earlier versions have not noted their environment


def pack(folder: Path, archive: Path) -> None:
    """Writes the files of a run, in a fixed order, without times and owners. The references are left out: they are the
    text of the data, and the scores are in the records."""
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for name in (*NEEDED_FILES, *(name for name in OPTIONAL if (folder / name).is_file())):
            content = (folder / name).read_bytes()
            if name == RECORDS:
                content = without_references(content)
            member = tarfile.TarInfo(name)
            member.size, member.mode = len(content), 0o644
            tar.addfile(member, io.BytesIO(content))
    archive.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(archive, lzma.compress(raw.getvalue(), preset=6))


def without_references(lines: bytes) -> bytes:
    """Returns records whose field `reference` is null."""
    found = []
    for line in lines.splitlines():
        record = json.loads(line)
        record["reference"] = None
        found.append(json.dumps(record, ensure_ascii=False, separators=(",", ":")).encode() + b"\n")
    return b"".join(found)


def unpack(archive: Path, folder: Path) -> None:
    """Writes the files of an archive into a folder, which is then as when it was packed."""
    folder.mkdir(parents=True, exist_ok=True)
    with tarfile.open(archive, mode="r:xz") as tar:
        tar.extractall(folder, filter="data")
