"""What identifies a checkpoint: the digest of a folder, the commit of a hub id."""

import hashlib
from pathlib import Path

import huggingface_hub

SUFFIXES = {".json", ".safetensors", ".bin", ".model", ".txt", ".jinja"}


def identified(source: str, revision: str | None) -> str | None:
    """Of a checkpoint that was loaded: its fingerprint, or the commit that `revision` (None: the default branch) is in
    the hub's cache folder; None where neither is known."""
    if Path(source).is_dir():
        return fingerprint(source)
    config = huggingface_hub.try_to_load_from_cache(source, "config.json", revision=revision)
    return Path(config).parent.name if isinstance(config, str) else None


def fingerprint(folder: str) -> str:
    """12 hex digits over the names and contents of a local checkpoint's files."""
    state = hashlib.sha256()
    for path in sorted(Path(folder).iterdir()):
        if path.suffix in SUFFIXES:
            with path.open("rb") as file:
                state.update(f"{path.name} {hashlib.file_digest(file, 'sha256').hexdigest()}\n".encode())
    return f"local-{state.hexdigest()[:12]}"
