"""What the outputs of a subset say: the run's own verdict, and the baseline's outputs beside the candidate's."""

from collections.abc import Sequence

from specbench.audit.verdict import Difference
from specbench.gate.findings import Finding
from specbench.gate.pairing import Pair

DIVERGED = "diverged"
OUTPUTS = "outputs"


def verdict_finding(pair: Pair) -> list[Finding]:
    """A method that has lost its losslessness, by its rule or beside its own AR; nothing where it is no worse."""
    before, now = pair.baseline.verdict, pair.candidate.verdict
    made_lossy = pair.baseline.lossless and not pair.candidate.lossless
    if not made_lossy and (now != DIVERGED or before == DIVERGED):
        return []
    return [Finding("verdict", pair.candidate.subset, before, now, regressed=True)]


def output_finding(subset: str, num_equal: int, num_different: int, found: Sequence[Difference] | None) -> Finding:
    """`found`: the differences of a lossless method in a greedy run; None where outputs may differ."""
    before = f"of {num_equal + num_different}"
    if found is None:
        detail = "which a lossy or sampling method may do" if num_different else ""
        now = f"{num_equal} equal" + f", {num_different} other" * bool(num_different)
        return Finding(OUTPUTS, subset, before, now, regressed=False, detail=detail)
    serious = [each for each in found if not each.near_tie]
    counts = {"equal": num_equal, "near-ties": len(found) - len(serious), "other": len(serious)}
    now = ", ".join(f"{number} {name}" for name, number in counts.items() if number or name == "equal")
    return Finding(OUTPUTS, subset, before, now, bool(serious), _first(serious))


def changed_finding(subset: str, what: str, num_changed: int, num_equal: int, first: str) -> Finding:
    """A text, finish or score that changed although the token ids are equal; `first`: the first such prompt."""
    before, now = f"of {num_equal} with equal tokens", f"{num_changed} changed"
    return Finding(what, subset, before, now, regressed=True, detail=first)


def _first(serious: Sequence[Difference]) -> str:
    """The first difference that the target does not excuse."""
    if not serious:
        return ""
    each = serious[0]
    before, now = (token or "the end" for token in (each.ar_token, each.method_token))
    return f"prompt {each.prompt}, token {each.position}: {before} before, {now} now"
