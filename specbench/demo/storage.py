"""Where the build puts its members: model folders, the manifest and JSON files, each moved into place when complete."""

import json
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer, LlamaForCausalLM, PreTrainedTokenizerBase

from specbench.demo.family import MANIFEST, digest_of, read_manifest
from specbench.demo.recipe import Member, Recipe
from specbench.files import write_atomically


def kept_tokenizers(output: Path, members: Sequence[Recipe], names: list[str]) -> dict[str, PreTrainedTokenizerBase]:
    """The tokenizers of the members that are there and stay: a new member that shares one takes it as it is."""
    kept = [recipe for recipe in members if recipe.name not in names and (output / recipe.name).is_dir()]
    tokenizers: dict[str, PreTrainedTokenizerBase] = {
        recipe.tokenizer: AutoTokenizer.from_pretrained(output / recipe.name)
        for recipe in kept
        if isinstance(recipe, Member)
    }
    for tokenizer in tokenizers.values():
        for key in ("is_local", "local_files_only"):  # how it was loaded is no part of it
            tokenizer.init_kwargs.pop(key, None)
    return tokenizers


def save(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerBase, folder: Path) -> None:
    """A standard model folder with bf16 weights, moved into place when complete."""
    partial = folder.with_name(folder.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    stored = LlamaForCausalLM(model.config)
    stored.load_state_dict(model.state_dict())
    stored.bfloat16().save_pretrained(partial)
    tokenizer.save_pretrained(partial)
    _move(partial, folder)


def copy(finished: Path, folder: Path, without: Sequence[str]) -> None:
    """A finished model folder where a member is, but for some of its files; moved into place when complete."""
    partial = folder.with_name(folder.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    shutil.copytree(finished, partial, ignore=shutil.ignore_patterns(*without))
    _move(partial, folder)


def _move(partial: Path, folder: Path) -> None:
    for path in partial.iterdir():
        path.chmod(0o644)  # safetensors writes files that only their owner can read
    shutil.rmtree(folder, ignore_errors=True)
    os.replace(partial, folder)


def publish(recipe: Recipe, output: Path) -> None:
    """Enter a finished member in the manifest."""
    digest, files = digest_of(output / recipe.name)
    num_bytes = sum(path.stat().st_size for path in (output / recipe.name).iterdir())
    entries = read_manifest(output)
    entries[recipe.name] = {
        "role": recipe.role, "version": recipe.version, "digest": digest, "num_bytes": num_bytes, "files": files
    }  # fmt: skip
    write_json(output / MANIFEST, {"members": entries})


def write_json(path: Path, value: Any) -> None:
    """Write JSON so that no reader ever sees half of it."""
    write_atomically(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")
