"""Rows of the Hugging Face hub at one resolved commit: from files that were fetched before, else streamed, so that no
more is downloaded than used."""

import json
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from fnmatch import fnmatchcase
from itertools import islice
from pathlib import Path
from typing import Any, Literal, TypeVar

from specbench.core import bounded
from specbench.core.errors import ConfigError
from specbench.core.files import write_atomically
from specbench.specs.task import DatasetSpec, MirrorSpec
from specbench.tasks.local_files import RemoteFile, member_rows
from specbench.tasks.local_files import read_rows as read_file

T = TypeVar("T")
Place = TypeVar("Place", DatasetSpec, MirrorSpec)
Connection = Literal["made", "none", "timed out"]


class HubError(ConfigError):
    """The hub did not give a file. `__cause__` is the error of the hub's client."""


def key(dataset: DatasetSpec) -> str:
    """Returns the name of the files of a split."""
    return dataset.data_files or f"{dataset.name or ''}:{dataset.split}"


def read_note(dataset: DatasetSpec) -> tuple[str, dict[str, list[str]]]:
    """Returns the commit at which files of a dataset were fetched for its revision, such as `main`, and their names by
    `key`; no names if nothing was fetched."""
    try:
        note = bounded.read_json(_note_path(dataset), "fetch it again")
        return note["commit"], note["files"]
    except (ConfigError, TypeError, KeyError):
        return "", {}


def fetched_paths(dataset: DatasetSpec, commit: str) -> list[Path]:
    """Returns the fetched files of a split at a commit; empty unless all of them exist."""
    fetched, files = read_note(dataset)
    names = files.get(key(dataset), []) if fetched == commit else []
    try:
        return [download(dataset, commit, name, local=True) for name in names]
    except OSError:  # deleted from the cache
        return []


def download(dataset: DatasetSpec, commit: str, name: str, local: bool = False) -> Path:
    """Returns one file, from the hub or, with `local`, only from its cache. Raises what the hub's client raises."""
    import huggingface_hub

    return Path(
        huggingface_hub.hf_hub_download(
            dataset.path, name, repo_type="dataset", revision=commit, local_files_only=local
        )
    )


def listing(dataset: DatasetSpec) -> tuple[str, dict[str, int | None]]:
    """Returns the commit, and the files of a split with their sizes in bytes, None for an unknown size.

    Raises HubError if no file has the name in the task, and whatever the hub's client raises.
    """
    import huggingface_hub

    info = huggingface_hub.dataset_info(
        dataset.path, revision=dataset.revision, files_metadata=True, timeout=TIMEOUT_SECONDS
    )
    commit = info.sha or dataset.revision
    sizes = {sibling.rfilename: sibling.size for sibling in info.siblings or []}
    names = [n for n in sizes if _matches(n, dataset.data_files)] if dataset.data_files else _of_split(dataset, commit)
    if not names:
        raise HubError(
            f"dataset '{dataset.path}' (revision {commit}) has no file '{dataset.data_files or dataset.split}': "
            "correct the key dataset.data_files, or run with files of your own (specbench run --data FOLDER)"
        )
    return commit, {name: sizes.get(name) for name in sorted(names)}


def write_note(dataset: DatasetSpec, commit: str, names: list[str]) -> None:
    """Records the files of a split, all of which exist."""
    fetched, files = read_note(dataset)
    note = {"commit": commit, "files": {**(files if fetched == commit else {}), key(dataset): names}}
    write_atomically(_note_path(dataset), json.dumps(note, indent=2))


def _of_split(dataset: DatasetSpec, commit: str) -> list[str]:
    """Returns the files that the dataset's own description assigns to a split of a configuration."""
    import datasets

    builder = datasets.load_dataset_builder(dataset.path, dataset.name, revision=commit)
    named = (builder.config.data_files or {}).get(dataset.split, [])
    return [str(url).partition(f"@{commit}/")[2] or str(url).rpartition("/")[2] for url in named]


def _matches(name: str, pattern: str) -> bool:
    """Returns whether a path matches a pattern, whose wildcards do not cross a slash."""
    parts, wanted = name.split("/"), pattern.split("/")
    return len(parts) == len(wanted) and all(map(fnmatchcase, parts, wanted))


def _note_path(dataset: DatasetSpec) -> Path:
    import huggingface_hub

    folder = huggingface_hub.cached_assets_path("specbench", namespace="fetched", subfolder=dataset.path)
    return folder / f"{dataset.revision.replace('/', '--')}.json"


TIMEOUT_SECONDS = 4
WITHOUT_HUB = "give local files with --data FOLDER, or use --data sample"
# `datasets` would guess quotes, numbers and missing values of tables, and refuses files beside a loading script.
READ_HERE = (".csv", ".csv.gz", ".tsv", ".tsv.gz", ".jsonl")


def filled(dataset: DatasetSpec, task: str, subset: str) -> DatasetSpec:
    """Returns the place of one subset, with its fields filled in."""
    fields = {"task": task, "subset": subset, "split": dataset.split}

    def fill(place: Place) -> Place:
        keys = ("path", "name", "data_files", "archive_member")
        return place.model_copy(
            update={key: text.format(**fields) for key in keys if (text := getattr(place, key)) is not None}
        )

    return fill(dataset).model_copy(update={"mirrors": tuple(map(fill, dataset.mirrors))})


def first_that_works(dataset: DatasetSpec, read: Callable[[DatasetSpec], T]) -> T:
    """Returns what `read` makes of the data set, or else of the first of its mirrors that it can read.

    Where the hub cannot be reached, only mirrors that were fetched before are tried. Raises ConfigError with the
    problems of all locations that were tried.
    """
    problems: list[ConfigError] = []
    has_hub = True
    for place in dataset.locations():
        if not has_hub and key(place) not in read_note(place)[1]:
            continue
        try:
            return read(place)
        except ConfigError as error:
            problems.append(error)
            has_hub = connection_of(error.__cause__) == "made"
    if len(problems) == 1:
        raise problems[0]
    raise ConfigError("; mirror: ".join(map(str, problems))) from problems[0]


def connection_of(error: BaseException | None) -> Connection:
    """Returns whether an error of the hub's clients, or one of its causes, is that there is no connection."""
    found: Connection = "made"
    while error is not None:
        kind = type(error).__name__
        if "Timeout" in kind or isinstance(error, TimeoutError):
            return "timed out"
        if isinstance(error, ConnectionError) or kind in ("OfflineModeIsEnabled", "ConnectError", "ProxyError"):
            found = "none"
        error = error.__cause__ or error.__context__
    return found


def location(dataset: DatasetSpec) -> str:
    """Returns the name of a place in messages and rows: path:name:split, path:files:split, or path:zip:member, and
    which rows."""
    parts = [dataset.path, dataset.name or dataset.data_files, dataset.archive_member or dataset.split]
    ends = (("first", dataset.first_rows), ("last", dataset.last_rows))
    parts += [f"{end} {num_rows} rows" for end, num_rows in ends if num_rows is not None]
    return ":".join(part for part in parts if part)


def resolve_revision(dataset: DatasetSpec) -> str:
    """Returns the commit of the revision of a hub dataset; without a connection, the one that was fetched.

    Raises ConfigError within seconds.
    """
    import huggingface_hub

    try:
        info = huggingface_hub.dataset_info(dataset.path, revision=dataset.revision, timeout=TIMEOUT_SECONDS)
    except Exception as error:  # offline, no such dataset, gated, a proxy: many classes of several libraries
        commit, files = read_note(dataset)
        if key(dataset) in files:
            return commit
        raise failure(dataset, error) from error
    return info.sha or dataset.revision


def read_rows(dataset: DatasetSpec, commit: str, *, downloads: bool = True) -> Iterator[dict[str, Any]]:
    """Yields all rows of one split at a commit. Downloads a zip, and files of which the last rows are requested, or
    with `downloads` off no whole file."""
    paths: Sequence[Path | RemoteFile] = fetched_paths(dataset, commit)
    try:
        if not paths and downloads and (dataset.archive_member or dataset.last_rows is not None):
            paths = [download(dataset, commit, name) for name in _names(dataset, commit)]
        elif not paths and (dataset.archive_member or (dataset.data_files or "").endswith(READ_HERE)):
            paths = [RemoteFile(f"datasets/{dataset.path}@{commit}/{name}") for name in _names(dataset, commit)]
        if dataset.archive_member:
            yield from member_rows(paths[0], dataset.archive_member)
        elif paths:
            for path in paths:
                yield from read_file(path)
        else:
            yield from _streamed(dataset, commit)
    except ConfigError as error:
        if isinstance(error.__cause__, OSError) and not any(
            isinstance(path, Path) for path in paths
        ):  # an error of the connection, not of a file
            raise failure(dataset, error.__cause__, commit) from error
        raise
    except Exception as error:
        raise failure(dataset, error, commit) from error


def limited(dataset: DatasetSpec, rows: Iterator[tuple[str, Any]]) -> Iterator[tuple[str, Any]]:
    """Yields the first or last of the rows if the task limits them; they are counted after the task's reader."""
    if dataset.last_rows is not None:
        yield from deque(rows, maxlen=dataset.last_rows)
    else:
        yield from islice(rows, dataset.first_rows)


def _names(dataset: DatasetSpec, commit: str) -> list[str]:
    """Returns the files of a split."""
    if dataset.data_files and not any(wildcard in dataset.data_files for wildcard in "*?["):
        return [dataset.data_files]
    return list(listing(dataset.model_copy(update={"revision": commit}))[1])


def _streamed(dataset: DatasetSpec, commit: str) -> Iterator[dict[str, Any]]:
    import datasets

    datasets.config.STREAMING_READ_MAX_RETRIES = 2  # the default waits for minutes
    files = {dataset.split: dataset.data_files} if dataset.data_files else None
    yield from datasets.load_dataset(
        dataset.path, dataset.name, data_files=files, split=dataset.split, revision=commit, streaming=True
    )


def failure(dataset: DatasetSpec, error: Exception, commit: str | None = None, way_out: str = WITHOUT_HUB) -> HubError:
    """Returns the error of a failure of the hub, with an alternative without it."""
    reason = next((line.strip() for line in str(error).splitlines() if line.strip()), "no reason given")
    if "gated" in f"{type(error).__name__} {error}".lower():
        way_out = f"accept its terms on huggingface.co/datasets/{dataset.path} and log in, or {way_out}"
    return HubError(
        f"dataset '{dataset.path}' (revision {commit or dataset.revision}) could not be read from the hub: "
        f"{type(error).__name__}: {reason[:200]}: {way_out}"
    )
