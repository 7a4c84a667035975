"""What the archived cells hold: rows, and paired changes between methods of one cell."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from specbench.analysis.fairness.fairness import FairnessReport
from specbench.models.near_ties import NUM_TIES_DECODED_AGAIN
from specbench.results.paired import pair_up
from specbench.results.row import ALL, Row
from specbench.results.runs import FAIRNESS_FILE, RecordedRun, finished_run, rows_of_subsets
from specbench.statistics.bootstrap import Estimate

from .cells import LABELS, Cell


@dataclass(frozen=True)
class Measured:
    """`folders`: of the unpacked cells, by name."""

    folders: Mapping[str, Path]
    _runs: dict[str, RecordedRun] = field(default_factory=dict)

    def has(self, *names: str) -> bool:
        return all(name in self.folders for name in names)

    def run(self, name: str) -> RecordedRun:
        if name not in self._runs:
            self._runs[name] = finished_run(self.folders[name])
        return self._runs[name]

    def whole(self, cell: Cell) -> list[Row]:
        """Returns the rows over all subsets of a cell as it was measured: AR's, then those of its methods."""
        return rows_of_subsets(self.run(cell.name).rows, ())

    def row(self, name: str, method: str, subset: str | None = None) -> Row:
        rows = rows_of_subsets(self.run(name).rows_of(method), () if subset is None else (subset,))
        return rows[0]

    def by_subset(self, name: str, method: str) -> dict[str, Row]:
        return {row.subset: row for row in self.run(name).rows_of(method) if row.subset != ALL}

    def decoded_again(self, name: str, row: Row) -> int | None:
        """Returns how many of the answers that differ from AR's were decoded again; None if none was looked into. Runs
        of earlier versions do not record it, but had the rule of today for each subset."""
        if row.differences is None or row.differences.near_ties is None:
            return None
        if row.differences.decoded_again is not None:
            return row.differences.decoded_again
        subsets = self.by_subset(name, row.method_name).values() if row.subset == ALL else [row]
        found = [each.differences for each in subsets if each.differences is not None]
        return sum(
            each.answers - (each.near_ties or 0) + min(each.near_ties or 0, NUM_TIES_DECODED_AGAIN) for each in found
        )

    def change(self, name: str, first: str, second: str, metric: str) -> Estimate:
        """Returns second ÷ first of two methods of a cell, or second − first for rates and scores, paired by prompt."""
        return self.between((name, first), (name, second), metric)

    def between(self, first: tuple[str, str], second: tuple[str, str], metric: str) -> Estimate:
        """Returns the same of methods of two cells with the same prompts, each given as cell and method."""
        one, other = (self.run(cell).with_records(self.row(cell, method)) for cell, method in (first, second))
        return pair_up(one, other).change(metric).change

    def fairness(self, name: str) -> FairnessReport | None:
        file = self.folders[name] / FAIRNESS_FILE
        if not file.is_file():
            return None
        return FairnessReport.model_validate_json(file.read_text(encoding="utf-8"))


def label(method: str) -> str:
    """Returns what the page calls a method: without commas, which separate the methods of a list."""
    name, _, note = LABELS.get(method, method).partition(", ")
    return f"{name} ({note})" if note else name


def measured_cells(cells: Sequence[Cell], found: Measured, group: str) -> list[Cell]:
    return [cell for cell in cells if cell.group == group and found.has(cell.name)]
