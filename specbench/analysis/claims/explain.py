"""A claim against a measurement: how much of the gap between two speed-ups is acceptance, and how much step cost.

S = τ ÷ R on both sides, so that log(S claimed ÷ S measured) = log(τ claimed ÷ τ measured) + log(R measured ÷ R
claimed), exactly. R is split further as far as the claim tells its parts:

- with AR's tokens/s, into the seconds of a step and the speed of AR, whose product R is;
- with k·c and v, into draft passes, verification and rest, whose sum R is. What a part of a sum adds to the logarithm
  depends on the order in which the parts are exchanged; the Shapley value, its mean over all orders, adds up to the
  whole and treats all parts alike (Shapley, A Value for n-Person Games, 1953).

The claim is a point. Intervals are those of the measurement and resample prompts.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import permutations
from math import factorial

import numpy as np
from pydantic import BaseModel

from specbench.analysis.claims.claim import COSTS, ClaimSpec, Reading, highest_speedup, read_claim
from specbench.core.errors import ConfigError
from specbench.results.answers import length_columns, speed_columns
from specbench.results.metric_format import without_digest
from specbench.results.paired import RowWithRecords
from specbench.results.row import SHUFFLED, Row
from specbench.results.runs import RecordedRuns, read_input, rows_of_subsets, select_rows
from specbench.statistics.bootstrap import Array, Estimate, Resampler

# Columns of sums over the answers of a row: emitted tokens and target passes, tokens and seconds of the method and of
# AR, seconds of draft passes and of target passes.
EMITTED, PASSES, TOKENS, SECONDS, AR_TOKENS, AR_SECONDS, DRAFTING, VERIFYING = range(8)


def step_seconds(sums: Array) -> Array:
    """Returns the seconds of a step, τ ÷ (tokens per second): [..., 8] → [...]."""
    return np.asarray(sums[..., EMITTED] / sums[..., PASSES] * sums[..., SECONDS] / sums[..., TOKENS])


def step_costs(sums: Array, in_seconds: bool) -> Array:
    """Returns draft, verification and rest of a step, in seconds or in tokens of AR, which sum to a step: [..., 8] →
    [..., 3]."""
    drafting, verifying = (sums[..., column] / sums[..., PASSES] for column in (DRAFTING, VERIFYING))
    parts = np.stack([drafting, verifying, step_seconds(sums) - drafting - verifying], axis=-1)
    return parts if in_seconds else parts * (sums[..., AR_TOKENS] / sums[..., AR_SECONDS])[..., None]


def shapley(function: Callable[[Array], Array], before: Array, after: Array) -> Array:
    """Returns by how much each part changes a function of all parts, on average over all orders in which the parts
    change from `before` to `after`; the changes sum to that of the function. [..., num_parts] → [..., num_parts]; the
    function takes [..., num_parts] and returns [...]."""
    before, after = np.broadcast_arrays(before, after)
    changes = np.zeros(before.shape)
    number = before.shape[-1]
    for order in permutations(range(number)):
        state, value = before.copy(), function(before)
        for part in order:
            state[..., part] = after[..., part]
            changed = function(state)
            changes[..., part] += changed - value
            value = changed
    return changes / factorial(number)


@dataclass(frozen=True)
class Measured:
    """A row's speed-up, of decoding or of the whole call, and what it is made of.

    `sums`: of all answers, [8]; NaN where a row does not know one. `units`: the same by prompt, [num_prompts, 8], with
    the resampler that draws them; None without records.
    """

    row: Row
    speedup: Estimate
    length: Estimate
    step_cost: Estimate
    ar: Estimate
    step: Estimate
    sums: Array
    units: Array | None = None
    resampler: Resampler | None = None

    @classmethod
    def of(cls, found: RowWithRecords, whole_call: bool) -> "Measured":
        return cls._of_records(found, whole_call) if found.own else cls._of_row(found.row, whole_call)

    @classmethod
    def _of_records(cls, found: RowWithRecords, whole_call: bool) -> "Measured":
        row, own, baseline = found.row, found.own, found.baseline
        in_orders = row.memory == SHUFFLED
        prompts, times = (make(own, 0, in_orders) for make in (Resampler.of, Resampler.of_times))
        columns = [*length_columns([own]), *speed_columns([own, baseline])]
        if whole_call:
            columns[TOKENS:] = [
                [float(value) for value in column] for side in (own, baseline)
                for column in ([a.num_new_tokens for a in side], [a.seconds for a in side])
            ]  # fmt: skip
        knows_passes = not any(a.is_external for a in own)
        for each in ([float(a.draft_passes.sum()) for a in own], [a.target_seconds for a in own]):
            columns.append(each if knows_passes else [np.nan] * len(own))
        emitted, passes, tokens, seconds, *_ = columns
        one = [1.0] * len(own)
        units: Array = np.stack(
            [np.bincount(times.cluster, weights=column).astype(np.float64) for column in columns], axis=-1
        )
        return cls(
            row, times.ratio(*columns[TOKENS:DRAFTING]), prompts.ratio(emitted, passes),
            times.ratio(emitted, passes, one, one, *columns[TOKENS:DRAFTING]),
            times.ratio(*columns[AR_TOKENS:DRAFTING]), times.ratio(emitted, passes, tokens, seconds),
            np.sum(columns, axis=1), units, Resampler.of_units(len(units), 0),
        )  # fmt: skip

    @classmethod
    def _of_row(cls, row: Row, whole_call: bool) -> "Measured":
        """Without records only what the row tells: no interval of R, and of whole calls no speed of AR."""
        speedup = row.metric("speedup_e2e" if whole_call else "speedup")
        length = row.metric("mean_acceptance_length")
        ar = Estimate() if whole_call else row.metric("tokens_per_second_ar")
        num_passes = sum(row.accepted_tokens_per_step or ())
        drafting, verifying = (row.value(name) if num_passes else None for name in ("draft_seconds", "verify_seconds"))
        sums = np.array([length.value, 1, speedup.value, 1, ar.value, 1, drafting, verifying], dtype=np.float64)
        sums[TOKENS] *= sums[AR_TOKENS]
        sums[[DRAFTING, VERIFYING]] /= num_passes or np.nan
        cost = Estimate(value=length.value / speedup.value if length.value and speedup.value else None)
        step = Estimate(value=_known(step_seconds(sums)))
        return cls(row, speedup, length, cost, ar, step, sums)

    def costs(self, in_seconds: bool) -> Array | None:
        """Returns draft, verification and rest of a step; None where passes are not known."""
        found = step_costs(self.sums, in_seconds)
        return found if np.isfinite(found).all() and (found >= 0).all() else None

    @property
    def verification_cost(self) -> float | None:
        return _known(step_costs(self.sums, in_seconds=False)[1])


def _known(value: Array | float) -> float | None:
    return float(value) if np.isfinite(value) else None


class Part(BaseModel):
    """A part of a gap. `unit`: that of both values; empty for ratios. `log`: what it adds to log(S claimed ÷ S
    measured); its exponential is the factor. `parts`: its own parts, whose logs sum to its log."""

    name: str
    unit: str = ""
    claimed: float
    measured: Estimate
    log: Estimate
    parts: list["Part"] = []

    @property
    def leaves(self) -> list["Part"]:
        return [leaf for part in self.parts for leaf in part.leaves] if self.parts else [self]


class Condition(BaseModel):
    """A condition that the claim tells, and that of the row."""

    name: str
    claimed: str
    measured: str


class Explanation(BaseModel):
    """A claim against a row. `gap`: of the speed-ups, with acceptance and step cost as its parts; without τ or a
    speed-up of the claim, only what both sides have. `unsplit`: why a part is not split further. `implausible`: why
    the measurement itself cannot be right; null if it can. `words`: the explanation in sentences."""

    claim: Reading
    run: str
    task: str
    subset: str
    method: str
    num_prompts: int
    speedup_of: str
    gap: list[Part]
    unsplit: list[str]
    implausible: str | None
    conditions: list[Condition]
    words: list[str] = []


def log_of(value: Estimate) -> Estimate:
    """Returns the logarithm of a value and of the ends of its interval."""
    if not value.value or value.value < 0:
        return Estimate()
    ends = {} if not value.low or value.low < 0 or not value.high else {
        "low": float(np.log(value.low)), "high": float(np.log(value.high))
    }  # fmt: skip
    return Estimate(value=float(np.log(value.value)), **ends)


def divided_by(value: float, by: Estimate) -> Estimate:
    """Returns log(value ÷ by)."""
    over, known = log_of(by), float(np.log(value))
    return Estimate(
        value=None if over.value is None else known - over.value,
        low=None if over.high is None else known - over.high,
        high=None if over.low is None else known - over.low,
    )


def dividing(by: float, value: Estimate) -> Estimate:
    """Returns log(value ÷ by)."""
    found = divided_by(by, value)
    return Estimate(**{
        name: None if (end := getattr(found, mirrored)) is None else -end
        for name, mirrored in (("value", "value"), ("low", "high"), ("high", "low"))
    })  # fmt: skip


def gap_of(claim: ClaimSpec, reading: Reading, measured: Measured) -> tuple[list[Part], list[str]]:
    """Returns the parts that both sides have, and why one is not split further."""
    found: list[Part] = []
    claimed, length, cost = reading.speedup.value, reading.mean_acceptance_length, reading.step_cost
    if claimed is not None:
        log = divided_by(claimed, measured.speedup)
        found.append(Part(name="speed-up S", claimed=claimed, measured=measured.speedup, log=log))
    if length is not None:
        log = divided_by(length, measured.length)
        found.append(Part(name="acceptance τ", claimed=length, measured=measured.length, log=log))
    if claimed is None or length is None or cost is None:
        return found, []
    gap, acceptance = found
    log = dividing(cost, measured.step_cost)
    steps = Part(name="step cost R", unit="", claimed=cost, measured=measured.step_cost, log=log)
    parts, unsplit = _parts_of_steps(claim, reading, measured)
    gap.parts = [acceptance, steps.model_copy(update={"parts": parts})]
    return [gap], unsplit


def _parts_of_steps(claim: ClaimSpec, reading: Reading, measured: Measured) -> tuple[list[Part], list[str]]:
    assert reading.step_cost is not None
    ar, step = claim.tokens_per_second_ar, measured.step
    in_seconds = ar is not None and measured.ar.value is not None
    parts, unsplit = [], []
    if in_seconds:
        assert ar is not None
        seconds = reading.step_cost / ar
        log = dividing(seconds, step)
        parts = [
            Part(name="step", unit="ms", claimed=1000 * seconds, measured=_scaled(step, 1000), log=log),
            Part(name="AR", unit="tok/s", claimed=ar, measured=measured.ar, log=dividing(ar, measured.ar)),
        ]
    elif ar is None:
        unsplit.append("the claim does not tell tokens_per_second_ar: AR's speed is not told apart")
    told, own = reading.costs, measured.costs(in_seconds)
    if told is None:
        reason = "does not tell draft_cost and verification_cost"
        if (costs := claim.told_costs()) is not None:
            reason = f"tells costs of {costs:.2f}, more than the R of {reading.step_cost:.2f} that S and τ imply"
        return parts, [*unsplit, f"the claim {reason}: the cost of a step is one part"]
    if own is None:
        return parts, [*unsplit, "the run does not tell the seconds of passes: the cost of a step is one part"]
    scale = 1 / ar if in_seconds and ar is not None else 1.0
    theirs = np.array([told[name] * scale for name in COSTS])
    logs = _logs_of_costs(theirs, own, measured, in_seconds)
    shown = 1000 if in_seconds else 1
    of_costs = [
        Part(name=name, unit="ms" if in_seconds else "", claimed=shown * float(theirs[place]),
             measured=Estimate(value=shown * float(own[place])), log=logs[place])
        for place, name in enumerate(COSTS)
    ]  # fmt: skip
    if not in_seconds:
        return of_costs, unsplit
    return [parts[0].model_copy(update={"parts": of_costs}), parts[1]], unsplit


def _logs_of_costs(theirs: Array, own: Array, measured: Measured, in_seconds: bool) -> list[Estimate]:
    """Returns what draft, verification and rest add to the gap, with their intervals where there are records."""

    def log_of_sum(parts: Array) -> Array:
        with np.errstate(all="ignore"):  # a resample may have a rest below zero
            return np.asarray(np.log(parts.sum(axis=-1)))

    values = shapley(log_of_sum, theirs, own)
    if measured.units is None or measured.resampler is None:
        return [Estimate(value=float(value)) for value in values]

    def of_part(place: int) -> Callable[[Sequence[Array]], Array]:
        return lambda sums: shapley(log_of_sum, theirs, step_costs(sums[0], in_seconds))[..., place]

    found = [measured.resampler.of_sums([measured.units], of_part(place)) for place in range(len(COSTS))]
    # The value is that of the whole sums, which differ from those of the prompts' sums by their rounding.
    return [each.model_copy(update={"value": float(value)}) for each, value in zip(found, values, strict=True)]


def _scaled(value: Estimate, by: float) -> Estimate:
    return Estimate(**{name: None if end is None else by * end for name, end in value.model_dump().items()})


def conditions_of(claim: ClaimSpec, row: Row) -> list[Condition]:
    """Returns what the claim tells of its conditions beside those of the row. Nothing is judged: names differ between
    sources that mean the same."""
    told = {
        "method": (claim.method, row.method_name),
        "target": (claim.target, row.target),
        "drafter": (claim.drafter, row.drafter or "none"),
        "draft tokens": (claim.num_draft_tokens, row.num_draft_tokens),
        "hardware": (claim.hardware, row.device),
        "engine": (claim.engine, row.engine),
        "dtype": (claim.dtype, row.dtype),
        "prompts": (claim.prompts, f"{row.task_name} {row.subset}, n = {row.n}"),
        "sampling": (claim.sampling, f"temperature {row.sampling.temperature:g}"),
        "batch": (claim.batch, row.level or "1"),
    }
    return [
        Condition(name=name, claimed=str(theirs), measured=str(own))
        for name, (theirs, own) in told.items() if theirs is not None
    ]  # fmt: skip


def measured_problem(measured: Measured) -> str | None:
    """Returns why the measured speed-up cannot be right at its own τ and verification cost; None if it can. Requests
    that share batches, and code with its own passes, may differ from AR in more than drafts."""
    speedup, length = measured.speedup, measured.length.value
    lowest = speedup.value if speedup.low is None else speedup.low
    if lowest is None or length is None or measured.row.level or measured.row.served is not None:
        return None
    most = highest_speedup(length, measured.verification_cost)
    if lowest <= most:
        return None
    return f"the measured speed-up of {lowest:.2f} or more is not possible with its τ, {most:.2f} is: measure again"


def explain(
    claim: ClaimSpec, runs: Sequence[str], tasks: Sequence[str] = (), subsets: Sequence[str] = ()
) -> list[Explanation]:
    """Sets a claim against rows, given as RUN, RUN:METHOD or FILE:NUMBER; if no subset is given, the rows over all
    subsets. Raises ConfigError for rows without a τ of their own, such as those of AR."""
    reading, opened, found = read_claim(claim), RecordedRuns(), []
    whole_call = claim.speedup_of == "whole call"
    for text in dict.fromkeys(runs):
        given = select_rows(read_input(text), tasks, ())
        for row in rows_of_subsets(given.rows, subsets):
            measured = Measured.of(opened.with_records(row, given.file), whole_call)
            if row.is_baseline or measured.speedup.value is None or measured.length.value is None:
                why = "is AR itself" if row.is_baseline else "has no speed-up, or no target passes to count τ by"
                raise ConfigError(f"'{text}': {row.place} {why}: name a method that drafts, as RUN:METHOD")
            gap, unsplit = gap_of(claim, reading, measured)
            explained = Explanation(
                claim=reading, run=text, task=without_digest(row.task), subset=row.subset, method=row.method_name,
                num_prompts=row.n, speedup_of=claim.speedup_of or "decoding", gap=gap, unsplit=unsplit,
                implausible=measured_problem(measured), conditions=conditions_of(claim, row),
            )  # fmt: skip
            found.append(explained.model_copy(update={"words": words(explained)}))
    if unread := opened.problem_lines():
        for each in found:
            each.unsplit.extend(unread)
    return found


MEANINGS = {
    "acceptance τ": "acceptance", "step cost R": "step cost", "step": "the time of a step", "AR": "the speed of AR",
    "draft": "drafting", "verification": "verification", "rest": "the rest of a step",
}  # fmt: skip


def words(found: Explanation) -> list[str]:
    """Returns what explains the gap, in a few sentences."""
    whole = found.gap[0] if found.gap else None
    if whole is None or not whole.parts:
        lines = [
            f"{part.name}: {part.claimed:.2f} claimed, {part.measured.value:.2f} measured (× {_factor(part):.2f})."
            for part in found.gap
        ]
        return [*lines, f"The gap cannot be split: {found.claim.reason}."]
    acceptance, steps = whole.parts
    assert acceptance.measured.value is not None and steps.measured.value is not None
    gap = whole.log.value or 0.0
    sign = 1 if gap >= 0 else -1  # factors are told as claimed ÷ measured, or the reverse, so that the gap is above 1
    sides = [f"{whole.claimed:.2f} claimed", f"{whole.measured.value:.2f} measured"][::sign]
    lines = [
        f"Of the factor {_factor(whole, sign):.2f} between {' and '.join(sides)}, {_factor(acceptance, sign):.2f} is "
        f"acceptance (τ {acceptance.claimed:.2f} claimed, {acceptance.measured.value:.2f} measured) and "
        f"{_factor(steps, sign):.2f} step cost (a step takes {steps.claimed:.2f} tokens of AR as claimed, "
        f"{steps.measured.value:.2f} as measured)."
    ]
    low, high = whole.log.low, whole.log.high
    if low is not None and high is not None and low <= 0 <= high:
        lines.append("The measured interval holds the claimed speed-up, so the gap itself may be chance.")
    elif (acceptance.log.value or 0.0) * (steps.log.value or 0.0) < 0:
        more, less = sorted((acceptance, steps), key=lambda part: -sign * (part.log.value or 0.0))
        first, second = MEANINGS[more.name], MEANINGS[less.name]
        lines.append(f"{first.capitalize()} explains more than the whole gap, and {second} works against it.")
    elif gap:
        share = 100 * (acceptance.log.value or 0.0) / gap
        lines.append(f"On the log scale, acceptance is {share:.0f} % of the gap and step cost {100 - share:.0f} %.")
    if steps.parts:
        parts = ", ".join(f"{_factor(leaf, sign):.2f} {MEANINGS[leaf.name]}" for leaf in steps.leaves)
        lines.append(f"Of the step cost's {_factor(steps, sign):.2f}: {parts}.")
    return [
        *lines,
        f"The measured τ at the claimed step cost would give {acceptance.measured.value / steps.claimed:.2f}, the "
        f"claimed τ at the measured step cost {acceptance.claimed / steps.measured.value:.2f}.",
    ]


def _factor(part: Part, sign: int = 1) -> float:
    return float(np.exp(sign * (part.log.value or 0.0)))
