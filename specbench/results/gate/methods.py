"""One method on one task in a check: its counts, which have no noise, and its ratios, which the check judges
together."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from specbench.core.errors import ConfigError
from specbench.results.bootstrap import Metric
from specbench.results.gate.counts import (
    IN_ROWS,
    ComparedOutputs,
    cells,
    changed_with_equal_tokens,
    compare,
    compare_counts,
    counts_of,
    counts_of_row,
)
from specbench.results.gate.counts import LENGTH as ROW_LENGTH
from specbench.results.gate.findings import OUTPUTS, MethodFindings, changed_finding, output_finding, verdict_finding
from specbench.results.gate.pairing import BASELINE, Pair, SpeedControl, records_of_row, rounding
from specbench.results.gate.speed import LENGTH, SPEEDUP, Pending, joined, lengths, speed_of_baseline, speedups
from specbench.results.paired import Pairs, RowWithRecords, joined_pairs, unpaired_ratio
from specbench.results.row import ALL, Row
from specbench.results.runs import RecordedRun
from specbench.results.verdict import TokenDifference
from specbench.running.records import record_key

if TYPE_CHECKING:
    from specbench.results.recorded_prompts import Target

Say = Callable[[str], None]
NOT_HELD = "outputs and draft passes, and prompts in pairs: a leaderboard file does not hold them"
NOT_DRAWN_AGAIN = "counts are those of draws: compared with their intervals"


@dataclass(frozen=True)
class SubsetPair:
    """The records of one subset on both sides, by the same keys, and which of them have equal outputs."""

    rows: Pair
    records: Pairs
    outputs: ComparedOutputs

    @property
    def subset(self) -> str:
        return self.rows.candidate.subset

    @property
    def is_exact(self) -> bool:
        """Returns whether a different output is an error, as it is for a lossless method that does not sample."""
        return self.rows.candidate.lossless and self.rows.candidate.sampling.temperature == 0

    @property
    def num_records(self) -> int:
        return len(self.records.records[0])

    def equal(self) -> Pairs:
        """Returns the records with equal outputs."""
        return self.records.of_keys(set(self.outputs.equal))


class ByRecords:
    """Compares the records of two runs, prompt by prompt."""

    def __init__(self, baseline: RecordedRun, candidate: RecordedRun, control: SpeedControl, say: Say) -> None:
        self.runs, self.control, self.say = (baseline, candidate), control, say

    @cached_property
    def target(self) -> "Target":
        """The baseline's target. It needs torch, so it is loaded only where outputs differ."""
        from specbench.results.recorded_prompts import Target

        return Target(self.runs[0])

    def compare(self, compared: MethodFindings, pairs: Sequence[Pair]) -> list[Pending]:
        """Put findings into `compared`; returns the ratios that wait for their verdict."""
        has_whole = any(pair.candidate.subset == ALL for pair in pairs)
        parts = [part for pair in pairs if pair.candidate.subset != ALL for part in self._part(compared, pair)]
        for part in parts:
            self._compare_part(compared, part)
        if not parts:
            return []
        now, before = map(counts_of, joined_pairs([part.equal() for part in parts]).generations())
        compared.cells |= cells(before, now) | {OUTPUTS: _share_equal(parts)}
        if compared.method == BASELINE:
            self.control.add(compared.task, speed_of_baseline(joined_pairs([part.records for part in parts])))
            return []
        groups = {ALL: parts} if has_whole and len(parts) > 1 else {part.subset: [part] for part in parts}
        return [pending for subset, group in groups.items() for pending in _ratios(compared, subset, group)]

    def _part(self, compared: MethodFindings, pair: Pair) -> list[SubsetPair]:
        """Returns the pair with its records; nothing, and a problem, where the two sides have read other prompts."""
        sides = [_with_records(run, row) for run, row in zip(self.runs, (pair.baseline, pair.candidate), strict=True)]
        before, now = ({record_key(record): record for record in side.records} for side in sides)
        subset = pair.candidate.subset
        if before.keys() != now.keys():
            compared.problems.append(f"{subset}: the two sides have measured other examples")
            return []
        for name in ("prompt", "prompt_tokens"):
            # later turns have an answer before them, which may be another one
            other = [key for key in before if key[4] == 0 and before[key].get(name) != now[key].get(name)]
            if other:
                first = before[other[0]]
                compared.problems.append(
                    f"{subset}: {name} of {len(other)} of {len(before)} records is not the same; example "
                    f"{first['id']}: {first.get(name)} in the baseline, {now[other[0]].get(name)} in the candidate"
                )
                return []
        records = Pairs(sides[0], sides[1], (list(before.values()), [now[key] for key in before]))
        return [SubsetPair(pair, records, compare(records))]

    def _compare_part(self, compared: MethodFindings, part: SubsetPair) -> None:
        """Put the findings on the outputs of a subset and on their counts into `compared`."""
        equal, num_equal, num_different = part.equal(), len(part.outputs.equal), len(part.outputs.different)
        compared.findings += verdict_finding(part.rows)
        compared.findings += [
            changed_finding(part.subset, each.what, each.num_changed, num_equal, each.first)
            for each in changed_with_equal_tokens(equal)
        ]
        found = None
        if part.is_exact:
            try:
                found = self._differences(compared, part) if num_different else []
            except ConfigError as error:
                compared.problems.append(
                    f"{part.subset}: {num_different} of {part.num_records} outputs are not the baseline's, "
                    f"and whether these are near-ties cannot be told: {error}"
                )
                return
        compared.findings.append(output_finding(part.subset, num_equal, num_different, found))
        if rounding(part.rows):
            return
        detail = f"of {num_equal} equal outputs" if num_equal < part.num_records else ""
        now, before = map(counts_of, equal.generations())
        compared.findings += compare_counts(part.subset, before, now, detail)

    def _differences(self, compared: MethodFindings, part: SubsetPair) -> list[TokenDifference]:
        """Returns the first difference of each output that is not the baseline's, scored by the target."""
        keys = part.outputs.different
        self.say(f"asking the target about {len(keys)} outputs of {compared.name} {part.subset}")
        row = part.rows.baseline
        candidate = {record_key(record): record for record in part.records.records[1]}
        return self.target.differences(row, keys, candidate, compared.method, row.num_draft_tokens + 1)


def _with_records(run: RecordedRun, row: Row) -> RowWithRecords:
    """Returns a row with the records that its run has of it."""
    method = run.methods.get(row.method_name) or run.method_of(row)
    return RowWithRecords(row, records_of_row(row, run.records), method)


def _ratios(compared: MethodFindings, subset: str, parts: Sequence[SubsetPair]) -> list[Pending]:
    """Returns the ratios of the speed-ups, and of τ where outputs or their rounding may differ."""
    records, row = joined_pairs([part.records for part in parts]), parts[0].rows.candidate
    had, has = (
        any(side.metrics.get("speedup", Metric()).value is not None for side in rows)
        for rows in zip(*((part.rows.baseline, part.rows.candidate) for part in parts), strict=True)
    )
    found = []
    if not (had and has):
        where = compared.problems if had else compared.not_compared
        where.append(f"{SPEEDUP} of {subset}: {compared.method} has none{' in the candidate' * had}")
    else:
        measured = speedups(records)
        found += [Pending(compared, what, subset, each) for what, each in measured.items()]
        if not measured:
            compared.problems.append(f"{SPEEDUP} of {subset}: no answers of more than one token on both sides")
    others = any(part.outputs.different for part in parts) and not parts[0].is_exact
    if (others or any(rounding(part.rows) for part in parts)) and row.num_draft_tokens > 0:
        compared.not_compared.append(f"α and passes of all outputs of {subset}: {LENGTH}, stands for them")
        found.append(Pending(compared, LENGTH, subset, lengths(records)))
    return found


def _share_equal(parts: Sequence[SubsetPair]) -> str:
    return f"{sum(len(part.outputs.equal) for part in parts)} of {sum(part.num_records for part in parts)}"


class ByRows:
    """Compares rows with the rows of a leaderboard file, which has no records."""

    def __init__(self, control: SpeedControl) -> None:
        self.control = control

    def compare(self, compared: MethodFindings, pairs: Sequence[Pair]) -> list[Pending]:
        """Put findings into `compared`; returns the ratios that wait for their verdict."""
        whole = [pair for pair in pairs if pair.candidate.subset == ALL]
        parts = [pair for pair in pairs if pair.candidate.subset != ALL] or whole
        shown = (whole or parts)[0]
        if compared.method == BASELINE:
            speeds = (_metric(row, "tokens_per_second") for row in (shown.baseline, shown.candidate))
            self.control.add(compared.task, Metric(value=unpaired_ratio(*speeds).value))
            return []
        compared.not_compared.append(NOT_HELD)
        greedy = all(pair.candidate.sampling.temperature == 0 for pair in parts)
        strict = greedy and not any(map(rounding, parts))
        for pair in parts:
            compared.findings += verdict_finding(pair)
            if strict:
                before, now = map(counts_of_row, (pair.baseline, pair.candidate))
                compared.findings += compare_counts(pair.candidate.subset, before, now)
        compared.cells |= cells(*map(counts_of_row, (shown.baseline, shown.candidate)))
        if not greedy:
            compared.notes.append(NOT_DRAWN_AGAIN)
        names = {SPEEDUP: "speedup"} if strict else {SPEEDUP: "speedup", ROW_LENGTH: IN_ROWS[ROW_LENGTH]}
        return [
            pending for pair in whole or parts for what, name in names.items()
            for pending in _ratio_of_rows(compared, what, name, pair)
        ]  # fmt: skip


def _ratio_of_rows(compared: MethodFindings, what: str, metric: str, pair: Pair) -> list[Pending]:
    """Returns the ratio of a metric of two rows, with the interval that their own intervals give (`Pairs.change`)."""
    change = Pairs(RowWithRecords(pair.baseline), RowWithRecords(pair.candidate), ((), ())).change(metric)
    values = change.first, change.second
    if values[0].value is None or values[1].value is None:
        where = compared.not_compared if values[0].value is None else compared.problems
        where.append(f"{what} of {pair.candidate.subset}: {pair.candidate.method_name} has none")
        return []
    num_prompts = min(_num_prompts(row, what) for row in (pair.baseline, pair.candidate))
    return [Pending(compared, what, pair.candidate.subset, joined(values, change.change, num_prompts))]


def _num_prompts(row: Row, what: str) -> int:
    """Returns how many prompts have a value: of a speed-up the timed ones."""
    timed = _metric(row, "num_prompts_timed").value
    return row.n if timed is None or what != SPEEDUP else int(timed)


def _metric(row: Row, name: str) -> Metric:
    return row.metrics.get(name, Metric())
