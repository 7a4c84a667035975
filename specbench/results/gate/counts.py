"""Counts without noise: the same outputs must not take more passes than before."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from specbench.results.acceptance import new_tokens, target_passes, tokens_of_passes
from specbench.results.bootstrap import Metric
from specbench.results.gate.findings import Finding
from specbench.results.paired import Pairs
from specbench.results.row import Row
from specbench.running.records import ACCEPTED, JUDGED, Generation, Key, record_key, step_sum

PASSES, LENGTH, RATE, DRAFTS = "target passes per token", "τ", "α", "draft passes per token"
MORE_IS_BETTER = {PASSES: False, LENGTH: True, RATE: True, DRAFTS: False}
IN_ROWS = {PASSES: "target_passes_per_token", LENGTH: "mean_acceptance_length", RATE: "acceptance_rate"}
ROUNDING = 1e-9  # relative: the same sums in another order
Counts = dict[str, float | None]


def counts_of(own: Sequence[Generation]) -> Counts:
    """Returns τ, α and passes of generations; None where nothing is drafted, or a decoder does not report them."""
    passes = [target_passes(g) for g in own]
    tokens, steps = (sum(column) for column in zip(*map(tokens_of_passes, own), strict=True)) if own else (0, 0)
    shares = [step_sum(g, ACCEPTED) / step_sum(g, JUDGED) for g in own if step_sum(g, JUDGED)]
    num_tokens = sum(map(new_tokens, own))
    num_drafts = sum(len(g["passes"]["draft"]) for g in own)
    told = not any("external" in g for g in own)
    return {
        PASSES: None if None in passes or not own else sum(n or 0 for n in passes) / num_tokens,
        LENGTH: tokens / steps if steps else None,
        RATE: sum(shares) / len(shares) if shares else None,
        DRAFTS: num_drafts / num_tokens if own and told else None,
    }


def counts_of_row(row: Row) -> Counts:
    """Returns the counts that a row has; it has no draft passes."""
    return {what: row.metrics.get(name, Metric()).value for what, name in IN_ROWS.items()}


def compare_counts(subset: str, baseline: Counts, candidate: Counts, detail: str = "") -> list[Finding]:
    """Returns a finding for every count that both sides have."""
    found = []
    for what, before in baseline.items():
        now = candidate.get(what)
        if before is not None and now is not None:
            worse = is_worse(before, now, MORE_IS_BETTER[what])
            found.append(Finding(what, subset, shown(before, now), shown(now, before), worse, detail if worse else ""))
    return found


def is_worse(before: float, now: float, more_is_better: bool) -> bool:
    fall = before - now if more_is_better else now - before
    return fall > ROUNDING * abs(before)


def shown(value: float, other: float) -> str:
    """Returns a number with enough digits to differ from another, three at least."""
    digits = next((n for n in range(3, 10) if f"{value:.{n}f}" != f"{other:.{n}f}"), 3)
    return f"{value:.{digits}f}"


def cells(baseline: Mapping[str, float | None], candidate: Mapping[str, float | None]) -> dict[str, str]:
    """Returns the values then and now, for a table; one number where they are equal."""
    found = {}
    for what, before in baseline.items():
        now = candidate.get(what)
        if before is not None and now is not None:
            same = f"{before:.3f}" == f"{now:.3f}"
            found[what] = f"{now:.3f}" if same else f"{before:.3f} → {now:.3f}"
    return found


@dataclass(frozen=True)
class ComparedOutputs:
    """The keys of records with equal outputs, and of those whose outputs differ first. Later turns after a
    difference have other prompts, and are in neither."""

    equal: list[Key]
    different: list[Key]


def compare_outputs(pairs: Pairs) -> ComparedOutputs:
    """Returns which answers of the method are equal on both sides."""
    found, parted = ComparedOutputs([], []), set[Key]()
    both = {record_key(first): (first, second) for first, second in zip(*pairs.records, strict=True)}
    for key in sorted(both):  # the turns of an example in their order
        first, second = both[key]
        place: Key = (*key[:4], 0)
        if place in parted:
            continue
        if len({tuple(record["methods"][pairs.method]["token_ids"]) for record in (first, second)}) == 1:
            found.equal.append(key)
        else:
            parted.add(place)
            found.different.append(key)
    return found


FOLLOWS = {"text": ("text",), "finish": ("finish",), "scores": ("score", "scores", "statistics")}


@dataclass(frozen=True)
class ChangedText:
    """A text, finish or score that changed although the token ids are equal: `num_changed` answers; `first`: one of
    them."""

    what: str
    num_changed: int
    first: str


def changed_with_equal_tokens(pairs: Pairs) -> Iterator[ChangedText]:
    """Yields the changes in pairs of equal token ids. Text, finish and scores follow from the token ids, so a change
    comes from the decoding of text, the stop rules, the scorer, or an edit."""
    for what, names in FOLLOWS.items():
        changed = [
            (before["id"], name, [record["methods"][pairs.method].get(name) for record in (before, now)])
            for before, now in zip(*pairs.records, strict=True)
            if (name := _first_change(before["methods"][pairs.method], now["methods"][pairs.method], names))
        ]
        if changed:
            prompt, _, values = changed[0]
            before, now = (f"{value!r:.60}" for value in values)
            yield ChangedText(what, len(changed), f"prompt {prompt}: {before} before, {now} now")


def _first_change(before: Generation, now: Generation, names: Sequence[str]) -> str | None:
    return next((name for name in names if before.get(name) != now.get(name)), None)
