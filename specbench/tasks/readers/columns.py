"""The Aya evaluation suite: one file holds all languages, each subset takes its own rows."""

from collections.abc import Callable
from functools import partial

from specbench.core.registry import READERS
from specbench.tasks.local_files import Row

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


@READERS.register("humaneval")
def humaneval() -> Callable[[Row], Row]:
    """Rows of openai/openai_humaneval and of HumanEval.jsonl, with the column `id` that records are told apart by."""
    return lambda row: {"id": row["task_id"], **row} if "task_id" in row else row


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
