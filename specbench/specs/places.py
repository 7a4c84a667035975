"""Where the rows of a task are: on the hub and in local files."""

from string import Formatter
from typing import Annotated

from pydantic import Field, field_validator

from specbench.specs.components import Spec, Text


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
