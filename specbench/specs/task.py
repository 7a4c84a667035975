"""A benchmark task as a frozen model: what tasks/*.yaml may say, checked when it is loaded."""

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field, field_validator, model_validator

from specbench.errors import ConfigError, nearest
from specbench.registry import READERS
from specbench.specs import dotted, templates
from specbench.specs.components import Name, ScorerSpec, Spec, Text, Version, build


class GenerationSpec(Spec):
    """How an answer is sampled and where it ends. Temperature 0 is greedy."""

    max_new_tokens: Annotated[int, Field(ge=1)]
    stop: tuple[Text, ...] = ()
    temperature: Annotated[float, Field(ge=0)] = 0.0
    top_k: Annotated[int, Field(ge=1)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None


def _known_fields(text: str) -> str:
    """Refuses a format string whose fields cannot be filled in."""
    try:
        text.format(task="", subset="", split="")
    except (KeyError, IndexError, ValueError, AttributeError) as error:
        raise ValueError("the only fields are {task}, {subset} and {split}: correct it") from error
    return text


class DatasetSpec(Spec):
    """Where the rows are on the hub. `path`, `name` and `data_files` may hold {task}, {subset} and {split}."""

    path: Text
    revision: Text = "main"
    name: str | None = None
    split: Text
    data_files: str | None = None

    @field_validator("path", "name", "data_files")
    @classmethod
    def _fillable(cls, text: str | None) -> str | None:
        return text if text is None else _known_fields(text)


class LocalSpec(Spec):
    """What local files are called, without their extension; {task}, {subset}, {split} and wildcards are filled in.

    `headerless`: the columns of a csv or tsv whose first row names none of the columns.
    """

    files: Annotated[tuple[Text, ...], Field(min_length=1)] = ("{task}_{subset}", "{subset}", "{subset}/{split}*")
    headerless: tuple[Text, ...] = ()

    @field_validator("files")
    @classmethod
    def _inside(cls, files: tuple[str, ...]) -> tuple[str, ...]:
        for file in files:
            if file.startswith("/") or ".." in file.split("/"):
                raise ValueError("names lie inside the data folder: no leading / and no ..")
            _known_fields(file)
        return files


class TaskSpec(Spec):
    """A benchmark task: its rows, the prompt made of a row, the score of an answer, and its subsets (languages).

    `sample` is a path relative to the task's own file; the catalogue makes it absolute.
    """

    name: Name
    version: Version
    title: Text
    paper: str | None = None
    dataset: DatasetSpec | None = None
    local: LocalSpec = LocalSpec()
    sample: str | None = None
    prompt: Text
    reference: str | None = None
    reader: str | None = None
    vars: dict[str, Any] = Field(default_factory=dict)
    language: str | None = None
    scorer: ScorerSpec | None = None
    generation: GenerationSpec
    subsets: dict[Name, dict[str, Any]] = Field(default_factory=dict)

    @property
    def subset_names(self) -> tuple[str, ...]:
        return tuple(self.subsets) or ("default",)

    def subset(self, name: str) -> "TaskSpec":
        """The task with one subset merged over it. Raises ConfigError naming the nearest subset."""
        if name not in self.subset_names:
            raise ConfigError(f"task '{self.name}' has no subset '{name}': {nearest(name, self.subset_names)}")
        if not self.subsets:
            return self
        return build(TaskSpec, self._merged(self.subsets[name]), prefix=f"subsets.{name}.")

    def _merged(self, over: Mapping[str, Any]) -> dict[str, Any]:
        base = self.model_dump(exclude={"subsets"})
        if isinstance(over.get("scorer"), Mapping) and "type" in over["scorer"]:
            base["scorer"] = None  # the options of one scorer are not those of another
        return dotted.merge(base, over)

    @model_validator(mode="after")
    def _complete(self) -> "TaskSpec":
        for name, over in self.subsets.items():
            fixed = sorted({"name", "version", "title", "paper", "subsets"} & set(over))
            if fixed:
                raise ConfigError(f"subsets.{name}.{fixed[0]}: a subset cannot change '{fixed[0]}': delete the key")
            self.subset(name)
        if self.reader is not None and self.reader not in READERS.names():
            raise ConfigError(f"reader: unknown reader '{self.reader}': {nearest(self.reader, READERS.names())}")
        for key, template in self._templates().items():
            templates.check(template, key)
            unset = sorted(templates.used(template, "vars") - set(self.vars)) if not self.subsets else []
            if unset:
                raise ConfigError(f"{key}: vars.{unset[0]} is not set: {nearest(unset[0], self.vars)}")
        if self.scorer and not self.reference and not self.subsets:
            raise ConfigError("reference: the key 'reference' is missing, which the scorer needs: add it")
        return self

    def _templates(self) -> dict[str, str]:
        return {"prompt": self.prompt} | ({"reference": self.reference} if self.reference else {})

    def columns(self) -> frozenset[str]:
        """The columns of a row that the templates need."""
        return frozenset().union(*(templates.used(template, "row") for template in self._templates().values()))
