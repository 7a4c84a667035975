"""Rows of one file inside a zip."""

import zipfile
from collections.abc import Iterator
from pathlib import Path

from specbench.data.local import Row, read_rows
from specbench.errors import ConfigError, nearest


def member_rows(archive: Path, member: str) -> Iterator[Row]:
    """The rows of a member. Raises ConfigError when the zip cannot be read or has no such member."""
    try:
        with zipfile.ZipFile(archive) as opened:
            if member not in opened.namelist():
                raise ConfigError(f"{archive}: has no file '{member}': {nearest(member, opened.namelist())}")
            yield from read_rows(zipfile.Path(opened, member))
    except (OSError, zipfile.BadZipFile) as error:
        raise ConfigError(f"{archive}: not a zip that can be read: {error}: fetch it again") from error
