"""Parallel texts: rows of the many layouts in which they are published, with one column `translation`."""

from collections.abc import Callable
from typing import Any

from specbench.core.errors import ConfigError
from specbench.core.registry import READERS
from specbench.specs import templates
from specbench.tasks.local_files import Row

# What the columns of published files are called, lower case → language code.
CODES = {
    "english": "en", "german": "de", "french": "fr", "russian": "ru", "chinese": "zh", "japanese": "ja",
    "spanish": "es", "amharic": "amh", "berber": "ber", "cherokee": "chr", "guarani": "grn", "hawaiian": "haw",
    "igbo": "ibo", "nepali": "npi", "occitan": "oci", "quechua": "que", "yoruba": "yor", "tamazight": "zgh",
}  # fmt: skip
LANGUAGES = frozenset(CODES.values())


@READERS.register("translation")
def translation() -> Callable[[Row], Row]:
    """Rows with `translation` (language → text), or with columns named after languages ("de", "German"), which become
    it. Other columns stay. Texts lose the blanks around them; one that is null, NaN or blank is null."""
    return _read


def _read(row: Row) -> Row:
    if "translation" in row:
        others, texts = row, row["translation"]
        if not isinstance(texts, dict):
            raise ConfigError(f"column 'translation' must map languages to texts, not be a {type(texts).__name__}")
    else:
        codes = {column: CODES.get(column.strip().lower(), column) for column in row}
        others = {column: row[column] for column, code in codes.items() if code not in LANGUAGES}
        texts = {code: row[column] for column, code in codes.items() if code in LANGUAGES}
        if len(texts) < 2:
            raise ConfigError(
                f"has the columns {', '.join(row)}: name two of them after their languages, such as en and de, or give "
                "one column 'translation'"
            )
    return {**others, "translation": {language: _text(language, text) for language, text in texts.items()}}


def _text(language: str, text: Any) -> str | None:
    if templates.is_empty(text):
        return None
    if not isinstance(text, str):
        raise ConfigError(f"the text in language '{language}' is a {type(text).__name__}, {text!r:.60}: correct it")
    return text.strip()
