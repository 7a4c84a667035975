"""Estimates beside real runs at the same settings: how far they are off."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from specbench.results.bootstrap import Metric, Prompts
from specbench.running.record_check import ACCEPTED, EMITTED, JUDGED, step_sum
from specbench.running.records import Generation
from specbench.running.run_folder import record_key
from specbench.tuning.estimates import Estimate, Recording, total
from specbench.tuning.trials import Measured
from specbench.tuning.walk import WalkedStep

SHOWN = ("acceptance_rate", "mean_acceptance_length", "drafter_share", "tokens_per_second_ar", "tokens_per_second",
         "speedup")  # fmt: skip
Pair = tuple[Sequence[WalkedStep], Generation]


@dataclass(frozen=True)
class Check:
    """An estimate beside the real run at its setting; `num_confirmed` of its exact steps are in that run."""

    estimate: Estimate
    run: Measured
    metrics: Mapping[str, Metric]
    errors: Mapping[str, Metric]
    num_confirmed: int

    def as_json(self) -> dict[str, Any]:
        return {
            "threshold": self.estimate.threshold, "num_draft_tokens": self.estimate.num_draft_tokens,
            "estimate": False, "folder": str(self.run.folder),
            "num_exact_steps": self.estimate.num_exact, "num_exact_steps_confirmed": self.num_confirmed,
            "metrics": shown_metrics(self.metrics, self.run.quality),
            "estimate_over_measured_minus_1": {name: error.model_dump() for name, error in self.errors.items()},
        }  # fmt: skip


def shown_metrics(metrics: Mapping[str, Metric], quality: str | None) -> dict[str, Any]:
    """What is kept of a real run: speeds, acceptance, and the score that stands for quality."""
    names = [*SHOWN, *([f"{quality}_ar", quality] if quality else [])]
    return {name: metrics[name].model_dump() for name in names}


def check_of(recording: Recording, estimate: Estimate, run: Measured, method: str) -> Check:
    """The check of an estimate by a run of the same prompts."""
    real = {record_key(record): record["methods"][method] for record in run.records}
    pairs = [(steps, real[record_key(record)]) for record, steps in zip(recording.records, estimate.walks, strict=True)]
    found = errors(recording, pairs, busier=_ar_seconds(recording.records) / _ar_seconds(run.records))
    num_confirmed = sum(agreeing(steps, generation) for steps, generation in pairs)
    return Check(estimate, run, run.metrics(method), found, num_confirmed)


def errors(recording: Recording, pairs: Sequence[Pair], busier: float) -> dict[str, Metric]:
    """Estimated over measured, minus one, of τ and of the speed-up, with intervals over the prompts.

    Each speed-up is over the AR of its own run: a machine that was busier in one of them is no error of the estimate.
    `busier` is how much more a token of AR took while recording; it has no interval of its own.
    """
    prompts = Prompts.of(list(recording.records), recording.seed)
    walked, real = [total(steps, "num_emitted") for steps, _ in pairs], [step_sum(g, EMITTED) for _, g in pairs]
    tokens_per_step = prompts.ratio(walked, [len(s) for s, _ in pairs], real, [len(g["steps"]) for _, g in pairs])
    seconds = [recording.seconds(steps) / busier for steps, _ in pairs]
    speed = prompts.ratio(walked, seconds, real, [g["decode_seconds"] for _, g in pairs])
    return {"mean_acceptance_length": _minus_one(tokens_per_step), "speedup": _minus_one(speed)}


def agreeing(steps: Sequence[WalkedStep], generation: Generation) -> int:
    """How many of the exact steps the real generation has made: all, or the models are not what the walk takes them
    for (a draft that hangs on where its step began)."""
    pairs = zip(steps, generation["steps"], strict=False)
    return sum(
        walked.exact and (walked.num_judged, walked.num_accepted, walked.num_emitted)
        == (real[JUDGED], real[ACCEPTED], real[EMITTED])
        for walked, real in pairs
    )  # fmt: skip


def _ar_seconds(records: Sequence[dict[str, Any]]) -> float:
    """Seconds of a token of AR."""
    generations = [record["methods"]["ar"] for record in records]
    num_tokens = sum(step_sum(g, EMITTED) for g in generations)
    return sum(float(g["decode_seconds"]) for g in generations) / num_tokens if num_tokens else 1.0


def _minus_one(metric: Metric) -> Metric:
    return Metric(**{key: None if value is None else value - 1 for key, value in metric.model_dump().items()})
