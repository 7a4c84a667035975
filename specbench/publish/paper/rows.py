"""Runs and leaderboard files → the rows of a figure or table, in groups of equal conditions, with names for a paper."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import ValidationError

from specbench.core import bounded
from specbench.core.console import counted
from specbench.core.errors import ConfigError, nearest
from specbench.report.ranking import distinct_names, distinguishing, group_by_conditions
from specbench.results.conditions import conditions
from specbench.results.leaderboard import ROWS, load
from specbench.results.paired import RowWithRecords
from specbench.results.row import Row
from specbench.results.runs import RecordedRuns, filter_rows, finished_run, points_in, rows_of_subsets
from specbench.results.sweeps import Sweep, is_sweep, point_of, sweeps_of
from specbench.specs.sweep import value_text

if TYPE_CHECKING:
    from specbench.analysis.roofline.report import RooflineReport

PER_SUBSET = frozenset(  # conditions that belong to a subset, in which the languages of a task may differ
    {"subset", "n", "subsets", "data_source", "data_revision", "shots", "system", "signatures", "chat", "template_date"}
)


BARE = ("target", "dtype", "device", "engine", "subset")  # conditions whose values say what they are
DIGESTS = frozenset({"task", "target_revision", "versions", "signatures", "data_revision", "shots", "intervals"})


@dataclass(frozen=True)
class Selection:
    """What a user selects. Empty: everything; of subsets, the rows over all of them. `names`: what figures and tables
    show in the place of tasks, methods, and values of conditions."""

    tasks: Sequence[str] = ()
    methods: Sequence[str] = ()
    subsets: Sequence[str] = ()
    filters: Sequence[str] = ()
    names: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(
        cls, tasks: Sequence[str], methods: Sequence[str], subsets: Sequence[str], filters: Sequence[str],
        names: Sequence[str],
    ) -> "Selection":  # fmt: skip
        """`names`: KEY=TEXT each. Raises ConfigError for one of another form."""
        found = {}
        for text in names:
            key, equals, name = text.partition("=")
            if not (equals and key.strip() and name.strip()):
                raise ConfigError(f"--name {text}: write it as KEY=TEXT, such as --name sd=SpS")
            found[key.strip()] = name.strip()
        return cls(tasks, methods, subsets, filters, found)


@dataclass(frozen=True)
class Group:
    """Rows of one task under equal conditions. `label`: the task, with the conditions in which it differs from other
    groups of the same task. `series`: the name of each side's method."""

    label: str
    sides: tuple[RowWithRecords, ...]
    series: tuple[str, ...]

    @cached_property
    def named(self) -> list[tuple[str, RowWithRecords]]:
        return list(zip(self.series, self.sides, strict=True))

    @property
    def rows(self) -> list[Row]:
        return [side.row for side in self.sides]

    def without_ar(self) -> "Group":
        kept = [(name, side) for name, side in self.named if not side.row.is_baseline]
        return Group(self.label, tuple(side for _, side in kept), tuple(name for name, _ in kept))


def shortened(name: str) -> str:
    """Returns a name of at most 28 characters with its beginning and its end, which tell models apart. A line may break
    between the two."""
    return name if len(name) <= 28 else f"{name[:14]}… {name[-13:]}"


def shown_point(row: Row) -> dict[str, str]:
    return {name: value_text(value) for name, value in point_of(row).items()}


@dataclass(frozen=True)
class PaperRows:
    """The selected rows, each with its file. `runs`: their records, read when they are asked for. `reports`: those of
    `specbench roofline` among the sources."""

    chosen: tuple[tuple[Row, Path], ...]
    selection: Selection
    sources: tuple[Path, ...]
    runs: RecordedRuns
    reports: tuple[tuple[Path, "RooflineReport"], ...] = ()

    def groups(
        self, metric: str, *, records: bool = False, loads: bool = False, per_subset: bool = False,
    ) -> list[Group]:  # fmt: skip
        """Returns the groups in the order of the rows. `records`: whether sides need their records; a row without them
        is left out. `loads`: the rows of servers under several requests at once, else the others. `per_subset`: a group
        has the rows of all subsets of a task in place of those over all of them. Raises ConfigError if no row is left,
        and for a configuration that was measured twice."""
        kept = [(row, file) for row, file in self.chosen if bool(row.level) == loads]
        if per_subset:
            kept = [(row, file) for row, file in kept if row.subset in self.selection.subsets or row.subset != "all"]
        else:
            whole = {id(row) for row in rows_of_subsets([row for row, _ in kept], self.selection.subsets)}
            kept = [(row, file) for row, file in kept if id(row) in whole]
        sides = [self.runs.with_records(row, file) if records else RowWithRecords(row) for row, file in kept]
        if records and not any(side.own for side in sides):
            raise ConfigError(self.no_records())
        sides = [side for side in sides if side.own or not records]
        if not sides and per_subset:
            return []
        if not sides:
            reason = "no row is of a load, which needs servers measured with `load:`"
            if not loads:
                reason = "all rows are of a load, which `specbench plot load` draws"
            raise ConfigError(f"{self.named_sources}: {reason}")
        free: Collection[str] = PER_SUBSET if per_subset else {"served.load", "n", "subsets"} if loads else ()
        found = list(group_by_conditions(sides, metric, free).values())
        labels = self._labels([group[0].row for group in found], free)
        return [self._group(label, group) for label, group in zip(labels, found, strict=True)]

    def _labels(self, rows: Sequence[Row], free: Collection[str]) -> list[str]:
        """Returns the label of each group. `rows`: one of each. Digests and versions are named only if nothing else
        differs."""
        names = self.selection.names
        tasks = [names.get(row.task_name, row.task_name) for row in rows]
        for unnamed in ({*free, *DIGESTS}, {*free}):
            known = [
                {
                    name: value
                    for name, value in {**shown_point(row), **conditions(row)}.items()
                    if not {name, name.partition(".")[0]} & unnamed
                }
                for row in rows
            ]
            labels = []
            for task, own in zip(tasks, distinguishing(tasks, known), strict=True):
                settings = []
                for name, text in own.items():
                    shown = names.get(text) or shortened(text.rpartition("/")[2])
                    settings.append(shown if name in BARE or text in names else f"{name.rpartition('.')[2]} {shown}")
                labels.append(", ".join([task, *settings]))
            if len(set(labels)) == len(labels):
                break
        return labels

    def _group(self, label: str, sides: Sequence[RowWithRecords]) -> Group:
        names = distinct_names([side.row for side in sides])
        # Every run brings a row of AR, those of other commits of specbench too: the newest one stands.
        seen: dict[tuple[str, ...], RowWithRecords] = {}
        for side in sides:
            place = names[side.row.key], side.row.subset, "" if side.row.served is None else f"{side.row.served.load}"
            other = seen.setdefault(place, side).row
            if other is not side.row and not side.row.is_baseline:
                raise ConfigError(
                    f"{self.named_sources}: {side.row.place} was measured twice, at {other.created} and "
                    f"{side.row.created}: choose one with --filter created=…"
                )
            if side.row.created > other.created:
                seen[place] = side
        sides = [*seen.values()]
        order = {name: place for place, name in enumerate(self.selection.methods)}
        ordered = sorted(sides, key=lambda side: order.get(side.row.method_name, len(order)))
        series = []
        for side in ordered:
            name, text = side.row.method_name, names[side.row.key]
            series.append(self.selection.names.get(name, name) + text.removeprefix(name))
        return Group(label, tuple(ordered), tuple(series))

    @property
    def named_sources(self) -> str:
        return ", ".join(map(str, self.sources))

    def sweeps(self) -> list[Sweep]:
        """Returns the sweep of each task, with its records. Raises ConfigError if no row is of a sweep."""
        whole = {id(row) for row in rows_of_subsets([row for row, _ in self.chosen], self.selection.subsets)}
        return sweeps_of(self.runs.with_records(row, file) for row, file in self.chosen if id(row) in whole)

    def left_out(self) -> list[str]:
        """Returns a line for each run whose records could not be read, so that its rows are not drawn."""
        problems = self.runs.problems.values()
        return [
            f"left out, since records could not be read: {counted(len(each), 'row')}: {each[0]}" for each in problems
        ]

    def no_records(self) -> str:
        reasons = [found[0] for found in self.runs.problems.values()]
        reason = reasons[0] if reasons else "none of the rows has the folder of its run beside its file"
        return f"{self.named_sources}: no records, which this figure needs: give the folders of runs ({reason})"


def read_rows(paths: Sequence[Path], selection: Selection, *, takes_reports: bool = False) -> PaperRows:
    """Returns the selected rows of runs and leaderboard files; of equal rows of AR the newest. `takes_reports`: whether
    paths may be reports of `specbench roofline`. Raises ConfigError for other paths, unknown selections, and if nothing
    is left."""
    reports = tuple((path, _read_report(path)) for path in paths if takes_reports and _is_report(path))
    boards = [
        each
        for path in paths if path not in dict(reports)
        for each in (points_in(path) if is_sweep(path) else [path])
    ]  # fmt: skip
    if not boards:
        return PaperRows((), selection, tuple(paths), RecordedRuns(), reports)
    newest: dict[tuple[str, str], tuple[Row, Path]] = {}
    for path in boards:
        rows = finished_run(path).rows if path.is_dir() else load(path)
        for row in rows:
            key = row.key, "" if row.is_baseline else row.created
            if key not in newest or row.created > newest[key][0].created:
                newest[key] = row, path / ROWS if path.is_dir() else path
    sources = ", ".join(map(str, paths))
    if not newest:
        raise ConfigError(f"{sources}: no rows: add some with `specbench leaderboard add RUN --leaderboard FILE`")
    rows = filter_rows([row for row, _ in newest.values()], selection.filters)
    for option, asked, known in (
        ("--task", selection.tasks, dict.fromkeys(row.task_name for row in rows)),
        ("--method", selection.methods, dict.fromkeys(row.method_name for row in rows)),
        ("--subset", selection.subsets, dict.fromkeys(row.subset for row in rows)),
    ):
        for name in asked:
            if name not in known:
                raise ConfigError(f"{option} {name}: {sources}: no row has it: {nearest(name, known)}")
    for name in selection.names:
        known = dict.fromkeys(
            each for row in rows
            for each in (row.task_name, row.method_name, *(text for text in map(row.__getattribute__, BARE) if text))
        )  # fmt: skip
        if name not in known:
            shown = f"--name {name}={selection.names[name]}"
            raise ConfigError(f"{shown}: no task, method or condition has this name: {nearest(name, known)}")
    tasks, methods, subsets = (set(each) for each in (selection.tasks, selection.methods, selection.subsets))
    ids = {
        id(row) for row in rows
        if (not tasks or row.task_name in tasks) and (not methods or row.method_name in methods)
        and (not subsets or row.subset in subsets)
    }  # fmt: skip
    chosen = [(row, file) for row, file in newest.values() if id(row) in ids]
    if not chosen:
        raise ConfigError(f"{sources}: no row has all of --task, --method and --subset: leave one of them out")
    order = {name: place for place, name in enumerate(selection.tasks)}
    chosen.sort(key=lambda each: order.get(each[0].task_name, len(order)))
    return PaperRows(tuple(chosen), selection, tuple(paths), RecordedRuns(), reports)


def _is_report(path: Path) -> bool:
    if not path.is_file() or path.suffix != ".json":
        return False
    content = bounded.read_json(path, "give a run, a leaderboard file, or a report of `specbench roofline`")
    return isinstance(content, dict) and {"verification_cost", "cost_ratio"} <= content.keys()


def _read_report(path: Path) -> "RooflineReport":
    from specbench.analysis.roofline.report import RooflineReport  # imports torch

    try:
        return RooflineReport.model_validate_json(path.read_bytes())
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise ConfigError(
            f"{path}: {place}: {first['msg']}: write it again by `specbench roofline --output`"
        ) from error
