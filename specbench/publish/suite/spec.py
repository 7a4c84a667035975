"""What a suite YAML says: tasks × methods × pairs × temperatures × seeds, and what of it is left out."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from specbench.core.errors import ConfigError, nearest
from specbench.specs.components import Chat, Dtype, Engine, Name, Spec, Temperature, Text

Count = Annotated[int, Field(ge=1)]
Seed = Annotated[int, Field(ge=0, lt=2**63)]


class TaskEntry(Spec):
    """A task, written as its name or as a mapping. `name`: what the suite calls it, where a task is there twice."""

    task: Text
    name: Name | None = None
    subsets: Annotated[tuple[Text, ...], Field(min_length=1)] | None = None
    limit: Count | None = None
    set: tuple[Text, ...] = ()

    @model_validator(mode="before")
    @classmethod
    def _word(cls, data: Any) -> Any:
        return {"task": data} if isinstance(data, str) else data

    @property
    def called(self) -> str:
        """Its name in the suite, which names folders too."""
        return self.name or named(self.task)


class PairSpec(Spec):
    """A target and a drafter; without a target the embedded family."""

    target: Text | None = None
    drafter: Text | None = None
    target_revision: Text | None = None
    drafter_revision: Text | None = None
    dtype: Dtype = "auto"
    engine: Engine = "auto"
    chat: Chat = "auto"
    limit: Count | None = None


class Exclusion(Spec):
    """A part of the grid that is not measured: all that has one of the values of every key that is given."""

    task: Text | tuple[Text, ...] | None = None
    method: Text | tuple[Text, ...] | None = None
    pair: Text | tuple[Text, ...] | None = None
    temperature: Temperature | tuple[Temperature, ...] | None = None
    seed: Seed | tuple[Seed, ...] | None = None

    @model_validator(mode="after")
    def _says_something(self) -> Self:
        if not self.values():
            raise ConfigError(
                "exclude: an entry is empty, which is all: name a task, method, pair, temperature or seed"
            )
        return self

    def values(self) -> dict[str, tuple[Any, ...]]:
        """The values of every key that is given."""
        given = {key: value for key, value in self if value is not None}
        return {key: value if isinstance(value, tuple) else (value,) for key, value in given.items()}

    def holds(self, **place: Any) -> bool:
        """Whether a part of the grid is left out. What `place` does not name must not be asked for."""
        return all(key in place and place[key] in values for key, values in self.values().items())


class SuiteSpec(Spec):
    """A suite. `temperatures`: in place of the task's own. `limit`: examples per subset; the command line wins over the
    pair, the pair over the task, the task over this."""

    name: Name
    title: Text | None = None
    tasks: Annotated[tuple[TaskEntry, ...], Field(min_length=1)]
    methods: Annotated[tuple[Text, ...], Field(min_length=1)]
    pairs: Annotated[dict[Name, PairSpec], Field(min_length=1)]
    temperatures: Annotated[tuple[Temperature, ...], Field(min_length=1)] | None = None
    seeds: Annotated[tuple[Seed, ...], Field(min_length=1)] = (0,)
    limit: Count | None = None
    repeats: Count = 1
    set: tuple[Text, ...] = ()
    exclude: tuple[Exclusion, ...] = ()

    @model_validator(mode="before")
    @classmethod
    def _pairs_without_keys(cls, data: Any) -> Any:
        """`embedded:` with nothing behind it is the embedded family."""
        if not isinstance(data, Mapping) or not isinstance(data.get("pairs"), Mapping):
            return data
        return {**data, "pairs": {name: {} if pair is None else pair for name, pair in data["pairs"].items()}}

    @model_validator(mode="after")
    def _each_once(self) -> Self:
        axes = self.axes()
        for axis, values in axes.items():
            for value in values:
                if values.count(value) > 1:
                    remedy = "give one of them a `name`" if axis == "task" else "give it once"
                    raise ConfigError(f"{PLURALS[axis]}: '{value}' is given twice: {remedy}")
        for number, task in enumerate(self.tasks):
            for subset in task.subsets or ():
                if (task.subsets or ()).count(subset) > 1:
                    raise ConfigError(f"tasks.{number}.subsets: '{subset}' is given twice: give it once")
        if self.temperatures is not None and any(_sets_temperature(text) for text in self._overrides()):
            raise ConfigError("set: generation.temperature is set, and there are `temperatures`: delete one of the two")
        for number, exclusion in enumerate(self.exclude):
            for axis, excluded in exclusion.values().items():
                for value in excluded:
                    if value not in axes[axis]:
                        hint = nearest(str(value), map(str, axes[axis]))
                        raise ConfigError(f"exclude.{number}.{axis} = '{value}': the suite has no such {axis}: {hint}")
        return self

    def axes(self) -> dict[str, tuple[Any, ...]]:
        """The values of every axis, as `exclude` names them; without temperatures there are none."""
        return {
            "pair": tuple(self.pairs), "task": tuple(task.called for task in self.tasks),
            "temperature": self.temperatures or (), "seed": self.seeds,
            "method": tuple(map(named, self.methods)),
        }  # fmt: skip

    def _overrides(self) -> Iterable[str]:
        return (*self.set, *(text for task in self.tasks for text in task.set))


PLURALS = {"pair": "pairs", "task": "tasks", "temperature": "temperatures", "seed": "seeds", "method": "methods"}


def named(name_or_path: str) -> str:
    """What a suite calls a task or method that is given as a name or a file."""
    name = Path(name_or_path).stem if name_or_path.endswith((".yaml", ".yml")) else name_or_path
    return name.replace(":", "-").replace("/", "-")


def _sets_temperature(override: str) -> bool:
    return override.partition("=")[0].strip() == "generation.temperature"
