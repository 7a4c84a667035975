"""The claims of papers on drafters, compared with the paired measurements."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from specbench.analysis.fairness.fairness import FairnessReport, NumberChange
from specbench.analysis.fairness.tables import MIN_MASS

from .cells import change, interval, table

WHAT = {
    "unfairness": ("𝒰", 4), "acceptance_rate.variance": ("variance of α", 5), "cross_entropy.mean": ("mean D", 3),
    "acceptance_rate.mean": ("mean α", 3), "speedup.mean": ("mean speed-up", 3),
}  # fmt: skip
RISES, FALLS = "rises", "falls"


@dataclass(frozen=True)
class Claim:
    """`reports`: comparisons by name; `expected`: of some of them what is claimed to rise or fall, by the number's key;
    `notes`: what a reader must know to judge; `numbers`: those that are shown."""

    title: str
    notes: str
    reports: Mapping[str, FairnessReport]
    expected: Mapping[str, Mapping[str, str]]
    numbers: Sequence[str] = tuple(WHAT)


def section(claim: Claim) -> str:
    """The claim, what was found of it, and every number before and after."""
    lines = [line for name in claim.reports for line in changes(claim, name)]
    head = ["from → to", "number", "before → after: difference", "in %", "claimed", "found"]
    return f"## Claim: {claim.title}\n\n{claim.notes}\n\n{verdict(claim)}\n\n{table(head, lines)}"


def verdict(claim: Claim) -> str:
    """Returns the number of claimed changes that were found."""
    words = [
        judged(family_of(claim.reports[name])[key], sign)
        for name, signs in claim.expected.items() for key, sign in signs.items()
    ]  # fmt: skip
    counts = ", ".join(f"{words.count(word)} {word}" for word in ("shown", "reversed", "not separable"))
    return f"**Of {len(words)} claimed changes: {counts}.**"


def judged(found: NumberChange, sign: str) -> str:
    """Returns whether the interval of the difference is on the claimed side."""
    way = direction(found)
    return "shown" if way == sign else way if way == "not separable" else "reversed"


def direction(found: NumberChange) -> str:
    """Returns the direction that the interval of the difference shows."""
    if found.difference.low is not None and found.difference.low > 0:
        return RISES
    if found.difference.high is not None and found.difference.high < 0:
        return FALLS
    return "not separable"


def changes(claim: Claim, name: str) -> Iterator[Sequence[str]]:
    """A line per number: of a single group no spread, and no D where a drafter excludes what the target allows."""
    report, expected = claim.reports[name], claim.expected.get(name, {})
    family = family_of(report)
    groups = [group for drafter in report.drafters for group in drafter.groups.values()]
    excludes = any(group.forced is not None and group.forced.excluded >= MIN_MASS for group in groups)
    is_alone = report.comparison is not None and len(report.comparison.groups) == 1
    for key in claim.numbers:
        what, digits = WHAT[key]
        hidden = excludes and key in ("unfairness", "cross_entropy.mean")
        if key in family and not hidden and not (is_alone and not key.endswith("mean")):
            found = family[key]
            sides = [change(found, digits), interval(found.percent, 0), expected.get(key, ""), direction(found)]
            yield [name, what, *sides]


def family_of(report: FairnessReport) -> Mapping[str, NumberChange]:
    assert report.comparison is not None
    return report.comparison.family
