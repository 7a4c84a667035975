"""Where the rows of a task are: on the hub and in local files."""

from string import Formatter
from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from specbench.errors import ConfigError
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
