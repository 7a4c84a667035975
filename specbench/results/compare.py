"""Two runs, methods or rows beside each other: what differs in their configuration, then what that changed."""

from dataclasses import dataclass
from typing import Any

from specbench.core.errors import ConfigError
from specbench.results.comparable import Difference, conditions_that_differ
from specbench.results.comparison_input import ComparisonInput, leaves
from specbench.results.paired import KINDS, Change, Pairs, pair_up
from specbench.results.row import RESULT_FIELDS, Row
from specbench.results.runs import Runs

ABSENT = "–"
OUTCOMES = RESULT_FIELDS - {"command"}  # what is no part of a configuration


@dataclass(frozen=True)
class Compared:
    """A task and subset. `changes`: of each metric that both sides have. `num_paired`: prompts that both sides have
    records of; 0 where records are not at hand."""

    task: str
    subset: str
    first: Row
    second: Row
    num_paired: int
    changes: tuple[Change, ...]

    def change(self, metric: str) -> Change | None:
        return next((each for each in self.changes if each.metric == metric), None)


@dataclass(frozen=True)
class Comparison:
    """`hindrances`: what must match for numbers to be compared, and does not; `differing`: all else that differs;
    `unread`: why records that are there could not be read."""

    first: str
    second: str
    hindrances: tuple[Difference, ...]
    differing: tuple[Difference, ...]
    compared: tuple[Compared, ...]
    unread: tuple[str, ...]

    def as_json(self) -> dict[str, Any]:
        return {
            "first": self.first, "second": self.second, "comparable": not self.hindrances,
            "must_match": [vars(each) for each in self.hindrances], "differs": [vars(each) for each in self.differing],
            "unread": list(self.unread),
            "compared": [
                {
                    "task": each.task, "subset": each.subset, "n": [each.first.n, each.second.n],
                    "paired_prompts": each.num_paired,
                    "changes": {
                        change.metric: {
                            "first": change.first.model_dump(), "second": change.second.model_dump(),
                            change.kind: change.change.model_dump(), "paired": change.paired,
                            "not_paired_because": change.unpaired,
                            "separable": change.separable if change.has_interval else None,
                        }
                        for change in each.changes
                    },
                }
                for each in self.compared
            ],
        }  # fmt: skip


def compare(first: ComparisonInput, second: ComparisonInput) -> Comparison:
    """Compare the rows of the tasks and subsets that both have. Raises ConfigError where there are none, and where both
    are the same row."""
    runs, mine, other = Runs(), first.by_group(), second.by_group()
    places = [place for place in mine if place in other]
    if not places:
        told = [", ".join(f"{task} {subset}" for task, subset in list(side)[:4]) for side in (mine, other)]
        raise ConfigError(
            f"{first.text} and {second.text} have no task and subset in common: the one has {told[0]}, "
            f"the other {told[1]}"
        )
    if all((mine[place].key, mine[place].created) == (other[place].key, other[place].created) for place in places):
        raise ConfigError(f"{first.text} and {second.text} are the same rows: name two runs, or two methods of one")
    found = []
    for place in places:
        pairs = pair_up(runs.with_records(mine[place], first.file), runs.with_records(other[place], second.file))
        found.append(Compared(*place, mine[place], other[place], pairs.num_prompts, changes(pairs)))
    hindrances = unique(each for place in places for each in conditions_that_differ(mine[place], other[place]))
    known = {each.field for each in hindrances}
    rest = unique(each for place in places for each in configuration(mine[place], other[place]))
    return Comparison(
        first.text,
        second.text,
        tuple(hindrances),
        tuple(each for each in rest if each.field not in known),
        tuple(found),
        tuple(runs.unread()),
    )


def changes(pairs: Pairs) -> tuple[Change, ...]:
    """Of speed, acceptance and score, where both sides have a value."""
    quality = pairs.first.row.quality
    names = [*KINDS, *([quality] if quality is not None and quality == pairs.second.row.quality else [])]
    made = [pairs.change(name) for name in names]
    return tuple(each for each in made if each.first.value is not None and each.second.value is not None)


def configuration(first: Row, second: Row) -> list[Difference]:
    """Every field that differs, but those of the outcome."""
    mine, other = (
        {name: value for name, value in leaves(row).items() if name.partition(".")[0] not in OUTCOMES}
        for row in (first, second)
    )
    names = dict.fromkeys([*mine, *other])
    return [
        Difference(name, mine.get(name, ABSENT), other.get(name, ABSENT))
        for name in names
        if mine.get(name, ABSENT) != other.get(name, ABSENT)
    ]


def unique(found: Any) -> list[Difference]:
    """Each field once: rows of several subsets mostly differ in the same."""
    return list({each.field: each for each in found}.values())
