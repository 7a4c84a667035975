"""Where the files of models are, without loading one. Imports neither torch nor transformers."""

import json
from pathlib import Path

from specbench.core.environment import EMBEDDED
from specbench.core.errors import ConfigError

TIMEOUT_SECONDS = 4  # of a request to the hub


def model_source(name: str) -> str:
    """Returns the source for transformers: the folder of `embedded:NAME`, or the name itself."""
    if not name.startswith(EMBEDDED):
        return name
    from specbench.embedded import member_path

    return str(member_path(name.removeprefix(EMBEDDED)))


def is_local(name: str, *, needs_config: bool = True) -> bool:
    """Returns whether a name is a local folder and not a hub id. Raises ConfigError for a path without a checkpoint;
    without `needs_config`, a folder may have only a tokenizer."""
    path = Path(name)
    if not (name.startswith((".", "/", "~")) or name.count("/") > 1 or path.exists()):
        return False
    if not path.is_dir():
        file, colon, kind = name.rpartition(":")
        if colon and Path(file).is_file():
            raise ConfigError(
                f"'{name}': {file} is one file: leave out ':{kind}', which chooses a file of a repository"
            )
        content = "config.json" if needs_config else "a tokenizer"
        raise ConfigError(f"model folder '{name}' does not exist; give a folder with {content}, or a hub id")
    if needs_config and not (path / "config.json").is_file():
        if (path / "run.json").is_file():
            raise ConfigError(f"'{name}' is the folder of a run, not of a model: `specbench report {name}` shows it")
        raise ConfigError(f"model folder '{name}' has no config.json; give a Hugging Face checkpoint folder")
    return True


TEMPLATE_FILES = ("chat_template.jinja", "chat_template.json", "additional_chat_templates")


def lacks_template(folder: Path) -> bool:
    """Returns whether a checkpoint's folder certainly holds no chat template. Other problems are found on loading."""
    config = folder / "tokenizer_config.json"
    try:
        content = json.loads(config.read_text(encoding="utf-8")) if config.is_file() else {}
        classes = content.get("auto_map") or str(content.get("tokenizer_class", "")).startswith("Mistral")
    except (ValueError, OSError, AttributeError):
        return False
    return not classes and not content.get("chat_template") and not any((folder / n).exists() for n in TEMPLATE_FILES)
