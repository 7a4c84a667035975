"""What is wrong with a checkpoint that could not be loaded: asked only when it could not."""

from pathlib import Path
from textwrap import shorten

from safetensors import SafetensorError, safe_open

from specbench import bounded
from specbench.errors import ConfigError

TOKENIZERS = ("tokenizer.json", "tokenizer.model", "spiece.model", "vocab.json", "vocab.txt")
MAX_SHOWN = 8  # folders named beside one that is not there


def why_not(name: str, source: str, hub_problem: str | None, error: Exception) -> str:
    """The reason, in one line: the file that is broken, or the folder or hub id that is not there, or the error."""
    folder = Path(source)
    if folder.is_dir():
        return defect(folder) or told(error)
    return ", and ".join(filter(None, (not_here(name), hub_problem))) or told(error)


def told(error: Exception) -> str:
    """An error's own words, cut between two of them."""
    return shorten(str(error), 300, placeholder=" …") or type(error).__name__


def defect(folder: Path) -> str | None:
    """The first file of a folder that cannot be read, or what it lacks; None where nothing is seen."""
    for path in sorted(folder.glob("*.json")):
        try:
            bounded.json_value(bounded.read_text(path, "fetch it again"), strict=False)
        except (ConfigError, ValueError) as error:
            return f"{path.name} is not valid JSON ({error})"
    for path in sorted(folder.glob("*.safetensors")):
        try:
            with safe_open(path, framework="pt"):
                pass
        except (OSError, SafetensorError) as error:
            return f"{path.name} is broken or not whole ({error})"
    if not any((folder / name).is_file() for name in TOKENIZERS):
        return f"it has no tokenizer (none of {', '.join(TOKENIZERS)})"
    return None


def not_here(name: str) -> str | None:
    """Of what may have been meant as a folder, here or beside one that is there: that it is not."""
    parent = Path(name).parent
    if parent == Path():
        return f"there is no folder '{name}' here"
    if not parent.is_dir():
        return None
    folders = sorted(path.name for path in parent.iterdir() if path.is_dir())
    beside = ", ".join(folders[:MAX_SHOWN]) + ", …" * (len(folders) > MAX_SHOWN) or "no folder"
    return f"there is no folder '{name}' here ({parent} holds {beside})"
