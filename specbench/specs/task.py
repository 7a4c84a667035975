"""A benchmark task as a frozen model: what tasks/*.yaml may say, checked when it is loaded."""

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from specbench.errors import ConfigError, nearest
from specbench.registry import READERS
from specbench.specs import dotted, templates
from specbench.specs.components import Name, ScorerSpec, Spec, Text, Version, build
from specbench.specs.fewshot import FewshotSpec
from specbench.specs.json_values import like_json
from specbench.specs.places import DatasetSpec, LocalSpec
from specbench.temperature import Temperature

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
