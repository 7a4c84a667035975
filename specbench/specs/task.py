"""A benchmark task as a frozen model: the keys of tasks/*.yaml, checked when a file is loaded."""

import re
from collections.abc import Mapping
from string import Formatter
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from specbench.core.errors import ConfigError, nearest
from specbench.core.registry import READERS
from specbench.specs import components as dotted
from specbench.specs import templates
from specbench.specs.components import Name, ScorerSpec, Spec, Temperature, Text, Version, build, like_json


def _known_fields(text: str) -> str:
    """Refuses a format string whose fields cannot be filled in."""
    problem = "the only fields are {task}, {subset} and {split}: correct it"
    try:
        parts = list(Formatter().parse(text))
    except ValueError as error:
        raise ValueError(problem) from error
    for _, field, form, conversion in parts:
        if field is not None and (field not in ("task", "subset", "split") or form or conversion):
            raise ValueError(problem)
    return text


def fillable(text: str | None) -> str | None:
    return text if text is None else _known_fields(text)


class DatasetSpec(Spec):
    """The place of the rows on the hub. All keys but `split` and `revision` may hold {task}, {subset} and {split}."""

    path: Text
    """Name of the data set, such as openai/gsm8k."""
    revision: Text = "main"
    """Branch, tag or commit of the data set."""
    name: str | None = None
    """Configuration of the data set."""
    split: Text
    """Split whose rows are measured."""
    data_files: str | None = None
    """Files of the split, with wildcards if needed; only they are read."""
    archive_member: str | None = None
    """File inside the zip that data_files names."""
    first_rows: Annotated[int, Field(ge=1)] | None = None
    """At most so many rows from the beginning, after the reader has dropped some."""
    last_rows: Annotated[int, Field(ge=1)] | None = None
    """At most so many rows from the end, after the reader has dropped some."""

    @field_validator("path", "name", "data_files", "archive_member")
    @classmethod
    def _fillable(cls, text: str | None) -> str | None:
        return fillable(text)

    @model_validator(mode="after")
    def _of_an_archive(self) -> "DatasetSpec":
        if self.archive_member and not (self.data_files or "").endswith(".zip"):
            raise ConfigError("dataset.archive_member: needs the zip that holds it: name it in dataset.data_files")
        if self.first_rows and self.last_rows:
            raise ConfigError("dataset.last_rows: dataset.first_rows is given too: delete one of the two keys")
        return self


class LocalSpec(Spec):
    """The names of the task's files in the folder that --data names; {task}, {subset} and {split} are filled in."""

    files: Annotated[tuple[Text, ...], Field(min_length=1)] = ("{task}_{subset}", "{subset}", "{subset}/{split}*")
    """Names without their extension, with wildcards if needed; the first that exists is read."""
    headerless: tuple[Text, ...] = ()
    """Columns of a csv or tsv whose first row is not a header."""
    parallel: dict[str, Text] = Field(default_factory=dict)
    """Text files with one value a line, by column, with their extension. The files of all columns are aligned line by
    line, and a * stands for the same text in all their names. They are looked for before `files`."""
    shared: Literal[True] | None = None
    """true if several subsets ask different things of the same file; without it that is taken for a mistake."""

    @field_validator("files")
    @classmethod
    def _inside(cls, files: tuple[str, ...]) -> tuple[str, ...]:
        for file in files:
            _check_name(file)
        return files

    @field_validator("parallel")
    @classmethod
    def _aligned(cls, files: dict[str, str]) -> dict[str, str]:
        for file in files.values():
            _check_name(file)
        return files


def _check_name(file: str) -> None:
    if file.startswith("/") or ".." in file.split("/"):
        raise ValueError("names lie inside the data folder: no leading / and no ..")
    _known_fields(file)


class FewshotSpec(Spec):
    """Worked examples before the prompt: `rows`, or the first rows of another split."""

    num_shots: Annotated[int, Field(ge=0)]
    """Number of worked examples."""
    example: Text
    """Template of a worked example."""
    separator: str = "\n\n"
    """Text behind each worked example."""
    rows: tuple[dict[str, Any], ...] = ()
    """The rows of the worked examples themselves."""
    split: Text | None = None
    """Split of the data set on the hub that the worked examples are from."""
    data_files: str | None = None
    """Files of that split."""
    local: LocalSpec | None = None
    """Names of the files of worked examples in a folder."""
    sample: str | None = None
    """File of worked examples beside the bundled sample."""
    same: Text | None = None
    """Column that tells one question from another; without it, all columns that the prompt needs. A measured row with
    the question of a worked example is an error."""

    @field_validator("rows", mode="before")
    @classmethod
    def _plain(cls, rows: Any) -> Any:
        for number, row in enumerate(rows if isinstance(rows, (list, tuple)) else (), start=1):
            like_json(row, f"fewshot.rows, row {number}: ")
        return rows

    @field_validator("data_files")
    @classmethod
    def _fillable(cls, text: str | None) -> str | None:
        return fillable(text)

    @model_validator(mode="after")
    def _enough(self) -> "FewshotSpec":
        if self.rows and self.num_shots > len(self.rows):
            raise ConfigError(f"fewshot.num_shots = {self.num_shots}: fewshot.rows has {len(self.rows)}: lower it")
        if not (self.rows or self.split or self.local or self.sample):
            raise ConfigError("fewshot: has no rows: add `rows`, or the place of another split (`split`, `local`)")
        return self


LANGUAGE_CODE = re.compile(r"(?:[a-z]{2,3}|x)(?:-[A-Za-z0-9]{1,8})*")  # BCP 47; x-… is private
TURN_COLUMNS = ("turn", "turn_index")  # that a row of several turns has in the templates


class GenerationSpec(Spec):
    """How an answer is sampled and where it ends."""

    max_new_tokens: Annotated[int, Field(ge=1)]
    """The most tokens of an answer."""
    stop: tuple[Text, ...] = ()
    """Texts that end an answer and are cut off."""
    chat_stop: tuple[Text, ...] | None = None
    """The same for prompts in the target's chat template; null: those of stop."""
    temperature: Temperature = 0.0
    """Temperature of both models; 0 is greedy."""
    top_k: Annotated[int, Field(ge=1)] | None = None
    """Sample from the so many most probable tokens only."""
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    """Sample from the smallest set of tokens with this much probability only."""

    def where(self, in_chat: bool) -> "GenerationSpec":
        """The same with the stop strings that hold for prompts in a chat template, or outside of one."""
        if not in_chat or self.chat_stop is None:
            return self
        return self.model_copy(update={"stop": self.chat_stop})


class TaskSpec(Spec):
    """A benchmark task: its rows, the prompt made of a row, the score of an answer, and its subsets (languages).

    Templates are written in Jinja and know `row`, a row of the data, and `vars`.
    """

    name: Name
    """Name of the task."""
    version: Version
    """To be raised when the meaning of the task changes."""
    title: Text
    """What the task is, in a few words."""
    paper: str | None = None
    """Paper of the task, such as arXiv:2110.14168."""
    dataset: DatasetSpec | None = None
    """The place of the rows on the hub."""
    local: LocalSpec = LocalSpec()
    """Names of the task's files in the folder that --data names."""
    sample: str | None = None
    """File of the bundled sample, relative to the task's own file."""
    turns: Text | None = None
    """Column that lists what the user says in a conversation; the prompt is then made for each turn, from row.turn and
    row.turn_index."""
    prompt: Text
    """Template of the prompt."""
    fewshot: FewshotSpec | None = None
    """Worked examples before the prompt."""
    truncation: Literal["middle"] | None = None
    """middle: a prompt that is too long for the models loses its middle; null: it is an error. A conversation that grew
    too long by a method's own answers loses its middle in any case."""
    reference: str | dict[Name, Text] | None = None
    """Template of the right answer, or several templates by name."""
    references: Text | None = None
    """Column that lists right answers, in place of reference."""
    reader: str | None = None
    """Reader that turns the rows of another layout into rows of the task."""
    vars: dict[str, Any] = Field(default_factory=dict)
    """Values for the templates, which subsets may change."""
    language: str | None = None
    """Code of the language, such as en or pt-BR."""
    scorer: ScorerSpec | None = None
    """How an answer is scored; null: speed and acceptance alone are measured."""
    judge_with_reference: tuple[Text, ...] = ()
    """Values of the column `category`; a judge is shown the references of such rows."""
    generation: GenerationSpec
    """How an answer is sampled and where it ends."""
    subsets: dict[Name, dict[str, Any]] = Field(default_factory=dict)
    """Keys of the task that a subset changes, by the name of the subset."""

    @property
    def subset_names(self) -> tuple[str, ...]:
        return tuple(self.subsets) or ("default",)

    @property
    def has_sample(self) -> bool:
        """Whether any subset has a bundled sample."""
        return any(self.sample_of(name) for name in self.subset_names)

    def sample_of(self, name: str) -> str | None:
        """The sample of a subset: its own, or the task's."""
        sample: str | None = self.subsets.get(name, {}).get("sample", self.sample)
        return sample

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
        for key, other in (("reference", "references"), ("references", "reference")):
            if over.get(key):
                base[other] = None
        return dotted.merge(base, over)

    @field_validator("vars", mode="before")
    @classmethod
    def _like_json(cls, variables: Any) -> Any:
        like_json(variables, "vars.")
        return variables

    @field_validator("language")
    @classmethod
    def _is_language_code(cls, language: str | None) -> str | None:
        if language is not None and not LANGUAGE_CODE.fullmatch(language):
            raise ConfigError(
                f"language: {language!r} is no language code: write one like en, de-CH or amh (of two letters where "
                "there is one)"
            )
        return language

    @field_validator("subsets")
    @classmethod
    def _free_names(cls, subsets: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
        if "all" in subsets:
            raise ConfigError("subsets.all: the name 'all' is taken by the row over all subsets: choose another")
        return subsets

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
        self._check_references()
        return self

    def _check_references(self) -> None:
        if self.reference and self.references:
            raise ConfigError("references: the task has a `reference` too: delete one of the two keys")
        if self.scorer and self.scorer.needs_reference and not (self.reference or self.references or self.subsets):
            raise ConfigError("reference: the key 'reference' is missing, which the scorer needs: add it")

    def reference_templates(self) -> dict[str, str]:
        """The templates of the reference by their keys: `reference`, or `reference.NAME` for each name."""
        if isinstance(self.reference, Mapping):
            return {f"reference.{name}": template for name, template in self.reference.items()}
        return {"reference": self.reference} if self.reference else {}

    def _templates(self) -> dict[str, str]:
        shots = {"fewshot.example": self.fewshot.example} if self.fewshot else {}
        return {"prompt": self.prompt, **shots, **self.reference_templates()}

    def columns(self) -> frozenset[str]:
        """The columns of a row that the prompt and the reference need."""
        named = {column for column in (self.turns, self.references) if column}
        used = (templates.used(template, "row") for template in (self.prompt, *self.reference_templates().values()))
        return frozenset(named.union(*used) - (set(TURN_COLUMNS) if self.turns else set()))
