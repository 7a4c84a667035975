"""`specbench check`: a baseline and a candidate → regressions, and what could not be compared.

Counts have no noise: equal outputs must not take more passes than before. Ratios of speeds have noise, and are judged
together (`gate.speed`).
"""

import filecmp
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING

from specbench.core.console import counted
from specbench.core.errors import ConfigError, NeedsCode, nearest
from specbench.core.progress import Say, say_nothing
from specbench.gate.report import (
    ALL_LENGTH,
    IN_ROWS,
    LENGTH,
    OUTPUTS,
    SPEED,
    SPEEDUP,
    CheckReport,
    Finding,
    MethodFindings,
    Ratio,
    change_cells,
    compare_counts,
    counts_of,
    counts_of_row,
    output_finding,
    verdict_finding,
)
from specbench.gate.speed import SpeedControl, judge_all, length_ratio, ratio_of_speeds, speed_ratios
from specbench.models.near_ties import TokenDifference
from specbench.records.records import RECORDS, Key, keys_of
from specbench.report.captions import marked_warnings
from specbench.results.conditions import BASELINE, IGNORABLE, RowPair, pair_rows
from specbench.results.metric_format import names_by_text
from specbench.results.paired import Pairs, RowWithRecords, join_pairs, pair_up, unpaired_ratio, widen_ratio
from specbench.results.row import ALL, Row
from specbench.results.runs import RecordedRun, read_baseline, read_candidate
from specbench.statistics.bootstrap import Estimate

if TYPE_CHECKING:
    from specbench.running.recorded_prompts import Target


def check(
    baseline: str, candidate: str, max_regression: float, ignore: Collection[str] = (), say: Say = say_nothing,
    interleaved: bool = False, trust_remote_code: bool = False,
) -> CheckReport:  # fmt: skip
    """Compares both sides. `max_regression`: 0.03 allows a speed-up to fall by 3 %. `ignore`: conditions that may
    differ (`conditions.IGNORABLE`). `say`: receives the progress. `interleaved`: whether both sides were measured
    interleaved; then speeds, also AR's, are compared instead of speed-ups. `trust_remote_code`: whether to run the
    target's Python code to recognize near-ties.

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
    runs = (first.run, second.run) if first.run and second.run else None
    records = RecordComparison(runs, control, say, interleaved, trust_remote_code) if runs else None
    # 2. Each method: counts are judged at once, ratios together in the end.
    compared = []
    for task, method in dict.fromkeys((row.task_name, row.method_name) for row in second.rows):
        of_method = [pair for pair in pairs if pair.candidate.names[::2] == (task, method)]
        reasons = ((row.subset, why) for row, whys in refused if row.names[::2] == (task, method) for why in whys)
        problems = [f"{text} ({', '.join(subsets)})" for text, subsets in names_by_text(reasons).items()]
        each = MethodFindings(task, method, problems=problems)
        if of_method:
            say(f"comparing {each.name}")
            changes = dict.fromkeys(change for pair in of_method for change in pair.changes())
            each.notes += [f"changed: {change}" for change in changes]
            if names := dict.fromkeys(name for pair in of_method for name in pair.rounding()):
                drafts = "differs, and rounding may change drafts: τ is the only count compared, by its interval"
                each.notes.append(f"{', '.join(names)} {drafts}")
            for pair in [pair for pair in of_method if pair.subset == ALL] or of_method:
                for name, row in (("baseline", pair.baseline), ("candidate", pair.candidate)):
                    each.notes += [f"{name} {row.subset}: {text}" for text in marked_warnings(row).values()]
            if records is not None:
                records.compare(each, of_method)
            else:
                compare_rows(each, of_method, control)
        if of_method or problems:
            compared.append(each)
    num_tolerant, factor = judge_all(compared, control, max_regression, paired=first.run is not None)
    # 3. Rows of one side. One that only a baseline run has is a problem, or the check would pass anything.
    problems, notes = [], [*control.notes]
    if not compared:
        candidate_rows, baseline_rows = (_names(side.rows) or "no rows" for side in (second, first))
        problems.append(f"no rows in common: the candidate has {candidate_rows}, the baseline {baseline_rows}")
    elif new:
        notes.append(f"new, so not compared: {_names(new)}")
    if missing and first.run is not None:
        problems.append(f"the candidate has no {_names(missing)}: measure it, or name RUN:METHOD in --baseline")
    elif missing:
        notes.append(f"not in the candidate: {counted(len(missing), 'row')} of {first.text}")
    return CheckReport(baseline, candidate, max_regression, num_tolerant, factor, tuple(compared), tuple(problems),
                       tuple(notes), interleaved=interleaved)  # fmt: skip


def has_same_records(first: RecordedRun, second: RecordedRun) -> bool:
    return filecmp.cmp(first.path / RECORDS, second.path / RECORDS, shallow=False)


def _names(rows: Iterable[Row]) -> str:
    """Returns tasks and methods with at most three of their subsets each."""
    rows_by_name = names_by_text((row.subset, f"{row.task_name} {row.method_name}") for row in rows)
    parts = []
    for name, every in rows_by_name.items():
        subsets = [subset for subset in every if subset != ALL] or every
        more = f" and {len(subsets) - 3} more" if len(subsets) > 3 else ""
        parts.append(f"{name} ({', '.join(subsets[:3])}{more})")
    return ", ".join(parts)


@dataclass(frozen=True)
class SubsetRecords:
    """The paired records of one subset: `every`, and those with `equal` outputs. `different`: the keys of those with
    different outputs. Turns after a different one have other prompts, and are neither."""

    rows: RowPair
    every: Pairs
    equal: Pairs
    different: Sequence[Key]

    @property
    def is_exact(self) -> bool:
        """Whether a different output is an error: the method is lossless and does not sample."""
        return self.rows.candidate.lossless and self.rows.candidate.sampling.temperature == 0


# A difference of unknown place and gap, which counts as no near-tie.
UNSCORED = TokenDifference(prompt="", position=0, ar_token=None, method_token=None, gap=None, near_tie=False)


@dataclass
class RecordComparison:
    """Compares two runs by their records, prompt by prompt: the baseline's and the candidate's."""

    runs: tuple[RecordedRun, RecordedRun]
    control: SpeedControl
    say: Say
    interleaved: bool
    trust_remote_code: bool

    @cached_property
    def target(self) -> "Target":
        """The baseline's target, which imports torch. It is loaded only if outputs differ."""
        from specbench.running.recorded_prompts import Target

        return Target(self.runs[0], self.trust_remote_code)

    def compare(self, compared: MethodFindings, pairs: Sequence[RowPair]) -> None:
        """Adds findings to `compared`, and the ratios, which are judged later."""
        compared_parts = [self._records(compared, pair) for pair in pairs if pair.subset != ALL]
        parts = [part for part in compared_parts if part is not None]
        for part in parts:
            self._compare_outputs(compared, part)
        if not parts:
            return
        every, equal = join_pairs([part.every for part in parts]), join_pairs([part.equal for part in parts])
        before, now = map(counts_of, equal.own)
        outputs = f"{equal.num_answers} of {every.num_answers}"
        compared.cells |= change_cells(before, now) | {OUTPUTS: outputs}
        if compared.method == BASELINE and not self.interleaved:
            self.control.add(compared.task, ratio_of_speeds(every.times, every.speed_columns(with_own=False)))
            return
        is_whole = len(parts) > 1 and any(pair.subset == ALL for pair in pairs)
        groups = {ALL: parts} if is_whole else {part.rows.subset: [part] for part in parts}
        for subset, group in groups.items():
            self._add_ratios(compared, subset, group)

    def _records(self, compared: MethodFindings, pair: RowPair) -> SubsetRecords | None:
        """Returns the records of a pair; None, with a problem in `compared`, if the prompts differ."""
        sides = []
        for run, row in zip(self.runs, (pair.baseline, pair.candidate), strict=True):
            answers = run.answers_of_any_language
            keys = keys_of(answers.keys(row.task_name), row.task_name, row.examples, row.repeats)
            sides.append(RowWithRecords(row, answers.of(keys, row.method_name), answers.of(keys, BASELINE)))
        before, now = sides
        pairs = pair_up(before, now, same=())
        both = list(zip(*pairs.own, strict=True))
        # 1. The same examples and prompts. Those of later turns hold earlier answers, which may differ; records of
        #    earlier versions have no digest of the tokens.
        if not len(before.own) == len(now.own) == len(both):
            compared.problems.append(f"{pair.subset}: the two sides have measured different examples")
            return None
        for name in ("prompt", "prompt_tokens", "prompt_ids_digest"):
            values = [(getattr(a, name), getattr(b, name), a.key) for a, b in both if a.turn == 0]
            if other := [each for each in values if each[0] and each[1] and each[0] != each[1]]:
                first, second, key = other[0]
                example = self.runs[0].records[key].id
                compared.problems.append(
                    f"{pair.subset}: {name} differs in {len(other)} of {len(both)} records; example {example}: {first} "
                    f"in the baseline, {second} in the candidate"
                )
                return None
        # 2. Equal and different outputs, the turns of an example in their order.
        equal, different = set[Key](), dict[Key, None]()
        for first, second in sorted(both, key=lambda pair: pair[0].key):
            if (*first.key[:4], 0) in {(*key[:4], 0) for key in different}:
                continue
            if first.tokens_digest == second.tokens_digest:
                equal.add(first.key)
            else:
                different[first.key] = None
        return SubsetRecords(pair, pairs, pairs.select(equal), list(different))

    def _compare_outputs(self, compared: MethodFindings, part: SubsetRecords) -> None:
        subset = part.rows.subset
        num_equal = part.equal.num_answers
        num_records = part.every.num_answers
        compared.findings += [*verdict_finding(part.rows), *changes_with_equal_tokens(subset, part.equal, self.runs)]
        differences: list[TokenDifference] | None = [] if part.is_exact else None
        if part.is_exact and part.different:
            self.say(f"asking the target about {len(part.different)} outputs of {compared.name} {subset}")
            row = part.rows.baseline
            try:
                differences = self.target.differences(
                    row, part.different, self.runs[1].records, compared.method, row.num_draft_tokens + 1
                )
            except NeedsCode as error:
                compared.notes.append(f"{subset}: near-ties cannot be recognized, and count as differences: {error}")
                differences = [UNSCORED] * len(part.different)
            except ConfigError as error:
                compared.problems.append(
                    f"{subset}: {len(part.different)} of {num_records} outputs differ from the baseline's, and it is "
                    f"unknown whether these are near-ties: {error}"
                )
                return
        compared.findings.append(output_finding(subset, num_equal, len(part.different), differences))
        if not part.rows.rounding():
            detail = f"of {num_equal} equal outputs" if num_equal < num_records else ""
            before, now = map(counts_of, part.equal.own)
            compared.findings += compare_counts(subset, before, now, detail)

    def _add_ratios(self, compared: MethodFindings, subset: str, parts: Sequence[SubsetRecords]) -> None:
        """Adds the ratios over records: of speeds if the runs are interleaved, else of speed-ups; and of τ if outputs
        or rounding may differ, as counts are compared otherwise."""
        every, equal = join_pairs([part.every for part in parts]), join_pairs([part.equal for part in parts])
        # 1. Speeds are those of equal outputs: different ones need different work. Speed-ups are over the AR of each
        #    run.
        rows = [(part.rows.baseline, part.rows.candidate) for part in parts]
        has = [any(row.value("speedup") is not None for row in side) for side in zip(*rows, strict=True)]
        if self.interleaved:
            num_records, num_equal = every.num_answers, equal.num_answers
            if num_equal < num_records:
                compared.not_compared.append(
                    f"times of {num_records - num_equal} of {num_records} outputs of {subset}: they have other tokens "
                    "than the baseline's, so other work"
                )
            ratios = speed_ratios(equal, subset, over_ar=False)
            missing = f"{SPEED} of {subset}: no equal answers of more than one token on both sides"
        elif all(has):
            ratios = speed_ratios(every, subset, over_ar=True)
            missing = f"{SPEEDUP} of {subset}: no answers of more than one token on both sides"
        else:
            ratios = []
            missing = f"{SPEEDUP} of {subset}: {compared.method} has none{' in the candidate' * has[0]}"
        if not ratios:
            is_expected = self.interleaved or has[0]
            (compared.problems if is_expected else compared.not_compared).append(missing)
        compared.ratios += ratios
        # 2. τ.
        others_may_differ = any(part.different for part in parts) and not parts[0].is_exact
        is_noisy = others_may_differ or any(part.rows.rounding() for part in parts)
        if is_noisy and parts[0].rows.candidate.num_draft_tokens:
            compared.not_compared.append(f"α and passes of all outputs of {subset}: {ALL_LENGTH}, is compared instead")
            compared.ratios.append(length_ratio(every, subset))


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
            old, new = (
                f"{getattr(record.methods[pairs.method], name.removesuffix('_digest'))!r:.60}"
                for record in (first, second)
            )
            detail = f"prompt {first.id}: {old} before, {new} now"
            values = f"of {len(both)} with equal tokens", f"{len(changed)} changed"
            yield Finding(what, subset, *values, regressed=True, detail=detail)


def compare_rows(compared: MethodFindings, pairs: Sequence[RowPair], control: SpeedControl) -> None:
    """Compares rows with the rows of a leaderboard file, which has no records. Adds findings to `compared`, and the
    ratios with intervals from those of the rows (`Pairs.change`), which are judged later."""
    whole = [pair for pair in pairs if pair.subset == ALL]
    parts = [pair for pair in pairs if pair.subset != ALL] or whole
    shown = (whole or parts)[0]
    if compared.method == BASELINE:
        speeds = (row.metric("tokens_per_second") for row in (shown.baseline, shown.candidate))
        control.add(compared.task, Estimate(value=unpaired_ratio(*speeds).value))
        return
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
    for pair in whole or parts:
        for what, metric in ((SPEEDUP, "speedup"), *(() if strict else ((LENGTH, IN_ROWS[LENGTH]),))):
            change = pair_up(RowWithRecords(pair.baseline), RowWithRecords(pair.candidate)).change(metric)
            if change.first.value is None or change.second.value is None:
                where = compared.not_compared if change.first.value is None else compared.problems
                where.append(f"{what} of {pair.subset}: {compared.method} has none")
                continue
            num_prompts = min(row.num_timed if what == SPEEDUP else row.n for row in (pair.baseline, pair.candidate))
            widened = partial(widen_ratio, change.change)
            compared.ratios.append(Ratio(what, pair.subset, (change.first, change.second), widened, num_prompts))
