"""What makes the numbers of a row weak, each with what to do."""

from dataclasses import dataclass

from specbench.results.row import Row
from specbench.results.warnings import few_prompts, wide_interval


@dataclass(frozen=True)
class Weakness:
    """`title`: in two words; `text`: a sentence with the figure and what to do."""

    title: str
    text: str


def weaknesses(row: Row) -> list[Weakness]:
    """The row's warnings; of a row that has none, as those of earlier formats, what its interval tells."""
    found = row.warnings or tuple(each for each in (wide_interval(row), few_prompts(row)) if each is not None)
    return [Weakness(each.code.replace("_", " "), each.text) for each in found]
