"""One recorded run → what every threshold and every shorter draft length would do: estimates, and how far they err."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from specbench.errors import ConfigError
from specbench.results.bootstrap import SHARE, Metric, Prompts
from specbench.running.plan import Cell
from specbench.running.record_check import EMITTED, step_sum
from specbench.running.records import Generation, Record
from specbench.specs import MethodSpec
from specbench.tuning.costs import StepCosts
from specbench.tuning.evidence import KEY, windows
from specbench.tuning.trials import Measured
from specbench.tuning.walk import Recorded, Setting, WalkedStep, walk

INCLUSIVE = "js_reference"  # accepts at the threshold too, as its code does


@dataclass(frozen=True)
class Estimate:
    """A setting that was not run. `num_exact` of `num_steps` are exact: a real run makes the same; the seconds are
    modelled throughout. The intervals are of the choice of prompts, not of the estimate's error."""

    threshold: float
    num_draft_tokens: int
    num_steps: int
    num_exact: int
    metrics: Mapping[str, Metric]
    walks: Sequence[Sequence[WalkedStep]]  # by record

    def as_json(self) -> dict[str, Any]:
        return {
            "threshold": self.threshold, "num_draft_tokens": self.num_draft_tokens, "estimate": True,
            "num_steps": self.num_steps, "num_exact_steps": self.num_exact,
            "metrics": {name: metric.model_dump() for name, metric in self.metrics.items()},
        }  # fmt: skip


@dataclass(frozen=True)
class Recording:
    """A measured run with the evidence of all drafted positions, ready to be walked at other settings."""

    records: Sequence[Record]
    method: str
    generations: Sequence[Recorded]
    costs: StepCosts
    inclusive: bool
    seed: int

    @classmethod
    def of(cls, measured: Measured, method: str) -> "Recording":
        """Raises ConfigError for a run that was recorded without the evidence."""
        spec = measured.method(method)
        cells = {(cell.task.name, cell.subset): cell for cell in measured.cells}
        generations = []
        for record in measured.records:
            if KEY not in record["methods"][method]:
                raise ConfigError(f"{measured.folder}: its records hold no divergences: choose another --output")
            generations.append(recorded(record, spec, cells[record["task"], record["subset"]]))
        costs = StepCosts.of(measured.records, method)
        inclusive = spec.verification.options["divergence"] == INCLUSIVE
        return cls(measured.records, method, generations, costs, inclusive, measured.seed)

    def estimate(self, threshold: float, num_draft_tokens: int) -> Estimate:
        """What the method would do at another threshold and at most the recorded draft length."""
        setting = Setting(threshold, num_draft_tokens, self.inclusive)
        walks = [walk(generation, setting) for generation in self.generations]
        baseline = [record["methods"]["ar"] for record in self.records]
        prompts = Prompts.of(list(self.records), self.seed)
        steps = [step for each in walks for step in each]
        return Estimate(
            threshold, num_draft_tokens, len(steps), sum(step.exact for step in steps),
            _metrics(prompts, walks, [self.seconds(each) for each in walks], baseline), walks,
        )  # fmt: skip

    def seconds(self, steps: Sequence[WalkedStep]) -> float:
        """The modelled seconds of a walked generation, its first token not counted."""
        return sum(self.costs.step_seconds(step.num_drafted) for step in steps)


def recorded(record: Record, method: MethodSpec, cell: Cell) -> Recorded:
    """One generation of a record, with what bounds it."""
    generation = record["methods"][method.name]
    decoder = next(decoder for decoder in cell.decoders if decoder.method.name == method.name)
    room = [cell.task.generation.max_new_tokens]
    if cell.context_limit is not None:
        room.append(cell.context_limit - record["prompt_tokens"])
    drafts = getattr(decoder.drafter, "sampling", decoder.sampling)
    return Recorded(
        windows(generation), len(generation["token_ids"]), min(room), decoder.model.eos_token_ids,
        method.num_draft_tokens, decoder.sampling.greedy, drafts.greedy,
    )  # fmt: skip


def _metrics(
    prompts: Prompts, walks: Sequence[Sequence[WalkedStep]], seconds: Sequence[float], baseline: Sequence[Generation]
) -> dict[str, Metric]:
    drafted, judged, accepted, emitted = (
        [total(steps, f"num_{count}") for steps in walks] for count in ("drafted", "judged", "accepted", "emitted")
    )
    speeds = emitted, seconds, [step_sum(g, EMITTED) for g in baseline], [g["decode_seconds"] for g in baseline]
    return {
        "acceptance_rate": prompts.mean([a / j if j else None for a, j in zip(accepted, judged, strict=True)], SHARE),
        "draft_efficiency": prompts.mean([a / d if d else None for a, d in zip(accepted, drafted, strict=True)], SHARE),
        "mean_acceptance_length": prompts.ratio(emitted, [len(steps) for steps in walks]),
        "accepted_length": prompts.ratio(accepted, [len(steps) for steps in walks]),
        "drafter_share": prompts.ratio(accepted, [e + 1 for e in emitted], bounds=SHARE),
        "tokens_per_second": prompts.ratio(speeds[0], speeds[1]),
        "speedup": prompts.ratio(*speeds),
    }


def total(steps: Sequence[WalkedStep], count: str) -> int:
    return sum(int(getattr(step, count)) for step in steps)
