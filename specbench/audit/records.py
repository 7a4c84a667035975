"""The greedy verdict on a method from the records of a run, at the cost of the examples that differ."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from specbench.audit.greedy import DecodeText, compare
from specbench.audit.noise import measure_noise
from specbench.audit.outputs import Answer, first_difference
from specbench.audit.verdict import declaration, greedy_verdict
from specbench.decoding.drafters.model import ScoringModel
from specbench.specs import MethodSpec

RecordVerdict = Literal["greedy equal", "near-tie only", "diverged", "lossy by design", "not audited"]
NUM_NOISE_ANSWERS = 4
NUM_NOISE_TOKENS = 64
Record = Mapping[str, Any]


def verdict_of_records(
    records: Sequence[Record],
    method: MethodSpec,
    target: ScoringModel,
    prompt_ids: Callable[[Record], list[int]],
    *,
    greedy: bool,
    baseline: str = "ar",
    decode_text: DecodeText = str,
) -> RecordVerdict:
    """What the outputs in the records of a greedy run say of a method; `prompt_ids` gives the prompt of a record.

    Equal outputs are "greedy equal": that a method is lossless at a temperature, only the audit's draws can say. Draws
    in records prove nothing one by one, so a sampled run is "not audited", and so is one without records. The target is
    asked only where outputs differ: at the first difference, and along up to four of AR's answers there for the noise.
    Leaves nothing in the model but its last sequence.
    """
    if declaration(method) is False:
        return "lossy by design"
    if not greedy or not records:
        return "not audited"
    answers, outputs = [], []
    for record in records:
        own, other = (record["methods"][name]["token_ids"] for name in (baseline, method.name))
        if first_difference(own, other) is not None:
            answers.append(Answer(f"{record['subset']} {record['id']}", prompt_ids(record), own))
            outputs.append(other)
    if not answers:
        return "greedy equal"
    measured = [Answer(a.name, a.prompt_ids, a.token_ids[:NUM_NOISE_TOKENS]) for a in answers[:NUM_NOISE_ANSWERS]]
    noise = measure_noise(target, measured, method.most_draft_tokens + 1)
    verdict = greedy_verdict(True, compare(target, answers, outputs, noise.tolerance, decode_text))
    return "diverged" if verdict == "diverged" else "near-tie only"
