"""The policy of a check: which rows are compared, which conditions may differ, and how far AR may drift."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from specbench.core.errors import ConfigError, nearest
from specbench.results.bootstrap import Metric
from specbench.results.comparable import FieldDifference, conditions_that_differ
from specbench.results.comparison_input import ComparisonInput, read_path
from specbench.results.row import ALL, Row
from specbench.results.runs import RecordedRun, split_detail
from specbench.running.records import Key, Record, records_of

BASELINE = "ar"
Place = tuple[str, str, str]  # task, subset and method, by their names


def place_of(row: Row) -> Place:
    """Returns task, subset and method of a row."""
    return row.task_name, row.subset, row.method_name


def read_baseline(text: str) -> ComparisonInput:
    """Returns the rows of a run or a leaderboard file, as PATH or PATH:METHOD. Raises ConfigError for anything else."""
    path, method = split_detail(text)
    if not path.exists():
        raise ConfigError(f"--baseline {text}: no such folder or file: give the folder of a run, or a leaderboard file")
    return _read(text, path, method)


def read_candidate(text: str) -> ComparisonInput:
    """Returns the rows of a run, as RUN or RUN:METHOD. Raises ConfigError for anything else."""
    path, method = split_detail(text)
    if not path.is_dir():
        problem = "is a file" if path.exists() else "no such folder"
        raise ConfigError(f"--candidate {text}: {problem}: give the folder of a run, as `specbench run` prints it")
    return _read(text, path, method)


def _read(text: str, path: Path, method: str | None) -> ComparisonInput:
    found = read_path(text, path)
    if found.run is not None:
        _check_whole(text, found.run)
    return found if method is None else found.of_methods(method, BASELINE)


def _check_whole(text: str, run: RecordedRun) -> None:
    """Raise ConfigError where the folder has other records than its rows say."""
    for row in run.rows_of(BASELINE):
        num_found = len({record["example"] for record in records_of_row(row, run.records)})
        if row.subset != ALL and num_found != row.n:
            raise ConfigError(
                f"{text}: {row.task_name}/{row.subset} has a row of n = {row.n} and records of {num_found}: repeat "
                "its command, which measures what is missing"
            )


def records_of_row(row: Row, records: Mapping[Key, Record]) -> list[Record]:
    """Returns the records of a row; fewer than its n where the folder has no more."""
    return records_of(records, row.task_name, row.examples, row.repeats)


IGNORABLE = ("attention", "device", "dtype", "target", "versions")
UNUSED = ("intervals", "signatures")  # how scores were computed: they are not judged; intervals are made anew


@dataclass(frozen=True)
class Pair:
    """A row of the candidate, and the row of the baseline with the same task, subset and method."""

    baseline: Row
    candidate: Row


def rounding(pair: Pair) -> list[str]:
    """Returns the ignored conditions that change how numbers are rounded. A drafter that is nearly undecided may
    then draft another token, so that counts have noise too."""
    return [each.field for each in conditions_that_differ(pair.baseline, pair.candidate, {"target", *UNUSED})]


@dataclass(frozen=True)
class Refused:
    """A row of the candidate without a comparable row in the baseline."""

    candidate: Row
    reasons: tuple[str, ...]


def check_ignored(names: Collection[str]) -> None:
    for name in names:
        if name not in IGNORABLE:
            raise ConfigError(f"--ignore {name}: {nearest(name, IGNORABLE)}")


def pair_rows(
    baseline: ComparisonInput, candidate: ComparisonInput, ignore: Collection[str]
) -> tuple[list[Pair], list[Refused], list[Row], list[Row]]:
    """Returns the pairs; rows that do not compare; rows that only the candidate has; rows that only the baseline has.

    Where a file has several rows of a task, subset and method, the nearest counts: with the fewest differences that
    matter, then with the fewest at all, then with the fewest changes of the method. Two rows that are equally near are
    refused.
    """
    by_rows = baseline.run is None

    def distance(pair: Pair) -> tuple[int, int, int]:
        every, mattering = (differing(pair.baseline, pair.candidate, names, by_rows) for names in ((), ignore))
        return len(mattering), len(every), len(changes(pair))

    pairs, refused, new = [], [], []
    for row in candidate.rows:
        same = [other for other in baseline.rows if place_of(other) == place_of(row)]
        if not same:
            new.append(row)
            continue
        nearest_pair, *others = sorted((Pair(other, row) for other in same), key=distance)
        least = differing(nearest_pair.baseline, row, ignore, by_rows)
        if least:
            refused.append(Refused(row, tuple(map(in_words, least))))
        elif others and distance(others[0]) == distance(nearest_pair):
            refused.append(Refused(row, (tied(nearest_pair.baseline, others[0].baseline),)))
        else:
            pairs.append(nearest_pair)
    places = {place_of(row) for row in candidate.rows}
    return pairs, refused, new, [row for row in baseline.rows if place_of(row) not in places]


def tied(first: Row, second: Row) -> str:
    own = "; ".join(changes(Pair(first, second)))
    return (
        f"two rows of the baseline are equally near, created {first.created} and {second.created}"
        f"{f' ({own})' if own else ''}: take one of the two out"
    )


def differing(baseline: Row, candidate: Row, ignore: Collection[str], by_rows: bool) -> list[FieldDifference]:
    """Returns the fields that must be the same and differ: the conditions, the number of draft tokens, and the
    bridge. With other values of these acceptance and draft passes do not compare. `by_rows`: the intervals of rows
    are compared too."""
    unused = UNUSED[1:] if by_rows else UNUSED
    return [*conditions_that_differ(baseline, candidate, {*ignore, *unused}), *_of_method(baseline, candidate)]


def _of_method(baseline: Row, candidate: Row) -> Iterable[FieldDifference]:
    if baseline.num_draft_tokens != candidate.num_draft_tokens:
        yield FieldDifference("num_draft_tokens", baseline.num_draft_tokens, candidate.num_draft_tokens)
    first, second = (_bridge(row) for row in (baseline, candidate))
    if first != second:
        yield FieldDifference("options.bridge", first, second)


def _bridge(row: Row) -> Any:
    return row.options.get("bridge")


def in_words(difference: FieldDifference) -> str:
    return f"{difference.field}: {difference.first} in the baseline, {difference.second} in the candidate"


def changes(pair: Pair) -> list[str]:
    """Returns the changes of the method, which are what the check is for."""
    first, second = pair.baseline, pair.candidate
    names = ("method", "drafter", "drafter_revision")
    found = [f"{name} {getattr(first, name)} → {getattr(second, name)}" for name in names
             if getattr(first, name) != getattr(second, name)]  # fmt: skip
    if first.options != second.options:
        found += [
            f"{name} {first.options.get(name)} → {second.options.get(name)}"
            for name in dict.fromkeys([*first.options, *second.options])
            if first.options.get(name) != second.options.get(name)
        ]
    return found


SAME = 1.02  # of a ratio without an interval: two runs are hardly ever nearer
DRIFTED = 1.25  # under so much more or less load a speed-up is another one
EXCESS = 0.5  # of AR's change, on the scale of the logs
REMEDY = "measure both on the same machine, one after the other, with nothing beside them"


@dataclass
class SpeedControl:
    """AR's speed on both sides, which shows a change of load or clock.

    `other_device`: the devices may differ, so that AR's speed shows nothing. `drifted`: by task why speed-ups are not
    compared. `loads`: by task the factor by which a speed-up may have fallen with AR's speed.
    """

    other_device: bool
    notes: list[str] = field(default_factory=list)
    drifted: dict[str, str] = field(default_factory=dict)
    loads: dict[str, float] = field(default_factory=dict)

    def add(self, task: str, ratio: Metric) -> None:
        """Add a task. `ratio`: AR's tokens/s in the candidate ÷ in the baseline."""
        if ratio.value is None:
            self.notes.append(f"{task}: {BASELINE} has no speed")
            return
        low, high = ratio.low or ratio.value, ratio.high or ratio.value
        ends = "" if ratio.low is None else f" [{low:.3f}, {high:.3f}]"
        speed = f"{ratio.value:.3f} times its speed in the baseline{ends}"
        if not self.other_device:
            self.loads[task] = max(1.0, 1 / low) ** EXCESS
            if max(ratio.value, 1 / ratio.value) > DRIFTED:
                self.drifted[task] = f"{BASELINE} itself ran at {speed}, so that speed-ups do not compare: {REMEDY}"
                return
        same = low <= 1 <= high if ratio.low is not None else 1 / SAME < ratio.value < SAME
        if same:
            self.notes.append(f"{task}: {BASELINE} itself ran at {speed}: no difference")
            return
        by = f"{100 * abs(1 - ratio.value):.1f} % {'slower' if ratio.value < 1 else 'faster'}"
        self.notes.append(
            f"{task}: {BASELINE} itself is {by} ({speed}): another load or clock, or a change of what {BASELINE} and "
            "the methods share, such as the loop, which no speed-up shows"
        )
