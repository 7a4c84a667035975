"""Where the prompts and texts of a training come from."""

from string import Formatter
from typing import Annotated, ClassVar

from pydantic import Field, field_validator, model_validator

from specbench.errors import ConfigError
from specbench.specs.components import Text
from specbench.training.described import Described

Seed = Annotated[int, Field(ge=0, lt=2**63)]


class ParallelSpec(Described):
    """Two text files aligned line by line."""

    source: Text
    """File of the lines that are asked for."""
    target: Text | None = None
    """File of their answers."""
    prompt: Text = "{source}"
    """What is asked, with {source} in the place of the line."""

    @field_validator("prompt")
    @classmethod
    def _fillable(cls, prompt: str) -> str:
        try:
            fields = [field for _, field, _, _ in Formatter().parse(prompt) if field is not None]
        except ValueError as error:
            raise ValueError("write braces that are no field twice: {{ and }}") from error
        if fields != ["source"]:
            raise ValueError("it holds {source} once and no other field: correct it")
        return prompt


class DataSpec(Described):
    """What is trained on, by language (the subset of a task, or the name given to a file)."""

    places: ClassVar[dict[str, str]] = {
        "tasks": "--task", "text": "--text", "parallel": "data.parallel in --config FILE"
    }  # fmt: skip

    tasks: tuple[Text, ...] = ()
    """Benchmark tasks whose rows are taken, or world:NAME for rows of the embedded world that are never measured."""
    subsets: Annotated[tuple[Text, ...], Field(min_length=1)] | None = None
    """Of the tasks; null: all."""
    limit: Annotated[int, Field(ge=1)] | None = None
    """Rows of each subset and file; null: all, and 256 of a subset of the embedded world."""
    source: Text | None = None
    """Of the tasks' rows: hub, sample, or a folder or file."""
    split: Text | None = None
    """Another split of the tasks than the one that is measured."""
    parallel: dict[Text, ParallelSpec] = Field(default_factory=dict)
    """Aligned files by language: {de-en: {source: a.de, target: a.en, prompt: "Translate: {source}"}}."""
    text: dict[Text, Text] = Field(default_factory=dict)
    """Files of texts by language: a line each (.txt), or one column of .jsonl."""
    column: Text = "text"
    """Column of a .jsonl file that holds the text."""

    @model_validator(mode="after")
    def _something(self) -> "DataSpec":
        if not any(getattr(self, key) for key in self.places):
            raise ConfigError(f"data: names nothing to train on: give {' or '.join(self.places.values())}")
        for key in ("subsets", "source", "split"):
            if getattr(self, key) is not None and not self.tasks:
                raise ConfigError(f"data.{key}: has no effect without data.tasks: leave it out, or name a task")
        return self
