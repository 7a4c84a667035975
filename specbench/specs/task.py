"""TaskSpec: the keys of tasks/*.yaml, checked when a file is loaded."""

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, Field, field_validator

from specbench.core import dotted
from specbench.core.errors import ConfigError, nearest
from specbench.core.reasoning import TAGS, Tags
from specbench.core.registry import READERS, Registry
from specbench.specs import templates
from specbench.specs.components import (
    Name,
    ScorerSpec,
    Spec,
    Temperature,
    Text,
    Version,
    build,
    check_json_values,
    check_registered,
)

FIELDS = ("task", "subset", "split")
FIELD = re.compile(r"\{(\w+)\}")
FILE_FIELDS = "the only fields are {task}, {subset}, {split} and the names of vars: correct it"


def _check_fields(text: str) -> str:
    if not {*FIELD.findall(text)} <= {*FIELDS} or re.search("[{}]", FIELD.sub("", text)):
        raise ValueError("the only fields are {task}, {subset} and {split}: correct it")
    return text


AnyFiles = TypeVar("AnyFiles", tuple[str, ...], dict[str, str])


def _texts(files: tuple[str, ...] | dict[str, str]) -> tuple[str, ...]:
    return (*files, *files.values()) if isinstance(files, dict) else files


def _check_files(files: AnyFiles) -> AnyFiles:
    for file in files.values() if isinstance(files, dict) else files:
        if file.startswith("/") or ".." in file.split("/"):
            raise ValueError("names must be inside the data folder: no leading / and no ..")
    if any(re.search("[{}]", FIELD.sub("", text)) for text in _texts(files)):
        raise ValueError(FILE_FIELDS)
    return files


Format = Annotated[str, AfterValidator(_check_fields)]


class LocationSpec(Spec):
    """A place on the hub. All keys except `revision` may contain {task}, {subset} and {split}."""

    path: Annotated[Format, Field(min_length=1)]
    """Name of the data set, such as openai/gsm8k."""
    revision: Text = "main"
    """Branch, tag or commit."""
    name: Format | None = None
    """Configuration."""
    data_files: Format | None = None
    """Files of the split, with wildcards if needed; only these are read."""
    archive_member: Format | None = None
    """File inside the zip archive that data_files names."""


class MirrorSpec(LocationSpec):
    """Another location with the same rows. If it gives none of `name`, `data_files` and `archive_member`, it has the
    data set's."""


class DatasetSpec(LocationSpec):
    """The data set on the hub. All keys except `split` and `revision` may contain {task}, {subset} and {split}."""

    split: Text
    """Split that the measured rows come from."""
    first_rows: Annotated[int, Field(ge=1)] | None = None
    """Maximum number of rows, from the beginning, after the reader has dropped some."""
    last_rows: Annotated[int, Field(ge=1)] | None = None
    """Maximum number of rows, from the end, after the reader has dropped some."""
    mirrors: tuple[MirrorSpec, ...] = ()
    """Other locations with the same rows. They are tried in turn when the data set cannot be read."""

    def check(self) -> None:
        if self.archive_member and not (self.data_files or "").endswith(".zip"):
            raise ConfigError("dataset.archive_member: the zip archive is missing: name it in dataset.data_files")
        if self.first_rows and self.last_rows:
            raise ConfigError("dataset.last_rows: dataset.first_rows is also given: delete one of the two keys")

    def locations(self) -> list["DatasetSpec"]:
        """Returns the data set without its mirrors, and each mirror as a data set."""
        locations = [self.model_copy(update={"mirrors": ()})]
        layout = ("name", "data_files", "archive_member")
        for mirror in self.mirrors:
            keys = ("path", "revision", *(layout if any(getattr(mirror, key) for key in layout) else ()))
            locations.append(locations[0].model_copy(update={key: getattr(mirror, key) for key in keys}))
        return locations


class LocalSpec(Spec):
    """Names of the task's files in the folder of --data; {task}, {subset}, {split} and {NAME} for each of the task's
    vars are filled in."""

    files: Annotated[tuple[Text, ...], Field(min_length=1), AfterValidator(_check_files)] = (
        "{task}_{subset}",
        "{subset}",
        "{subset}/{split}*",
    )
    """File names without extension, with wildcards if needed. The first existing one is read."""
    column_names: tuple[Text, ...] = ()
    """Names of the columns of a csv or tsv file without a header row."""
    parallel: Annotated[dict[str, Text], AfterValidator(_check_files)] = Field(default_factory=dict)
    """Text files (with extension) by column, with one value per line. The files of all columns are aligned line by
    line, and a * is the same text in all names. The code of a language in vars also covers its other codes
    (grn: gn). They are tried before `files`."""
    subsets_share_files: Literal[True] | None = None
    """true: several subsets may read the same file for different prompts; otherwise that is an error."""


class FewshotSpec(Spec):
    """Few-shot examples before the prompt: `rows`, or the first rows of another split."""

    num_shots: Annotated[int, Field(ge=0)]
    """Number of few-shot examples."""
    example: Text
    """Template of a few-shot example."""
    separator: str = "\n\n"
    """Text after each few-shot example."""
    rows: tuple[dict[str, object], ...] = ()
    """Rows of the few-shot examples."""
    split: Text | None = None
    """Split of the hub data set that the few-shot examples come from."""
    data_files: Format | None = None
    """Files of that split."""
    local: LocalSpec | None = None
    """Names of the few-shot files in the folder of --data."""
    sample: str | None = None
    """File with the few-shot examples of the bundled sample."""
    question_column: Text | None = None
    """Column that identifies a question; null: all columns that the prompt needs. A measured row must not have the
    question of a few-shot example."""

    def check(self) -> None:
        for number, row in enumerate(self.rows, start=1):
            check_json_values(row, f"fewshot.rows, row {number}: ")
        if self.rows and self.num_shots > len(self.rows):
            raise ConfigError(f"fewshot.num_shots = {self.num_shots}: fewshot.rows has {len(self.rows)}: lower it")
        if not (self.rows or self.split or self.local or self.sample):
            raise ConfigError("fewshot: has no rows: add `rows`, or another split (`split`, `local`)")


LANGUAGE_CODE = re.compile(r"(?:[a-z]{2,3}|x)(?:-[A-Za-z0-9]{1,8})*")  # BCP 47; x-… is for private use


class GenerationSpec(Spec):
    """Sampling and stop conditions of an answer."""

    max_new_tokens: Annotated[int, Field(ge=1)]
    """Maximum number of tokens of an answer."""
    stop: tuple[Text, ...] = ()
    """Stop strings. They end an answer and are cut off."""
    chat_stop: tuple[Text, ...] | None = None
    """Stop strings of prompts in the target's chat template; null: the same as stop."""
    temperature: Temperature = 0.0
    """Temperature of both models; 0 is greedy."""
    top_k: Annotated[int, Field(ge=1)] | None = None
    """Sample only from this number of most probable tokens."""
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    """Sample only from the smallest set of tokens with at least this total probability."""
    reasoning_tags: tuple[Text, Text] | None = TAGS
    """Opening and closing tag of reasoning, which is not part of the answer; null: all text is the answer. The prompt
    may end with the opening tag instead, as chat templates of models that always reason do."""

    @property
    def reasoning(self) -> Tags | None:
        return None if self.reasoning_tags is None else Tags(*self.reasoning_tags)

    @field_validator("reasoning_tags")
    @classmethod
    def _check_tags(cls, tags: tuple[str, str] | None) -> tuple[str, str] | None:
        if tags is not None and (not all(map(str.strip, tags)) or tags[0] in tags[1] or tags[1] in tags[0]):
            raise ValueError('write two tags that can be told apart, such as ["<think>", "</think>"]')
        return tags

    def where(self, in_chat: bool) -> "GenerationSpec":
        """Returns the spec with the stop strings of prompts inside (`in_chat`) or outside a chat template."""
        if not in_chat or self.chat_stop is None:
            return self
        return self.model_copy(update={"stop": self.chat_stop})


class TaskSpec(Spec):
    """A benchmark task: its rows, the prompt of a row, the score of an answer, and its subsets (languages).

    Templates are written in Jinja and have two variables: `row`, a row of the data, and `vars`.
    """

    name: Name
    """Name of the task."""
    version: Version
    """Version, to be increased when the meaning of the task changes."""
    title: Text
    """Description in a few words."""
    paper: str | None = None
    """Paper of the task, such as arXiv:2110.14168."""
    dataset: DatasetSpec | None = None
    """Data set on the hub."""
    local: LocalSpec = LocalSpec()
    """Names of the task's files in the folder of --data."""
    sample: str | None = None
    """File of the bundled sample, relative to the task's own file."""
    turns: Text | None = None
    """Column with the list of a conversation's user turns. The prompt of each turn is made from row.turn and
    row.turn_index."""
    prompt: Text
    """Template of the prompt."""
    system: Text | None = None
    """Template of the system prompt, which may use vars but not row; --system-instruction replaces it."""
    fewshot: FewshotSpec | None = None
    """Few-shot examples before the prompt."""
    truncation: Literal["middle"] | None = None
    """middle: the middle of a prompt that is too long for the models is removed; null: such a prompt is an error. If a
    method's answers make a conversation too long, its middle is always removed."""
    max_prompt_tokens: Annotated[int, Field(ge=16)] | None = None
    """Maximum length of a prompt in tokens of the target, chat template included, if it is less than the models take.
    Needs truncation."""
    reference: str | dict[Name, Text] | None = None
    """Template of the reference answer, or several templates by name."""
    references: Text | None = None
    """Column with a list of reference answers, in place of reference."""
    reader: str | None = None
    """Reader that converts rows of another layout into rows of the task."""
    vars: dict[str, object] = Field(default_factory=dict)
    """Values for the templates; subsets may change them."""
    language: str | None = None
    """Language code, such as en or pt-BR."""
    scorer: ScorerSpec | None = None
    """Scorer of the answers; null: only speed and acceptance are measured."""
    judge_reference_categories: tuple[Text, ...] = ()
    """Values of the column `category` for which a judge sees the references."""
    generation: GenerationSpec
    """Sampling and stop conditions of an answer."""
    subsets: dict[Name, dict[str, Any]] = Field(default_factory=dict)
    """Keys of the task that a subset changes, by name of the subset."""

    @property
    def subset_names(self) -> tuple[str, ...]:
        return tuple(self.subsets) or ("default",)

    @property
    def components(self) -> list[tuple[Registry[..., Any], str]]:
        """Returns registry and name of the reader and the scorer of a task that is merged with its subset."""
        scorer = [] if self.scorer is None else [(self.scorer.registry, self.scorer.name)]
        return [*scorer, *([] if self.reader is None else [(READERS, self.reader)])]

    @property
    def has_sample(self) -> bool:
        """Returns whether any subset has a bundled sample."""
        return any(self.sample_of(name) for name in self.subset_names)

    def sample_of(self, name: str) -> str | None:
        """Returns the sample file of a subset, by default the task's; None if there is none."""
        sample: str | None = self.subsets.get(name, {}).get("sample", self.sample)
        return sample

    def subset(self, name: str) -> "TaskSpec":
        """Returns the task with a subset's keys merged over it. Raises ConfigError with the nearest name."""
        if name not in self.subset_names:
            raise ConfigError(f"task '{self.name}' has no subset '{name}': {nearest(name, self.subset_names)}")
        if not self.subsets:
            return self
        base = self.model_dump(exclude={"subsets"})
        over = self.subsets[name]
        if isinstance(over.get("scorer"), Mapping) and "type" in over["scorer"]:
            base["scorer"] = None  # another scorer has other options
        for key, other in (("reference", "references"), ("references", "reference")):
            if over.get(key):
                base[other] = None
        return build(TaskSpec, dotted.merge(base, over), prefix=f"subsets.{name}.")

    def check(self) -> None:
        check_json_values(self.vars, "vars.")
        if self.language is not None and not LANGUAGE_CODE.fullmatch(self.language):
            raise ConfigError(
                f"language: {self.language!r} is not a language code: write one such as en, de-CH or amh (the code "
                "with two letters if there is one)"
            )
        if "all" in self.subsets:
            raise ConfigError("subsets.all: 'all' is the name of the row over all subsets: choose another name")
        for name, over in self.subsets.items():
            fixed = sorted({"name", "version", "title", "paper", "subsets"} & set(over))
            if fixed:
                raise ConfigError(f"subsets.{name}.{fixed[0]}: a subset cannot change '{fixed[0]}': delete the key")
            self.subset(name)
        if self.reader is not None:
            check_registered(READERS, self.reader, "reader")
        if not self.subsets:
            self._check_file_names()
        self._check_templates()
        if self.max_prompt_tokens is not None and self.truncation is None and not self.subsets:
            raise ConfigError(
                f"max_prompt_tokens = {self.max_prompt_tokens}: prompts of this task are not cut: take a task of long "
                "documents, such as scrolls, or give truncation: middle too (--set truncation=middle)"
            )
        if self.reference and self.references:
            raise ConfigError("references: the task also has a `reference`: delete one of the two keys")
        needs_one = self.scorer is not None and self.scorer.features.needs_reference
        if needs_one and not (self.reference or self.references or self.subsets):
            raise ConfigError("reference: the key 'reference' is missing, which the scorer needs: add it")

    def _check_file_names(self) -> None:
        for place, local in (("local", self.local), ("fewshot.local", self.fewshot and self.fewshot.local)):
            texts = (*local.files, *_texts(local.parallel)) if local else ()
            for name in sorted({field for text in texts for field in FIELD.findall(text)} - {*FIELDS}):
                if name not in self.vars:
                    raise ConfigError(
                        f"{place}: {{{name}}}: {FILE_FIELDS.partition(':')[0]}: {nearest(name, self.vars)}"
                    )
                if not re.fullmatch(r"[\w-]+", value := str(self.vars[name])):
                    raise ConfigError(
                        f"vars.{name} = {value!r:.60}: is part of a file name: use letters, digits, - and _"
                    )

    def file_fields(self, subset: str) -> dict[str, str]:
        """Returns the texts that stand for the fields in the names of a merged subset's local files."""
        split = self.dataset.split if self.dataset else "test"
        return {
            **{name: str(value) for name, value in self.vars.items()},
            "task": self.name,
            "subset": subset,
            "split": split,
        }

    def _check_templates(self) -> None:
        shots = {"fewshot.example": self.fewshot.example} if self.fewshot else {}
        system = {"system": self.system} if self.system else {}
        for key, template in {"prompt": self.prompt, **system, **shots, **self.reference_templates()}.items():
            templates.check(template, key)
            if key == "system" and (columns := templates.used(template, "row")):
                raise ConfigError(
                    f"system: uses row.{min(columns)}, but all rows share the system prompt: move it into prompt"
                )
            unset = sorted(templates.used(template, "vars") - set(self.vars)) if not self.subsets else []
            if unset:
                raise ConfigError(f"{key}: vars.{unset[0]} is not set: {nearest(unset[0], self.vars)}")

    @property
    def system_prompt(self) -> str | None:
        """Returns the text of the system prompt of a task that is merged with its subset; None without one."""
        return None if self.system is None else templates.render(self.system, {}, self.vars)

    def reference_templates(self) -> dict[str, str]:
        """Returns the reference templates by key: `reference`, or `reference.NAME` for each name."""
        if isinstance(self.reference, Mapping):
            return {f"reference.{name}": template for name, template in self.reference.items()}
        return {"reference": self.reference} if self.reference else {}
