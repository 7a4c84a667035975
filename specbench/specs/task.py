"""A benchmark task as a frozen model: what tasks/*.yaml may say, checked when it is loaded."""

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
    """Where the rows are on the hub. All but `split` and `revision` may hold {task}, {subset} and {split}.

    `data_files` names the files of the split, wildcards allowed; only they are read. `archive_member`: the file inside
    the zip that `data_files` names. `first_rows` or `last_rows`: no more than so many of the rows that the reader
    leaves.
    """

    path: Text
    revision: Text = "main"
    name: str | None = None
    split: Text
    data_files: str | None = None
    archive_member: str | None = None
    first_rows: Annotated[int, Field(ge=1)] | None = None
    last_rows: Annotated[int, Field(ge=1)] | None = None

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
    """What local files are called, without their extension; {task}, {subset}, {split} and wildcards are filled in.

    `headerless`: the columns of a csv or tsv whose first row names none of the columns. `parallel`: column → name, with
    its extension, of a text file with one value a line; the files of all columns are aligned line by line, and a * is
    the same text in all their names. They are looked for before `files`. `shared`: true where several subsets ask
    different things of the same file; without it that is taken for a mistake.
    """

    files: Annotated[tuple[Text, ...], Field(min_length=1)] = ("{task}_{subset}", "{subset}", "{subset}/{split}*")
    headerless: tuple[Text, ...] = ()
    parallel: dict[str, Text] = Field(default_factory=dict)
    shared: Literal[True] | None = None

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
    """The first `num_shots` of `rows`, or, without them, of the place beside the test rows: `split` and `data_files` on
    the hub, `local` in a folder, `sample` beside the bundled sample.

    `same`: the column that tells one question from another, without it all that the prompt needs, lists in any order: a
    test row with the question of a worked example is an error. The text before the prompt is `example` over each row,
    each followed by `separator`.
    """

    num_shots: Annotated[int, Field(ge=0)]
    example: Text
    separator: str = "\n\n"
    rows: tuple[dict[str, Any], ...] = ()
    split: Text | None = None
    data_files: str | None = None
    local: LocalSpec | None = None
    sample: str | None = None
    same: Text | None = None

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
    """How an answer is sampled and where it ends. Temperature 0 is greedy.

    `chat_stop`: the stop strings where the target's prompts go through its chat template; null means those of `stop`.
    """

    max_new_tokens: Annotated[int, Field(ge=1)]
    stop: tuple[Text, ...] = ()
    chat_stop: tuple[Text, ...] | None = None
    temperature: Temperature = 0.0
    top_k: Annotated[int, Field(ge=1)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None

    def where(self, in_chat: bool) -> "GenerationSpec":
        """The same with the stop strings that hold for prompts in a chat template, or outside of one."""
        if not in_chat or self.chat_stop is None:
            return self
        return self.model_copy(update={"stop": self.chat_stop})


class TaskSpec(Spec):
    """A benchmark task: its rows, the prompt made of a row, the score of an answer, and its subsets (languages).

    `turns`: the column that lists what the user says; `prompt` is then made for each, from `row.turn` and
    `row.turn_index`. `reference`: a template, or several by name; or `references`, the column that lists right answers.
    `truncation`: what happens to a prompt that is too long for the models; without it that is an error. A conversation
    that has grown too long with a method's own answers loses its middle with or without it.
    `judge_with_reference`: values of the column `category`; of such rows a judge is shown the references.
    `sample` is a path relative to the task's own file; the catalogue makes it absolute.
    """

    name: Name
    version: Version
    title: Text
    paper: str | None = None
    dataset: DatasetSpec | None = None
    local: LocalSpec = LocalSpec()
    sample: str | None = None
    turns: Text | None = None
    prompt: Text
    fewshot: FewshotSpec | None = None
    truncation: Literal["middle"] | None = None
    reference: str | dict[Name, Text] | None = None
    references: Text | None = None
    reader: str | None = None
    vars: dict[str, Any] = Field(default_factory=dict)
    language: str | None = None
    scorer: ScorerSpec | None = None
    judge_with_reference: tuple[Text, ...] = ()
    generation: GenerationSpec
    subsets: dict[Name, dict[str, Any]] = Field(default_factory=dict)

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
