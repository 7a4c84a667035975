"""`specbench check`: a baseline and a candidate → regressions, and what could not be compared.

Counts have no noise: equal outputs must not take more passes than before. Ratios of speeds have noise, and are judged
together (`check_speed`).
"""

import filecmp
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Self

from specbench.core.console import counted
from specbench.core.errors import ConfigError, NeedsCode, nearest
from specbench.core.progress import Say, say_nothing
from specbench.gate.report import (
    IN_ROWS,
    LENGTH,
    OUTPUTS,
    SPEED,
    SPEEDUP,
    CheckReport,
    Finding,
    MethodFindings,
    change_cells,
    compare_counts,
    counts_of,
    counts_of_row,
    output_finding,
    verdict_finding,
)
from specbench.gate.speed import (
    ALL_LENGTH,
    PendingRatio,
    SpeedControl,
    judge_all,
    length_ratio,
    log_scale_ratio,
    ratio_of_speeds,
    speed_ratios,
)
from specbench.records.records import Key, keys_of
from specbench.report.captions import marked_warnings
from specbench.results.conditions import BASELINE, IGNORABLE, RowPair, pair_rows
from specbench.results.metric_format import names_by_text
from specbench.results.paired import Pairs, RowWithRecords, join_pairs, pair_up, unpaired_ratio
from specbench.results.row import ALL, Row
from specbench.results.runs import RecordedRun, read_baseline, read_candidate
from specbench.results.verdict import TokenDifference
from specbench.statistics.bootstrap import Estimate

if TYPE_CHECKING:
    from specbench.running.recorded_prompts import Target


def check(
    baseline: str, candidate: str, max_regression: float, ignore: Collection[str] = (), say: Say = say_nothing,
    in_turns: bool = False, trust_remote_code: bool = False,
) -> CheckReport:  # fmt: skip
    """Compares both sides. `max_regression`: 0.03 allows a speed-up to fall by 3 %. `ignore`: conditions that may
    differ (`conditions.IGNORABLE`). `say`: receives the progress. `in_turns`: whether both sides were measured in
    turns, block by block; then speeds, also AR's, are compared instead of speed-ups. `trust_remote_code`: whether to
    run the target's Python code to recognize near-ties.

    Raises ConfigError for bad input.
    """
    for name in ignore:
        if name not in IGNORABLE:
            raise ConfigError(f"--ignore {name}: {nearest(name, IGNORABLE)}")
    # 1. The rows of both sides, paired.
    say("reading the runs")
    first, second = read_baseline(baseline), read_candidate(candidate)
    if first.run and second.run and first.rows == second.rows and has_same_records(first.run, second.run):
        return CheckReport(baseline, candidate, max_regression, 0, 1.0, (), (), (), identical=True)
    pairs, refused, new, missing = pair_rows(first.rows, second.rows, ignore, by_rows=first.run is None)
    control = SpeedControl(other_device="device" in ignore)
    compare = (
        ByRecords(first.run, second.run, control, say, in_turns, trust_remote_code).compare
        if first.run and second.run
        else partial(compare_rows, control)
    )
    # 2. Each method: counts are judged at once, ratios together in the end.
    compared, pending = [], []
    for task, method in dict.fromkeys((row.task_name, row.method_name) for row in second.rows):
        own = [pair for pair in pairs if pair.candidate.names[::2] == (task, method)]
        rejected = ((row.subset, why) for row, whys in refused if row.names[::2] == (task, method) for why in whys)
        reasons = [f"{text} ({', '.join(subsets)})" for text, subsets in names_by_text(rejected).items()]
        each = MethodFindings(task, method, problems=reasons)
        if own:
            say(f"comparing {each.name}")
            each.notes += [f"changed: {change}" for change in dict.fromkeys(c for pair in own for c in pair.changes())]
            if names := dict.fromkeys(name for pair in own for name in pair.rounding()):
                drafts = "differs, and rounding may change drafts: τ is the only count compared, by its interval"
                each.notes.append(f"{', '.join(names)} {drafts}")
            for pair in [pair for pair in own if pair.subset == ALL] or own:
                for name, row in (("baseline", pair.baseline), ("candidate", pair.candidate)):
                    each.notes += [f"{name} {row.subset}: {text}" for text in marked_warnings(row).values()]
            pending += compare(each, own)
        if own or each.problems:
            compared.append(each)
    num_tolerant, factor = judge_all(pending, control, max_regression, paired=first.run is not None)
    # 3. Rows of one side. One that only a baseline run has is a problem, or the check would pass anything.
    problems, notes = [], [*control.notes]
    if not compared:
        own_names, baseline_names = (_names(side.rows) or "no rows" for side in (second, first))
        problems.append(f"no rows in common: the candidate has {own_names}, the baseline {baseline_names}")
    elif new:
        notes.append(f"new, so not compared: {_names(new)}")
    if missing and first.run is not None:
        problems.append(f"the candidate has no {_names(missing)}: measure it, or name RUN:METHOD in --baseline")
    elif missing:
        notes.append(f"not in the candidate: {counted(len(missing), 'row')} of {first.text}")
    return CheckReport(baseline, candidate, max_regression, num_tolerant, factor, tuple(compared), tuple(problems),
                       tuple(notes), in_turns=in_turns)  # fmt: skip


def has_same_records(first: RecordedRun, second: RecordedRun) -> bool:
    return filecmp.cmp(first.path / "records.jsonl", second.path / "records.jsonl", shallow=False)


def _names(rows: Iterable[Row], most: int = 3) -> str:
    found = names_by_text((row.subset, f"{row.task_name} {row.method_name}") for row in rows)
    parts = {name: [subset for subset in subsets if subset != ALL] or subsets for name, subsets in found.items()}
    more = {name: f" and {len(subsets) - most} more" * (len(subsets) > most) for name, subsets in parts.items()}
    return ", ".join(f"{name} ({', '.join(subsets[:most])}{more[name]})" for name, subsets in parts.items())


@dataclass(frozen=True)
class RecordsOfSubset:
    """The paired records of one subset. `equal`, `different`: the keys of records with equal and with different
    outputs. Turns after a different one have other prompts, and are in neither."""

    rows: RowPair
    records: Pairs
    equal: Sequence[Key]
    different: Sequence[Key]

    @classmethod
    def of(cls, rows: RowPair, pairs: Pairs) -> Self:
        """Returns the records with the keys of the method's equal and different answers."""
        keys: dict[bool, list[Key]] = {True: [], False: []}
        differ = set[Key]()
        pairs_of_answers = zip(*pairs.own, strict=True)
        both = {first.key: first.tokens_digest == second.tokens_digest for first, second in pairs_of_answers}
        for key in sorted(both):  # the turns of an example in their order
            if (*key[:4], 0) in differ:
                continue
            keys[both[key]].append(key)
            if not both[key]:
                differ.add((*key[:4], 0))
        return cls(rows, pairs, keys[True], keys[False])

    @property
    def is_exact(self) -> bool:
        """Whether a different output is an error: the method is lossless and does not sample."""
        return self.rows.candidate.lossless and self.rows.candidate.sampling.temperature == 0

    @property
    def num_records(self) -> int:
        return self.records.num_answers

    def equal_records(self) -> Pairs:
        return self.records.select(set(self.equal))


DERIVED = {"text": ("text_digest",), "finish": ("finish",), "scores": ("score", "scores", "statistics")}


def changes_with_equal_tokens(subset: str, pairs: Pairs, runs: Sequence[RecordedRun]) -> Iterator[Finding]:
    """Yields a finding for a text, finish or score that changed although the token ids are equal. The cause is then the
    decoding of text, the stop rules, the scorer, or an edit of the records."""
    both = list(zip(*pairs.own, strict=True))
    for what, names in DERIVED.items():
        changed = [
            (before.key, name) for before, now in both
            if (name := next((name for name in names if getattr(before, name) != getattr(now, name)), None))
        ]  # fmt: skip
        if changed:
            key, name = changed[0]
            first, second = (run.records[key] for run in runs)
            before, now = (
                getattr(record.methods[pairs.method], name.removesuffix("_digest")) for record in (first, second)
            )
            detail = f"prompt {first.id}: {f'{before!r:.60}'} before, {f'{now!r:.60}'} now"
            values = f"of {len(both)} with equal tokens", f"{len(changed)} changed"
            yield Finding(what, subset, *values, regressed=True, detail=detail)


# A difference of unknown place and gap, which counts as no near-tie.
UNSCORED = TokenDifference(prompt="", position=0, ar_token=None, method_token=None, gap=None, near_tie=False)


class ByRecords:
    """Compares two runs by their records, prompt by prompt."""

    def __init__(
        self, baseline: RecordedRun, candidate: RecordedRun, control: SpeedControl, say: Say, in_turns: bool,
        trust_remote_code: bool,
    ) -> None:  # fmt: skip
        self.runs, self.control, self.say, self.in_turns = (baseline, candidate), control, say, in_turns
        self.trust_remote_code = trust_remote_code

    @cached_property
    def target(self) -> "Target":
        """The baseline's target, which imports torch. It is loaded only if outputs differ."""
        from specbench.running.recorded_prompts import Target

        return Target(self.runs[0], self.trust_remote_code)

    def compare(self, compared: MethodFindings, pairs: Sequence[RowPair]) -> list[PendingRatio]:
        """Adds findings to `compared`. Returns the ratios, which are judged later."""
        parts = [part for pair in pairs if pair.subset != ALL for part in self._part(compared, pair)]
        for part in parts:
            self._compare_outputs(compared, part)
        if not parts:
            return []
        before, now = map(counts_of, join_pairs([part.equal_records() for part in parts]).own)
        num_equal, num_records = sum(len(part.equal) for part in parts), sum(part.num_records for part in parts)
        compared.cells |= change_cells(before, now) | {OUTPUTS: f"{num_equal} of {num_records}"}
        if compared.method == BASELINE and not self.in_turns:
            records = join_pairs([part.records for part in parts])
            self.control.add(compared.task, ratio_of_speeds(records.times, records.speed_columns(with_own=False)))
            return []
        is_whole = len(parts) > 1 and any(pair.subset == ALL for pair in pairs)
        groups = {ALL: parts} if is_whole else {part.rows.subset: [part] for part in parts}
        return [
            pending for subset, group in groups.items() for pending in _ratios(compared, subset, group, self.in_turns)
        ]

    def _part(self, compared: MethodFindings, pair: RowPair) -> list[RecordsOfSubset]:
        """Returns the pair with its records; an empty list, with a problem in `compared`, if the prompts differ."""
        sides = []
        for run, row in zip(self.runs, (pair.baseline, pair.candidate), strict=True):
            answers = run.answers_of_any_language
            keys = keys_of(answers.keys(row.task_name), row.task_name, row.examples, row.repeats)
            sides.append(RowWithRecords(row, answers.of(keys, row.method_name), answers.of(keys, BASELINE)))
        before, now = sides
        pairs = pair_up(before, now, same=())
        num_records = pairs.num_answers
        if not len(before.own) == len(now.own) == num_records:
            compared.problems.append(f"{pair.subset}: the two sides have measured different examples")
            return []
        for name in ("prompt", "prompt_tokens", "prompt_ids_digest"):
            # the prompts of later turns hold earlier answers, which may differ
            both = [(a, b) for a, b in zip(*pairs.own, strict=True) if a.turn == 0]
            if name == "prompt_ids_digest":  # records of earlier versions have none
                both = [(a, b) for a, b in both if a.prompt_ids_digest and b.prompt_ids_digest]
            other = [(a, b) for a, b in both if getattr(a, name) != getattr(b, name)]
            if other:
                first, second = other[0]
                example = self.runs[0].records[first.key].id
                compared.problems.append(
                    f"{pair.subset}: {name} differs in {len(other)} of {num_records} records; example "
                    f"{example}: {getattr(first, name)} in the baseline, {getattr(second, name)} in the candidate"
                )
                return []
        return [RecordsOfSubset.of(pair, pairs)]

    def _compare_outputs(self, compared: MethodFindings, part: RecordsOfSubset) -> None:
        equal, subset, num_different = part.equal_records(), part.rows.subset, len(part.different)
        compared.findings += [*verdict_finding(part.rows), *changes_with_equal_tokens(subset, equal, self.runs)]
        differences: list[TokenDifference] | None = [] if part.is_exact else None
        if part.is_exact and num_different:
            self.say(f"asking the target about {num_different} outputs of {compared.name} {subset}")
            row = part.rows.baseline
            try:
                differences = self.target.differences(
                    row, part.different, self.runs[1].records, compared.method, row.num_draft_tokens + 1
                )
            except NeedsCode as error:
                compared.notes.append(f"{subset}: near-ties cannot be recognized, and count as differences: {error}")
                differences = [UNSCORED] * num_different
            except ConfigError as error:
                compared.problems.append(
                    f"{subset}: {num_different} of {part.num_records} outputs differ from the baseline's, and it is "
                    f"unknown whether these are near-ties: {error}"
                )
                return
        compared.findings.append(output_finding(subset, len(part.equal), num_different, differences))
        if not part.rows.rounding():
            detail = f"of {len(part.equal)} equal outputs" if len(part.equal) < part.num_records else ""
            before, now = map(counts_of, equal.own)
            compared.findings += compare_counts(subset, before, now, detail)


def _ratios(
    compared: MethodFindings, subset: str, parts: Sequence[RecordsOfSubset], in_turns: bool
) -> list[PendingRatio]:  # fmt: skip
    """Returns the ratios over records: of speeds if the runs took turns, else of speed-ups; and of τ if outputs or
    rounding may differ, as counts are compared otherwise."""
    has = [
        any(row.value("speedup") is not None for row in rows)
        for rows in zip(*((part.rows.baseline, part.rows.candidate) for part in parts), strict=True)
    ]
    # 1. Speeds are those of equal outputs: different ones need different work. Speed-ups are over the AR of each run.
    records, missing = join_pairs([part.records for part in parts]), ""
    if in_turns:
        num_records, num_equal = sum(part.num_records for part in parts), sum(len(part.equal) for part in parts)
        if num_equal < num_records:
            others = f"{num_records - num_equal} of {num_records} outputs of {subset}"
            compared.not_compared.append(
                f"times of {others}: they have other tokens than the baseline's, so other work"
            )
        speeds = speed_ratios(join_pairs([part.equal_records() for part in parts]), over_ar=False)
        missing = f"{SPEED} of {subset}: no equal answers of more than one token on both sides"
    elif all(has):
        speeds = speed_ratios(records, over_ar=True)
        missing = f"{SPEEDUP} of {subset}: no answers of more than one token on both sides"
    else:
        speeds = {}
        where = compared.problems if has[0] else compared.not_compared
        where.append(f"{SPEEDUP} of {subset}: {compared.method} has none{' in the candidate' * has[0]}")
    if missing and not speeds:
        compared.problems.append(missing)
    found = [PendingRatio(compared, what, subset, each) for what, each in speeds.items()]
    # 2. τ.
    others_may_differ = any(part.different for part in parts) and not parts[0].is_exact
    is_noisy = others_may_differ or any(part.rows.rounding() for part in parts)
    if is_noisy and parts[0].rows.candidate.num_draft_tokens:
        compared.not_compared.append(f"α and passes of all outputs of {subset}: {ALL_LENGTH}, is compared instead")
        found.append(PendingRatio(compared, ALL_LENGTH, subset, length_ratio(records)))
    return found


def compare_rows(control: SpeedControl, compared: MethodFindings, pairs: Sequence[RowPair]) -> list[PendingRatio]:
    """Compares rows with the rows of a leaderboard file, which has no records. Adds findings to `compared`, and returns
    the ratios, which are judged later."""
    whole = [pair for pair in pairs if pair.subset == ALL]
    parts = [pair for pair in pairs if pair.subset != ALL] or whole
    shown = (whole or parts)[0]
    if compared.method == BASELINE:
        speeds = (row.metric("tokens_per_second") for row in (shown.baseline, shown.candidate))
        control.add(compared.task, Estimate(value=unpaired_ratio(*speeds).value))
        return []
    compared.not_compared.append("outputs, draft passes and paired prompts: a leaderboard file does not have them")
    greedy = all(pair.candidate.sampling.temperature == 0 for pair in parts)
    strict = greedy and not any(pair.rounding() for pair in parts)
    for pair in parts:
        compared.findings += verdict_finding(pair)
        if strict:
            before, now = map(counts_of_row, (pair.baseline, pair.candidate))
            compared.findings += compare_counts(pair.subset, before, now)
    compared.cells |= change_cells(*map(counts_of_row, (shown.baseline, shown.candidate)))
    if not greedy:
        compared.notes.append("outputs are sampled, so counts are compared by intervals")
    names = {SPEEDUP: "speedup"} if strict else {SPEEDUP: "speedup", LENGTH: IN_ROWS[LENGTH]}
    return [
        pending for pair in whole or parts for what, name in names.items()
        for pending in _ratio_of_rows(compared, what, name, pair)
    ]  # fmt: skip


def _ratio_of_rows(compared: MethodFindings, what: str, metric: str, pair: RowPair) -> list[PendingRatio]:
    """Returns the ratio of a metric of two rows, with an interval from their own intervals (`Pairs.change`)."""
    change = pair_up(RowWithRecords(pair.baseline), RowWithRecords(pair.candidate)).change(metric)
    if change.first.value is None or change.second.value is None:
        where = compared.not_compared if change.first.value is None else compared.problems
        where.append(f"{what} of {pair.subset}: {compared.method} has none")
        return []
    num_prompts = min(row.num_timed if what == SPEEDUP else row.n for row in (pair.baseline, pair.candidate))
    ratio = log_scale_ratio((change.first, change.second), change.change, num_prompts)
    return [PendingRatio(compared, what, pair.subset, ratio)]
