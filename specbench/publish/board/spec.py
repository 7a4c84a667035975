"""board.yaml: what a board repository accepts, and which rows of a bundle it does not."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Literal

from packaging.version import InvalidVersion, Version
from pydantic import AfterValidator, Field, field_validator

from specbench.core import dotted
from specbench.core.errors import ConfigError, nearest
from specbench.publish.rules import RULES
from specbench.publish.suite_spec import Count, once
from specbench.results.metric_format import without_digest
from specbench.results.row import ALL, RESULT_FIELDS, Row
from specbench.specs import yaml_files
from specbench.specs.components import Spec, Text, build

FILE = "board.yaml"
Value = bool | int | float | str | None
Policy = Literal["required", "optional"]


def is_version(text: str) -> str:
    """Returns the text of a version. Raises ValueError for any other text."""
    try:
        Version(text)
    except InvalidVersion as error:
        raise ValueError("write a version in quotes, such as '2.6'") from error
    return text


class BoardTask(Spec):
    """A task of a board. `task`: NAME, NAME@VERSION, or NAME@VERSION:DIGEST, which fixes every setting. `subsets`: all
    of them must be measured; if absent, any. `examples`: the fewest of each subset."""

    task: Text
    subsets: Annotated[tuple[Text, ...], Field(min_length=1), AfterValidator(once)] | None = None
    examples: Count = 1

    @property
    def name(self) -> str:
        return without_digest(self.task).partition("@")[0]

    def is_of(self, row: Row) -> bool:
        return self.task in (row.task, without_digest(row.task), row.task_name)


class BoardTarget(Spec):
    """A target of a board. `revision`: of its weights; if absent, any."""

    name: Text
    revision: Text | None = None


class BoardSpec(Spec):
    """What a board accepts. Empty lists accept everything.

    `address`: of its repository, which its rules print. `conditions`: by field of a row, with dotted names for parts,
    the value or list of values that rows may have. `oldest`: by package, the oldest version that rows may be of; older
    rows leave the board. `licences`: of bundles, of which each must state one. `texts`, `signatures`: whether a bundle
    must have the texts that models wrote, and a signature by a key in allowed_signers. `refused_marks`: rules whose
    marks are refused, too. `tolerance`: the change of a speed-up or τ, to the board's row of the same target, task and
    method, beyond which the table of differences points at it, unless its interval contains 1. `most_bundles`,
    `largest_bundle_mb`: of a submission, in MB of 10⁶ bytes.
    """

    title: Text
    address: Text | None = None
    tasks: tuple[BoardTask, ...] = ()
    targets: tuple[BoardTarget, ...] = ()
    conditions: dict[Text, Value | tuple[Value, ...]] = Field(default_factory=dict)
    oldest: dict[Text, Annotated[str, AfterValidator(is_version)]] = Field(default_factory=dict)
    licences: tuple[Text, ...] = ()
    texts: Policy = "required"
    signatures: Policy = "optional"
    refused_marks: tuple[Text, ...] = ()
    tolerance: Annotated[float, Field(gt=0)] = 0.1
    most_bundles: Count = 10
    largest_bundle_mb: Count = 50

    @property
    def licence(self) -> str:
        """The licence that commands propose for a bundle."""
        return self.licences[0] if self.licences else "CC-BY-4.0"

    @field_validator("conditions")
    @classmethod
    def _known_fields(cls, conditions: dict[str, object]) -> dict[str, object]:
        known = [name for name in Row.model_fields if name not in RESULT_FIELDS or name == "shots"]
        for key in conditions:
            if key.partition(".")[0] not in known:
                raise ConfigError(f"conditions.{key}: rows have no such condition: {nearest(key, known)}")
        return conditions

    @field_validator("refused_marks")
    @classmethod
    def _known_rules(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        known = [rule.name for rule in RULES]
        for name in names:
            if name not in known:
                raise ConfigError(f"refused_marks: there is no rule '{name}': {nearest(name, known)}")
        return once(names)

    def misfits(self, row: Row) -> Iterator[str]:
        """Yields "KEY = VALUE: what the board accepts: what to do" for whatever the board does not accept of a row."""
        if self.targets and not any(
            row.target == each.name and each.revision in (None, row.target_revision) for each in self.targets
        ):
            known = [each.name + (f" at {each.revision}" if each.revision else "") for each in self.targets]
            own = f"{row.target} at {row.target_revision}"
            yield f"target = {own:.200}: {FILE} has {', '.join(known)}: measure with one of these"
        task = next((each for each in self.tasks if each.is_of(row)), None)
        if self.tasks and task is None:
            close = nearest(row.task_name, [each.task for each in self.tasks])
            yield f"task = {row.task:.200}: {FILE} does not have it: {close}"
        elif task is not None and (fewest := min(row.examples.values())) < task.examples:
            yield f"n = {fewest}: {FILE} asks for {task.examples} examples of each subset: raise --limit"
        values = dotted.flat(row.model_dump(mode="json"))
        for key, wanted in self.conditions.items():
            allowed = wanted if isinstance(wanted, tuple) else (wanted,)
            own_value = values.get(key)
            if not any(own_value == each and isinstance(own_value, bool) == isinstance(each, bool) for each in allowed):
                told = ", ".join(json.dumps(each, ensure_ascii=False) for each in allowed)
                found = json.dumps(own_value, ensure_ascii=False)
                yield f"{key} = {found:.200}: {FILE} has conditions.{key} = {told}: measure under this condition"
        for package, oldest in self.oldest.items():
            version = row.versions.get(package)
            if version is None or _is_older(version, oldest):
                yield (
                    f"versions.{package} = {version or 'not recorded'!s:.60}: {FILE} takes {oldest} or newer: update "
                    "it and measure again"
                )

    def absent_subsets(self, rows: Sequence[Row]) -> Iterator[str]:
        """Yields a line for each task and method of which the rows of a bundle lack subsets that the board asks for."""
        for task in self.tasks:
            measured: dict[tuple[str, str], set[str]] = {}
            for row in rows:
                if task.is_of(row) and not row.level:
                    own = row.subsets or ([row.subset] if row.subset != ALL else [])
                    measured.setdefault((row.target, row.shown_method), set()).update(own)
            for (_, method), subsets in measured.items():
                if absent := [name for name in task.subsets or () if name not in subsets]:
                    yield (
                        f"{task.name}, {method}: subset = {', '.join(sorted(subsets))}: {FILE} asks for "
                        f"{', '.join(absent)}, too: measure with --subset {','.join(task.subsets or ())}"
                    )


def _is_older(version: str, oldest: str) -> bool:
    try:
        return Version(version) < Version(oldest)
    except InvalidVersion:
        return True


def read_board(folder: Path) -> BoardSpec:
    """Returns what the board in a folder accepts. Raises ConfigError that names file, key and problem."""
    file = folder / FILE
    if not file.is_file() or file.is_symlink():
        raise ConfigError(
            f"{file}: no such file: give the folder of a board repository (`specbench board init` makes one)"
        )
    return build(BoardSpec, yaml_files.read(file), f"{file}: ")
