"""Where the prompts and texts of a training come from."""

from string import Formatter
from typing import Annotated

from pydantic import Field, field_validator, model_validator

from specbench.errors import ConfigError
from specbench.specs.components import Spec, Text


class ParallelSpec(Spec):
    """Two text files aligned line by line. `prompt`: what is asked, with {source} in the place of the line."""

    source: Text
    target: Text | None = None
    prompt: Text = "{source}"

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


class DataSpec(Spec):
    """What is trained on, by language (the subset of a task, or the name given to a file).

    tasks: rows of benchmark tasks, or of the embedded world where the name begins with `world:` (only rows that are
    never measured). subsets, limit: of the tasks, and rows of each. source: of the tasks' rows, as in `run`: hub,
    sample, or a folder or file. split: another split than the one that is measured. parallel: aligned files.
    text: files of texts, a line each (.txt) or one column of .jsonl.
    """

    tasks: tuple[Text, ...] = ()
    subsets: Annotated[tuple[Text, ...], Field(min_length=1)] | None = None
    limit: Annotated[int, Field(ge=1)] | None = None
    source: Text | None = None
    split: Text | None = None
    parallel: dict[Text, ParallelSpec] = Field(default_factory=dict)
    text: dict[Text, Text] = Field(default_factory=dict)
    column: Text = "text"

    @model_validator(mode="after")
    def _something(self) -> "DataSpec":
        if not (self.tasks or self.parallel or self.text):
            raise ConfigError("data: names nothing to train on: give tasks (--task), parallel or text files (--text)")
        for key in ("subsets", "source", "split"):
            if getattr(self, key) is not None and not self.tasks:
                raise ConfigError(f"data.{key}: has no effect without data.tasks: leave it out, or name a task")
        return self
