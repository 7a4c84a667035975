"""measurements.json in the folder of a run: the facts of each command that its rows need beside the records.

Rows are made from the folder alone: run.json holds the conditions, specs.json the specs, records.jsonl the answers, and
this file the rest.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, FiniteFloat, NonNegativeInt, PositiveInt, ValidationError

from specbench.core import bounded
from specbench.core.errors import ConfigError
from specbench.core.files import write_atomically
from specbench.results.bootstrap import FilePart
from specbench.tasks.prompts import FewshotInfo

FILE = "measurements.json"
REMEDY = "repeat the command of the run, which writes it again and measures nothing that is there"


class MeasuredSubset(FilePart):
    """The number of examples of a subset that were measured, and the sources of its data and worked examples."""

    task: str
    subset: str
    num_examples: NonNegativeInt
    source: Literal["hub", "local", "sample"]
    location: str
    revision: str | None
    worked: FewshotInfo


class Ties(FilePart):
    """How many greedy answers of a method are not AR's, and at how many of these the target is undecided: both
    logits are within `tolerance` of the highest (`specbench.results.greedy`)."""

    task: str
    subset: str
    method: str
    num_different: PositiveInt
    num_near_ties: NonNegativeInt
    tolerance: FiniteFloat


class Measurement(FilePart):
    """What one command measured. `request`: its settings. `chat`: whether prompts went through the chat template.

    `other_vocabulary`: the methods whose drafter decodes alone in tokens that are not the target's. `trained_on`: by
    method the digests of the measured prompts that its drafter was trained on.
    """

    command: str
    request: dict[str, Any] = Field(default_factory=dict)
    repeats: PositiveInt
    chat: bool
    subsets: tuple[MeasuredSubset, ...]
    other_vocabulary: tuple[str, ...] = ()
    trained_on: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    ties: tuple[Ties, ...] = ()

    def of_task(self, task: str) -> list[MeasuredSubset]:
        """Returns the subsets of a task in the order in which they were measured."""
        return [part for part in self.subsets if part.task == task]


class _File(FilePart):
    measurements: tuple[Measurement, ...]


def read_measurements(folder: Path) -> tuple[Measurement, ...]:
    """Returns what the commands measured, the first one first. Raises ConfigError for an absent or broken file."""
    path = folder / FILE
    try:
        return _File.model_validate(bounded.read_json(path, REMEDY)).measurements
    except ValidationError as error:
        problem: Any = error.errors()[0]
        key = ".".join(map(str, problem["loc"]))
        raise ConfigError(f"{path}: {key} = {problem['input']!r:.60}: {problem['msg']}: {REMEDY}") from error


def add_measurement(folder: Path, measurement: Measurement) -> None:
    """Put a measurement behind those of earlier commands; one that is there already stays where it is.

    Raises ConfigError where the disk refuses. A broken file is replaced.
    """
    path = folder / FILE
    try:
        known: Sequence[Measurement] = read_measurements(folder)
    except ConfigError:
        known = ()
    if measurement in known:
        return
    content = _File(measurements=(*known, measurement)).model_dump(mode="json")
    try:
        write_atomically(path, json.dumps(content, ensure_ascii=False, indent=1) + "\n")
    except OSError as error:
        raise ConfigError(f"{path}: cannot write it ({error.strerror or error})") from error
