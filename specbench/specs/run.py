"""RunSpec, the configuration of a run, and digests of the meaning of tasks and methods."""

import copy
import json
import math
import weakref
from collections.abc import Mapping
from pathlib import PurePath
from typing import Annotated, Any

from pydantic import Field, field_validator, model_validator

from specbench.core.environment import EMBEDDED
from specbench.core.errors import ConfigError, nearest
from specbench.core.values import text_digest
from specbench.specs.components import Chat, DeviceMap, Dtype, EngineName, Quantize, Spec, Text
from specbench.specs.method import MethodSpec
from specbench.specs.servers import ServersSpec
from specbench.specs.task import TaskSpec

_DIGESTS: dict[int, str] = {}  # cache by id of a live spec, since every row needs the digests of its task and method


class RunSpec(Spec):
    """The configuration of a run: all methods on every subset of every task, with one model pair."""

    tasks: Annotated[tuple[TaskSpec, ...], Field(min_length=1)]
    methods: Annotated[tuple[MethodSpec, ...], Field(min_length=1)]
    servers: ServersSpec | None = None  # None: the methods run in this process
    target: Text
    drafter: Text | None = None
    target_revision: str | None = None
    drafter_revision: str | None = None
    dtype: Dtype = "auto"
    device: Text = "auto"
    quantize: Quantize = "none"
    device_map: DeviceMap = "none"
    engine: EngineName = "auto"
    chat: Chat = "auto"
    chat_template_args: dict[str, Any] = Field(default_factory=dict)
    trust_remote_code: bool = False
    data: Text | None = None  # "hub", "sample", a folder or a file; None: the default
    subsets: Annotated[tuple[str, ...], Field(min_length=1)] | None = None
    subsets_per_task: Annotated[int, Field(ge=1)] | None = None
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    limit: Annotated[int | float, Field(gt=0)] | None = None  # below 1: a share
    repeats: Annotated[int, Field(ge=1)] = 1

    @field_validator("subsets")
    @classmethod
    def _each_once(cls, subsets: tuple[str, ...] | None) -> tuple[str, ...] | None:
        return subsets and tuple(dict.fromkeys(subsets))

    @property
    def changes_target(self) -> dict[str, str]:
        """Returns the options that change how the target is loaded, for which only eager passes work."""
        options = {"--quantize": self.quantize, "--device-map": self.device_map}
        return {option: value for option, value in options.items() if value != "none"}

    @model_validator(mode="after")
    def _target_fits(self) -> "RunSpec":
        for option, value in self.changes_target.items():
            if self.engine in ("graphs", "compiled"):
                raise ConfigError(f"{option} {value}: works only with --engine eager, not {self.engine}")
        if self.device_map != "none" and self.device != "auto":
            raise ConfigError(
                f"--device-map {self.device_map}: selects the target's devices itself: remove --device {self.device}"
            )
        return self

    @model_validator(mode="after")
    def _consistent(self) -> "RunSpec":
        for kind, names in (("task", [t.name for t in self.tasks]), ("method", [m.name for m in self.methods])):
            twice = [name for name in names if names.count(name) > 1]
            if twice:
                raise ConfigError(f"{kind}s: '{twice[0]}' is given twice: give it once")
        drafting = [part for method in self.methods for part in method.parts if part.needs_drafter]
        for part in drafting:
            if self.drafter_of(part) is None:
                other = f" trained for '{self.target}' ({part.checkpoint} is not)" if part.checkpoint else ""
                raise ConfigError(
                    f"drafter: method '{part.name}' needs a drafter model{other}: give one with --drafter"
                )
        own = {part.name: name for part in drafting if (name := own_drafter(part, self.target))}
        if self.drafter is not None and drafting and len(own) == len(drafting):
            name, checkpoint = next(iter(own.items()))
            raise ConfigError(
                f"drafter = '{self.drafter}': method '{name}' names its own drafter, {checkpoint}: remove --drafter, "
                f"or give --set {checkpoint_key(name)}={self.drafter}"
            )
        known = {name for task in self.tasks for name in task.subset_names}
        for name in self.subsets or ():
            if name not in known:
                tasks = ", ".join(f"'{task.name}'" for task in self.tasks)
                raise ConfigError(f"subsets: task {tasks} has no subset '{name}': {nearest(name, known)}")
        return self

    def drafter_of(self, part: MethodSpec) -> str | None:
        """Returns the draft model of a method without routes, or of one route; None if there is none.

        It is the one that the method names, else the run's, else, for the embedded target, the embedded drafter that
        fits the bridge.
        """
        found = own_drafter(part, self.target) or self.drafter
        if found is not None or self.target != EMBEDDED + "target":
            return found
        return embedded_drafter(part.decoder.bridge_type if part.decoder else part.bridge.type)

    @property
    def uses_sample(self) -> bool:
        """Returns whether the rows are the bundled ones, which are the default for embedded models."""
        return self.data == "sample" or (self.data is None and self.target.startswith(EMBEDDED))

    def left_out(self) -> dict[str, list[str]]:
        """Returns the subsets of each task that a run on bundled samples skips because they have none."""
        if not self.uses_sample or self.subsets is not None:
            return {}
        without = {task.name: [n for n in task.subset_names if not task.sample_of(n)] for task in self.tasks}
        return {task.name: without[task.name] for task in self.tasks if task.has_sample and without[task.name]}

    def cells(self) -> list[tuple[TaskSpec, str]]:
        """Returns the (task, subset) pairs in the order in which they run.

        Of each task it takes the first `subsets_per_task` requested subsets, by default of all subsets with data.
        """
        return [(task, name) for task in self.tasks for name in self._subsets_of(task)[: self.subsets_per_task]]

    def _subsets_of(self, task: TaskSpec) -> list[str]:
        if self.subsets is None or not task.subsets:
            absent = self.left_out().get(task.name, [])
            return [name for name in task.subset_names if name not in absent]
        return [name for name in self.subsets if name in task.subset_names]


def own_drafter(part: MethodSpec, target: str) -> str | None:
    """Returns the draft model that a method (or a route) names, or None.

    An embedded drafter counts only for the embedded target. For other targets the user must give a drafter.
    """
    name = part.checkpoint
    if name is None or (name.startswith(EMBEDDED) and target != EMBEDDED + "target"):
        return None
    return name


def checkpoint_key(name: str) -> str:
    """Returns the key of the checkpoint of a method, or of a route that is named METHOD/LANGUAGE."""
    route = name.partition("/")[2]
    return f"routes.{route}.drafter.checkpoint" if route else "drafter.checkpoint"


def versioned_name(spec: TaskSpec | MethodSpec) -> str:
    """Returns name@version:digest."""
    return f"{spec.name}@{spec.version}:{digest(spec)}"


def digest(spec: TaskSpec | MethodSpec) -> str:
    """Returns the first 12 hex digits of the SHA-256 of a spec's canonical JSON, with all defaults filled in.

    The digest does not depend on title, paper, version, sweep, calibration, mirrors and the path of the sample. Absent
    and empty values are equal. For a task with subsets, the JSON is that of all subsets, each merged over the task.
    """
    if id(spec) not in _DIGESTS:
        if isinstance(spec, TaskSpec) and spec.subsets:
            meaning: Any = {name: _meaning(spec.subset(name).model_dump()) for name in spec.subsets}
        else:
            meaning = _meaning(spec.model_dump())
        weakref.finalize(spec, _DIGESTS.pop, id(spec), None)
        _DIGESTS[id(spec)] = _digest_of(meaning)
    return _DIGESTS[id(spec)]


def versioned_name_of_dump(method: Mapping[str, Any]) -> str:
    """Returns name@version:digest of a method's model_dump, as stored in a run's folder."""
    return f"{method['name']}@{method['version']}:{_digest_of(_meaning(copy.deepcopy(method)))}"


def _digest_of(meaning: Any) -> str:
    return text_digest(json.dumps(meaning, sort_keys=True, ensure_ascii=False))


WITHOUT_MEANING = ("title", "paper", "sweep", "version", "sample", "subsets", "calibration")


def _meaning(dump: Mapping[str, Any]) -> Any:
    """Returns the parts of a spec's model_dump that determine what is measured. Changes mappings inside `dump`."""
    meaning = {key: value for key, value in dump.items() if key not in WITHOUT_MEANING}
    (meaning.get("fewshot") or {}).pop("sample", None)
    (meaning.get("dataset") or {}).pop("mirrors", None)  # the same rows elsewhere
    for holder in (meaning, *(meaning.get("routes") or {}).values()):
        for place in ("path", "checkpoint"):  # every row has the digest of the file instead
            holder.get("drafter", {}).pop(place, None)
    if meaning.get("generation", {}).get("chat_stop") == ():
        meaning["generation"]["chat_stop"] = "none"  # differs from an absent value
    if "decoder" in meaning:
        meaning["decoder"]["entry"] = PurePath(meaning["decoder"]["entry"]).name  # rows have the code's digest too
    return _filled(meaning)


def _filled(value: Any) -> Any:
    """Returns a value without absent and empty parts, so that new keys of the schema keep existing digests."""
    if isinstance(value, Mapping):
        return {str(key): _filled(inner) for key, inner in value.items() if inner not in (None, "", (), [], {})}
    if isinstance(value, (list, tuple)):
        return [_filled(inner) for inner in value]
    if isinstance(value, float) and math.isfinite(value) and value.is_integer():
        return int(value)  # 0 and 0.0 are equal
    return value


EMBEDDED_DRAFTERS = {
    "shared": "drafter",
    "intersection": "drafter-bpe",
    "union": "drafter-bpe",
    "retokenize": "drafter-bpe",
    "string": "drafter-bytes",
}


def embedded_drafter(bridge: str) -> str:
    """Returns the default embedded drafter of the embedded target for a bridge."""
    return EMBEDDED + EMBEDDED_DRAFTERS.get(bridge, "drafter")
