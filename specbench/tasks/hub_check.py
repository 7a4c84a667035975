"""Checks where tasks take their rows from on the hub: data sets move, close and change their columns."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import Literal, NamedTuple

from specbench.core.console import counted
from specbench.core.errors import ConfigError
from specbench.specs.catalogue import task_names
from specbench.specs.task import DatasetSpec, TaskSpec
from specbench.tasks import hub
from specbench.tasks.examples import make_examples
from specbench.tasks.fetch import load_tasks
from specbench.tasks.sources import NoRows, open_hub

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
    note: str = ""
    connection: hub.Connection = "made"

    def __str__(self) -> str:
        return ": ".join(filter(None, self[:4]))


def check_locations(
    names: Sequence[str], subsets: Sequence[str] | None = None, overrides: Sequence[str] = ()
) -> Iterator[HubFinding]:
    """Yields a finding for every location of the subsets of tasks. `names`: task names, or "all".

    If the hub cannot be reached, or does not answer several times in a row, that is the last finding. Raises
    ConfigError for an unknown task or subset.
    """
    tasks = load_tasks(task_names() if "all" in names else names, subsets, overrides)
    if not tasks:
        raise ConfigError("--check is empty: name at least one task, or all")
    num_timeouts = 0  # consecutive ones
    for task in tasks:
        for subset in task.subset_names:
            for found in _subset_findings(task, subset) if subsets is None or subset in subsets else ():
                num_timeouts = num_timeouts + 1 if found.connection == "timed out" else 0
                if found.connection == "none" or num_timeouts == MAX_TIMEOUTS:
                    yield _unreachable(found)
                    return
                yield found


def _unreachable(found: HubFinding) -> HubFinding:
    """Returns the last finding: the hub itself does not answer, so no further location is tried."""
    from huggingface_hub import constants

    problem = "cannot be reached" if found.connection == "none" else f"timed out {MAX_TIMEOUTS} times in a row"
    note = f"the hub {problem}: check the connection, HF_ENDPOINT and HF_HUB_OFFLINE, then run the command again"
    return HubFinding(found.subset, constants.ENDPOINT, "unreadable", note, found.connection)


def _subset_findings(task: TaskSpec, subset: str) -> Iterator[HubFinding]:
    name, dataset = f"{task.name}/{subset}", task.subset(subset).dataset
    if dataset is None:
        yield HubFinding(name, "", "not on the hub", "it is run with --data FOLDER")
        return
    for location in hub.fill_fields(dataset, task.name, subset).locations():
        location = location.model_copy(update={"first_rows": None, "last_rows": None})
        label = f"{hub.location(location)} ({location.revision})"
        yield HubFinding(name, label, *_check_location(task, subset, location))


def _check_location(task: TaskSpec, subset: str, location: DatasetSpec) -> tuple[State, str, hub.Connection]:
    """Makes prompts of the first rows of a location. Returns its state, a note, and the state of the connection."""
    import huggingface_hub

    try:
        info = huggingface_hub.dataset_info(location.path, revision=location.revision, timeout=hub.TIMEOUT_SECONDS)
    except Exception as error:  # offline, no such dataset, gated: many classes of several libraries
        problem = hub.make_error(location, error, remedy="see its page")
        return *_classify_failure(problem, error), hub.connection_state(error)
    try:
        note = _read_examples(task, subset, location)
    except ConfigError as error:
        state, note = _classify_failure(error, error.__cause__)
    else:
        state = "there"
    if info.id != location.path:
        return "moved", f"its name is now {info.id}: {note}", "made"
    return state, note, "made"


def _read_examples(task: TaskSpec, subset: str, location: DatasetSpec) -> str:
    """Returns a note on the first examples. Raises ConfigError if there are none."""
    merged = task.subset(subset)
    at_location = merged.model_copy(update={"dataset": location, "subsets": {name: {} for name in task.subsets}})
    source = open_hub(location, downloads=False)
    first_rows = replace(source, rows=islice(source.rows, NUM_ROWS))
    try:
        data = make_examples(at_location, subset, first_rows, "hub", NUM_EXAMPLES)
    except NoRows:
        return f"its rows can be read, but the first {NUM_ROWS:,} have none of this subset"
    num_missing = sum(reference is None for example in data.examples for reference in example.references)
    if merged.scorer is not None and merged.scorer.features.needs_reference and num_missing == len(data.examples):
        raise ConfigError("the first rows have no right answer, which the scorer needs")
    return f"{counted(len(data.examples), 'example')} read"


def _classify_failure(problem: ConfigError, cause: BaseException | None) -> tuple[State, str]:
    """Returns the state and the note of a location that could not be read. `cause`: the exception of the hub's client,
    if any."""
    kinds, error = [], cause
    while error is not None:
        kinds.append(type(error).__name__)
        error = error.__cause__ or error.__context__
    if "GatedRepoError" in kinds or "gated dataset" in str(cause):
        return "gated", "accept its terms on its page and log in"
    if not isinstance(problem, hub.HubError):
        return "other columns", str(problem)
    if "script" in str(cause):
        return "script only", str(problem)
    missing = not kinds or any("NotFound" in kind for kind in kinds)
    return "not there" if missing else "unreadable", str(problem)
