"""Estimates for every threshold and every shorter draft length from one recorded run, and their errors."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import median
from typing import Any, Self

import numpy as np

from specbench.analysis.replay import KEY, RecordedGeneration, ReplayedStep, ReplaySetting, recorded_steps, replay
from specbench.analysis.trials import TrialRun, dumped, shown_metrics
from specbench.core.errors import ConfigError
from specbench.decoding.decoder import DraftingDecoder
from specbench.results.bootstrap import Metric, Prompts
from specbench.results.metrics import acceptance, speeds
from specbench.running.plan import Cell
from specbench.running.records import ACCEPTED, DRAFTED, EMITTED, JUDGED, Generation, Record, record_key, step_sum
from specbench.specs.method import MethodSpec

FEW_PASSES = 5  # the seconds of a length with fewer passes (drafts at the end of a text) are not reliable


@dataclass(frozen=True)
class StepCosts:
    """The seconds of a step by its number of drafted tokens, from 0 (an autoregressive step) to the recorded length.

    They are medians of passes and of the overhead per step, times one factor with which the recorded generations cost
    as much as they took.
    """

    draft_pass: float
    verify: Mapping[int, float]  # by query length: drafted tokens + 1
    overhead: Mapping[int, float]  # by drafted tokens
    factor: float = 1.0

    @classmethod
    def of(cls, records: Sequence[Record], method: str) -> Self:
        """Returns the costs of steps from the records of one method and AR."""
        own = [record["methods"][method] for record in records]
        baseline = [record["methods"]["ar"] for record in records]
        lengths: dict[int, list[float]] = {}
        for length, seconds in _passes([*own, *baseline], "target"):
            lengths.setdefault(length, []).append(seconds)
        most = max(lengths)
        known = {n: s for n, s in lengths.items() if n in (1, most) or len(s) >= FEW_PASSES}
        draft = [seconds for _, seconds in _passes(own, "draft")]
        plain = cls(
            draft_pass=median(draft) if draft else 0.0,
            verify={length: median(known[length]) for length in sorted(known)},
            overhead={0: _overhead(baseline), max(1, most - 1): _overhead(own)},
        )
        steps = [step[DRAFTED] for generation in own for step in generation["steps"]]
        modelled = sum(map(plain.step_seconds, steps))
        measured = sum(generation["decode_seconds"] for generation in own if generation["steps"])
        return cls(plain.draft_pass, plain.verify, plain.overhead, measured / modelled if modelled else 1.0)

    def step_seconds(self, num_drafted: int) -> float:
        """Returns the seconds of a step with `num_drafted` draft tokens."""
        verify, overhead = _between(self.verify, num_drafted + 1), _between(self.overhead, num_drafted)
        return self.factor * (num_drafted * self.draft_pass + verify + overhead)


def _passes(generations: Sequence[Generation], model: str) -> list[Any]:
    return [each for generation in generations for each in generation["passes"][model]]


def _overhead(generations: Sequence[Generation]) -> float:
    """Returns the median seconds per step outside passes."""
    shares = [
        (g["decode_seconds"] - sum(s for _, s in [*g["passes"]["target"], *g["passes"]["draft"]])) / len(g["steps"])
        for g in generations if g["steps"]
    ]  # fmt: skip
    return median(shares) if shares else 0.0


def _between(points: Mapping[int, float], at: int) -> float:
    return float(np.interp(at, list(points), list(points.values())))


INCLUSIVE = "js_reference"  # this divergence accepts at the threshold too, as its published code does
ESTIMATED_METRICS = (
    "acceptance_rate", "draft_efficiency", "mean_acceptance_length", "accepted_length", "drafter_share",
    "tokens_per_second", "speedup",
)  # fmt: skip


@dataclass(frozen=True)
class SettingEstimate:
    """The estimate for a setting that was not run. `num_exact` of its `num_steps` steps are exact: a real run makes the
    same steps. All seconds are modelled. Intervals are over prompts; they say nothing about the estimate's error."""

    threshold: float
    num_draft_tokens: int
    num_steps: int
    num_exact: int
    metrics: Mapping[str, Metric]
    replays: Sequence[Sequence[ReplayedStep]]  # by record
    generations: Sequence[Generation]  # the same steps in the layout of records

    def as_json(self) -> dict[str, Any]:
        return {
            "threshold": self.threshold, "num_draft_tokens": self.num_draft_tokens, "estimate": True,
            "num_steps": self.num_steps, "num_exact_steps": self.num_exact,
            "metrics": dumped(self.metrics, ESTIMATED_METRICS),
        }  # fmt: skip


@dataclass(frozen=True)
class Recording:
    """A measured run with the divergences of all drafted positions. It can be replayed at other settings."""

    records: Sequence[Record]
    method: str
    generations: Sequence[RecordedGeneration]
    costs: StepCosts
    inclusive: bool
    seed: int

    @classmethod
    def of(cls, measured: TrialRun, method: str) -> "Recording":
        """Raises ConfigError for a run that was recorded without evidence."""
        spec = measured.method(method)
        cells = {(cell.task.name, cell.subset): cell for cell in measured.cells}
        generations = []
        for record in measured.records:
            if KEY not in record["methods"][method]:
                raise ConfigError(f"{measured.folder}: its records hold no divergences: choose another --output")
            generations.append(read_generation(record, spec, cells[record["task"], record["subset"]]))
        costs = StepCosts.of(measured.records, method)
        inclusive = spec.verification.options["divergence"] == INCLUSIVE
        return cls(measured.records, method, generations, costs, inclusive, measured.seed)

    def estimate(self, threshold: float, num_draft_tokens: int) -> SettingEstimate:
        """Returns an estimate of the method at another threshold and at most the recorded draft length."""
        setting = ReplaySetting(threshold, num_draft_tokens, self.inclusive)
        replays = [replay(generation, setting) for generation in self.generations]
        baseline = [record["methods"]["ar"] for record in self.records]
        prompts = Prompts.of(list(self.records), self.seed)
        own = [as_generation(steps, self.seconds(steps)) for steps in replays]
        metrics = {**acceptance(prompts, own, {}), **speeds(prompts, own, baseline, is_baseline=False)}
        num_steps, num_exact = sum(map(len, replays)), sum(step.exact for steps in replays for step in steps)
        return SettingEstimate(threshold, num_draft_tokens, num_steps, num_exact, metrics, replays, own)

    def seconds(self, steps: Sequence[ReplayedStep]) -> float:
        """Returns the modelled seconds of a replayed generation, without its first token."""
        return sum(self.costs.step_seconds(step.num_drafted) for step in steps)


def read_generation(record: Record, method: MethodSpec, cell: Cell) -> RecordedGeneration:
    """Returns a method's generation in a record, with its limits."""
    generation = record["methods"][method.name]
    decoder = next(decoder for decoder in cell.decoders if decoder.method.name == method.name)
    room = [cell.task.generation.max_new_tokens]
    if cell.context_limit is not None:
        room.append(cell.context_limit - record["prompt_tokens"])
    assert isinstance(decoder, DraftingDecoder)
    drafts = decoder.drafter.sampling or decoder.sampling
    return RecordedGeneration(
        recorded_steps(generation), len(generation["token_ids"]), min(room), decoder.model.eos_token_ids,
        method.num_draft_tokens, decoder.sampling.greedy, drafts.greedy,
    )  # fmt: skip


def as_generation(steps: Sequence[ReplayedStep], seconds: float) -> Generation:
    """Returns replayed steps in the layout of a record's generation: their counts and modelled seconds."""
    counts = [[step.num_drafted, step.num_judged, step.num_accepted, step.num_emitted] for step in steps]
    num_tokens = 1 + sum(step.num_emitted for step in steps)  # one is from the prefill
    return {"steps": counts, "token_ids": range(num_tokens), "positions": {}, "ttft_seconds": None,
            "decode_seconds": seconds}  # fmt: skip


@dataclass(frozen=True)
class EstimateCheck:
    """An estimate and the real run at its setting. `num_confirmed`: how many of the exact steps are in that run."""

    estimate: SettingEstimate
    run: TrialRun
    method: str
    errors: Mapping[str, Metric]
    num_confirmed: int

    @cached_property
    def metrics(self) -> dict[str, Metric]:
        return self.run.metrics(self.method)

    def as_json(self) -> dict[str, Any]:
        return {
            "threshold": self.estimate.threshold, "num_draft_tokens": self.estimate.num_draft_tokens,
            "estimate": False, "folder": str(self.run.folder),
            "num_exact_steps": self.estimate.num_exact, "num_exact_steps_confirmed": self.num_confirmed,
            "metrics": shown_metrics(self.metrics, self.run.quality),
            "estimate_over_measured_minus_1": dumped(self.errors, self.errors),
        }  # fmt: skip


def check_estimate(recording: Recording, estimate: SettingEstimate, run: TrialRun, method: str) -> EstimateCheck:
    """Compares an estimate with a run on the same prompts. Its errors are estimated ÷ measured − 1 for τ and for the
    speed-up, with intervals over prompts.

    Each speed-up is over the AR of its own run, so that a slower machine during one run is not an error of the
    estimate.
    """
    by_key = {record_key(record): record["methods"][method] for record in run.records}
    replayed, real = estimate.generations, [by_key[record_key(record)] for record in recording.records]
    # AR's seconds per token while recording ÷ those in the real run, without an interval.
    busier = _ar_seconds(recording.records) / _ar_seconds(run.records)
    prompts = Prompts.of(list(recording.records), recording.seed)
    emitted, real_emitted = ([step_sum(g, EMITTED) for g in each] for each in (replayed, real))
    num_steps, real_num_steps = ([len(g["steps"]) for g in each] for each in (replayed, real))
    seconds, real_seconds = [g["decode_seconds"] / busier for g in replayed], [g["decode_seconds"] for g in real]
    errors = {
        "mean_acceptance_length": _minus_one(prompts.ratio(emitted, num_steps, real_emitted, real_num_steps)),
        "speedup": _minus_one(prompts.ratio(emitted, seconds, real_emitted, real_seconds)),
    }
    num_confirmed = sum(count_confirmed(steps, g) for steps, g in zip(estimate.replays, real, strict=True))
    return EstimateCheck(estimate, run, method, errors, num_confirmed)


def count_confirmed(steps: Sequence[ReplayedStep], generation: Generation) -> int:
    """Returns how many of the exact steps occurred in the real generation.

    All of them occur, unless a model's output depends on the length of its passes, or a draft on where its step began.
    """
    pairs = zip(steps, generation["steps"], strict=False)
    return sum(
        replayed.exact and (replayed.num_judged, replayed.num_accepted, replayed.num_emitted)
        == (real[JUDGED], real[ACCEPTED], real[EMITTED])
        for replayed, real in pairs
    )  # fmt: skip


def _ar_seconds(records: Sequence[dict[str, Any]]) -> float:
    """Returns AR's seconds per token."""
    generations = [record["methods"]["ar"] for record in records]
    num_tokens = sum(step_sum(g, EMITTED) for g in generations)
    return sum(float(g["decode_seconds"]) for g in generations) / num_tokens if num_tokens else 1.0


def _minus_one(metric: Metric) -> Metric:
    return Metric(**{key: None if value is None else value - 1 for key, value in metric.model_dump().items()})


@dataclass(frozen=True)
class OnePassSweep:
    """One recorded run, the estimates made from it, and their checks by real runs."""

    recorded_at: MethodSpec
    run: TrialRun
    estimates: Sequence[SettingEstimate]
    checks: Sequence[EstimateCheck]

    def as_json(self) -> dict[str, Any]:
        return {
            "recorded": {
                "threshold": self.recorded_at.verification.options["threshold"],
                "num_draft_tokens": self.recorded_at.num_draft_tokens, "folder": str(self.run.folder),
            },
            "estimates": [estimate.as_json() for estimate in self.estimates],
            "measured": [check.as_json() for check in self.checks],
        }  # fmt: skip
