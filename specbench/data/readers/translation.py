"""Parallel texts: rows of the many layouts in which they are published, with one column `translation`."""

from collections.abc import Callable

from specbench.data.local import Row
from specbench.errors import ConfigError
from specbench.registry import READERS

# What the columns of published files are called, lower case → language code.
CODES = {
    "english": "en", "german": "de", "french": "fr", "russian": "ru", "chinese": "zh", "japanese": "ja",
    "spanish": "es", "amharic": "amh", "berber": "ber", "cherokee": "chr", "guarani": "grn", "hawaiian": "haw",
    "igbo": "ibo", "nepali": "npi", "occitan": "oci", "quechua": "que", "yoruba": "yor", "tamazight": "zgh",
}  # fmt: skip
LANGUAGES = frozenset(CODES.values())


@READERS.register("translation")
def translation() -> Callable[[Row], Row]:
    """Rows with `translation` (language → text) as they are; of others the columns named after languages ("de",
    "German") become it. Other columns stay."""
    return _read


def _read(row: Row) -> Row:
    if "translation" in row:
        return row
    codes = {column: CODES.get(column.strip().lower(), column) for column in row}
    texts = {code: row[column] for column, code in codes.items() if code in LANGUAGES}
    if len(texts) < 2:
        raise ConfigError(
            f"has the columns {', '.join(row)}: name two of them after their languages, such as en and de, or give one "
            "column 'translation'"
        )
    return {**{column: row[column] for column, code in codes.items() if code not in LANGUAGES}, "translation": texts}
