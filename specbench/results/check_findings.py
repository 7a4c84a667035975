"""The findings of a check on verdicts, outputs and counts, its report and its exit code."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Self

from specbench.core.values import Generation, Key, record_key
from specbench.results.bootstrap import Metric
from specbench.results.conditions import RowPair
from specbench.results.metrics import acceptance_rates, length_columns, new_tokens, target_passes
from specbench.results.paired import Pairs
from specbench.results.row import Row
from specbench.results.verdict import TokenDifference

CheckResult = Literal["identical", "fine", "regressed", "cannot compare"]
EXIT_CODES: dict[CheckResult, int] = {"identical": 0, "fine": 0, "regressed": 1, "cannot compare": 2}


@dataclass(frozen=True)
class Finding:
    """One comparison: `what` of `subset` in the baseline and in the candidate. `ratio`: for numbers with noise, the
    candidate's value ÷ the baseline's, with the interval that decides."""

    what: str
    subset: str
    baseline: str
    candidate: str
    regressed: bool
    detail: str = ""
    ratio: Metric | None = None

    def __str__(self) -> str:
        same = self.baseline == self.candidate
        values = self.baseline if same else f"{self.baseline} → {self.candidate}"
        return f"{self.subset}: {self.what} {values}" + (f" ({self.detail})" if self.detail else "")


@dataclass
class MethodFindings:
    """The findings on a method on a task. `problems`: why required comparisons were impossible. `not_compared`: values
    that one side lacks. `cells`: the numbers over all subsets for the table, by heading."""

    task: str
    method: str
    findings: list[Finding] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    not_compared: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    cells: dict[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return f"{self.task} {self.method}"

    @property
    def regressions(self) -> list[Finding]:
        return [finding for finding in self.findings if finding.regressed]

    @property
    def result(self) -> CheckResult:
        if self.regressions:
            return "regressed"
        return "cannot compare" if self.problems else "fine"


@dataclass(frozen=True)
class CheckReport:
    """The result of a check. `widening`: the factor that widens the intervals of `num_tolerant` ratios. `identical`:
    whether both sides have the same rows and records. `in_turns`: whether both sides were measured in turns, so that
    speeds are compared instead of speed-ups."""

    baseline: str
    candidate: str
    max_regression: float
    num_tolerant: int
    widening: float
    compared: tuple[MethodFindings, ...]
    problems: tuple[str, ...]
    notes: tuple[str, ...]
    identical: bool = False
    in_turns: bool = False

    @property
    def result(self) -> CheckResult:
        """The result of the check; a regression outweighs problems."""
        if self.identical:
            return "identical"
        results = {each.result for each in self.compared}
        if "regressed" in results:
            return "regressed"
        return "cannot compare" if self.problems or "cannot compare" in results else "fine"

    @property
    def exit_code(self) -> int:
        return EXIT_CODES[self.result]


OUTPUTS = "outputs"
DIVERGED = "diverged"


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
        both = {record_key(first): (first, second) for first, second in zip(*pairs.records, strict=True)}
        for key in sorted(both):  # the turns of an example in their order
            first, second = (record["methods"][pairs.method]["token_ids"] for record in both[key])
            if (*key[:4], 0) in differ:
                continue
            keys[first == second].append(key)
            if first != second:
                differ.add((*key[:4], 0))
        return cls(rows, pairs, keys[True], keys[False])

    @property
    def is_exact(self) -> bool:
        """Whether a different output is an error: the method is lossless and does not sample."""
        return self.rows.candidate.lossless and self.rows.candidate.sampling.temperature == 0

    @property
    def num_records(self) -> int:
        return len(self.records.records[0])

    def equal_records(self) -> Pairs:
        return self.records.select(set(self.equal))


def verdict_finding(pair: RowPair) -> list[Finding]:
    """Returns a finding if a method is no longer lossless, by its rule or compared with the AR of its run."""
    before, now = pair.baseline.verdict, pair.candidate.verdict
    made_lossy = pair.baseline.lossless and not pair.candidate.lossless
    if not made_lossy and (now != DIVERGED or before == DIVERGED):
        return []
    return [Finding("verdict", pair.subset, before, now, regressed=True)]


def output_finding(subset: str, num_equal: int, num_different: int, found: Sequence[TokenDifference] | None) -> Finding:
    """Returns the finding on outputs. `found`: the differences of a lossless method in a greedy run; None if outputs
    may differ."""
    before = f"of {num_equal + num_different}"
    if found is None:
        detail = "outputs of a lossy or sampling method may differ" if num_different else ""
        now = f"{num_equal} equal" + f", {num_different} other" * bool(num_different)
        return Finding(OUTPUTS, subset, before, now, regressed=False, detail=detail)
    serious = [each for each in found if not each.near_tie]
    counts = {"equal": num_equal, "near-ties": len(found) - len(serious), "other": len(serious)}
    now, detail = ", ".join(f"{number} {name}" for name, number in counts.items() if number or name == "equal"), ""
    if serious and serious[0].prompt:
        old, new = (token or "the end" for token in (serious[0].ar_token, serious[0].method_token))
        detail = f"prompt {serious[0].prompt}, token {serious[0].position}: {old} before, {new} now"
    return Finding(OUTPUTS, subset, before, now, bool(serious), detail)


DERIVED = {"text": ("text",), "finish": ("finish",), "scores": ("score", "scores", "statistics")}


def changes_with_equal_tokens(subset: str, pairs: Pairs) -> Iterator[Finding]:
    """Yields a finding for a text, finish or score that changed although the token ids are equal. The cause is then the
    decoding of text, the stop rules, the scorer, or an edit of the records."""
    both = list(zip(*pairs.records, strict=True))
    for what, names in DERIVED.items():
        changed = []
        for records in both:
            before, now = (record["methods"][pairs.method] for record in records)
            name = next((name for name in names if before.get(name) != now.get(name)), None)
            changed += [] if name is None else [(records[0]["id"], before.get(name), now.get(name))]
        if changed:
            prompt, before, now = changed[0]
            detail = f"prompt {prompt}: {f'{before!r:.60}'} before, {f'{now!r:.60}'} now"
            values = f"of {len(both)} with equal tokens", f"{len(changed)} changed"
            yield Finding(what, subset, *values, regressed=True, detail=detail)


PASSES, LENGTH, RATE, DRAFTS = "target passes per token", "τ", "α", "draft passes per token"
MORE_IS_BETTER = {PASSES: False, LENGTH: True, RATE: True, DRAFTS: False}
IN_ROWS = {PASSES: "target_passes_per_token", LENGTH: "mean_acceptance_length", RATE: "acceptance_rate"}
ROUNDING = 1e-9  # relative: the same sums in another order
Counts = Mapping[str, float | None]


def counts_of(own: Sequence[Generation]) -> Counts:
    """Returns τ, α and passes of generations; None if nothing is drafted, or the decoder does not report a count."""
    passes = [target_passes(g) for g in own]
    tokens, steps = map(sum, length_columns([own]))
    rates = [rate for rate in acceptance_rates(own) if rate is not None]
    num_tokens = sum(map(new_tokens, own))
    num_drafts = sum(len(g["passes"]["draft"]) for g in own)
    known = own and not any("external" in g for g in own)
    return {
        PASSES: None if None in passes or not own else sum(n or 0 for n in passes) / num_tokens,
        LENGTH: tokens / steps if steps else None,
        RATE: sum(rates) / len(rates) if rates else None,
        DRAFTS: num_drafts / num_tokens if known else None,
    }


def counts_of_row(row: Row) -> Counts:
    """Returns the counts of a row, which has no draft passes."""
    return {what: row.value(name) for what, name in IN_ROWS.items()}


def _known(baseline: Counts, candidate: Counts) -> Iterator[tuple[str, float, float]]:
    """Yields the counts that both sides have."""
    for what, before in baseline.items():
        now = candidate.get(what)
        if before is not None and now is not None:
            yield what, before, now


def compare_counts(subset: str, baseline: Counts, candidate: Counts, detail: str = "") -> Iterator[Finding]:
    """Yields a finding for every count that both sides have, with at least three digits, and enough to show a
    change."""
    for what, before, now in _known(baseline, candidate):
        worse = (before - now if MORE_IS_BETTER[what] else now - before) > ROUNDING * abs(before)
        digits = next((n for n in range(3, 10) if f"{before:.{n}f}" != f"{now:.{n}f}"), 3)
        values = f"{before:.{digits}f}", f"{now:.{digits}f}"
        yield Finding(what, subset, *values, worse, detail if worse else "")


def change_cells(baseline: Counts, candidate: Counts) -> dict[str, str]:
    """Returns the counts of both sides as cells of a table; a single number if they are equal."""
    return {
        what: " → ".join(dict.fromkeys((f"{before:.3f}", f"{now:.3f}")))
        for what, before, now in _known(baseline, candidate)
    }
