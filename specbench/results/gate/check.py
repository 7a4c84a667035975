"""`specbench check`: a baseline and a candidate → what has become worse, and what could not be compared."""

from collections.abc import Callable, Collection, Iterable, Sequence

from specbench.results.comparison_input import ComparisonInput
from specbench.results.gate.findings import CheckReport, MethodFindings
from specbench.results.gate.methods import ByRecords, ByRows
from specbench.results.gate.pairing import (
    Pair,
    Refused,
    SpeedControl,
    changes,
    check_ignored,
    pair_rows,
    read_baseline,
    read_candidate,
    rounding,
)
from specbench.results.gate.speed import judge_all
from specbench.results.row import Row
from specbench.results.tables import marked_warnings

Say = Callable[[str], None]


def check(
    baseline: str, candidate: str, max_regression: float, ignore: Collection[str] = (), say: Say = lambda text: None
) -> CheckReport:
    """Returns the comparison of both sides. `max_regression`: 0.03 lets a speed-up fall by 3 %. `ignore`: conditions
    that may differ (`pairing.IGNORABLE`). `say`: is called with the progress.

    Raises ConfigError for bad input.
    """
    check_ignored(ignore)
    say("reading the runs")
    first, second = read_baseline(baseline), read_candidate(candidate)
    if first.run and second.run and (first.rows, first.run.records) == (second.rows, second.run.records):
        return CheckReport(baseline, candidate, max_regression, 0, 1.0, (), (), (), identical=True)
    pairs, refused, new, missing = pair_rows(first, second, ignore)
    control = SpeedControl(other_device="device" in ignore)
    by = ByRecords(first.run, second.run, control, say) if first.run and second.run else ByRows(control)
    compared, pending = [], []
    for task, method in dict.fromkeys((row.task_name, row.method_name) for row in second.rows):
        mine = [pair for pair in pairs if _is_of(pair.candidate, task, method)]
        each = MethodFindings(
            task, method, problems=_reasons([r for r in refused if _is_of(r.candidate, task, method)])
        )
        if mine:
            say(f"comparing {each.name}")
            each.notes += [f"changed: {change}" for change in dict.fromkeys(c for pair in mine for c in changes(pair))]
            each.notes += [*_noise(mine), *_warnings(mine)]
            pending += by.compare(each, mine)
        if mine or each.problems:
            compared.append(each)
    num_tolerant, factor = judge_all(pending, control, max_regression, paired=first.run is not None)
    problems = [*([] if compared else [_nothing_common(first, second)]), *_missing(first, missing)]
    notes = [*control.notes, *_new(new if compared else []), *_other_rows(first, missing)]
    return CheckReport(baseline, candidate, max_regression, num_tolerant, factor, tuple(compared), tuple(problems),
                  tuple(notes))  # fmt: skip


def _is_of(row: Row, task: str, method: str) -> bool:
    return (row.task_name, row.method_name) == (task, method)


def _noise(pairs: Sequence[Pair]) -> list[str]:
    names = list(dict.fromkeys(name for pair in pairs for name in rounding(pair)))
    if not names:
        return []
    return [
        f"{', '.join(names)} not the same, whose rounding may change drafts: of the counts only τ is compared, "
        "with its interval"
    ]


def _warnings(pairs: Sequence[Pair]) -> list[str]:
    """Returns the warnings of the rows over all subsets, on either side."""
    whole = [pair for pair in pairs if pair.candidate.subset == "all"] or pairs
    sides = [side for pair in whole for side in (("baseline", pair.baseline), ("candidate", pair.candidate))]
    return [f"{name} {row.subset}: {text}" for name, row in sides for text in marked_warnings(row).values()]


def _reasons(refused: Sequence[Refused]) -> list[str]:
    """Returns each reason once, with its subsets."""
    subsets: dict[str, list[str]] = {}
    for each in refused:
        for reason in each.reasons:
            subsets.setdefault(reason, []).append(each.candidate.subset)
    return [f"{reason} (of {', '.join(names)})" for reason, names in subsets.items()]


def _nothing_common(baseline: ComparisonInput, candidate: ComparisonInput) -> str:
    here, there = (", ".join(_names(side.rows)) or "no rows" for side in (candidate, baseline))
    return f"the two have nothing in common: the candidate has {here}, the baseline {there}"


def _missing(baseline: ComparisonInput, rows: Sequence[Row]) -> list[str]:
    """Returns a problem with the rows of a baseline run that the candidate lacks: without it the gate would pass
    anything."""
    if baseline.run is None or not rows:
        return []
    return [f"the candidate has no {', '.join(_names(rows))}: measure it, or name RUN:METHOD in --baseline"]


def _other_rows(baseline: ComparisonInput, rows: Sequence[Row]) -> list[str]:
    if baseline.run is not None or not rows:
        return []
    return [f"{len(rows)} rows of {baseline.text} are of what the candidate did not measure"]


def _new(rows: Sequence[Row]) -> list[str]:
    return [f"new, so not compared: {', '.join(_names(rows))}"] if rows else []


def _names(rows: Iterable[Row]) -> list[str]:
    """Returns task and method with their subsets."""
    subsets: dict[str, list[str]] = {}
    for row in rows:
        subsets.setdefault(f"{row.task_name} {row.method_name}", []).append(row.subset)
    return [f"{name} ({_listed(found)})" for name, found in subsets.items()]


def _listed(subsets: Sequence[str], most: int = 3) -> str:
    named = [subset for subset in subsets if subset != "all"] or list(subsets)
    return ", ".join(named[:most]) + f" and {len(named) - most} more" * (len(named) > most)
