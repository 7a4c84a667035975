"""Worked examples before the prompt: written in the task's own file, or rows of another split."""

from typing import Annotated, Any

from pydantic import Field, field_validator, model_validator

from specbench.errors import ConfigError
from specbench.specs.components import Spec, Text
from specbench.specs.json_values import like_json
from specbench.specs.places import LocalSpec, fillable


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
