"""Files of hub datasets that were fetched ahead: they lie in the hub's own cache; a note says which they are."""

import json
from dataclasses import asdict, dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path

from specbench import bounded
from specbench.errors import ConfigError
from specbench.files import write_atomically
from specbench.specs import DatasetSpec


@dataclass(frozen=True)
class Note:
    """The commit at which files of a dataset were fetched, and their names by `key`."""

    commit: str
    files: dict[str, list[str]] = field(default_factory=dict)


def key(dataset: DatasetSpec) -> str:
    """What names the files of a split."""
    return dataset.data_files or f"{dataset.name or ''}:{dataset.split}"


def read_note(dataset: DatasetSpec) -> Note | None:
    """What was fetched of a dataset at its revision, be it `main`; None when nothing was."""
    try:
        return Note(**bounded.read_json(_note_path(dataset), "fetch it again"))
    except (ConfigError, TypeError):
        return None


def paths(dataset: DatasetSpec, commit: str) -> list[Path]:
    """The fetched files of a split at a commit; empty unless all of them are there."""
    note = read_note(dataset)
    if note is None or note.commit != commit:
        return []
    try:
        return [download(dataset, commit, name, local=True) for name in note.files.get(key(dataset), [])]
    except OSError:  # deleted from the cache since
        return []


def download(dataset: DatasetSpec, commit: str, name: str, local: bool = False) -> Path:
    """One file, from the hub or (`local`) only from its cache; raises what the hub's client raises."""
    import huggingface_hub

    return Path(
        huggingface_hub.hf_hub_download(
            dataset.path, name, repo_type="dataset", revision=commit, local_files_only=local
        )
    )


def listing(dataset: DatasetSpec) -> tuple[str, dict[str, int | None]]:
    """The commit, and the files of a split with their sizes in bytes where the hub tells them.

    Raises ConfigError when no file has the name that the task gives, and whatever the hub's client raises.
    """
    import huggingface_hub

    info = huggingface_hub.dataset_info(dataset.path, revision=dataset.revision, files_metadata=True)
    commit = info.sha or dataset.revision
    sizes = {sibling.rfilename: sibling.size for sibling in info.siblings or []}
    names = [n for n in sizes if _matches(n, dataset.data_files)] if dataset.data_files else _of_split(dataset, commit)
    if not names:
        raise ConfigError(
            f"dataset '{dataset.path}' (revision {commit}) has no file '{dataset.data_files or dataset.split}': "
            "correct the key dataset.data_files, or run with files of your own (specbench run --data FOLDER)"
        )
    return commit, {name: sizes.get(name) for name in sorted(names)}


def write_note(dataset: DatasetSpec, commit: str, names: list[str]) -> None:
    """Say that these are the files of a split and that all of them are there."""
    old = read_note(dataset)
    files = old.files if old is not None and old.commit == commit else {}
    write_atomically(_note_path(dataset), json.dumps(asdict(Note(commit, {**files, key(dataset): names})), indent=2))


def _of_split(dataset: DatasetSpec, commit: str) -> list[str]:
    """The files that the dataset's own description gives to a split of a configuration."""
    import datasets

    builder = datasets.load_dataset_builder(dataset.path, dataset.name, revision=commit)
    named = (builder.config.data_files or {}).get(dataset.split, [])
    return [str(url).partition(f"@{commit}/")[2] or str(url).rpartition("/")[2] for url in named]


def _matches(name: str, pattern: str) -> bool:
    """Whether a path is meant by a pattern, whose wildcards do not cross a slash."""
    parts, wanted = name.split("/"), pattern.split("/")
    return len(parts) == len(wanted) and all(map(fnmatchcase, parts, wanted))


def _note_path(dataset: DatasetSpec) -> Path:
    import huggingface_hub

    folder = huggingface_hub.cached_assets_path("specbench", namespace="fetched", subfolder=dataset.path)
    return folder / f"{dataset.revision.replace('/', '--')}.json"
