"""Web text: rows with one column `text`."""

from collections.abc import Callable

from specbench.data.local import Row
from specbench.registry import READERS

COLUMNS = (("human", "bot"), ("input",))


@READERS.register("webtext")
def webtext() -> Callable[[Row], Row | list[Row]]:
    """Rows with `text` as they are; of others the columns `human` and `bot` (tiny-webtext), or `input` (WikiNews), are
    the text. Rows without any text are left out."""
    return _read


def _read(row: Row) -> Row | list[Row]:
    columns = next((names for names in COLUMNS if names[0] in row), ())
    if "text" not in row and columns:
        row = {**row, "text": "\n".join(str(row[name]).strip() for name in columns if row.get(name))}
    return row if "text" not in row or str(row["text"] or "").strip() else []
