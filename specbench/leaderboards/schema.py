"""The JSON Schema of a leaderboard file, with the number of its format."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from specbench.results.board_format import FORMAT
from specbench.results.row import Row

DIALECT = "https://json-schema.org/draft/2020-12/schema"
ABOUT = "16 hex digits of SHA-256 over the row without this key, as JSON with sorted keys and without blanks"
METRICS = "By name; `specbench list metrics` says what each means, in which unit. Intervals are of 95 %."


class WrittenRow(Row):
    """A row as it is in a file: with the digest of its content."""

    digest: Annotated[str, Field(pattern="^[0-9a-f]{16}$", description=ABOUT)]


class BoardFile(BaseModel):
    """Results of specbench: one row for each method on each subset of a task, and over all subsets."""

    model_config = ConfigDict(extra="forbid", title="specbench leaderboard")

    format: Literal[1] = Field(description="Number of the format.")
    rows: list[WrittenRow]


def schema() -> dict[str, Any]:
    """JSON Schema (draft 2020-12) of the files that this version reads and writes."""
    made = BoardFile.model_json_schema(mode="serialization")
    rows = made["$defs"]["WrittenRow"]
    rows["properties"]["metrics"]["description"] = METRICS
    rows["required"] = sorted(rows["properties"])
    return {"$schema": DIALECT, "x-format": FORMAT, **made}
