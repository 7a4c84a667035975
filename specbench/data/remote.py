"""A file on the hub that is read as it comes, by the same readers as local files."""

import gzip
import io
from dataclasses import dataclass
from typing import IO


@dataclass(frozen=True)
class RemoteFile:
    """`path`: datasets/OWNER/NAME@COMMIT/FILE."""

    path: str

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2]

    @property
    def suffix(self) -> str:
        return f".{self.name.rpartition('.')[2]}"

    def open(self, mode: str = "r", *, encoding: str, newline: str) -> IO[str]:
        """As text, unpacked; raises what the hub's client raises."""
        import huggingface_hub

        raw = huggingface_hub.HfFileSystem().open(self.path, "rb")
        return io.TextIOWrapper(gzip.open(raw) if self.suffix == ".gz" else raw, encoding=encoding, newline=newline)

    def __str__(self) -> str:
        return self.path
