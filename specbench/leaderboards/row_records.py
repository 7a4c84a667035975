"""Which records of a folder a row is of: a folder may hold more, examples and subsets of other commands."""

import math
from collections.abc import Mapping, Sequence
from statistics import median

from specbench.errors import ConfigError
from specbench.fairness.runs import method_name, task_name
from specbench.results.counts import timed_tokens
from specbench.results.row import ALL, RESULT_FIELDS, Row
from specbench.running.records import Key, Record

OF_PARTS = {"subset", "language", "n", "data_location", "data_revision", "num_draft_tokens", "options"}
Examples = dict[str, list[list[Record]]]  # by subset, of each example the records of its repeats and turns
TIME = "tpot_seconds"


def records_of_row(row: Row, beside: Sequence[Row], last: Sequence[str], records: Mapping[Key, Record]) -> list[Record]:
    """The records of a row in the order in which the run has its examples. `beside`: the rows of its file; `last`: the
    subsets that the folder's last command had.

    Raises ConfigError where there are not as many as the row says, and where it is not plain of which subsets a row
    over all is.
    """
    examples = examples_of(row, records)
    asked = [[row.subset]] if row.subset != ALL else subsets_of(row, beside, last, examples)
    if len(asked) > 1:
        told = " or ".join(", ".join(subsets) for subsets in asked)
        raise ConfigError(f"{row.place}: is of {told}, and nothing tells which: repeat its command: {row.command}")
    (subsets,) = asked
    sizes = counts(row, subsets, examples)
    if sizes is None:
        num_found = sum(len(examples.get(subset, [])) for subset in subsets)
        raise ConfigError(
            f"{row.place}: n = {row.n}, but the folder has records of {num_found} examples in {', '.join(subsets)}: "
            f"give the folder of the row's own run, or repeat its command: {row.command}"
        )
    found = [
        record
        for subset in subsets
        for record in sorted(
            (record for example in examples[subset][: sizes[subset]] for record in example), key=lambda r: r["repeat"]
        )
    ]
    if row.subset == ALL and not is_timed_so(row, found):
        raise ConfigError(
            f"{row.place}: the records of {', '.join(subsets)} have another {TIME} than the row, so it is of other "
            f"subsets, or edited: add its run again, with the rows of its subsets: {row.command}"
        )
    return found


def records_of_subset(row: Row, records: Mapping[Key, Record]) -> list[Record]:
    """The records of a row of one subset: of as many examples as it says, or of fewer where the folder has no more."""
    return [record for example in examples_of(row, records).get(row.subset, [])[: row.n] for record in example]


def examples_of(row: Row, records: Mapping[Key, Record]) -> Examples:
    """The examples of the row's task, in their order, with as many repeats as the row has."""
    found: dict[str, dict[int, list[Record]]] = {}
    for key in sorted(key for key in records if key[0] == task_name(row) and key[3] < row.repeats):
        found.setdefault(key[1], {}).setdefault(key[2], []).append(records[key])
    return {subset: list(examples.values()) for subset, examples in found.items()}


def subsets_of(row: Row, beside: Sequence[Row], last: Sequence[str], examples: Examples) -> list[list[str]]:
    """Of which subsets a row over all may be: those of its parts in its file; where these do not make as many examples,
    those of the last command."""
    parts = [each for each in beside if is_part(each, row)]
    sizes = {(part.subset, part.n) for part in parts}
    found: dict[frozenset[str], list[str]] = {}
    for some in (parts, [part for part in parts if part.created == row.created]):
        subsets = list(dict.fromkeys(part.subset for part in some))
        own = counts(row, subsets, examples)
        if own is not None and own.items() <= sizes:
            found[frozenset(subsets)] = sorted(subsets, key=last.index) if set(subsets) <= set(last) else subsets
    return list(found.values()) or [list(last)]


def is_part(row: Row, whole: Row) -> bool:
    """Whether a row is of a single subset, and else of the same task, method, conditions and command."""
    if row.subset == ALL or any(getattr(row, name) != getattr(whole, name) for name in ("task", "method", "command")):
        return False
    left_out = {*RESULT_FIELDS, *OF_PARTS}
    return row.model_dump(exclude=left_out) == whole.model_dump(exclude=left_out)


def counts(row: Row, subsets: Sequence[str], examples: Examples) -> dict[str, int] | None:
    """How many examples of each subset a row has: up to the same number of each; None where no number makes as many
    as the row says."""
    lengths = {subset: len(examples.get(subset, [])) for subset in subsets}
    for limit in range(1, max(lengths.values(), default=0) + 1):
        found = {subset: min(limit, length) for subset, length in lengths.items()}
        if sum(found.values()) == row.n:
            return found
    return None


def is_timed_so(row: Row, records: Sequence[Record]) -> bool:
    """Whether a row has the time per token of these records; it is another one for other records. True of a row without
    it."""
    said, own = row.metrics.get(TIME), [record["methods"][method_name(row)] for record in records]
    times = [g["decode_seconds"] / timed_tokens(g) for g in own if timed_tokens(g) > 0]
    return not times or said is None or said.value is None or math.isclose(said.value, median(times), rel_tol=1e-9)
