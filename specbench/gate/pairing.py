"""Which rows of the two sides belong together, and what keeps them from being compared."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any

from specbench.errors import ConfigError, nearest
from specbench.gate.sides import Side, place_of
from specbench.leaderboards.comparable import Difference, differences
from specbench.results.row import Row

IGNORABLE = ("attention", "device", "dtype", "target", "versions")
UNUSED = ("intervals", "signatures")  # how scores were computed: they are not judged; intervals are made anew


@dataclass(frozen=True)
class Pair:
    """A row of the candidate and the baseline's of the same place."""

    baseline: Row
    candidate: Row


def rounding(pair: Pair) -> list[str]:
    """Conditions that the user let differ, and that change how numbers are rounded: a drafter that is nearly undecided
    may then draft something else, so that counts have noise too."""
    return [each.field for each in differences(pair.baseline, pair.candidate, {"target", *UNUSED})]


@dataclass(frozen=True)
class Refused:
    """A row of the candidate that no row of the baseline may be compared with."""

    candidate: Row
    reasons: tuple[str, ...]


def check_ignored(names: Collection[str]) -> None:
    for name in names:
        if name not in IGNORABLE:
            raise ConfigError(f"--ignore {name}: {nearest(name, IGNORABLE)}")


def pair_rows(
    baseline: Side, candidate: Side, ignore: Collection[str]
) -> tuple[list[Pair], list[Refused], list[Row], list[Row]]:
    """Pairs; rows that do not go together; rows that only the candidate has; those that only the baseline has.

    Where a file has several rows of a place, the nearest counts: with the fewest differences that matter, then with the
    fewest at all, then with the fewest changes of the method. Two that are as near are refused.
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
            refused.append(Refused(row, tuple(map(told, least))))
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


def differing(baseline: Row, candidate: Row, ignore: Collection[str], by_rows: bool) -> list[Difference]:
    """What must be the same and is not. Beside the conditions: the number of draft tokens and the bridge, without which
    acceptance and draft passes say nothing about each other. `by_rows`: their intervals are compared too."""
    unused = UNUSED[1:] if by_rows else UNUSED
    return [*differences(baseline, candidate, {*ignore, *unused}), *_of_method(baseline, candidate)]


def _of_method(baseline: Row, candidate: Row) -> Iterable[Difference]:
    if baseline.num_draft_tokens != candidate.num_draft_tokens:
        yield Difference("num_draft_tokens", baseline.num_draft_tokens, candidate.num_draft_tokens)
    first, second = (_bridge(row) for row in (baseline, candidate))
    if first != second:
        yield Difference("options.bridge", first, second)


def _bridge(row: Row) -> Any:
    return row.options.get("bridge")


def told(difference: Difference) -> str:
    return f"{difference.field}: {difference.first} in the baseline, {difference.second} in the candidate"


def changes(pair: Pair) -> list[str]:
    """What of the method has changed, which is what the check is for."""
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
