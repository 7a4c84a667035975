"""What makes the numbers of a row weak, each with what to do."""

from dataclasses import dataclass

from specbench.results.row import Row


@dataclass(frozen=True)
class Weakness:
    """`title`: in two words; `text`: a sentence with the figure and what to do."""

    title: str
    text: str


def weaknesses(row: Row) -> list[Weakness]:
    """Returns the row's warnings."""
    return [Weakness(each.code.replace("_", " "), each.text) for each in row.warnings]
