"""Tasks and the hub: their files are downloaded before a run, and it is checked where their rows are, since data sets
move, close and change their columns."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Literal, NamedTuple

from rich.console import Console

from specbench.core.console import counted
from specbench.core.errors import ConfigError, nearest
from specbench.specs.catalogue import load_task, task_names, with_overrides
from specbench.specs.task import DatasetSpec, TaskSpec
from specbench.tasks import hub
from specbench.tasks.examples import fewshot_task, make_examples
from specbench.tasks.sources import NoRows, open_hub

FETCH_REMEDY = "repeat this when the hub answers, or run with files of your own (specbench run --data FOLDER)"


def _task_subsets(
    names: Sequence[str], subsets: Sequence[str] | None, overrides: Sequence[str]
) -> list[tuple[TaskSpec, str]]:
    """Returns the subsets of the tasks with their overrides. Raises ConfigError for an unknown task or key, and for a
    subset that no task has."""
    tasks, _ = with_overrides([load_task(name) for name in dict.fromkeys(names)], [], overrides)
    found = [(task, name) for task in tasks for name in task.subset_names]
    known = {name for _, name in found}
    for name in subsets or ():
        if name not in known:
            raise ConfigError(f"--subset {name}: none of the tasks has it: {nearest(name, known)}")
    return [(task, name) for task, name in found if subsets is None or name in subsets]


def fetch_tasks(
    names: Sequence[str], subsets: Sequence[str] | None, overrides: Sequence[str], console: Console
) -> Iterator[str]:
    """Downloads the files of some subsets of tasks, with their few-shot examples, each file once. Prints each file on
    `console` and yields a line for each finished split. Raises ConfigError for an unknown task or subset, a task that
    is not on the hub, a task that takes only the first rows of its files, and any failure of the hub."""
    if not names:
        raise ConfigError("--task is empty: name at least one")
    wanted: dict[DatasetSpec, str] = {}
    for task, subset in _task_subsets(names, subsets, overrides):
        for dataset in hub_locations(task, subset):
            wanted.setdefault(dataset, f"{task.name}/{subset}")
    for dataset, name in wanted.items():
        if dataset.first_rows is not None:  # the other rows would be downloaded for nothing
            raise ConfigError(
                f"{name}: takes the first {dataset.first_rows:,} rows of {dataset.path}, which a run streams, so "
                "nothing is fetched ahead: choose other tasks or subsets, or fetch all its files with "
                "--set dataset.first_rows=null"
            )
    for dataset, name in wanted.items():
        yield f"{name}: {hub.try_locations(dataset, partial(_fetch_split, console=console))}"


def hub_locations(task: TaskSpec, subset: str) -> list[DatasetSpec]:
    """Returns where a subset's rows and its few-shot examples are on the hub."""
    dataset = task.subset(subset).dataset
    if dataset is None:
        raise ConfigError(f"task '{task.name}', subset '{subset}': is not on the hub: run it with --data FOLDER")
    shots = fewshot_task(task, subset, "hub")
    locations = [dataset, shots.dataset if shots is not None else None]
    return [hub.fill_fields(location, task.name, subset) for location in locations if location is not None]


def _fetch_split(dataset: DatasetSpec, console: Console) -> str:
    """Downloads the files of one split. Returns a line with their location, the numbers of rows and bytes, and their
    paths."""
    try:
        commit, sizes = hub.list_files(dataset)
        paths = []
        for name, size in sizes.items():
            size_note = "" if size is None else f" ({size:,} bytes)"
            console.print(f"fetching {dataset.path} {name}{size_note}", markup=False, highlight=False, soft_wrap=True)
            paths.append(hub.download(dataset, commit, name))
        hub.write_note(dataset, commit, list(sizes))
    except ConfigError:
        raise
    except Exception as error:  # no connection, gated, a full disk: many classes of several libraries
        raise hub.make_error(dataset, error, remedy=FETCH_REMEDY) from error
    num_rows = sum(1 for _ in hub.read_rows(dataset, commit))
    num_bytes = sum(path.stat().st_size for path in paths)
    where = paths[0] if len(paths) == 1 else f"{paths[0]} … ({len(paths)} files)"
    counts = f"{counted(num_rows, 'row')}, {counted(num_bytes, 'byte')}"
    return f"{hub.location(dataset)} at {commit[:12]}: {counts}: {where}"


State = Literal["there", "not on the hub", "gated", "moved", "not there", "script only", "other columns", "unreadable"]
FINE: tuple[State, ...] = ("there", "not on the hub", "gated")
NUM_EXAMPLES = 2
MAX_TIMEOUTS = 3  # consecutive ones, after which the check ends
NUM_ROWS = 1000  # rows that are read at most to find one of the subset: a file may begin with other languages


class HubFinding(NamedTuple):
    """The state of one location of a subset. `note`: a line about its rows or its problem."""

    subset: str
    location: str
    state: State
    note: str

    def __str__(self) -> str:
        return ": ".join(filter(None, self))


def check_locations(
    names: Sequence[str], subsets: Sequence[str] | None = None, overrides: Sequence[str] = ()
) -> Iterator[HubFinding]:
    """Yields a finding for every location of the subsets of tasks. `names`: task names, or "all". If the hub cannot be
    reached, or does not answer several times in a row, that is the last finding. Raises ConfigError for an unknown task
    or subset."""
    from huggingface_hub import constants

    if not names:
        raise ConfigError("--check is empty: name at least one task, or all")
    num_timeouts = 0  # consecutive ones
    for task, subset in _task_subsets(task_names() if "all" in names else names, subsets, overrides):
        name = f"{task.name}/{subset}"
        dataset = task.subset(subset).dataset
        if dataset is None:
            yield HubFinding(name, "", "not on the hub", "it is run with --data FOLDER")
            continue
        for location in hub.fill_fields(dataset, task.name, subset).locations():
            location = location.model_copy(update={"first_rows": None, "last_rows": None})
            state, note, connection = _check_location(task, subset, location)
            num_timeouts = num_timeouts + 1 if connection == "timed out" else 0
            if connection == "none" or num_timeouts == MAX_TIMEOUTS:
                problem = "cannot be reached" if not num_timeouts else f"timed out {MAX_TIMEOUTS} times in a row"
                remedy = "check the connection, HF_ENDPOINT and HF_HUB_OFFLINE, then run the command again"
                yield HubFinding(name, constants.ENDPOINT, "unreadable", f"the hub {problem}: {remedy}")
                return
            yield HubFinding(name, f"{hub.location(location)} ({location.revision})", state, note)


def _check_location(task: TaskSpec, subset: str, location: DatasetSpec) -> tuple[State, str, hub.Connection]:
    """Makes prompts of the first rows of a location. Returns its state, a note, and the state of the connection."""
    import huggingface_hub

    try:
        info = huggingface_hub.dataset_info(location.path, revision=location.revision, timeout=hub.TIMEOUT_SECONDS)
    except Exception as error:  # offline, no such dataset, gated: many classes of several libraries
        problem = hub.make_error(location, error, remedy="see its page")
        return *_classify_failure(problem, error), hub.connection_state(error)
    state: State = "there"
    merged = task.subset(subset)
    at_location = merged.model_copy(update={"dataset": location, "subsets": {name: {} for name in task.subsets}})
    try:
        source = open_hub(location, downloads=False)
        first_rows = replace(source, rows=islice(source.rows, NUM_ROWS))
        examples = make_examples(at_location, subset, first_rows, "hub", NUM_EXAMPLES).examples
        note = f"{counted(len(examples), 'example')} read"
        num_missing = sum(reference is None for example in examples for reference in example.references)
        if merged.scorer is not None and merged.scorer.features.needs_reference and num_missing == len(examples):
            raise ConfigError("the first rows have no right answer, which the scorer needs")
    except NoRows:
        note = f"its rows can be read, but the first {NUM_ROWS:,} have none of this subset"
    except ConfigError as error:
        state, note = _classify_failure(error, error.__cause__)
    if info.id != location.path:
        return "moved", f"its name is now {info.id}: {note}", "made"
    return state, note, "made"


def _classify_failure(problem: ConfigError, cause: BaseException | None) -> tuple[State, str]:
    """Returns the state and the note of a location that could not be read. `cause`: the exception of the hub's client,
    if any."""
    kinds = [type(error).__name__ for error in hub.causes(cause)]
    if "GatedRepoError" in kinds or "gated dataset" in str(cause):
        return "gated", "accept its terms on its page and log in"
    if not isinstance(problem, hub.HubError):
        return "other columns", str(problem)
    if "script" in str(cause):
        return "script only", str(problem)
    missing = not kinds or any("NotFound" in kind for kind in kinds)
    return "not there" if missing else "unreadable", str(problem)
