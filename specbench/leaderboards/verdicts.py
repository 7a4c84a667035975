"""Which verdicts a row may have, by its records and its method's rule."""

from collections.abc import Sequence

from specbench.audit.outputs import first_difference
from specbench.audit.verdict import FAILS_BELOW, declaration
from specbench.results.row import Evidence, Row
from specbench.running.records import Record, with_the_same_history
from specbench.specs import MethodSpec

OF_AUDITS = ("lossless", "undecided")  # verdicts that records cannot give
CLEAN = ("lossless", "greedy equal")


def possible_verdicts(row: Row, records: Sequence[Record], method: MethodSpec, older: bool) -> tuple[str, ...] | None:
    """The verdicts that a row may have; None where its own is an audit's and nothing speaks against it. A rule that is
    lossy by design is never called anything else, and outputs that differ are never clean, whatever an audit said.
    `older`: of a format whose audits left no evidence."""
    if declaration(method) is False:
        return ("lossy by design",)
    greedy = row.sampling.temperature == 0
    differ = greedy and outputs_differ(records, method)
    is_audited = row.evidence is not None or (older and row.verdict in OF_AUDITS)
    if row.evidence is not None and row.verdict == "lossless" and not _proves(row.evidence):
        return ("undecided",)
    if is_audited and not (differ and row.verdict in CLEAN):
        return None
    if differ:
        return ("near-tie only", "diverged")
    return ("greedy equal", "not audited") if greedy else ("not audited",)


def outputs_differ(records: Sequence[Record], method: MethodSpec) -> bool:
    """Whether an answer of a method is not AR's, of those that had the same prompt."""
    return any(
        first_difference(record["methods"]["ar"]["token_ids"], record["methods"][method.name]["token_ids"]) is not None
        for record in with_the_same_history(records, method.name)
    )


def _proves(evidence: Evidence) -> bool:
    """Whether it holds both halves of what "lossless" takes: greedy outputs, and draws that the test let pass."""
    passed = evidence.p_value is not None and evidence.p_value >= FAILS_BELOW
    return bool(evidence.num_prompts and evidence.num_draws and passed)
