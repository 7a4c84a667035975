"""The Aya evaluation suite: one file holds all languages, each subset takes its own rows."""

from collections.abc import Callable
from functools import partial

from specbench.data.local import Row
from specbench.registry import READERS

LANGUAGES = ("arb", "deu", "eng", "fra", "ita", "jpn", "kor", "por", "rus", "spa", "tha", "vie", "zho")
SCRIPTS = {"zho": "Hans"}  # of languages that the suite has in two


def aya(language: str) -> Callable[[Row], Row | list[Row]]:
    """The rows of one language (ISO 639-3), and those that name none."""

    def read(row: Row) -> Row | list[Row]:
        if row.get("language", language) != language:
            return []
        script = row.get("script")
        return row if script is None or script == SCRIPTS.get(language, script) else []

    return read


for _language in LANGUAGES:
    READERS.register(f"aya_{_language}")(partial(aya, _language))
