"""The strict tier: counts that have no noise. The same outputs must not take more passes than before."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from specbench.results.acceptance import new_tokens, target_passes, tokens_of_passes, with_own_passes
from specbench.results.bootstrap import Metric
from specbench.results.captions import decodes_alone
from specbench.results.gate.findings import Finding
from specbench.results.row import Row
from specbench.running.records import ACCEPTED, JUDGED, Generation, Key, Record, step_sum

PASSES, LENGTH, RATE, DRAFTS = "target passes per token", "τ", "α", "draft passes per token"
MORE_IS_BETTER = {PASSES: False, LENGTH: True, RATE: True, DRAFTS: False}
IN_ROWS = {PASSES: "target_passes_per_token", LENGTH: "mean_acceptance_length", RATE: "acceptance_rate"}
ROUNDING = 1e-9  # relative: the same sums in another order
Counts = dict[str, float | None]


def generations(records: Sequence[Record], row: Row) -> list[Generation]:
    """What a row's method generated, every pass booked on the model that made it."""
    method = row.method_name
    decodes_with = "drafter" if decodes_alone(row) and not row.lossless else "target"
    if "drafter_share" in row.options:
        decodes_with = "random"
    return [with_own_passes(record["methods"][method], decodes_with) for record in records]


def counts_of(own: Sequence[Generation]) -> Counts:
    """τ, α and passes of generations; null where nothing is drafted, or a decoder does not tell."""
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
    """What a row has of these; its draft passes are not in it."""
    return {what: row.metrics.get(name, Metric()).value for what, name in IN_ROWS.items()}


def compare_counts(subset: str, baseline: Counts, candidate: Counts, detail: str = "") -> list[Finding]:
    """A finding for every count that both sides have."""
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
    """A number with as many digits as tell it from another, three at least."""
    digits = next((n for n in range(3, 10) if f"{value:.{n}f}" != f"{other:.{n}f}"), 3)
    return f"{value:.{digits}f}"


def cells(baseline: Mapping[str, float | None], candidate: Mapping[str, float | None]) -> dict[str, str]:
    """Then and now, for a table; one number where they are equal."""
    found = {}
    for what, before in baseline.items():
        now = candidate.get(what)
        if before is not None and now is not None:
            same = f"{before:.3f}" == f"{now:.3f}"
            found[what] = f"{now:.3f}" if same else f"{before:.3f} → {now:.3f}"
    return found


@dataclass(frozen=True)
class Outputs:
    """Keys of records with equal outputs, and of those whose outputs differ first. Later turns follow other answers,
    are not compared, and in neither."""

    equal: list[Key]
    different: list[Key]


def compare_outputs(baseline: Mapping[Key, Record], candidate: Mapping[Key, Record], method: str) -> Outputs:
    """Both sides: the same keys, the turns of an example in their order."""
    found = Outputs([], [])
    parted: set[Key] = set()
    for key in sorted(baseline):
        first, second = (side[key]["methods"][method]["token_ids"] for side in (baseline, candidate))
        place: Key = (*key[:4], 0)
        if place in parted:
            continue
        if first == second:
            found.equal.append(key)
        else:
            parted.add(place)
            found.different.append(key)
    return found


FOLLOWS = {"text": ("text",), "finish": ("finish",), "scores": ("score", "scores", "statistics")}


def changed_with_equal_tokens(
    baseline: Mapping[Key, Record], candidate: Mapping[Key, Record], outputs: Outputs, method: str
) -> dict[str, list[Key]]:
    """Returns by text, finish and scores the records in which it changed although the token ids are equal. All three
    follow from the token ids: a change is one of the decoding of text, the stop rules or the scorer, or an edit."""
    sides = {key: [side[key]["methods"][method] for side in (baseline, candidate)] for key in outputs.equal}
    found = {
        what: [key for key, (first, second) in sides.items() if any(first.get(n) != second.get(n) for n in names)]
        for what, names in FOLLOWS.items()
    }
    return {what: keys for what, keys in found.items() if keys}
