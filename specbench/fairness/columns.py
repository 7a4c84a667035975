"""Records and teacher-forced numbers → sums per prompt, which every number and interval is computed from."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from specbench.fairness.forced import Numbers
from specbench.fairness.positions import ACCEPTANCE, NUM_COLUMNS
from specbench.fairness.spread import Array
from specbench.fairness.theorems import tokens_per_pass
from specbench.results.counts import timed_tokens
from specbench.running.record_check import ACCEPTED, EMITTED, JUDGED, step_sum
from specbench.running.records import Generation, Key, Record

# After the columns of positions.py, per prompt: Σ F(α(s)) and the number of positions, …
PER_PASS: Final = NUM_COLUMNS
POSITIONS: Final = NUM_COLUMNS + 1
# … Σ accepted/judged and the generations that have it, emitted tokens and steps, …
RATES: Final = NUM_COLUMNS + 2
RATED: Final = NUM_COLUMNS + 3
EMITTED_TOKENS: Final = NUM_COLUMNS + 4
STEPS: Final = NUM_COLUMNS + 5
# … and tokens and seconds of the method and of AR.
TOKENS: Final = NUM_COLUMNS + 6
SECONDS: Final = NUM_COLUMNS + 7
AR_TOKENS: Final = NUM_COLUMNS + 8
AR_SECONDS: Final = NUM_COLUMNS + 9
WIDTH: Final = NUM_COLUMNS + 10

Prompt = tuple[str, str, int]


@dataclass(frozen=True)
class Columns:
    """One group: the sums of each prompt [num_prompts, WIDTH], and its statistics of BLEU where answers are scored by
    it [num_prompts, num_statistics]."""

    sums: Array
    bleu: Array | None = None


def columns_of(
    keys: Sequence[Key], records: Mapping[Key, Record], method: str | None, numbers: Numbers | None,
    num_draft_tokens: int,
) -> Columns:  # fmt: skip
    """The sums of a group's records (repeats and turns of a prompt together); what is not there is 0. `method`: None
    where nothing was measured, `numbers`: None where nothing is teacher-forced."""
    rows: dict[Prompt, Array] = {}
    bleu: dict[Prompt, Array] = {}
    for key in keys:
        sums = rows.setdefault(key[:3], np.zeros(WIDTH))
        if numbers is not None and key in numbers:
            sums[: POSITIONS + 1] += forced_sums(numbers[key], num_draft_tokens)
        if method is not None:
            generations = records[key]["methods"]
            sums[POSITIONS + 1 :] += measured_sums(generations[method], generations["ar"])
            statistics = generations[method].get("statistics", {}).get("bleu")
            if statistics is not None:
                bleu[key[:3]] = bleu.get(key[:3], 0) + np.array(statistics, dtype=np.float64)
    whole = np.stack(list(bleu.values())) if bleu and bleu.keys() == rows.keys() else None
    return Columns(np.stack(list(rows.values())), whole)


def forced_sums(numbers: Array, num_draft_tokens: int) -> Array:
    """Sums over the positions of one text, with Σ F(α(s)) and their number."""
    per_pass = tokens_per_pass(numbers[:, ACCEPTANCE], num_draft_tokens)
    return np.concatenate([numbers.sum(axis=0), [per_pass.sum(), len(numbers)]])


def measured_sums(own: Generation, baseline: Generation) -> Array:
    """The columns of one generation and AR's: acceptance as results.acceptance counts it, speed as results.speed."""
    judged = step_sum(own, JUDGED)
    is_timed = min(timed_tokens(own), timed_tokens(baseline)) > 0
    pair: Sequence[Any] = (own, baseline)
    speeds = [value * is_timed for each in pair for value in (timed_tokens(each), each["decode_seconds"])]
    return np.array([
        step_sum(own, ACCEPTED) / judged if judged else 0.0, float(judged > 0), step_sum(own, EMITTED),
        len(own["steps"]), *speeds,
    ], dtype=np.float64)  # fmt: skip
