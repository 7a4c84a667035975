"""The rows of a sweep: a method's answers at each point, pooled over seeds, and how they change from point to point."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from statistics import fmean

import msgspec

from specbench.core.errors import ConfigError
from specbench.results.answers import Answer, acceptance_rates, length_columns
from specbench.results.leaderboard import ROWS
from specbench.results.metrics import speeds
from specbench.results.paired import SAME_EXAMPLE, MetricChange, RowWithRecords, pair_up
from specbench.results.row import SHUFFLED, Row
from specbench.results.runs import RecordedRuns, finished_run, points_in, rows_of_subsets
from specbench.results.scores import quality
from specbench.specs.sweep import CONTEXT, SEED, SWEEP, Value, value_text
from specbench.statistics.bootstrap import SHARE, Estimate, Resampler

Values = tuple[tuple[str, Value], ...]  # name and value of each condition


def point_of(row: Row) -> Mapping[str, Value]:
    """Returns the value of each condition of a sweep at a row's point; empty for a row of no sweep."""
    found = row.request.get(SWEEP)
    return found if isinstance(found, dict) else {}


def is_sweep(path: Path) -> bool:
    """Returns whether a folder holds the folders of points, and is not a run itself."""
    return path.is_dir() and not (path / ROWS).exists() and bool(points_in(path))


def rows_of_points(path: Path) -> list[Row]:
    """Returns the rows of all finished points of a sweep's folder, in the order of their values."""
    rows = [row for point in points_in(path) for row in finished_run(point).rows]
    return sorted(rows, key=lambda row: [_order(value) for value in point_of(row).values()])


@dataclass(frozen=True)
class SweptRow:
    """A method on a subset at one point, its seeds pooled. `values`: of the conditions without the seed. `side`: its
    row with its answers; of several seeds, the metrics of the row are of all of them. `seeds`: the pooled ones."""

    values: Values
    side: RowWithRecords
    seeds: tuple[int, ...]

    @property
    def row(self) -> Row:
        return self.side.row

    @cached_property
    def prompt_tokens(self) -> float | None:
        """The mean number of the target's tokens of a prompt."""
        known = [answer.prompt_tokens for answer in self.side.baseline if answer.prompt_tokens is not None]
        return fmean(known) if known else None

    @property
    def num_short(self) -> int:
        """The number of prompts that were not cut, since they are not longer than the context of the point."""
        return len({answer.key[:3] for answer in self.side.baseline if not answer.truncated_tokens})


@dataclass(frozen=True)
class Sweep:
    """The methods of one task at all points, in the order of points. AR has no rows of its own: a method's rows hold
    its speed and score."""

    task: str
    conditions: tuple[str, ...]
    rows: tuple[SweptRow, ...]

    @property
    def points(self) -> list[Values]:
        return list(dict.fromkeys(each.values for each in self.rows))

    def first_of(self, swept: SweptRow) -> SweptRow:
        """Returns the row of the same method and subset at the first point."""
        place = swept.row.method_name, swept.row.subset
        return next(each for each in self.rows if (each.row.method_name, each.row.subset) == place)

    def change(self, swept: SweptRow, metric: str) -> MetricChange | None:
        """Returns the change of a metric since the first point; None at the first point itself.

        Answers to the same prompt are paired. Under another context the document is the same, but was cut at another
        length: these answers are paired, too.
        """
        first = self.first_of(swept)
        if first is swept:
            return None
        same = ("reference_digest",) if CONTEXT in self.conditions else SAME_EXAMPLE
        return pair_up(first.side, swept.side, same).change(metric)


def read_sweeps(paths: Sequence[Path]) -> list[Sweep]:
    """Returns the sweeps in folders, with the rows over all subsets. Raises ConfigError for folders of no sweep."""
    runs = RecordedRuns()
    return sweeps_of([
        runs.with_records(row, point / ROWS)
        for path in paths for point in points_in(path) for row in rows_of_subsets(finished_run(point).rows, ())
    ])  # fmt: skip


def sweeps_of(sides: Iterable[RowWithRecords]) -> list[Sweep]:
    """Returns the sweep of each task. Raises ConfigError if there is none among the rows."""
    by_place: dict[tuple[str, str, str, Values], list[RowWithRecords]] = {}
    for side in sides:
        point = point_of(side.row)
        if point and not side.row.is_baseline and not side.row.level:
            values = tuple((name, value) for name, value in point.items() if name != SEED)
            by_place.setdefault((side.row.task_name, side.row.subset, side.row.method_name, values), []).append(side)
    if not by_place:
        raise ConfigError("no row is of a sweep: give the folder of `specbench run --sweep`")
    found = []
    for task in dict.fromkeys(task for task, *_ in by_place):
        own = {place: seeds for place, seeds in by_place.items() if place[0] == task}
        rows = [
            SweptRow(values, pooled(seeds), tuple(sorted(each.row.seed for each in seeds)))
            for (_, _, _, values), seeds in own.items()
        ]
        methods = list(dict.fromkeys(each.row.method_name for each in rows))
        rows.sort(key=lambda each: ([_order(value) for _, value in each.values], methods.index(each.row.method_name)))
        conditions = dict.fromkeys(name for each in rows for name, _ in each.values)
        found.append(Sweep(task, tuple(conditions), tuple(rows)))
    return found


def _order(value: Value) -> tuple[bool, float, str]:
    """Returns what sorts values: numbers by size, then words, of which "off" comes before "on"."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return not is_number, float(value) if is_number else 0.0, value_text(value)


def pooled(sides: Sequence[RowWithRecords]) -> RowWithRecords:
    """Returns the answers of several seeds as those of one row: each seed's are further repeats of the same prompts, so
    that intervals resample prompts, each with its answers of all seeds. Raises ConfigError if the seeds have different
    prompts, or if records are not at hand."""
    first = sides[0]
    if len(sides) == 1:
        return first
    if not all(side.own for side in sides):
        raise ConfigError(
            f"{first.row.place}: seeds are pooled from records, which were not found: give folders of runs"
        )
    if len({frozenset(answer.key[:3] for answer in side.own) for side in sides}) > 1:
        raise ConfigError(
            f"{first.row.place}: its seeds have different prompts: repeat the command, which completes them"
        )
    own, baseline = list[Answer](), list[Answer]()
    num_before = 0
    for side in sides:
        own += [_later(answer, num_before) for answer in side.own]
        baseline += [_later(answer, num_before) for answer in side.baseline]
        num_before += side.row.repeats
    return joined(sides, own, baseline, repeats=num_before)


def joined(
    sides: Sequence[RowWithRecords], own: Sequence[Answer], baseline: Sequence[Answer], **fields: object
) -> RowWithRecords:
    """Returns the row of a method over the answers of several runs. `own`, `baseline`: these answers and AR's, with
    keys of their own. `fields`: those of the row that differ from the first one's."""
    first = sides[0]
    in_orders = first.row.memory == SHUFFLED
    prompts = Resampler.of(own, first.row.seed, in_orders)
    metrics: dict[str, Estimate] = {
        **speeds(prompts, own, baseline, is_baseline=False,
                 resampled=Resampler.of_times(own, first.row.seed, in_orders)),
        "mean_acceptance_length": prompts.ratio(*length_columns([own])),
        "acceptance_rate": prompts.mean(acceptance_rates(own), SHARE),
        **quality(prompts, own, baseline, first.scoring or {}),
    }  # fmt: skip
    warnings = {each.code: each for side in sides for each in side.row.warnings}
    row = first.row.model_copy(update={"metrics": metrics, "warnings": tuple(warnings.values()), **fields})
    records = [record for side in sides for record in side.records]
    return replace(first, row=row, own=own, baseline=baseline, records=records)


def _later(answer: Answer, num_before: int) -> Answer:
    task, subset, example, repeat, turn = answer.key
    return msgspec.structs.replace(answer, key=(task, subset, example, repeat + num_before, turn))
