"""Rows from the Hugging Face hub: streamed, so that no more is fetched than is used, at one resolved commit."""

from collections.abc import Iterator
from typing import Any

from specbench.errors import ConfigError
from specbench.specs import DatasetSpec

TIMEOUT_SECONDS = 10


def resolve_revision(dataset: DatasetSpec, path: str) -> str:
    """The commit that the revision of a hub dataset stands for. Raises ConfigError, and within seconds."""
    import huggingface_hub

    try:
        commit = huggingface_hub.dataset_info(path, revision=dataset.revision, timeout=TIMEOUT_SECONDS).sha
    except Exception as error:  # offline, no such dataset, gated, a proxy: many classes of several libraries
        raise _failure(path, dataset.revision, error) from error
    return commit or dataset.revision


def read_rows(dataset: DatasetSpec, revision: str, **fields: str) -> Iterator[dict[str, Any]]:
    """The rows of one split at a resolved revision; `fields` fill in {task}, {subset} and {split}."""
    import datasets

    datasets.config.STREAMING_READ_MAX_RETRIES = 2  # the default waits for minutes
    path = dataset.path.format(**fields)
    name = dataset.name.format(**fields) if dataset.name else None
    files = {dataset.split: dataset.data_files.format(**fields)} if dataset.data_files else None
    try:
        yield from datasets.load_dataset(
            path, name, data_files=files, split=dataset.split, revision=revision, streaming=True
        )
    except Exception as error:
        raise _failure(path, revision, error) from error


def _failure(path: str, revision: str, error: Exception) -> ConfigError:
    reason = next((line.strip() for line in str(error).splitlines() if line.strip()), "no reason given")
    return ConfigError(
        f"dataset '{path}' (revision {revision}) could not be read from the hub: {type(error).__name__}: "
        f"{reason[:200]}: give local files with --data FOLDER, or use --data sample"
    )
