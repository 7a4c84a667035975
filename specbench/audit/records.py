"""How many answers of a run are not AR's, and at how many of these the target was undecided."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from specbench.audit.greedy import compare
from specbench.audit.noise import measure_noise
from specbench.audit.outputs import Answer, different
from specbench.audit.verdict import declaration
from specbench.decoding.drafters.model import ScoringModel
from specbench.specs import MethodSpec

NUM_NOISE_ANSWERS = 4
NUM_NOISE_TOKENS = 64
Record = Mapping[str, Any]


def ties_of_records(
    records: Sequence[Record], method: MethodSpec, target: ScoringModel, prompt_ids: Callable[[Record], list[int]]
) -> tuple[int, int, float] | None:
    """Returns how many greedy answers of a method are not AR's, at how many of these the target is undecided, and the
    tolerance in logits; None where all are AR's, and for a method that is lossy by design.

    `records`: of a greedy run, with the same history on both sides; `prompt_ids` gives the prompt of a record. The
    target is asked at the first difference, and along up to four of AR's answers there for the noise. Leaves nothing in
    the model but its last sequence.
    """
    found = [] if declaration(method) is False else different(records, method.name)
    if not found:
        return None
    answers = [
        Answer(f"{record['subset']} {record['id']}", prompt_ids(record), record["methods"]["ar"]["token_ids"])
        for record in found
    ]
    outputs = [record["methods"][method.name]["token_ids"] for record in found]
    measured = [Answer(a.name, a.prompt_ids, a.token_ids[:NUM_NOISE_TOKENS]) for a in answers[:NUM_NOISE_ANSWERS]]
    noise = measure_noise(target, measured, method.most_draft_tokens + 1)
    return len(found), compare(target, answers, outputs, noise.tolerance, str).num_near_ties, noise.tolerance
