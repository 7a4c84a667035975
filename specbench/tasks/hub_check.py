"""Reads the first rows of every location of tasks on the hub, since data sets move, close and change their columns."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import Literal, NamedTuple

from specbench.core.console import counted
from specbench.core.errors import ConfigError
from specbench.specs.catalogue import task_names
from specbench.specs.task import DatasetSpec, TaskSpec
from specbench.tasks import hub
from specbench.tasks.examples import examples_from
from specbench.tasks.fetch import load_chosen
from specbench.tasks.sources import NoRows, hub_source

State = Literal["there", "not on the hub", "gated", "moved", "not there", "script only", "other columns", "unreadable"]
FINE: tuple[State, ...] = ("there", "not on the hub", "gated")
NUM_EXAMPLES = 2
MAX_TIMEOUTS = 3  # in a row, until the check ends
NUM_ROWS = 1000  # rows that are read until a reader takes one, since a file may begin with other languages


class HubFinding(NamedTuple):
    """The state of one location of a subset, and its problem in one line, if any."""

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
    """Yields a finding for every location of the subsets of tasks. `names`: tasks, or the word all.

    A hub that cannot be reached, or that does not answer several times in a row, is the last finding. Raises
    ConfigError for an unknown task or subset.
    """
    tasks = load_chosen(task_names() if "all" in names else names, subsets, overrides)
    if not tasks:
        raise ConfigError("--check is empty: name at least one task, or all")
    num_timeouts = 0  # in a row
    for task in tasks:
        for subset in task.subset_names:
            for found in _subset_findings(task, subset) if subsets is None or subset in subsets else ():
                num_timeouts = num_timeouts + 1 if found.connection == "timed out" else 0
                if found.connection == "none" or num_timeouts == MAX_TIMEOUTS:
                    yield _no_hub(found)
                    return
                yield found


def _no_hub(found: HubFinding) -> HubFinding:
    """Returns the finding in place of those of all further locations."""
    from huggingface_hub import constants

    problem = "cannot be reached" if found.connection == "none" else f"timed out {MAX_TIMEOUTS} times in a row"
    note = f"the hub {problem}: check the connection, HF_ENDPOINT and HF_HUB_OFFLINE, then run the command again"
    return HubFinding(found.subset, constants.ENDPOINT, "unreadable", note, found.connection)


def _subset_findings(task: TaskSpec, subset: str) -> Iterator[HubFinding]:
    name, dataset = f"{task.name}/{subset}", task.subset(subset).dataset
    if dataset is None:
        yield HubFinding(name, "", "not on the hub", "it is run with --data FOLDER")
        return
    for place in hub.filled(dataset, task.name, subset).locations():
        place = place.model_copy(update={"first_rows": None, "last_rows": None})
        yield HubFinding(name, f"{hub.location(place)} ({place.revision})", *_state(task, subset, place))


def _state(task: TaskSpec, subset: str, place: DatasetSpec) -> tuple[State, str, hub.Connection]:
    """Returns the state of a location, a note and its connection: the first rows are read and made into prompts."""
    import huggingface_hub

    try:
        info = huggingface_hub.dataset_info(place.path, revision=place.revision, timeout=hub.TIMEOUT_SECONDS)
    except Exception as error:  # offline, no such dataset, gated: many classes of several libraries
        return *_failed(hub.failure(place, error, way_out="see its page"), error), hub.connection_of(error)
    try:
        note = _read(task, subset, place)
    except ConfigError as error:
        state, note = _failed(error, error.__cause__)
    else:
        state = "there"
    if info.id != place.path:
        return "moved", f"its name is now {info.id}: {note}", "made"
    return state, note, "made"


def _read(task: TaskSpec, subset: str, place: DatasetSpec) -> str:
    """Returns a note on the first examples. Raises ConfigError if there are none."""
    chosen = task.subset(subset)
    alone = chosen.model_copy(update={"dataset": place, "subsets": {name: {} for name in task.subsets}})
    source = hub_source(place, downloads=False)
    first = replace(source, rows=islice(source.rows, NUM_ROWS))
    try:
        data = examples_from(alone, subset, first, "hub", NUM_EXAMPLES)
    except NoRows:
        return f"its rows can be read, but the first {NUM_ROWS:,} have none of this subset"
    without = sum(reference is None for example in data.examples for reference in example.references)
    if chosen.scorer is not None and chosen.scorer.features.needs_reference and without == len(data.examples):
        raise ConfigError("the first rows have no right answer, which the scorer needs")
    return f"{counted(len(data.examples), 'example')} read"


def _failed(problem: ConfigError, cause: BaseException | None) -> tuple[State, str]:
    """Returns the state of a location that could not be read, from the errors of the hub's clients."""
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
