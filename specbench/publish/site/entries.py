"""The rows of a site, with their addresses, groups and ranks, and the table of all rows."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from specbench.core.errors import ConfigError
from specbench.core.values import text_digest
from specbench.publish.paper.rows import shortened
from specbench.publish.rules import look_alike
from specbench.publish.site.answers import seen
from specbench.report.captions import sampling_of, verdict_word, why_unranked
from specbench.report.ranking import (
    DEFAULT_METRIC,
    RankedRow,
    distinct_names,
    distinguishing,
    group_by_conditions,
    rank_rows,
)
from specbench.results.conditions import conditions
from specbench.results.leaderboard import load
from specbench.results.leaderboard_files import without_places
from specbench.results.level import STATED, Level, Levels, level_of
from specbench.results.metric_format import NULL, interval, metric_of, number, speed
from specbench.results.paired import RowWithRecords
from specbench.results.row import ALL, Row
from specbench.results.runs import RecordedRun, RecordedRuns, rows_of_subsets, run_folder_of
from specbench.statistics.bootstrap import Estimate


@dataclass(frozen=True)
class IndexCell:
    """A cell of the table of all rows. `key`: the sort key; None is the text, and an empty key means no value. `more`:
    small text after it."""

    text: str
    key: str | None = None
    more: str = ""


@dataclass(frozen=True)
class SiteRow:
    """A row of the site. `group_key`: 8 hex digits over the conditions of the rows that compare with it, used in links;
    `group_size`: their number. `label`: its method with the settings that differ within its group. `is_whole`: whether
    it covers all subsets of its task, or the task has no such row. `level`: how far bundles confirm it. `run`: that of
    its records; None without records."""

    digest: str
    side: RowWithRecords
    group_key: str
    group_size: int
    rank: RankedRow
    label: str
    is_whole: bool
    level: Level = STATED
    run: RecordedRun | None = None

    @property
    def row(self) -> Row:
        return self.side.row

    @property
    def address(self) -> str:
        """The address of its page in the site. It depends on the content of the row only."""
        return f"rows/{self.digest}.html"

    @property
    def machine(self) -> str:
        """The device and the engine. Tokens per second do not compare across them."""
        return f"{self.row.device} · {self.row.engine}"

    @cached_property
    def cells(self) -> dict[str, IndexCell]:
        row = self.row
        names = ("speedup", "tokens_per_second", "mean_acceptance_length", "acceptance_rate")
        speedup, tokens_per_second, length, rate = map(row.metric, names)
        quality = IndexCell(NULL, "")
        if row.quality is not None:
            unit = metric_of(row.quality)
            score = row.metric(row.quality)
            change = row.value(f"{row.quality}_difference")
            difference = "" if change is None else f"Δ {number(change, unit.digits, unit.factor, '+')} "
            quality = IndexCell(number(score, unit.digits, unit.factor), _sort_key(score), f"{difference}{unit.label}")
        subset = "" if row.subset == ALL else row.subset
        return {
            "method": IndexCell(self.label),
            "task": IndexCell(row.task_name, f"{row.task_name} {subset}", subset),
            "load": IndexCell(row.level or NULL),
            "rank": IndexCell(self.rank.text or NULL, str(self.rank.best or ""), f"of {self.group_size}"),
            "speedup": IndexCell(number(speedup, 2), _sort_key(speedup), interval(speedup)),
            "speed": IndexCell(speed(tokens_per_second), _sort_key(tokens_per_second)),
            "tau": IndexCell(number(length, 2), _sort_key(length)),
            "alpha": IndexCell(number(rate, 3), _sort_key(rate)),
            "quality": quality,
            "verdict": IndexCell(verdict_word(row)),
            "level": IndexCell(self.level.name, more=self.level.marks),
            "warnings": IndexCell(", ".join(each.code.replace("_", " ") for each in row.warnings) or NULL),
            "n": IndexCell(str(row.n), str(row.n), f"× {row.repeats}" if row.repeats > 1 else ""),
            "gamma": IndexCell(str(row.num_draft_tokens)),
        }


def _sort_key(metric: Estimate) -> str:
    return "" if metric.value is None else f"{metric.value:.12g}"


@dataclass(frozen=True)
class Entries:
    """All rows by machine and group, the best of each group first. `warnings`: why existing records are not used, and
    which rows and names could be taken for others."""

    all: tuple[SiteRow, ...]
    warnings: tuple[str, ...]

    def whole(self) -> list[list[SiteRow]]:
        """Returns the `all` rows by group, without synthetic rows, which are not ranked."""
        groups: dict[str, list[SiteRow]] = {}
        for entry in self.all:
            if entry.is_whole and why_unranked(entry.row) is None:
                groups.setdefault(entry.group_key, []).append(entry)
        return list(groups.values())


def by_machine(rows: Sequence[SiteRow]) -> dict[str, list[SiteRow]]:
    """Returns the rows by device and engine, in their order."""
    machines: dict[str, list[SiteRow]] = {}
    for entry in rows:
        machines.setdefault(entry.machine, []).append(entry)
    return machines


def read_entries(files: Sequence[Path], levels: Levels | None = None) -> Entries:
    """Returns the rows of leaderboard files, each once. `levels`: of rows that bundles have. Raises ConfigError for
    files that are not leaderboards, and if there are no rows."""
    runs = RecordedRuns()
    sides: dict[tuple[str, str], RowWithRecords] = {}
    folders: dict[int, Path | None] = {}
    origins: dict[tuple[str, str], Path] = {}
    warnings = []
    for file in files:
        for row in load(file):
            place = row.key, row.created
            if place not in sides:
                sides[place] = runs.with_records(row, file)
                folders[id(row)] = run_folder_of(row, file)
                origins[place] = file
            elif without_places(row) != without_places(sides[place].row):
                warnings.append(
                    f"{file}: {row.place}: has other numbers than the same row of {origins[place]}, which is shown: "
                    "remove one of the two"
                )
    if not sides:
        raise ConfigError(
            f"{', '.join(map(str, files))}: no rows: add some with `specbench leaderboard add RUN --leaderboard FILE`"
        )
    whole = {id(row) for row in rows_of_subsets([side.row for side in sides.values()], [])}
    found: list[SiteRow] = []
    for shared, group in group_by_conditions(list(sides.values()), DEFAULT_METRIC).items():
        key = text_digest(shared, 8)
        order = rank_rows(group, DEFAULT_METRIC)
        labels = distinct_names([each.row for each in order])
        for each in order:
            digest = each.row.content_digest
            folder = folders[id(each.row)] if each.side.records else None
            found.append(SiteRow(
                digest, each.side, key, len(group), each, labels[each.row.key], id(each.row) in whole,
                level_of(each.row, levels or {}), None if folder is None else runs.at(folder),
            ))  # fmt: skip
    found = [entry for same in by_machine(found).values() for entry in same]
    return Entries(tuple(found), (*runs.problem_lines(), *warnings, *_alike(found)))


def _alike(rows: Sequence[SiteRow]) -> Iterator[str]:
    """Yields a line for each name of a model or a method that looks like another one."""
    named = (text for each in rows for text in (each.row.target, each.row.drafter, *each.row.names[::2]) if text)
    for name in dict.fromkeys(named):
        if problem := look_alike(name):
            yield f"the name {ascii(name)[:100]} {problem}, so that it looks like another"


def distinguishing_settings(rows: Sequence[Row], names: Sequence[str]) -> list[list[str]]:
    """Returns for each row a few conditions, such as "temperature 0.5" or "n = 8", that distinguish it from the other
    rows of the same name. `rows`: one of each group."""
    return [
        [f"n = {text}" if name == "n" else f"{name.rpartition('.')[2].replace('_', ' ')} {text:.40}"
         for name, text in own.items()]
        for own in distinguishing(names, [conditions(row) for row in rows])
    ]  # fmt: skip


@dataclass(frozen=True)
class IndexColumn:
    """A column. `key`: its name in the fragment of the address. `help`: its meaning, if the heading does not say it."""

    key: str
    heading: str
    is_number: bool = False
    help: str = ""


COLUMNS = (
    IndexColumn("method", "method"),
    IndexColumn("speedup", "speed-up", True, "speed-up over autoregressive decoding, with its paired 95 % interval"),
    IndexColumn("task", "task", help="the task, and the subset where it is not the whole task"),
    IndexColumn("load", "load", help="requests to the servers at once, or per second; – one at a time"),
    IndexColumn(
        "rank", "rank", True, "rank by speed-up among comparable rows; 2–3 is not separable from its neighbours"
    ),
    IndexColumn("tau", "τ", True, "mean acceptance length: tokens per target pass"),
    IndexColumn("alpha", "α", True, "acceptance rate: accepted ÷ verified draft tokens, of chains only"),
    IndexColumn("speed", "tok/s", True, "generated tokens per second of decoding; compare them on one machine only"),
    IndexColumn("quality", "quality (Δ to ar)", True, "main score; Δ is its difference to the baseline"),
    IndexColumn("verdict", "verdict"),
    IndexColumn("level", "level", help="stated, or recomputed from records by a bundle; who signed it; other runs"),
    IndexColumn("n", "n", True, "examples"),
    IndexColumn("gamma", "γ", True, "draft tokens per step"),
    IndexColumn("warnings", "warnings", help="reasons why the numbers are weak"),
    IndexColumn("conditions", "conditions", help="what differs among the rows of this page"),
)
FILTERS: dict[str, Callable[[Row], str]] = {
    "task": lambda row: row.task_name, "method": lambda row: row.method_name, "subset": lambda row: row.subset,
    "verdict": verdict_word, "device": lambda row: row.device, "target": lambda row: row.target,
    "engine": lambda row: row.engine, "dtype": lambda row: row.dtype, "seed": lambda row: str(row.seed),
}  # fmt: skip


def index_table(rows: Sequence[SiteRow]) -> dict[str, object]:
    """Returns the template values of the table of all rows.

    `machines`: its rows by device and engine, each in a section of its own if there are several. `filters`: the values
    that each filter offers and their labels, without filters of one value. `conditions`: by digest, the conditions of a
    row that not all rows share; the device and the engine stand above a section. `with_more`: the columns in which a
    cell has small text; all their cells leave room for it, so that numbers align. `load` and `conditions` are left out
    if no row has one, and `level` if all are stated.
    """
    own_values = {
        each.digest: {name: str(seen(value_of(each.row))) for name, value_of in FILTERS.items()} for each in rows
    }  # as the menus show them
    values = {name: sorted({own[name] for own in own_values.values()}) for name in FILTERS}
    filters = [
        (name, list((short_names(known) if name == "target" else {each: each for each in known}).items()))
        for name, known in values.items() if len(known) > 1
    ]  # fmt: skip
    shown = {name for name, _ in filters}
    texts = distinguishing_conditions([each.row for each in rows])
    is_shown = {
        "load": any(each.row.level for each in rows), "level": any(each.level != STATED for each in rows),
        "conditions": any(texts),
    }  # fmt: skip
    return {
        "machines": by_machine(rows),
        "columns": [column for column in COLUMNS if is_shown.get(column.key, True)],
        "filters": filters,
        "filter_values": {
            digest: [value for name, value in own.items() if name in shown] for digest, own in own_values.items()
        },
        "conditions": {each.digest: own for each, own in zip(rows, texts, strict=True)},
        "with_more": {key for key in ("speedup", "quality") if any(each.cells[key].more for each in rows)},
    }  # fmt: skip


def distinguishing_conditions(rows: Sequence[Row]) -> list[list[str]]:
    """Returns for each row the conditions that not all of them share, in words."""
    models = [name for row in rows for name in (row.target, row.drafter) if name is not None]
    short = short_names(models, shortened)
    texts: list[Mapping[str, str]] = [
        {
            "target": short[row.target], "drafter": f"← {short[row.drafter]}" if row.drafter else "",
            "dtype": row.dtype, "sampling": sampling_of(row), "seed": f"seed {row.seed}",
        }
        for row in rows
    ]  # fmt: skip
    kept = [name for name in texts[0] if len({own[name] for own in texts}) > 1]
    return [[own[name] for name in kept if own[name]] for own in texts]


def short_names(names: Sequence[str], shorten: Callable[[str], str] = str) -> dict[str, str]:
    """Returns for each name its last part, or the whole name where that is also another's. `shorten`: of last parts."""
    last = {name: shorten(name.rpartition("/")[2]) for name in names}
    counts = [*last.values()]
    return {name: name if counts.count(short) > 1 else short for name, short in last.items()}
