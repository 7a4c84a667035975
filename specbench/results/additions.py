"""What is added to a row after its run: an audit's verdict with its evidence, and the numbers of languages."""

from specbench.core.errors import ConfigError
from specbench.results.row import Row
from specbench.results.validation import OF_AUDITS


def with_added(row: Row, other: Row, where: str, refuse: bool = True) -> Row:
    """A row with what an audit, or a comparison of languages, has added to the same row elsewhere. Raises ConfigError
    where both have something else of it; without `refuse` the row's own verdict and the other's numbers stay."""
    verdicts = sorted((row, other), key=_told, reverse=True)
    fairness = row.fairness or other.fairness if refuse else other.fairness or row.fairness
    contradictions = {
        "verdict": _told(row) == _told(other) and (row.verdict, row.evidence) != (other.verdict, other.evidence),
        "fairness": other.fairness is not None and other.fairness != fairness,
    }
    for name, differ in contradictions.items():
        if differ and refuse:
            first, second = (f"{getattr(each, name)!s:.80}" for each in (other, row))
            raise ConfigError(
                f"{where} are one result ({row.place}) with two {name}s, {first} and {second}: take one of the two out"
            )
    best = verdicts[0]
    return row.model_copy(update={"verdict": best.verdict, "evidence": best.evidence, "fairness": fairness})


def _told(row: Row) -> int:
    """How much a verdict rests on: nothing, the run's own outputs, an audit, an audit with its evidence."""
    if row.evidence is not None or row.verdict in OF_AUDITS:
        return 2 + (row.evidence is not None)
    return int(row.verdict != "not audited")
