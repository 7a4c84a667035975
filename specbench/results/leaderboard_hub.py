"""A leaderboard file in a dataset repository of the Hugging Face hub: rows are pushed to it and pulled from it."""

from pathlib import Path
from tempfile import TemporaryDirectory

from specbench.core.errors import ConfigError
from specbench.results.leaderboard import check_writable, load
from specbench.results.leaderboard_merge import Added, put
from specbench.results.row import Row

ATTEMPTS = 5  # of a push, while others push too


def push(file: Path, repository: str, name: str, private: bool) -> tuple[Added, str]:
    """Puts the rows of a file into the file `name` of a repository, which is created where it does not exist. Returns
    what was added, and the address of the commit.

    The places of records and audit reports, which stay on this machine, are left out. Raises ConfigError for rows that
    do not go together, and for any failure of the hub.
    """
    import huggingface_hub

    rows = [(f"{file}: rows.{number}", without_places(row)) for number, row in enumerate(load(file))]
    hub = huggingface_hub.HfApi()
    try:
        hub.create_repo(repository, repo_type="dataset", private=private, exist_ok=True)
        for attempt in range(ATTEMPTS):
            with TemporaryDirectory() as folder:
                commit, merged = fetched(repository, name, None, Path(folder))
                added = put(merged, rows)
                try:
                    made = hub.upload_file(
                        path_or_fileobj=merged, path_in_repo=name, repo_id=repository, repo_type="dataset",
                        commit_message=f"specbench: {added}", parent_commit=commit,
                    )  # fmt: skip
                except huggingface_hub.errors.HfHubHTTPError as error:
                    if error.response.status_code not in (409, 412) or attempt == ATTEMPTS - 1:
                        raise
                    continue  # another push came first
                return added, str(made.commit_url)
    except ConfigError:
        raise
    except Exception as error:  # offline, not logged in, no right to write: many classes of several libraries
        raise failure("push to", repository, error) from error
    raise AssertionError("the last attempt returns or raises")


def pull(repository: str, name: str, revision: str | None, to: Path) -> tuple[Added, str]:
    """Puts the rows of a repository's file into a local file. Returns what was added, and the commit.

    Raises ConfigError for an absent or broken file, rows that do not go together, and any failure of the hub.
    """
    check_writable(to)
    with TemporaryDirectory() as folder:
        try:
            commit, file = fetched(repository, name, revision, Path(folder))
        except Exception as error:  # as in `push`
            raise failure("pull from", repository, error) from error
        if not file.exists():
            raise ConfigError(f"dataset '{repository}' has no file '{name}': name another one with --name")
        try:
            rows = load(file)
        except ConfigError as error:
            raise ConfigError(str(error).replace(str(file), f"{repository}/{name}")) from error
    return put(to, [(f"{repository}/{name}: rows.{number}", row) for number, row in enumerate(rows)]), commit


def fetched(repository: str, name: str, revision: str | None, folder: Path) -> tuple[str, Path]:
    """Returns the commit of a repository and the path of its file in a folder, where there is one. Raises what the
    hub's client raises."""
    import huggingface_hub

    info = huggingface_hub.HfApi().dataset_info(repository, revision=revision)
    if name in {sibling.rfilename for sibling in info.siblings or []}:
        huggingface_hub.hf_hub_download(
            repository, name, repo_type="dataset", revision=info.sha, local_dir=folder, force_download=True
        )
    return str(info.sha), folder / name


def without_places(row: Row) -> Row:
    """Returns the row without the places of its run and of its audit's report."""
    evidence = row.evidence and row.evidence.model_copy(update={"report": None})
    return row.model_copy(update={"run": None, "evidence": evidence})


def failure(action: str, repository: str, error: Exception) -> ConfigError:
    reason = next((line.strip() for line in str(error).splitlines() if line.strip()), "no reason given")
    return ConfigError(
        f"cannot {action} dataset '{repository}': {type(error).__name__}: {reason[:200]}: check the name and the "
        "connection, and log in (hf auth login, or HF_TOKEN)"
    )
