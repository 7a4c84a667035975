"""A baseline that is a run: everything is compared prompt by prompt, from the records of both."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from specbench.core.errors import ConfigError
from specbench.results.bootstrap import Metric, Prompts
from specbench.results.comparison_input import ComparisonInput
from specbench.results.gate.counts import (
    FOLLOWS,
    Outputs,
    cells,
    changed_with_equal_tokens,
    compare_counts,
    compare_outputs,
    counts_of,
    generations,
)
from specbench.results.gate.findings import OUTPUTS, Compared, Finding, changed_finding, output_finding, verdict_finding
from specbench.results.gate.pairing import BASELINE, Control, Pair, by_key, records_of_row, rounding
from specbench.results.gate.speed import LENGTH, SPEEDUP, Measured, Pending, Sides, lengths, speed_of_baseline, speedups
from specbench.running.records import Key, Record

if TYPE_CHECKING:
    from specbench.results.gate.target import Target

Say = Callable[[str], None]


@dataclass(frozen=True)
class Part:
    """The records of one subset on both sides, by the same keys, and which of them have equal outputs."""

    pair: Pair
    baseline: Mapping[Key, Record]
    candidate: Mapping[Key, Record]
    outputs: Outputs

    @property
    def subset(self) -> str:
        return self.pair.candidate.subset

    @property
    def is_exact(self) -> bool:
        """Whether other outputs than before are wrong: of a lossless method that does not sample."""
        return self.pair.candidate.lossless and self.pair.candidate.sampling.temperature == 0

    def sides(self, keys: Sequence[Key]) -> Sides:
        return [self.baseline[key] for key in keys], [self.candidate[key] for key in keys]


class ByRecords:
    """Compares the records of two runs."""

    def __init__(self, baseline: ComparisonInput, candidate: ComparisonInput, control: Control, say: Say) -> None:
        assert baseline.run is not None and candidate.run is not None
        self.runs = (baseline.run, candidate.run)
        self.say = say
        self.control = control

    @cached_property
    def target(self) -> "Target":
        """The baseline's target; needs torch, so only where outputs differ."""
        from specbench.results.gate.target import Target

        return Target(self.runs[0])

    def compare(self, compared: Compared, pairs: Sequence[Pair]) -> list[Pending]:
        """Put findings into `compared`; gives the ratios that wait for their verdict."""
        has_whole = any(pair.candidate.subset == "all" for pair in pairs)
        parts = [part for pair in pairs if pair.candidate.subset != "all" for part in self._part(compared, pair)]
        for part in parts:
            self._compare_part(compared, part)
        if not parts:
            return []
        equal = [_joined([part], lambda part: part.outputs.equal) for part in parts]
        row = parts[0].pair.candidate
        before, now = (counts_of(generations([r for side in equal for r in side[i]], row)) for i in (0, 1))
        compared.cells |= cells(before, now) | {OUTPUTS: _share(parts)}
        if compared.method == BASELINE:
            self.control.add(compared.task, speed_of_baseline(_joined(parts, lambda part: list(part.baseline))))
            return []
        groups = {"all": parts} if has_whole and len(parts) > 1 else {part.subset: [part] for part in parts}
        return [pending for subset, group in groups.items() for pending in _pending(compared, subset, group)]

    def _part(self, compared: Compared, pair: Pair) -> list[Part]:
        """Nothing, and a problem, where the two sides have read other prompts."""
        before, now = (
            by_key(records_of_row(row, run.records))
            for run, row in zip(self.runs, (pair.baseline, pair.candidate), strict=True)
        )
        subset = pair.candidate.subset
        if before.keys() != now.keys():
            compared.problems.append(f"{subset}: the two sides have measured other examples")
            return []
        for name in ("prompt", "prompt_tokens"):
            # later turns have an answer before them, which may be another one
            other = [key for key in before if key[4] == 0 and before[key].get(name) != now[key].get(name)]
            if other:
                first = other[0]
                compared.problems.append(
                    f"{subset}: {name} of {len(other)} of {len(before)} records is not the same; example "
                    f"{before[first]['id']}: {before[first].get(name)} in the baseline, {now[first].get(name)} in the "
                    "candidate"
                )
                return []
        return [Part(pair, before, now, compare_outputs(before, now, compared.method))]

    def _compare_part(self, compared: Compared, part: Part) -> None:
        outputs = part.outputs
        compared.findings += [*verdict_finding(part.pair), *_changed(part, compared.method)]
        found = []
        if outputs.different and part.is_exact:
            self.say(f"asking the target about {len(outputs.different)} outputs of {compared.name} {part.subset}")
            try:
                row = part.pair.baseline
                found = self.target.differences(row, outputs.different, part.candidate, compared.method,
                                                row.num_draft_tokens + 1)  # fmt: skip
            except ConfigError as error:
                compared.problems.append(
                    f"{part.subset}: {len(outputs.different)} of {len(part.baseline)} outputs are not the baseline's, "
                    f"and whether these are near-ties cannot be told: {error}"
                )
                return
        num_different = len(outputs.different)
        compared.findings.append(
            output_finding(part.subset, len(outputs.equal), num_different, found if part.is_exact else None)
        )
        if rounding(part.pair):
            return
        detail = f"of {len(outputs.equal)} equal outputs" if len(outputs.equal) < len(part.baseline) else ""
        sides = part.sides(outputs.equal)
        before, now = (counts_of(generations(side, part.pair.candidate)) for side in sides)
        compared.findings += compare_counts(part.subset, before, now, detail)


def _changed(part: Part, method: str) -> Iterator[Finding]:
    """What follows from the token ids, and changed where they are equal."""
    found = changed_with_equal_tokens(part.baseline, part.candidate, part.outputs, method)
    for what, keys in found.items():
        pair = [side[keys[0]]["methods"][method] for side in (part.baseline, part.candidate)]
        name = next(name for name in FOLLOWS[what] if pair[0].get(name) != pair[1].get(name))
        before, now = (f"{generation.get(name)!r:.60}" for generation in pair)
        first = f"prompt {part.baseline[keys[0]]['id']}: {before} before, {now} now"
        yield changed_finding(part.subset, what, len(keys), len(part.outputs.equal), first)


def _pending(compared: Compared, subset: str, parts: Sequence[Part]) -> list[Pending]:
    row = parts[0].pair.candidate
    found = []
    had, has = (
        any(side.metrics.get("speedup", Metric()).value is not None for side in rows)
        for rows in zip(*((part.pair.baseline, part.pair.candidate) for part in parts), strict=True)
    )
    if not (had and has):
        where = compared.problems if had else compared.not_compared
        where.append(f"{SPEEDUP} of {subset}: {compared.method} has none{' in the candidate' * had}")
    else:
        measured = speedups(_joined(parts, lambda part: list(part.baseline)), compared.method)
        found += [Pending(compared, what, subset, each) for what, each in measured.items()]
        if not measured:
            compared.problems.append(f"{SPEEDUP} of {subset}: no answers of more than one token on both sides")
    others = any(part.outputs.different for part in parts) and not parts[0].is_exact
    if (others or any(rounding(part.pair) for part in parts)) and row.num_draft_tokens > 0:
        compared.not_compared.append(f"α and passes of all outputs of {subset}: {LENGTH}, stands for them")
        found.append(Pending(compared, LENGTH, subset, _length(parts)))
    return found


def _length(parts: Sequence[Part]) -> Measured:
    """τ of all outputs, whether they are the same or not."""
    records, row = _joined(parts, lambda part: list(part.baseline)), parts[0].pair.candidate
    first, second = (generations(side, row) for side in records)
    return lengths(first, second, Prompts.of(records[0], seed=0))


def _joined(parts: Sequence[Part], keys_of: Callable[[Part], Sequence[Key]]) -> Sides:
    sides = [part.sides(keys_of(part)) for part in parts]
    return [r for before, _ in sides for r in before], [r for _, now in sides for r in now]


def _share(parts: Sequence[Part]) -> str:
    num_equal, num_all = sum(len(part.outputs.equal) for part in parts), sum(len(part.baseline) for part in parts)
    return f"{num_equal} of {num_all}"
