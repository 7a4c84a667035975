"""Loading a tokenizer alone: no weights are read."""

from pathlib import Path
from typing import Any

from transformers import AutoTokenizer

from specbench.demo.family import source_of
from specbench.errors import ConfigError
from specbench.models.checkpoint import why_not
from specbench.models.loading import hub_problem


def load_tokenizer(name: str, revision: str | None = None) -> Any:
    """The tokenizer of a model by hub id, local folder, or `embedded:` and the name of a model that comes with
    specbench. Raises ConfigError in one line for one that cannot be loaded."""
    source = source_of(name)
    local = Path(source).is_dir()
    if local and (Path(source) / "ngram.json").is_file():
        raise ConfigError(f"'{name}' is an n-gram folder: it drafts the tokens of its target and has none of its own")
    if not local and (source.startswith((".", "/", "~")) or source.count("/") > 1 or Path(source).exists()):
        raise ConfigError(f"model folder '{name}' does not exist; give a folder with a tokenizer, or a hub id")
    problem = None if local else hub_problem(source, revision)
    try:  # without the hub the local cache is left
        return AutoTokenizer.from_pretrained(source, revision=revision, local_files_only=local or problem is not None)
    except Exception as error:  # whatever a tokenizer's files or its remote may raise
        raise ConfigError(
            f"cannot load the tokenizer of '{name}': {why_not(name, source, problem, error)} (give a local folder with "
            "tokenizer.json, or a hub id that this machine can reach)"
        ) from error
