"""Rows of the Hugging Face hub at one resolved commit: read from fetched files, else streamed, so that no more is
downloaded than used."""

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Literal, TypeVar

from specbench.core import bounded
from specbench.core.errors import ConfigError
from specbench.core.files import write_atomically
from specbench.specs.task import DatasetSpec, LocationSpec
from specbench.tasks.local_files import RemoteFile, member_rows
from specbench.tasks.local_files import read_rows as read_file

T = TypeVar("T")
Place = TypeVar("Place", bound=LocationSpec)
Connection = Literal["made", "none", "timed out"]


class HubError(ConfigError):
    """The hub did not give a file. `__cause__` is the error of the hub's client."""


def split_key(dataset: DatasetSpec) -> str:
    """Returns the key under which the note of fetched files lists those of a split."""
    return dataset.data_files or f"{dataset.name or ''}:{dataset.split}"


def read_note(dataset: DatasetSpec) -> tuple[str, dict[str, list[str]]]:
    """Returns the commit at which the files of a dataset were fetched for its revision (such as `main`), and their
    names by `split_key`; no names if nothing was fetched."""
    try:
        note = bounded.read_json(_note_path(dataset), "fetch it again")
        return note["commit"], note["files"]
    except (ConfigError, TypeError, KeyError):
        return "", {}


def download(dataset: DatasetSpec, commit: str, name: str, local: bool = False) -> Path:
    """Returns one file: from the hub, or with `local` only from the cache. Raises what the hub's client raises."""
    import huggingface_hub

    path = huggingface_hub.hf_hub_download(
        dataset.path, name, repo_type="dataset", revision=commit, local_files_only=local
    )
    return Path(path)


def list_files(dataset: DatasetSpec) -> tuple[str, dict[str, int | None]]:
    """Returns the commit, and the files of a split with their sizes in bytes, None for an unknown size. Raises HubError
    if no file has the name that the task gives, and whatever the hub's client raises."""
    import huggingface_hub

    info = huggingface_hub.dataset_info(
        dataset.path, revision=dataset.revision, files_metadata=True, timeout=TIMEOUT_SECONDS
    )
    commit = info.sha or dataset.revision
    sizes = {sibling.rfilename: sibling.size for sibling in info.siblings or []}
    if dataset.data_files:
        pattern = dataset.data_files  # a wildcard does not match a slash
        alike = [name for name in sizes if name.count("/") == pattern.count("/")]
        names = [name for name in alike if PurePosixPath(name).match(pattern)]
    else:
        import datasets

        builder = datasets.load_dataset_builder(dataset.path, dataset.name, revision=commit)
        urls = map(str, (builder.config.data_files or {}).get(dataset.split, []))
        names = [url.partition(f"@{commit}/")[2] or url.rpartition("/")[2] for url in urls]
    if not names:
        raise HubError(
            f"dataset '{dataset.path}' (revision {commit}) has no file '{dataset.data_files or dataset.split}': "
            "correct the key dataset.data_files, or run with files of your own (specbench run --data FOLDER)"
        )
    return commit, {name: sizes.get(name) for name in sorted(names)}


def write_note(dataset: DatasetSpec, commit: str, names: list[str]) -> None:
    """Notes the files of a split after all of them were fetched."""
    fetched, files = read_note(dataset)
    note = {"commit": commit, "files": {**(files if fetched == commit else {}), split_key(dataset): names}}
    write_atomically(_note_path(dataset), json.dumps(note, indent=2))


def _note_path(dataset: DatasetSpec) -> Path:
    import huggingface_hub

    folder = huggingface_hub.cached_assets_path("specbench", namespace="fetched", subfolder=dataset.path)
    return folder / f"{dataset.revision.replace('/', '--')}.json"


TIMEOUT_SECONDS = 4
RUN_REMEDY = "give local files with --data FOLDER, or use --data sample"
# `datasets` guesses quotes, numbers and missing values of tables, and refuses files next to a loading script.
READ_HERE = (".csv", ".csv.gz", ".tsv", ".tsv.gz", ".jsonl")


def fill_fields(dataset: DatasetSpec, task: str, subset: str) -> DatasetSpec:
    """Returns the location of one subset: fields such as {subset} in paths and names are filled in."""
    fields = {"task": task, "subset": subset, "split": dataset.split}

    def fill(place: Place) -> Place:
        given = {name: getattr(place, name) for name in ("path", "name", "data_files", "archive_member")}
        return place.model_copy(
            update={name: text.format(**fields) for name, text in given.items() if text is not None}
        )

    return fill(dataset).model_copy(update={"mirrors": tuple(map(fill, dataset.mirrors))})


def try_locations(dataset: DatasetSpec, read: Callable[[DatasetSpec], T]) -> T:
    """Returns the result of `read` for the data set or, if that fails, for the first mirror that can be read. If the
    hub cannot be reached, only mirrors that were fetched before are tried. Raises ConfigError with the problems of all
    locations that were tried."""
    problems: list[ConfigError] = []
    is_reachable = True
    for location in dataset.locations():
        if not is_reachable and split_key(location) not in read_note(location)[1]:
            continue
        try:
            return read(location)
        except ConfigError as error:
            problems.append(error)
            is_reachable = connection_state(error.__cause__) == "made"
    if len(problems) == 1:
        raise problems[0]
    raise ConfigError("; mirror: ".join(map(str, problems))) from problems[0]


def connection_state(error: BaseException | None) -> Connection:
    """Returns the connection failure behind an exception of the hub's clients, or "made" if it has another cause."""
    found: Connection = "made"
    for each in causes(error):
        kind = type(each).__name__
        if "Timeout" in kind or isinstance(each, TimeoutError):
            return "timed out"
        if isinstance(each, ConnectionError) or kind in ("OfflineModeIsEnabled", "ConnectError", "ProxyError"):
            found = "none"
    return found


def causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yields an exception and those behind it."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def location(dataset: DatasetSpec) -> str:
    """Returns a location as messages and rows name it: path:name:split, path:files:split, or path:zip:member; then
    which rows are taken, if not all."""
    parts = [dataset.path, dataset.name or dataset.data_files, dataset.archive_member or dataset.split]
    ends = (("first", dataset.first_rows), ("last", dataset.last_rows))
    parts += [f"{end} {num_rows} rows" for end, num_rows in ends if num_rows is not None]
    return ":".join(part for part in parts if part)


def resolve_revision(dataset: DatasetSpec) -> str:
    """Returns the commit of a dataset's revision: the hub's, or the fetched one if the hub does not answer. Raises
    ConfigError within seconds if there is neither."""
    import huggingface_hub

    try:
        info = huggingface_hub.dataset_info(dataset.path, revision=dataset.revision, timeout=TIMEOUT_SECONDS)
    except Exception as error:  # offline, no such dataset, gated, a proxy: many classes of several libraries
        commit, files = read_note(dataset)
        if split_key(dataset) in files:
            return commit
        raise make_error(dataset, error) from error
    return info.sha or dataset.revision


def is_fetched(dataset: DatasetSpec, commit: str) -> bool:
    """Returns whether the files of a split were fetched at this commit."""
    fetched, files = read_note(dataset)
    return fetched == commit and bool(files.get(split_key(dataset)))


def read_rows(dataset: DatasetSpec, commit: str, *, downloads: bool = True) -> Iterator[dict[str, object]]:
    """Yields all rows of one split at a commit. Files that were not fetched are streamed, except that with `downloads`
    a zip, and files whose last rows are taken, are downloaded."""
    fetched, files = read_note(dataset)
    names = files.get(split_key(dataset), []) if fetched == commit else []
    paths: Sequence[Path | RemoteFile] = ()
    with suppress(OSError):  # a file was deleted from the cache
        paths = [download(dataset, commit, name, local=True) for name in names]
    try:
        if not paths and downloads and (dataset.archive_member or dataset.last_rows is not None):
            paths = [download(dataset, commit, name) for name in _file_names(dataset, commit)]
        elif not paths and (dataset.archive_member or (dataset.data_files or "").endswith(READ_HERE)):
            paths = [RemoteFile(f"datasets/{dataset.path}@{commit}/{name}") for name in _file_names(dataset, commit)]
        if dataset.archive_member:
            yield from member_rows(paths[0], dataset.archive_member)
        elif paths:
            for path in paths:
                yield from read_file(path)
        else:
            yield from _stream(dataset, commit)
    except ConfigError as error:
        is_local = any(isinstance(path, Path) for path in paths)
        if isinstance(error.__cause__, OSError) and not is_local:  # the connection failed, not a file
            raise make_error(dataset, error.__cause__, commit) from error
        raise
    except Exception as error:
        raise make_error(dataset, error, commit) from error


def _file_names(dataset: DatasetSpec, commit: str) -> list[str]:
    if dataset.data_files and not any(wildcard in dataset.data_files for wildcard in "*?["):
        return [dataset.data_files]
    return list(list_files(dataset.model_copy(update={"revision": commit}))[1])


def _stream(dataset: DatasetSpec, commit: str) -> Iterator[dict[str, object]]:
    import datasets

    datasets.config.STREAMING_READ_MAX_RETRIES = 2  # the default waits for minutes
    files = {dataset.split: dataset.data_files} if dataset.data_files else None
    yield from datasets.load_dataset(
        dataset.path, dataset.name, data_files=files, split=dataset.split, revision=commit, streaming=True
    )


def make_error(dataset: DatasetSpec, error: Exception, commit: str | None = None, remedy: str = RUN_REMEDY) -> HubError:
    """Returns the error for a failure of the hub. `remedy`: what to do without the hub."""
    reason = next((line.strip() for line in str(error).splitlines() if line.strip()), "no reason given")
    if "gated" in f"{type(error).__name__} {error}".lower():
        remedy = f"accept its terms on huggingface.co/datasets/{dataset.path} and log in, or {remedy}"
    return HubError(
        f"dataset '{dataset.path}' (revision {commit or dataset.revision}) could not be read from the hub: "
        f"{type(error).__name__}: {reason[:200].rstrip('.')}: {remedy}"
    )
